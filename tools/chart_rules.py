"""Write deploy/chart/files: the controllers and the rights that each needs, and the admission policy, from the code.

python -m tools.chart_rules

The rest of the chart is written by hand. A test says when a file is not what the code says.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import yaml

from volplane.cli.installation import KEY_RULES, cluster_rules, namespace_rules, node_policy, node_rules
from volplane.cli.manifests import Dumper
from volplane.controller.controller import Rule
from volplane.process.duties import ALL_CONTROLLERS
from volplane.state.naming import nodes_namespace

__all__ = ["FILE", "POLICY", "content", "policy"]

FILE: Final = Path(__file__).resolve().parent.parent / "deploy" / "chart" / "files" / "rules.yaml"
POLICY: Final = FILE.with_name("policy.yaml")
NAMESPACE: Final = "{{ .Release.Namespace }}"
HEAD: Final = """\
# The controllers, and the rights that each needs in the cluster and in the namespace of the release. `make chart`
# writes this from the code. publishing: only where the capacity of a driver is published. Helm evaluates expressions.
"""
_Right = tuple[str, str, tuple[str, ...], str]


def content() -> str:
    """Return the file of rights."""
    lines = [HEAD.rstrip(), f"controllers: {json.dumps(ALL_CONTROLLERS)}", "cluster:"]
    always = _rights(cluster_rules((), NAMESPACE))
    more = _rights(cluster_rules((), NAMESPACE, distributed=True))
    lines += [*_part(always), *_part(more - always, publishing=True)]
    for name in ALL_CONTROLLERS:
        plain = _rights(cluster_rules((name,), NAMESPACE))
        publishing = _rights(cluster_rules((name,), NAMESPACE, distributed=True)) - more
        lines += [*_part(plain - always, name), *_part(publishing - plain, name, publishing=True)]
    lines.append("namespace:")
    always = _rights(namespace_rules(()))
    lines += _part(always)
    for name in ALL_CONTROLLERS:
        plain = _rights(namespace_rules((name,)))
        publishing = _rights(namespace_rules((name,), publishing=True))
        lines += [*_part(plain - always, name), *_part(publishing - plain, name, publishing=True)]
    nodes = node_rules(NAMESPACE)
    lines += ["nodeCluster:", *_part(_rights(nodes[""]))]
    lines += ["nodeInRelease:", *_part(_rights(nodes[NAMESPACE]))]
    lines += ["nodeNamespace:", *_part(_rights(nodes[nodes_namespace(NAMESPACE)]))]
    lines += ["keyOfNodes:", *_part(_rights(KEY_RULES))]
    return "\n".join((*lines, ""))


def policy() -> str:
    """Return the file of the admission policy."""
    name = '{{ include "volplane.nameOutside" (list . "volplane-node") }}'
    objects = node_policy(nodes_namespace(NAMESPACE), '{{ include "volplane.ofNodes" . }}', name)
    text: str = yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, explicit_start=True, width=120)
    return f"# `make chart` writes this from the code. Helm evaluates expressions.\n{text}"


def _rights(rules: Iterable[Rule]) -> set[_Right]:
    return {(rule.group, rule.resource, rule.names, verb) for rule in rules for verb in rule.verbs}


def _part(rights: set[_Right], controller: str = "", *, publishing: bool = False) -> Iterator[str]:
    """Yield the lines of the rules of a controller, or of all."""
    if not rights:
        return
    yield f"  - controller: {json.dumps(controller)}"
    if publishing:
        yield "    publishing: true"
    yield "    rules:"
    for group, resource, named in sorted({right[:3] for right in rights}):
        verbs = sorted(verb for *of, verb in rights if tuple(of) == (group, resource, named))
        names = f", resourceNames: {json.dumps(named)}" if named else ""
        rule = f"apiGroups: {json.dumps([group])}, resources: {json.dumps([resource])}, verbs: {json.dumps(verbs)}"
        yield f"      - {{{rule}{names}}}"


def main() -> int:
    """Write the files."""
    FILE.parent.mkdir(exist_ok=True)
    for path, text in ((FILE, content()), (POLICY, policy())):
        path.write_text(text, "utf-8")
        print(f"written: {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
