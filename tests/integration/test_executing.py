"""Further commands in containers that run, as kubectl exec and kubectl cp ask for them: over WebSockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from integration.node_bodies import in_cluster
from integration.node_cluster import Cluster, host_path, now, why_no_sandbox
from volplane_embedded.apiserver.http import serve
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.objects import PODS

V5 = "v5.channel.k8s.io"
SLEEPS = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
pytestmark = pytest.mark.real_time


class Session:
    """An exec session. out: what came on channels 1 to 3."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.out = {1: b"", 2: b"", 3: b""}

    async def send(self, channel: int, data: bytes) -> None:
        await self._socket.send_bytes(bytes([channel]) + data)

    async def until(self, text: bytes) -> None:
        async with asyncio.timeout(30):
            while text not in self.out[1]:
                await self._receive()

    async def ended(self) -> Any:
        """The Status at the end."""
        async with asyncio.timeout(30):
            while not self.out[3]:
                await self._receive()
        return json.loads(self.out[3])

    async def _receive(self) -> None:
        message = await self._socket.receive()
        assert message.type is aiohttp.WSMsgType.BINARY, message
        self.out[message.data[0]] += message.data[1:]


class Executing:
    def __init__(self, cluster: Cluster, session: aiohttp.ClientSession, url: str) -> None:
        self.cluster, self._session, self._url = cluster, session, url

    @asynccontextmanager
    async def command(self, *argv: str, streams: str = "stdout,stderr", protocol: str = V5) -> AsyncIterator[Session]:
        asked = [*(("command", word) for word in argv), *((name, "true") for name in streams.split(","))]
        url = f"{self._url}/api/v1/namespaces/default/pods/main/exec"
        async with self._session.ws_connect(url, params=asked, protocols=(protocol,)) as socket:
            assert socket.protocol == protocol
            yield Session(socket)


@pytest.fixture(scope="module")
def may_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    if message := why_no_sandbox(tmp_path_factory.mktemp("probe")):
        pytest.skip(message)


@pytest.fixture
async def executing(tmp_path: Path, may_run: None) -> AsyncIterator[Executing]:
    (tmp_path / "volume").mkdir()
    async with in_cluster(tmp_path) as cluster:
        await cluster.run("main", SLEEPS, **host_path(tmp_path / "volume", "/data"))
        await cluster.running("main")
        listener = await serve(cluster.server, port=0, token="secret")
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer secret"}) as session:
            yield Executing(cluster, session, listener.url)
        await listener.close()


async def test_a_command_runs_beside_that_of_the_container_and_says_how_it_ended(executing: Executing) -> None:
    script = "echo seen > /data/file; echo out; echo err >&2; ls /proc/1/root && exit 9; exit 3"
    async with executing.command("sh", "-c", script) as session:
        status = await session.ended()
    assert session.out[1] == b"out\n"
    assert session.out[2].startswith(b"err\n")  # and ls may not look at the first process
    assert status["reason"] == "NonZeroExitCode"
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
    assert (executing.cluster.directory / "volume" / "file").read_text() == "seen\n"
    async with executing.command("no-such-command") as session:
        assert (await session.ended())["message"] == (
            "failed to start the command: no-such-command: No such file or directory"
        )


async def test_what_is_sent_reaches_the_command_until_its_channel_is_closed_or_the_container_ends(
    executing: Executing,
) -> None:
    sent = bytes(range(256)) * 4096
    async with executing.command("sh", "-c", "cat | cksum; cat", streams="stdin,stdout") as session:
        for at in range(0, len(sent), 30_000):
            await session.send(0, sent[at : at + 30_000])
        await session.send(255, bytes([0]))
        assert await session.ended() == {"metadata": {}, "status": "Success"}
    assert session.out[1].split()[1] == str(len(sent)).encode()
    async with executing.command("cat", streams="stdin,stdout") as session:
        await executing.cluster.client.delete(PODS, "default/main", grace_seconds=0)
        assert (await session.ended())["status"] == "Failure"


async def test_a_terminal_has_the_size_that_the_client_says_and_passes_on_its_keys(executing: Executing) -> None:
    async with executing.command("sh", streams="stdin,stdout,tty", protocol="v4.channel.k8s.io") as session:
        await session.send(4, b'{"Width":132,"Height":43}')
        await session.send(0, b"stty size; cat\nmarker\n")
        await session.until(b"43 132\r\nmarker\r\n")  # cat runs
        await session.send(0, b"\x03")  # ends cat, not the shell
        await session.until(b"^C\r\n# ")  # Until it asks again, the shell forgets what it is told.
        await session.send(0, b"echo $((40 + 2)); exit 5\n")
        status = await session.ended()
    assert b"42\r\n" in session.out[1]
    assert status["details"]["causes"][0]["message"] == "5"


async def test_what_is_not_there_is_refused_with_a_sentence() -> None:
    server = ApiServer(now=now)
    pods = "/api/v1/namespaces/default/pods"
    body = b'{"metadata":{"name":"exec"},"spec":{"containers":[{"name":"c","image":"i"}]}}'
    assert server.handle("POST", pods, {}, {}, body).status == 201
    listener = await serve(server, port=0, token="secret")
    async with aiohttp.ClientSession(headers={"Authorization": "Bearer secret"}) as session:

        async def refusal(method: str, what: str) -> str:
            async with session.request(method, f"{listener.url}{pods}/exec{what}") as answer:
                return str((await answer.json()).get("message"))

        assert "kubectl logs -f" in await refusal("POST", "/attach")
        assert "kubectl port-forward does not work" in await refusal("POST", "/portforward?ports=1")
        assert "no node agent runs" in await refusal("GET", "/exec?command=ls&stdout=true")
        assert await refusal("GET", "") == "None"  # a pod may have this name
    await listener.close()
