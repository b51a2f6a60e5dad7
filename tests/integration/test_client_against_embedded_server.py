"""Client, reflector, runner and recorder against the embedded API server, in the process and over HTTPS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import msgspec
import pytest

from volplane.controller.actions import Action, EventRecord, LiveReads, Patch, Settled
from volplane.controller.runner import Runner
from volplane.errors import ApiConflict, ApiError, ApiNotFound, ApiUnavailable, ConfigurationError
from volplane.kube.cache import Cache
from volplane.kube.client import Client
from volplane.kube.events import EventRecorder
from volplane.kube.http.transport import HttpTransport
from volplane.kube.kinds import VOLUMES
from volplane.kube.objects import Volume
from volplane.kube.reflector import Reflector
from volplane_embedded.apiserver.certificates import make_certificate, server_context
from volplane_embedded.apiserver.http import serve
from volplane_embedded.apiserver.kubeconfig import write_kubeconfig
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing.control_plane import idle

SPEC = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/tmp/x"}}
TOKEN = "a-token"


def utc_now() -> datetime:
    return datetime.now(UTC)


class World:
    def __init__(self, server: ApiServer, client: Client) -> None:
        self.server = server
        self.client = client

    async def make(self, *names: str) -> None:
        for name in names:
            await self.client.create(VOLUMES, VOLUMES.body(metadata={"name": name}, spec=SPEC))

    @asynccontextmanager
    async def reflecting(self) -> AsyncIterator[Cache[Volume]]:
        cache = Cache(VOLUMES)
        task = asyncio.create_task(Reflector(self.client, cache, random=Random(1)).run())
        try:
            async with asyncio.timeout(10):
                await cache.listed.wait()
            yield cache
        finally:
            task.cancel()
            await asyncio.wait([task])


async def until(cache: Cache[Volume], reached: Callable[[], bool]) -> None:
    """Wait for a change after which this is true."""
    changed = asyncio.Event()
    leave = cache.subscribe(lambda _old, _new: changed.set())
    try:
        async with asyncio.timeout(15):
            while not reached():
                changed.clear()
                await changed.wait()
    finally:
        leave()


@asynccontextmanager
async def in_process(_: Path) -> AsyncIterator[World]:
    server = ApiServer(now=utc_now)
    client = Client(InProcessTransport(server))
    try:
        yield World(server, client)
    finally:
        await client.close()
        server.close()


@asynccontextmanager
async def listening(directory: Path, token: str = TOKEN) -> AsyncIterator[tuple[ApiServer, Path]]:
    server = ApiServer(now=utc_now)
    certificate = make_certificate(["127.0.0.1"], utc_now())
    listener = await serve(server, port=0, token=TOKEN, tls=server_context(certificate, directory))
    kubeconfig = directory / "kubeconfig"
    write_kubeconfig(kubeconfig, listener.url, token, certificate.certificate)
    try:
        yield server, kubeconfig
    finally:
        await listener.close()
        server.close()


@asynccontextmanager
async def over_https(directory: Path) -> AsyncIterator[World]:
    async with listening(directory) as (server, kubeconfig):
        client = Client(await HttpTransport.connect(kubeconfig))
        try:
            yield World(server, client)
        finally:
            await client.close()


@pytest.fixture(params=[in_process, over_https])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """A world of either kind."""
    async with request.param(tmp_path) as opened:
        yield opened


@pytest.mark.real_time
async def test_a_cache_follows_the_server(world: World) -> None:
    await world.make("a", "b")
    async with world.reflecting() as cache:
        assert cache.keys() == ["a", "b"]
        await world.make("c")
        await until(cache, lambda: "c" in cache)
        await world.client.patch(VOLUMES, "a", {"metadata": {"finalizers": None}})
        await world.client.delete(VOLUMES, "a")
        await until(cache, lambda: cache.keys() == ["b", "c"])


@pytest.mark.real_time
async def test_a_dropped_watch_is_resumed(world: World) -> None:
    async with world.reflecting() as cache:
        await world.make("a")
        await until(cache, lambda: "a" in cache)
        world.server.end_watches()
        await world.make("b")
        await until(cache, lambda: "b" in cache)


@pytest.mark.real_time
async def test_a_version_too_old_is_listed_anew(world: World) -> None:
    await world.make("a")
    async with world.reflecting() as cache:
        await world.make("b")
        await until(cache, lambda: "b" in cache)
        world.server.end_watches()
        await world.make("c")
        await world.client.patch(VOLUMES, "a", {"metadata": {"finalizers": None}})
        await world.client.delete(VOLUMES, "a")
        world.server.store.compact()
        await until(cache, lambda: cache.keys() == ["b", "c"])


@pytest.mark.real_time
async def test_refusals_are_told_apart(world: World) -> None:
    await world.make("a")
    made = await world.client.get(VOLUMES, "a")
    await world.client.patch(VOLUMES, "a", {"metadata": {"labels": {"x": "y"}}})
    with pytest.raises(ApiConflict):
        await world.client.patch(
            VOLUMES, "a", {"metadata": {"resourceVersion": made.metadata.resource_version, "labels": None}}
        )
    with pytest.raises(ApiError) as caught:
        await world.make("a")
    assert caught.value.already_exists
    with pytest.raises(ApiNotFound):
        await world.client.get(VOLUMES, "b")
    with pytest.raises(ApiError) as caught:
        await world.client.create(VOLUMES, VOLUMES.body(metadata={"name": "c"}, spec={}))
    assert caught.value.status == 422


@pytest.mark.real_time
async def test_selectors_are_sent_as_they_are(world: World) -> None:
    await world.make("a", "b")
    await world.client.patch(VOLUMES, "a", {"metadata": {"labels": {"volplane.dev/node": "x"}}})
    listed = await world.client.list(VOLUMES, label_selector="volplane.dev/node in (x,y), volplane.dev/node != z")
    assert [volume.name for volume in listed.items] == ["a"]


@pytest.mark.real_time
async def test_a_large_list_comes_whole(world: World) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(600):
            group.create_task(world.make(f"v{number}"))
    async with world.reflecting() as cache:
        assert len(cache) == 600


@pytest.mark.real_time
async def test_steps_and_events_reach_the_server(world: World) -> None:
    await world.make("a")
    recorder = EventRecorder(world.client, instance="volplane-0", now=utc_now)
    async with world.reflecting() as cache, asyncio.TaskGroup() as group:

        def decide(key: str, _: LiveReads) -> Action:
            volume = cache.get(key)
            if volume is None or (volume.metadata.labels or {}).get("step") == "1":
                return Settled()
            event = EventRecord(VOLUMES, volume, "Normal", "Labelled", "it is")
            body = {"metadata": {"labels": {"step": "1"}}}
            return Patch(kind=VOLUMES, target=volume, body=body, why="it must be", events=(event,))

        runner = Runner(
            "volumes",
            decide,
            kind=VOLUMES,
            caches={"persistentvolumes": cache},
            client=world.client,
            recorder=recorder,
        )
        group.create_task(runner.run())
        group.create_task(recorder.run())
        # The cache is behind on purpose: the first patch meets a conflict.
        await world.client.patch(VOLUMES, "a", {"metadata": {"annotations": {"other": "writer"}}})
        runner.enqueue("a")
        await until(cache, lambda: "step" in ((cache.get("a") or Volume()).metadata.labels or {}))
        while not idle(runner):
            await asyncio.sleep(0)
        runner.stop()
        await recorder.close()
    events = msgspec.json.decode(await world.client.raw("/api/v1/namespaces/default/events"))["items"]
    assert [(event["reason"], event["involvedObject"]["name"]) for event in events] == [("Labelled", "a")]


@pytest.mark.real_time
async def test_a_wrong_token_is_refused(tmp_path: Path) -> None:
    async with listening(tmp_path, token="wrong") as (_, kubeconfig):
        transport = await HttpTransport.connect(kubeconfig)
        client = Client(transport)
        try:
            with pytest.raises(ApiError) as caught:
                await client.list(VOLUMES)
            assert caught.value.status == 401
        finally:
            await client.close()


@pytest.mark.real_time
async def test_a_token_file_that_was_rotated_is_read_again(tmp_path: Path) -> None:
    async with listening(tmp_path) as (_, kubeconfig):
        rotated = tmp_path / "token"
        rotated.write_text("old")
        text = kubeconfig.read_text().replace(f"token: {TOKEN}", f"tokenFile: {rotated}")
        kubeconfig.write_text(text)
        client = Client(await HttpTransport.connect(kubeconfig))
        try:
            rotated.write_text(TOKEN)
            assert (await client.list(VOLUMES)).items == []
        finally:
            await client.close()


@pytest.mark.real_time
async def test_a_server_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    async with listening(tmp_path) as (_, kubeconfig):
        client = Client(await HttpTransport.connect(kubeconfig))
    try:
        with pytest.raises(ApiUnavailable, match="GET /api/v1/persistentvolumes failed"):
            await client.list(VOLUMES)
    finally:
        await client.close()


@pytest.mark.real_time
async def test_a_server_that_hangs_is_given_up_in_time(tmp_path: Path) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        finally:
            writer.close()

    hanging = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = hanging.sockets[0].getsockname()[1]
    kubeconfig = tmp_path / "kubeconfig"
    write_kubeconfig(kubeconfig, f"http://127.0.0.1:{port}", TOKEN, None)
    client = Client(await HttpTransport.connect(kubeconfig), deadline=0.2)
    try:
        with pytest.raises(ApiUnavailable, match=r"had no answer within 0\.2 s"):
            await client.get(VOLUMES, "a")
    finally:
        await client.close()
        hanging.close()
        await hanging.wait_closed()


@pytest.mark.real_time
async def test_a_configuration_that_cannot_be_used_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)

    with pytest.raises(ConfigurationError, match="no such file"):
        await HttpTransport.connect(tmp_path / "absent")
    with pytest.raises(ConfigurationError, match="give --kubeconfig, set KUBECONFIG, or create"):
        await HttpTransport.connect()
    broken = tmp_path / "broken"
    broken.write_text("clusters: [")
    monkeypatch.setenv("KUBECONFIG", str(broken))
    with pytest.raises(ConfigurationError, match=f"KUBECONFIG={broken}"):
        await HttpTransport.connect()
    broken.write_text("{}")
    with pytest.raises(ConfigurationError, match=f"--kubeconfig {broken}"):
        await HttpTransport.connect(broken)
