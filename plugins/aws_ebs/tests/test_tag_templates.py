"""Templates in tags, as classes of the official driver have them. Expected values are what Go's text/template gives."""

from __future__ import annotations

import pytest

from volplane_aws_ebs.tag_templates import TemplateError, parsed

FIELDS = {"PVCNamespace": "ns-prod-abcdef", "PVCName": "ebs-claim", "PVName": "pvc-1"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("hello world", "hello world"),
        ("a } b { c", "a } b { c"),
        ("{{ .PVCNamespace }}", "ns-prod-abcdef"),
        ("{{.PVCNamespace}}/{{.PVCName}}", "ns-prod-abcdef/ebs-claim"),
        ('{{ .PVCNamespace | contains "prod" }}', "true"),
        ('{{ contains "dev" .PVCNamespace }}', "false"),
        ('{{ .PVCNamespace | field "-" 2 | toUpper }}', "ABCDEF"),
        ("{{ .PVCNamespace | substring 3 7 }}", "prod"),
        ("{{ .PVCNamespace | substring -1 2 }}", "ns"),
        ("{{ .PVCNamespace | substring 8 -1 }}", "abcdef"),
        ("{{ .PVCNamespace | substring 8 99 }}", "abcdef"),
        ('{{ "ABC" | toLower }}{{ `x"y` }}', 'abcx"y'),
        ('{{ .PVCName | index "-" }} {{ .PVCNamespace | lastIndex "-" }} {{ index "?" .PVName }}', "3 7 -1"),
        ('{{ if contains "prod" .PVCNamespace }}high{{ else }}low{{ end }}', "high"),
        ('{{ if eq .PVName "x" }}1{{ else if eq .PVName "pvc-1" }}2{{ else }}3{{ end }}', "2"),
        ("{{ if and (eq 1 1) (not (gt (len .PVName) 9)) }}short{{ end }}", "short"),
        ('{{ or "" .PVName }}', "pvc-1"),
        ('{{ printf "%s has %d, %q, 100%%" .PVName 5 "x" }}', 'pvc-1 has 5, "x", 100%'),
        ("{{/* a remark */}}a {{- .PVName -}} b", "apvc-1b"),
        ('{{ "}}" }}', "}}"),
    ],
)
def test_templates_are_filled_in_as_go_does(text: str, shown: str) -> None:
    assert parsed(text)(FIELDS) == shown


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{{ .PVCName", "not closed"),
        ('{{ "x }}', "not closed"),
        ("{{ }}", "a value is missing"),
        ("{{ .pvcname }}", "there is no .pvcname, but .PVCNamespace, .PVCName, .PVName"),
        ("{{ .PVCName.Length }}", "not understood|takes no arguments|there is no"),
        ("{{ html .PVCName }}", "the function html cannot be called"),
        ("{{ call .PVName }}", "cannot be called"),
        ("{{ range .PVCName }}x{{ end }}", "there is no function range"),
        ("{{ .PVCName | field 1 }}", "takes 3 arguments, not 2"),
        ("{{ if .PVName }}x", r"no \{\{end\}\}"),
        ("x{{ end }}", r"no \{\{if\}\}"),
        ("{{ (.PVName }}", "not closed"),
        ("{{ .PVName ) }}", r"unexpected '\)'"),
        ("{{ " + "(" * 50 + ".PVName" + ")" * 50 + " }}", "levels"),
        ("{{ $x := 1 }}", "not understood"),
    ],
)
def test_what_is_no_template_is_refused_when_the_class_is_read(text: str, told: str) -> None:
    with pytest.raises(TemplateError, match=told):
        parsed(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{{ .PVCName | field "-" 7 }}', "has 2 parts between '-', so none of index 7"),
        ('{{ field 1 2 "x" }}', "takes no int"),
        ("{{ substring 9 3 .PVName }}", "has no characters"),
        ('{{ eq 1 "1" }}', "different types"),
        ('{{ printf "%x" 1 }}', "not understood"),
        ('{{ printf "x" 1 }}', "too many"),
    ],
)
def test_what_does_not_fit_the_names_is_refused_when_it_is_filled_in(text: str, told: str) -> None:
    with pytest.raises(TemplateError, match=told):
        parsed(text)(FIELDS)
