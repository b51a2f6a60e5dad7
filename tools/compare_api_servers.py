"""Send the same generated requests to a real API server and to the embedded one, and print what differs.

`python -m tools.compare_api_servers KUBECONFIG [KIND...]` needs an empty server that may be written to. Requests are
the objects of `tools/compared_objects.json` and variants of them: creates and updates, with `dryRun=All`. `--wording`
also compares messages; `--limit N` prints at most N differences of a kind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tools.api_exchanges import Exchange, Reply, differences, exchange
from tools.exchange_clients import Client, InProcess, connect
from tools.record_exchanges import normalised
from tools.request_variants import variants

from volplane_embedded.apiserver.kinds import RESOURCES
from volplane_embedded.apiserver.resources import Resource
from volplane_embedded.apiserver.server import ApiServer

_OBJECTS: Final = Path(__file__).parent / "compared_objects.json"
_DRY: Final = [("dryRun", "All")]
_JSON: Final = {"Content-Type": "application/json"}
_MERGE: Final = {"Content-Type": "application/merge-patch+json"}


class _Both:
    """Sends requests to both servers. found: what differed."""

    def __init__(self, real: Client, ours: Client, *, wording: bool) -> None:
        self._real = real
        self._ours = ours
        self._wording = wording
        self._versions = ["", ""]
        self.sent = 0
        self.found: list[str] = []

    async def send(self, what: str, method: str, path: str, query: list[tuple[str, str]], body: Any) -> None:
        """Send the same request to both; the text `$version` stands for the version of the last object created."""
        headers = _MERGE if method == "PATCH" else _JSON
        text = json.dumps(body) if body is not None else ""
        bodies = [text.replace("$version", version).encode() for version in self._versions]
        theirs = await self._real.send(method, path, query, headers, bodies[0])
        ours = await self._ours.send(method, path, query, headers, bodies[1])
        if method == "POST" and not query and theirs.status == ours.status == 201:
            self._versions = [reply.body["metadata"]["resourceVersion"] for reply in (theirs, ours)]
        self.sent += 1
        entry = {"id": what, "method": method, "path": path}
        response = {"status": theirs.status, "body": normalised(theirs.body, json.dumps(body))}
        self.found += [f"{what}: {line}" for line in self._compare(exchange("", {**entry, "response": response}), ours)]

    def _compare(self, expected: Exchange, ours: Reply) -> Iterator[str]:
        lines = differences(expected, ours)
        if expected.status != ours.status:
            lines = [f"{line}\n      real: {expected.status} {_message(expected.answer)}" for line in lines]
        yield from lines
        if self._wording and not lines and _message(expected.answer) != _message(ours.body):
            yield f"wording\n      real: {_message(expected.answer)}\n      ours: {_message(ours.body)}"


def _message(body: Any) -> str:
    return str(body.get("message", "")) if isinstance(body, dict) else str(body)


async def _compare_kind(both: _Both, resource: Resource, bases: list[dict[str, Any]]) -> None:
    scope = "/namespaces/default" if resource.namespaced else ""
    path = f"{resource.prefix}{scope}/{resource.plural}"
    for base in bases:
        name = base["metadata"]["name"]
        await both.send(f"{resource.kind} {name}", "POST", path, [], base)
        for what, changed in variants(base):
            fresh = {**changed}
            if isinstance(fresh.get("metadata"), dict) and fresh["metadata"].get("name") == name:
                fresh["metadata"] = {**fresh["metadata"], "name": f"{name}-2"}
            await both.send(f"create {resource.kind} {name}: {what}", "POST", path, _DRY, fresh)
            if isinstance(changed.get("metadata"), dict):
                changed["metadata"].setdefault("resourceVersion", "$version")
            await both.send(f"update {resource.kind} {name}: {what}", "PUT", f"{path}/{name}", _DRY, changed)
            if "status" in resource.subresources and what.startswith("status"):
                await both.send(f"status {resource.kind} {name}: {what}", "PUT", f"{path}/{name}/status", _DRY, changed)
        one = f"{path}/{name}"
        await both.send(f"delete {resource.kind} {name}", "DELETE", one, [("gracePeriodSeconds", "0")], None)
        await both.send(f"let go of {resource.kind} {name}", "PATCH", one, [], {"metadata": {"finalizers": None}})


async def _main(arguments: argparse.Namespace, objects: dict[str, Any]) -> None:
    async with connect(arguments.kubeconfig) as real:
        ours = InProcess(ApiServer(now=lambda: datetime.now(UTC)))
        for resource in RESOURCES:
            key = f"{resource.group}/{resource.kind}"
            if key not in objects or (arguments.kinds and resource.kind not in arguments.kinds):
                continue
            both = _Both(real, ours, wording=arguments.wording)
            await _compare_kind(both, resource, objects[key])
            print(f"== {key}: {both.sent} requests, {len(both.found)} differences")
            print("\n".join(both.found[: arguments.limit]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kubeconfig")
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--wording", action="store_true", help="compare messages too")
    parser.add_argument("--limit", type=int, default=100)
    asyncio.run(_main(parser.parse_args(), json.loads(_OBJECTS.read_text())))
