"""A server killed without warning while it writes, and started again on the same directory."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from volplane_embedded.apiserver.journal import SqliteJournal
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.apiserver.store import Store

WRITER = """
import json, sys
from datetime import UTC, datetime
from pathlib import Path
from volplane_embedded.apiserver.journal import SqliteJournal
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.apiserver.store import Store

server = ApiServer(now=lambda: datetime.now(UTC), store=Store(SqliteJournal(Path(sys.argv[1]))))
PATH = "/api/v1/namespaces/default/configmaps"

def send(method, path, body, kind="application/json"):
    answer = server.handle(method, path, (), {"Content-Type": kind}, json.dumps(body).encode())
    assert answer.status < 300, answer.body
    meta = json.loads(answer.body)["metadata"]
    print(json.dumps([method, meta.get("name"), meta.get("uid"), meta.get("resourceVersion")]), flush=True)

number = int(sys.argv[2])
while True:
    name = f"m-{number}"
    send("POST", PATH, {"metadata": {"name": name}, "data": {"n": "0"}})
    send("PATCH", f"{PATH}/{name}", {"data": {"n": "1"}}, "application/merge-patch+json")
    if number % 3 == 0:
        server.handle("DELETE", f"{PATH}/{name}", (), {}, b"")
        print(json.dumps(["DELETE", name, None, str(server.store.version)]), flush=True)
    number += 1
"""
MAPS = "/api/v1/namespaces/default/configmaps"


def written_until_killed(directory: Path, first: int, lines: int) -> list[list[str]]:
    """What a child process acknowledged before it was killed, at least `lines` writes."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory), str(first)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout as out:
        seen = [out.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        seen += out.readlines()
    assert process.wait() == -signal.SIGKILL
    return [json.loads(line) for line in seen if line.endswith("\n")]


@pytest.mark.parametrize("seed", range(4))
def test_nothing_acknowledged_is_lost_when_the_server_is_killed(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    acknowledged: list[list[str]] = []
    for first in (0, 100_000):
        acknowledged += written_until_killed(tmp_path, first, source.randint(1, 120))
    journal = SqliteJournal(tmp_path)
    server = ApiServer(now=lambda: datetime.now(UTC), store=Store(journal))
    answer = server.handle("GET", MAPS, (), {}, b"")
    found = {item["metadata"]["name"]: item["metadata"] for item in json.loads(answer.body)["items"]}
    last = {name: (method, uid, version) for method, name, uid, version in acknowledged}
    for name, (method, uid, version) in last.items():
        if method == "DELETE":
            assert name not in found
        elif name in found:
            assert found[name]["uid"] == uid
            assert int(found[name]["resourceVersion"]) >= int(version)
        else:
            # Its deletion was written, but the kill came before the acknowledgement.
            assert int(name.removeprefix("m-")) % 3 == 0
    versions = [int(version) for _, _, _, version in acknowledged]
    assert versions == sorted(set(versions))
    assert server.store.version >= versions[-1]
    server.close()


CROWD = """
import asyncio, json, sys
from datetime import UTC, datetime
from pathlib import Path
from volplane_embedded.apiserver.journal import SqliteJournal
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.apiserver.store import Store

PATH = "/api/v1/namespaces/default/configmaps"

async def write(server, writer):
    number = 0
    while True:
        body = json.dumps({"metadata": {"name": f"m-{writer}-{number}"}}).encode()
        answer = await server.answer("POST", PATH, (), {"Content-Type": "application/json"}, body)
        assert answer.status == 201, answer.body
        print(json.loads(answer.body)["metadata"]["name"], flush=True)
        number += 1

async def main():
    server = ApiServer(now=lambda: datetime.now(UTC), store=Store(SqliteJournal(Path(sys.argv[1]))))
    await asyncio.gather(*(write(server, writer) for writer in range(30)))

asyncio.run(main())
"""


@pytest.mark.parametrize("lines", [1, 40, 300])
def test_nothing_acknowledged_is_lost_where_many_writes_share_a_commit(tmp_path: Path, lines: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", CROWD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as out:
        seen = [out.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        seen += out.readlines()
    assert process.wait() == -signal.SIGKILL
    server = ApiServer(now=lambda: datetime.now(UTC), store=Store(SqliteJournal(tmp_path)))
    items = json.loads(server.handle("GET", MAPS, (), {}, b"").body)["items"]
    acknowledged = {line.rstrip("\n") for line in seen if line.endswith("\n")}
    assert len(acknowledged) >= lines
    assert acknowledged <= {item["metadata"]["name"] for item in items}
    server.close()
