"""The reference defines every public name, and every name of ours that a documented signature uses."""

import importlib
import re

import pytest
from tools.reference import pages
from tools.reference_definitions import Index, definition_of
from tools.reference_docstrings import parameter_table
from tools.reference_names import Name, closure, definition, exported, names_in, types_of

from volplane import Parameter, ParameterSchema

PAGES = {
    "volplane": ("hooks.md", "errors.md"),
    "volplane.errors": ("errors.md",),
    "volplane_testing": ("testing.md", "conformance.md"),
    "volplane.cloud": ("cloud.md",),
    "volplane.directory": ("directory.md",),
    "volplane_testing.cloud": ("cloud_testing.md",),
    "volplane_hostpath.testing": ("hostpath_testing.md",),
    "volplane_gce_pd.testing": ("gce_pd_testing.md",),
    "volplane_aws_ebs.testing": ("aws_ebs_testing.md", "cloud_testing.md"),
    "volplane_nfs.testing": ("nfs_testing.md",),
    "volplane_csi.testing": ("csi_testing.md", "cloud_testing.md"),
    "volplane_nfs.nfs4": ("nfs_client.md", "nfs_testing.md"),
}


def headings(*names: str) -> list[str]:
    text = "\n".join(pages()[f"reference/{page}"] for page in names)
    return re.findall(r"^#{2,3} (\w+)$", text, re.MULTILINE)


@pytest.mark.parametrize("module", PAGES)
def test_every_exported_name_is_defined_once_on_its_page(module: str) -> None:
    found = headings(*PAGES[module])
    names = getattr(importlib.import_module(module), "__all__", None) or [name.name for name in exported(module)]
    assert names
    assert {name: found.count(name) for name in names if found.count(name) != 1} == {}


def test_every_name_that_a_documented_signature_uses_is_defined_somewhere() -> None:
    found = headings(*(page for names in PAGES.values() for page in names))
    public = [name for module in PAGES for name in exported(module)]
    every = {*public, *closure(public)}
    used = {
        each
        for name in every
        for annotation in types_of(definition(name), constructed=name in public)
        for each in names_in(name.module, annotation)
    }
    assert Name("volplane.assets", "Segment") in used
    assert sorted(str(name) for name in used if name.name not in found) == []


def test_a_name_that_no_page_defines_stops_the_writing() -> None:
    report = next(name for name in exported("volplane_testing") if name.name == "Report")
    with pytest.raises(SystemExit, match=r"\.RuleResult, which no page of the reference defines"):
        list(definition_of(report, "testing.md", Index({"testing.md": [report]}), level=2))


def test_two_definitions_with_one_anchor_are_refused() -> None:
    with pytest.raises(SystemExit, match=r"testing\.md would define twice: volume"):
        Index({"testing.md": [Name("here", "Volume"), Name("there", "volume")]})


def test_every_definition_says_something_in_words() -> None:
    silent = []
    for page in {page for names in PAGES.values() for page in names}:
        parts = re.split(r"^#{2,3} (\w+)\n", pages()[f"reference/{page}"], flags=re.MULTILINE)
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            # Without tables, signatures, the line that names a base class, and what is said of single parts.
            words = re.sub(r"^\|.*\|$|^`(?:async )?\w+(?:\(| = |: ).*$|^\*.*\*$|^- .*$", "", text, flags=re.MULTILINE)
            if len(words.strip()) < 8:
                silent.append((page, name))
    assert silent == []


def test_parameters_are_a_table() -> None:
    parameter = Parameter(name="key", doc="A key.", pattern="a|b", default="a")
    assert parameter_table(ParameterSchema()) == "None.\n"
    assert parameter_table(ParameterSchema(parameters=(parameter,))) == (
        "| name | value | default | |\n|---|---|---|---|\n| `key` | text that matches `a\\|b` | `a` | A key. |\n"
    )
