"""The templates of the chart, made of the objects of `volplane.cli.installation`.

The functions that make an object for the plain manifests make it here of expressions of Helm instead of values. Where
an object depends on a choice it is made both ways, and a condition stands where the two differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from volplane.cli import installation as plain
from volplane.cli.rbac import Rule, cluster_rules, namespace_rules, node_cluster_rules
from volplane.process.duties import ALL_CONTROLLERS, NODE_CONTROLLERS

__all__ = ["templates"]

HEAD: Final = "{{/* Written by tools/chart from the code of `volplane manifests`; `make chart` writes it anew. */}}"
NAMESPACE: Final = "{{ .Release.Namespace }}"
IMAGE: Final = '{{ include "volplane.image" . }}'
OPTION: Final = '{{ join "," .Values.controllers }}'
CHECKSUM: Final = '{{ include "volplane.configuration" . | sha256sum }}'
DISTRIBUTED: Final = '(include "volplane.distributed" .)'
PUBLISHING: Final = '(include "volplane.publishing" .)'
ROOT: Final = "and .Values.asRoot .Values.mounts"
CONTROLLERS: Final = '(include "volplane.controllers" . | fromJsonArray)'
SECRETS: Final = "@secrets"
Json = dict[str, Any]


@dataclass(frozen=True)
class Choice:
    """One of two values. None: the key is left out."""

    condition: str
    then: Any
    otherwise: Any


@dataclass(frozen=True)
class Block:
    """The YAML of an expression. optional: nothing, with its key, where the expression is empty."""

    expression: str
    optional: bool = False


@dataclass(frozen=True)
class Number:
    """An expression that is no text."""

    expression: str


@dataclass(frozen=True)
class Rules:
    """Rules of a role: (condition, rules), "" = always."""

    blocks: tuple[tuple[str, tuple[Rule, ...]], ...]


def templates() -> dict[str, str]:
    """File name -> text."""
    files = {
        "_volplane.tpl": _definitions(),
        "rbac.yaml": _rbac(),
        "configuration.yaml": _file(plain.configuration_map(NAMESPACE, '{{ include "volplane.configuration" . }}')),
        "networkpolicy.yaml": _file(*plain.network_policies(NAMESPACE), condition=".Values.networkPolicies"),
        "resourcequota.yaml": _file(plain.quota(NAMESPACE)),
        "poddisruptionbudget.yaml": _file(plain.disruption_budget(NAMESPACE), condition="gt (int .Values.replicas) 1"),
        "podmonitor.yaml": _file(plain.pod_monitor(NAMESPACE), condition=".Values.monitoring"),
        "deployment.yaml": _file(_deployment()),
        "daemonset.yaml": _file(_daemon_set(), condition=DISTRIBUTED),
        "storageclasses.yaml": _storage_classes(),
    }
    return {name: f"{HEAD}\n{text}" for name, text in files.items()}


def _deployment() -> Json:
    container = plain.central_container(NAMESPACE, IMAGE, OPTION)
    made = _with_and_without(
        f"and (not {DISTRIBUTED}) .Values.asRoot .Values.mounts",
        lambda storage: plain.deployment(NAMESPACE, container, CHECKSUM, 1, storage),
    )
    made["spec"]["replicas"] = Number(".Values.replicas")
    return _adapted(made, ".Values", f"not {DISTRIBUTED}")


def _daemon_set() -> Json:
    container = plain.node_container(NAMESPACE, IMAGE)
    made = _with_and_without(ROOT, lambda storage: plain.daemon_set(NAMESPACE, container, CHECKSUM, storage))
    return _adapted(made, ".Values.node")


def _with_and_without(root: str, make: Callable[[plain.Storage], Json]) -> Json:
    """With what differs for root as a condition. Mounts are left to `_adapted`: there are as many as values."""
    one = ["/mnt"]
    return dict(_chosen(root, make(plain.Storage(one, as_root=True)), make(plain.Storage(one, as_root=False))))


def _adapted(made: Json, places: str, mounting: str = "") -> Json:
    """With the values that only the chart has, and mounts in place of the one that stands for them.

    mounting: the condition under which there are any; "" = none.
    """
    pod = made["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    container["imagePullPolicy"] = "{{ .Values.image.pullPolicy }}"
    container["resources"] = Block(".Values.resources")
    for owner, key, of in ((pod, "volumes", "hostPath"), (container, "volumeMounts", "mountPropagation")):
        mounts = Block(f'include "volplane.{key}" .')
        fixed = [each for each in owner[key] if of not in each]
        owner[key] = [*fixed, Choice(mounting, mounts, None) if mounting else mounts]
    pod["imagePullSecrets"] = Block(".Values.imagePullSecrets", optional=True)
    pod["nodeSelector"] = Block(f"{places}.nodeSelector", optional=True)
    pod["tolerations"] = Block(f"{places}.tolerations", optional=True)
    return made


def _chosen(condition: str, then: Any, otherwise: Any) -> Any:
    """Both trees in one, with a condition where they differ."""
    if then == otherwise:
        return then
    if isinstance(then, Mapping) and isinstance(otherwise, Mapping):
        keys = dict.fromkeys((*then, *otherwise))
        return {key: _chosen(condition, then.get(key), otherwise.get(key)) for key in keys}
    if isinstance(then, list) and isinstance(otherwise, list) and len(then) == len(otherwise):
        return [_chosen(condition, one, other) for one, other in zip(then, otherwise, strict=True)]
    return Choice(condition, then, otherwise)


def _rbac() -> str:
    everywhere = _by_controller(lambda chosen, publishing: cluster_rules(chosen, NAMESPACE, distributed=publishing))
    here = _by_controller(lambda chosen, publishing: namespace_rules(chosen, [SECRETS], publishing=publishing))
    of_nodes = Rules((("", tuple(node_cluster_rules(NAMESPACE))),))
    of_node = Rules((("", tuple(namespace_rules(NODE_CONTROLLERS, [SECRETS], leases=(), publishing=True))),))
    return _file(*_account(plain.NAME, everywhere, here)) + _file(
        *_account(plain.NODE_NAME, of_nodes, of_node), condition=DISTRIBUTED
    )


def _by_controller(rules: Callable[[tuple[str, ...], bool], Iterable[Rule]]) -> Rules:
    """Which rules there are for which controllers: a controller adds its own whatever others there are."""
    always = _granted(rules((), False))
    blocks = [("", always)]
    for controller in ALL_CONTROLLERS:
        own = _granted(rules((controller,), False)) - always
        publishing = _granted(rules((controller,), True)) - own - always
        has = f'has "{controller}" {CONTROLLERS}'
        blocks += [(has, own), (f"and {PUBLISHING} ({has})", publishing)]
    return Rules(tuple((condition, _as_rules(granted)) for condition, granted in blocks if granted))


Granted = set[tuple[str, str, tuple[str, ...], str]]


def _granted(rules: Iterable[Rule]) -> Granted:
    return {(rule.group, rule.resource, rule.names, verb) for rule in rules for verb in rule.verbs}


def _as_rules(granted: Granted) -> tuple[Rule, ...]:
    kinds = sorted({(group, resource, names) for group, resource, names, _ in granted})
    return tuple(
        Rule(
            group,
            resource,
            tuple(sorted(verb for *of, verb in granted if tuple(of) == (group, resource, names))),
            names,
        )
        for group, resource, names in kinds
    )


def _account(name: str, everywhere: Rules, here: Rules) -> Iterator[Json]:
    service_account, *_ = plain.account(name, NAMESPACE, [], [], {})
    yield service_account
    yield from plain.role("ClusterRole", name, "", everywhere, NAMESPACE)
    yield from plain.role("Role", name, NAMESPACE, here, NAMESPACE)
    others = Rules((("", (Rule("", "secrets", ("get",), (SECRETS,)),)),))
    yield from (_Elsewhere(each) for each in plain.role("Role", name, "{{ $place }}", others, NAMESPACE))


class _Elsewhere(dict[str, Any]):
    """An object that is there once for each other namespace with Secrets that options name."""


def _storage_classes() -> str:
    made = plain.storage_class("{{ $name }}", "{{ .name }}")
    per_driver = "\n".join(
        (
            "{{- if .Values.storageClasses.perDriver }}",
            "{{- $firsts := list }}",
            '{{- range .Values.config.drivers }}{{ $firsts = append $firsts (first (splitList "." .name)) }}{{ end }}',
            "{{- range .Values.config.drivers }}",
            '{{- $name := first (splitList "." .name) }}',
            "{{- $count := 0 }}{{ range $firsts }}{{ if eq . $name }}{{ $count = add1 $count }}{{ end }}{{ end }}",
            "{{- if gt (int $count) 1 }}{{ $name = .name }}{{ end }}",
            "---",
            *_lines(made, 0),
            "{{- end }}",
            "{{- end }}",
        )
    )
    more = {"apiVersion": made["apiVersion"], "kind": made["kind"]}
    more["metadata"] = {
        "name": "{{ .name }}",
        "labels": made["metadata"]["labels"],
        "annotations": Block(".annotations", optional=True),
    }
    return "\n".join(
        (
            per_driver,
            "{{- range .Values.storageClasses.more }}",
            "---",
            *_lines(more, 0),
            '{{ omit . "name" "annotations" | toYaml }}',
            "{{- end }}",
            "",
        )
    )


def _file(*objects: Json, condition: str = "") -> str:
    lines = [f"{{{{- if {condition} }}}}"] if condition else []
    for each in objects:
        made = ["---", *_lines(each, 0)]
        if isinstance(each, _Elsewhere):
            start = '{{- range $place, $names := include "volplane.secrets" . | fromJson }}'
            made = [start, "{{- if ne $place $.Release.Namespace }}", *_of_root(made), "{{- end }}", "{{- end }}"]
        lines += made
    return "\n".join([*lines, *(["{{- end }}"] if condition else []), ""])


def _of_root(lines: list[str]) -> list[str]:
    """Inside a range the dot is another one."""
    return [line.replace("{{ .Release", "{{ $.Release") for line in lines]


def _lines(value: Any, indent: int) -> Iterator[str]:
    """YAML in block style."""
    margin = " " * indent
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _entry(key, each, indent)
    elif isinstance(value, Rules):
        for condition, rules in value.blocks:
            yield from [f"{margin}{{{{- if {condition} }}}}"] if condition else []
            for rule in rules:
                yield from _item({**rule.body(), **_names(rule)}, indent)
            yield from [f"{margin}{{{{- end }}}}"] if condition else []
    else:
        for each in value:
            yield from _item(each, indent)


def _names(rule: Rule) -> Json:
    """The names of a rule; those of the Secrets that options name are put in beside the sealing key."""
    if SECRETS not in rule.names:
        return {}
    others = [name for name in rule.names if name != SECRETS]
    if not others:
        return {"resourceNames": Block("$names")}
    key = json.dumps(others[0])
    ours = '(get (include "volplane.secrets" . | fromJson) .Release.Namespace | default list)'
    return {"resourceNames": Block(f"concat (list {key}) {ours} | uniq | sortAlpha")}


def _entry(key: str, value: Any, indent: int) -> Iterator[str]:
    margin = " " * indent
    if isinstance(value, Choice):
        yield f"{margin}{{{{- if {value.condition} }}}}"
        yield from () if value.then is None else _entry(key, value.then, indent)
        if value.otherwise is not None:
            yield f"{margin}{{{{- else }}}}"
            yield from _entry(key, value.otherwise, indent)
        yield f"{margin}{{{{- end }}}}"
    elif isinstance(value, Block) and value.optional:
        yield f"{margin}{{{{- with {value.expression} }}}}"
        yield f"{margin}{key}: {{{{- toYaml . | nindent {indent + 2} }}}}"
        yield f"{margin}{{{{- end }}}}"
    elif isinstance(value, Block):
        yield f"{margin}{key}: {{{{- {value.expression} | toYaml | nindent {indent + 2} }}}}"
    elif isinstance(value, str) and key == "volplane.yaml":
        yield f"{margin}{key}: |"
        yield f'{margin}  {{{{- include "volplane.configuration" . | nindent {indent + 2} }}}}'
    elif isinstance(value, Mapping | list | Rules) and value:
        yield f"{margin}{key}:"
        yield from _lines(value, indent + 2)
    else:
        yield f"{margin}{key}: {_scalar(value)}"


def _item(value: Any, indent: int) -> Iterator[str]:
    margin = " " * indent
    if isinstance(value, Choice):
        yield f"{margin}{{{{- if {value.condition} }}}}"
        yield from _item(value.then, indent)
        yield f"{margin}{{{{- end }}}}"
    elif isinstance(value, Block):
        yield f"{margin}{{{{- {value.expression} | nindent {indent} }}}}"
    elif isinstance(value, Mapping):
        first, *rest = _lines(value, indent + 2)
        if first.lstrip().startswith("{{"):
            raise ValueError(f"an item may not begin with a condition: {first}")
        yield f"{margin}- {first.lstrip()}"
        yield from rest
    else:
        yield f"{margin}- {_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, Number):
        return f"{{{{ {value.expression} }}}}"
    if isinstance(value, str) and "{{" in value:
        return f"'{value}'"
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z/][-A-Za-z0-9./_]*", value):
        return value
    return json.dumps(value)


def _definitions() -> str:
    """What the templates include."""
    storage = plain.Storage(["{{ $path }}"])
    (volume,), (mount,) = storage.volumes(), storage.volume_mounts()
    every = " ".join(json.dumps(name) for name in ALL_CONTROLLERS)
    named = "\n".join(
        "\n".join(
            (
                f'{{{{- define "volplane.{key}" -}}}}',
                "{{- range $n, $path := .Values.mounts }}",
                *_item({**made, "name": "mount-{{ $n }}"}, 0),
                "{{- end }}",
                "{{- end }}",
            )
        )
        for key, made in (("volumes", volume), ("volumeMounts", mount))
    )
    return _DEFINITIONS.replace("EVERY", every) + named + "\n"


_DEFINITIONS = """\
{{- define "volplane.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- .Values.image.repository }}{{ if hasPrefix "@" $tag }}{{ else }}:{{ end }}{{ $tag -}}
{{- end }}

{{- /* The controllers that run, as JSON. */}}
{{- define "volplane.controllers" -}}
{{- if not (has "all" .Values.controllers) -}}
{{- .Values.controllers | toJson -}}
{{- else if gt (len .Values.controllers) 1 -}}
{{- fail "controllers: all stands alone, or leave it out and name them" -}}
{{- else -}}
{{- list EVERY | toJson -}}
{{- end -}}
{{- end }}

{{- /* The configuration file. */}}
{{- define "volplane.configuration" -}}
{{- toYaml .Values.config }}
{{ end }}

{{- /* Whether some driver has processes of nodes: text or nothing. */}}
{{- define "volplane.distributed" -}}
{{- range .Values.config.drivers }}{{ if .distributed }}yes{{ end }}{{ end -}}
{{- end }}

{{- /* Whether the room of some driver is published: text or nothing. */}}
{{- define "volplane.publishing" -}}
{{- range .Values.config.drivers }}{{ if or .distributed .storageCapacity }}yes{{ end }}{{ end -}}
{{- end }}

{{- /* Namespace -> names of the Secrets that options refer to as secret:NAMESPACE/NAME/KEY, as JSON. */}}
{{- define "volplane.secrets" -}}
{{- $found := dict }}
{{- range concat (.Values.config.drivers | default list) (.Values.config.extensions | default list) }}
{{- range .options }}
{{- $given := "" }}{{ if kindIs "string" . }}{{ $given = trim . }}{{ end }}
{{- if regexMatch "^secret:[a-z0-9][-a-z0-9]*/[a-z0-9][-.a-z0-9]*/[-._A-Za-z0-9]+$" $given }}
{{- $parts := splitList "/" (trimPrefix "secret:" $given) }}
{{- $names := append (get $found (index $parts 0) | default list) (index $parts 1) }}
{{- $_ := set $found (index $parts 0) ($names | uniq | sortAlpha) }}
{{- end }}
{{- end }}
{{- end }}
{{- $found | toJson }}
{{- end }}

{{- /* Directories of the nodes, for pods and for their container. */}}
"""
