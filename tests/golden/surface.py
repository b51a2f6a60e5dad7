"""Names that users depend on, read from the objects that give them: `python -m golden.surface` from tests/ writes
`surface.json`.

A line of text stands for one thing, so that a difference is one line too.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer.main
import yaml
from prometheus_client.parser import text_string_to_metric_families

import volplane
from integration.controller_process import Site, running_process
from volplane.cli.main import COMMANDS, SERVICES, application, main
from volplane.controller.config import Configuration, DriverSettings
from volplane.controller.metrics import Metrics
from volplane.drivers.contract import Plugin
from volplane.errors import ResourceExhausted
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.process.duties import ALL_CONTROLLERS, DEFAULT_CONTROLLERS, NODE_CONTROLLERS
from volplane_embedded.apiserver.certificates import make_certificate, server_context
from volplane_embedded.apiserver.http import serve
from volplane_embedded.apiserver.kubeconfig import write_kubeconfig
from volplane_testing import FailBefore, FaultyBackend, MemoryBackend, MemoryStorage

__all__ = ["FILE", "SECTIONS", "answers"]

FILE = Path(__file__).with_name("surface.json")
CORE = Path(volplane.__file__).parent
DISTRIBUTED = "drivers: [{name: d.example.com, backend: hostpath, distributed: true, options: {root: /srv/volumes}}]\n"
PUBLISHED = (
    "drivers: [{name: d.example.com, backend: hostpath, storageCapacity: true, options: {root: /srv/volumes}}]\n"
)
INSTALLATIONS: Mapping[str, tuple[str, str]] = {
    "whole": ("all", PUBLISHED),
    "beside": (DEFAULT_CONTROLLERS, PUBLISHED),
    "whole, distributed": ("all", DISTRIBUTED),
    "beside, distributed": (DEFAULT_CONTROLLERS, DISTRIBUTED),
}
"""Role -> value of --controllers, configuration."""
KITS = frozenset({"cloud", "directory", "snapshots", "csi"})
"""Packages for authors of plugins."""
QUALIFIED_NAME = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)*\.(io|dev)/[A-Za-z0-9._-]+")
REASON = re.compile(r"[A-Z][a-z]+([A-Z][a-z]+)*")


def metrics() -> list[str]:
    """Return name, type and labels of every metric, those of the cloud kit included."""
    described = Metrics().descriptions
    return sorted(f"{each.type} {each.name}{{{','.join(each.labels)}}}" for each in described)


def controllers() -> dict[str, list[str]]:
    """Return the names that --controllers takes, by the kind of process."""
    return {
        "all": list(ALL_CONTROLLERS),
        "default": DEFAULT_CONTROLLERS.split(","),
        "of a node": list(NODE_CONTROLLERS),
    }


def permissions() -> dict[str, list[str]]:
    """Return the rules of every role that `volplane manifests` prints, by the kind of installation."""
    found = {}
    for name, (chosen, configuration) in INSTALLATIONS.items():
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(configuration)
            file.flush()
            code, text = outcome("manifests", "--controllers", chosen, "--config", file.name)
        assert code == 0, text
        roles = [each for each in yaml.safe_load_all(text) if each and "rules" in each]
        found[name] = sorted(line for role in roles for line in _rules(role))
    return found


def _rules(role: Mapping[str, Any]) -> Iterator[str]:
    where = f"{role['kind']} {role['metadata'].get('namespace', '')}/{role['metadata']['name']}"
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                names = f" [{','.join(sorted(rule['resourceNames']))}]" if "resourceNames" in rule else ""
                yield f"{where}: {group}/{resource}{names}: {','.join(sorted(rule['verbs']))}"


def options() -> dict[str, list[str]]:
    """Return the arguments and options of every command, with what they take and their default."""
    found: dict[str, list[str]] = {}

    def walk(name: str, command: Any) -> None:
        found[name] = sorted(_parameter(each) for each in command.params)
        for below, sub in getattr(command, "commands", {}).items():
            walk(f"{name} {below}".strip(), sub)

    for name in COMMANDS:
        group: Any = typer.main.get_command(application([name]))
        walk(name, group.commands[name])
    found["volplane"] = sorted(_parameter(each) for each in typer.main.get_command(application([])).params)
    return found


def _parameter(parameter: Any) -> str:
    """Describe a parameter of click, of which typer has a copy of its own."""
    names = parameter.opts if parameter.param_type_name == "option" else [parameter.name]
    opposite = [f"/{each}" for each in parameter.secondary_opts]
    default = None if callable(parameter.default) else parameter.default
    given = "" if default in (None, False, "", (), []) else f" = {getattr(default, 'value', default)}"
    of = parameter.type_descriptor.annotation
    allowed = type(default) if isinstance(default, StrEnum) else get_args(of) if get_origin(of) is Literal else ()
    choices = f" {'|'.join(allowed)}" if allowed else ""
    marks = ["flag"] * getattr(parameter, "is_flag", False)
    marks += ["required"] * parameter.required + ["repeatable"] * getattr(parameter, "multiple", False)
    return " ".join([*names, *opposite]) + choices + given + "".join(f" ({mark})" for mark in marks)


def outcome(*arguments: str) -> tuple[int, str]:
    """Return the exit code of a command, and what it writes to stdout."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
        code = main(arguments)
    return code, output.getvalue()


def exit_codes() -> dict[str, list[str]]:
    """Return which commands end with which code in what everybody can do to them."""
    found: dict[str, list[str]] = {"0 on SIGTERM": sorted(SERVICES)}
    tried = {"--help": ["--help"], "an unknown option": ["--no-such-option"]}
    for what, arguments in tried.items():
        for name in COMMANDS:
            code, _ = outcome(name, *arguments)
            found.setdefault(f"{code} with {what}", []).append(name)
    for arguments in (["--version"], [], ["no-such-command"], ["explain", "table/x"], ["run", "--controllers", "no"]):
        code, _ = outcome(*arguments)
        found.setdefault(f"{code}", []).append(" ".join(arguments))
    return found


def event_reasons() -> list[str]:
    """Return the reasons of events: literals that become a parameter or a variable called `reason`.

    They have no registry. Of functions with such a parameter the name counts, whatever class they belong to.
    """
    trees = [ast.parse(path.read_text("utf-8")) for path in sorted(CORE.rglob("*.py"))]
    places: dict[str, set[int]] = {"EventRecord": {3}, "ClassWords": {1, 3}}
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for node in (node for tree in trees for node in ast.walk(tree) if isinstance(node, functions)):
        names = [argument.arg for argument in node.args.args]
        if "reason" in names:
            places.setdefault(node.name, set()).add(names.index("reason") - (names[0] == "self"))
        elif "reason" in (argument.arg for argument in node.args.kwonlyargs):
            places.setdefault(node.name, set())
    found = [text for tree in trees for node in ast.walk(tree) for text in _reasons_in(node, places)]
    return sorted({text for text in found if REASON.fullmatch(text)})


def _reasons_in(node: ast.AST, places: Mapping[str, set[int]]) -> Iterator[str]:
    values: list[ast.expr] = []
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        values = [node.args[place] for place in places.get(name, ()) if place < len(node.args)]
        values += [each.value for each in node.keywords if name in places and each.arg == "reason"]
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if getattr(target, "id", "") == "reason":
                values.append(node.value)
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=True)
                values += [value for each, value in pairs if getattr(each, "id", "") == "reason"]
    for value in values:
        branches = (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)
        yield from (each.value for each in branches if isinstance(each, ast.Constant) and isinstance(each.value, str))


def object_names() -> list[str]:
    """Return the annotations, labels, finalizers and parameters that the core writes or reads, without its kits."""
    paths = [path for path in CORE.rglob("*.*") if path.relative_to(CORE).parts[0] not in KITS]
    trees = (ast.parse(path.read_text("utf-8")) for path in paths if path.suffix == ".py")
    constants = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    for path in paths:
        if path.suffix == ".yaml":
            nodes = (token for token in yaml.scan(path.read_text("utf-8")) if isinstance(token, yaml.ScalarToken))
            constants += [node.value for node in nodes]
    return sorted({text for text in constants if isinstance(text, str) and QUALIFIED_NAME.fullmatch(text)})


async def answers() -> dict[str, list[str]]:
    """Return the keys of what commands print for programs, with their exit codes, and the names of queues."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        plugin = Plugin(kind="backend", name="full", factory=_full, distribution="tests")
        local = {"root": name, "node_name": "node-a"}
        drivers = (
            DriverSettings(name="full.example.com", backend="full"),
            DriverSettings(name="nodes.example.com", backend="hostpath", distributed=True, options=local),
            DriverSettings(name="room.example.com", backend="hostpath", storage_capacity=True, options=local),
        )
        everything = frozenset(ALL_CONTROLLERS)
        configuration = Configuration(drivers=drivers)
        async with running_process(directory, everything, configuration=configuration, plugins=[plugin]) as site:
            certificate = make_certificate(["127.0.0.1"], datetime.now(UTC))
            listener = await serve(site.server, port=0, token="token", tls=server_context(certificate, directory))
            kubeconfig = directory / "kubeconfig"
            write_kubeconfig(kubeconfig, listener.url, "token", certificate.certificate)
            try:
                return await _answers(site, str(kubeconfig))
            finally:
                await listener.close()


def _full(options: Mapping[str, Any]) -> FaultyBackend:
    failures = {"provision": [FailBefore(ResourceExhausted("full"))] * 100}
    return FaultyBackend(MemoryBackend(storage=MemoryStorage()), failures)


async def _answers(site: Site, kubeconfig: str) -> dict[str, list[str]]:
    """Make a claim that is bound, one that waits, one whose operation fails, an orphan, and a pod; then ask."""
    await site.make_class("fast", reclaimPolicy="Retain")
    await site.make_class("full", driver="full.example.com")
    for claim, storage_class in (("data", "fast"), ("lost", "fast"), ("waits", "absent"), ("fails", "full")):
        await site.make_claim(claim, storage_class)
    await site.bound("data", "lost")
    await site.make_pod("user", "data")
    volume = (await site.client.get(CLAIMS, "default/lost")).spec.volume_name
    await site.client.delete(CLAIMS, "default/lost")
    await site.gone(CLAIMS, "default/lost")
    await site.client.patch(VOLUMES, volume, {"metadata": {"finalizers": None}})
    await site.client.delete(VOLUMES, volume)
    await site.gone(VOLUMES, volume)
    await site.until("an operation fails", lambda: site.process.plane and site.process.plane.operations.snapshot())

    controller, cluster = ["--http", site.url.removeprefix("http://")], ["--kubeconfig", kubeconfig]
    found: dict[str, list[str]] = {}
    for command, addresses in (
        ("leaks --check", controller),
        ("status", [*controller, *cluster]),
        ("explain pvc/data", [*controller, *cluster]),
        ("explain pvc/fails", [*controller, *cluster]),
        ("explain pvc/nothing", [*controller, *cluster]),
        ("explain pod/user", [*controller, *cluster]),
        ("plugins", []),
    ):
        code, text = await asyncio.to_thread(outcome, *command.split(), *addresses, "--output", "json")
        found[f"{command}: exit code {code}"] = sorted(set(_keys(json.loads(text))))
    _, exposed = await site.get("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(exposed)}
    found["queues"] = sorted({sample.labels["name"] for sample in families["workqueue_depth"].samples})
    return found


def _keys(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path of every key, such as `.drivers[].name`; keys that are names of objects are left out."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield f"{path}.{key}"
            yield from _keys(below, f"{path}.{key}")
    elif isinstance(value, list):
        for below in value:
            yield from _keys(below, f"{path}[]")


SECTIONS: Mapping[str, Callable[[], list[str] | dict[str, list[str]]]] = {
    "metrics": metrics,
    "controllers": controllers,
    "permissions": permissions,
    "options": options,
    "exit codes": exit_codes,
    "event reasons": event_reasons,
    "names in objects": object_names,
}


def record() -> None:
    """Write the golden file."""
    found = {name: section() for name, section in SECTIONS.items()} | {"answers": asyncio.run(answers())}
    FILE.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    record()
