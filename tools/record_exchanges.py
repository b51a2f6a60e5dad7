"""Record exchanges with a real API server: `python -m tools.record_exchanges KUBECONFIG FILE...`

Each file is a list of requests in the form of `tools.api_exchanges`. They are sent in order, file after file, to a
server that holds nothing but what a new one holds; the responses are written into the file. The recordings in
tests/integration/exchanges were made with kube-apiserver 1.36.2, admission plugin ServiceAccount off.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tools.api_exchanges import exchange
from tools.exchange_clients import Client, connect, exchanged

_UID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIMES: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_GENERATED: Final = re.compile(r"gen-[bcdfghjklmnpqrstvwxz2456789]{5}")
_DROPPED: Final = ("managedFields",)


def normalised(value: Any, sent: str, key: str = "") -> Any:
    """A response without what differs from run to run. sent: the request; its own times and uids are kept."""
    if isinstance(value, dict):
        return {name: normalised(item, sent, name) for name, item in value.items() if name not in _DROPPED}
    if isinstance(value, list):
        return [normalised(item, sent, key) for item in value]
    if isinstance(value, str) and key == "resourceVersion" and value.isdigit() and value != "0":
        return "<rv>"
    if not isinstance(value, str) or value in sent:
        return value
    if key == "continue" and value:
        return "<continue>"
    if _TIMES.fullmatch(value):
        return "<time>"
    return _GENERATED.sub("gen-<rand>", _UID.sub("<uid>", value))


async def record(client: Client, file: str, entries: list[dict[str, Any]]) -> None:
    """Send the requests of a file, and put the responses into them."""
    replies = await exchanged(client, [exchange(file, entry) for entry in entries])
    for entry, (asked, reply) in zip(entries, replies, strict=True):
        sent = f"{urlsplit(asked.path).query} {json.dumps(asked.body)}"
        kept = "events" if asked.is_watch else "body"
        found = reply.events if asked.is_watch else reply.body
        entry["response"] = {"status": reply.status, kept: normalised(found, sent)}


async def _main(kubeconfig: str, files: dict[Path, list[dict[str, Any]]]) -> None:
    async with connect(kubeconfig) as client:
        for path, entries in files.items():
            await record(client, path.stem, entries)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    requests = {Path(name): json.loads(Path(name).read_text()) for name in sys.argv[2:]}
    asyncio.run(_main(sys.argv[1], requests))
    for file, entries in requests.items():
        file.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n")
