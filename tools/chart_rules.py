"""Write deploy/chart/files/rules.yaml: the controllers and the rights that each needs, from the code.

python -m tools.chart_rules

The rest of the chart is written by hand. A test says when the file is not what the code says.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from volplane.cli.installation import cluster_rules, namespace_rules, node_cluster_rules
from volplane.controller.controller import Rule
from volplane.process.duties import ALL_CONTROLLERS, NODE_CONTROLLERS

__all__ = ["FILE", "content"]

FILE: Final = Path(__file__).resolve().parent.parent / "deploy" / "chart" / "files" / "rules.yaml"
NAMESPACE: Final = "{{ .Release.Namespace }}"
HEAD: Final = """\
# The controllers, and the rights that each needs in the cluster and in the namespace of the release. `make chart`
# writes this from the code. publishing: only where the capacity of a driver is published. Helm evaluates expressions.
"""
_Right = tuple[str, str, tuple[str, ...], str]


def content() -> str:
    """Return the file."""
    lines = [HEAD.rstrip(), f"controllers: {json.dumps(ALL_CONTROLLERS)}", "cluster:"]
    always = _rights(cluster_rules((), NAMESPACE))
    lines += _part(always)
    for name in ALL_CONTROLLERS:
        plain = _rights(cluster_rules((name,), NAMESPACE))
        publishing = _rights(cluster_rules((name,), NAMESPACE, distributed=True))
        lines += [*_part(plain - always, name), *_part(publishing - plain, name, publishing=True)]
    lines.append("namespace:")
    always = _rights(namespace_rules(()))
    lines += _part(always)
    for name in ALL_CONTROLLERS:
        plain = _rights(namespace_rules((name,)))
        publishing = _rights(namespace_rules((name,), publishing=True))
        lines += [*_part(plain - always, name), *_part(publishing - plain, name, publishing=True)]
    lines += ["nodeCluster:", *_part(_rights(node_cluster_rules(NAMESPACE)))]
    lines += ["nodeNamespace:", *_part(_rights(namespace_rules(NODE_CONTROLLERS, leases=(), publishing=True)))]
    return "\n".join((*lines, ""))


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
    """Write the file."""
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(content(), "utf-8")
    print(f"written: {FILE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
