"""Kinds that a server does not serve yet, or not any more."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from volplane.errors import ApiUnavailable
from volplane.kube.cache import Cache
from volplane.kube.kinds import VOLUMES
from volplane.kube.reflector import Reflector
from volplane.snapshots.objects import (
    VOLUME_SNAPSHOT_CLASSES,
    VOLUME_SNAPSHOT_CONTENTS,
    VOLUME_SNAPSHOTS,
    VolumeSnapshot,
)
from volplane_embedded.apiserver.custom_kinds import definitions

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NAME = "volumesnapshots.snapshot.storage.k8s.io"
GROUP = "snapshot.storage.k8s.io"


@asynccontextmanager
async def following(wire: Any) -> AsyncIterator[Reflector[VolumeSnapshot]]:
    reflector = Reflector(wire.client, Cache(VOLUME_SNAPSHOTS), random=Random(1), required=False)
    task = asyncio.create_task(reflector.run())
    try:
        yield reflector
    finally:
        task.cancel()
        await asyncio.wait([task])


async def make(wire: Any, name: str) -> VolumeSnapshot:
    spec = {"source": {"persistentVolumeClaimName": "data"}}
    body = VOLUME_SNAPSHOTS.body(metadata={"name": name, "namespace": "default"}, spec=spec)
    made: VolumeSnapshot = await wire.client.create(VOLUME_SNAPSHOTS, body)
    return made


def begin(wire: Any) -> None:
    """Install the definition, as an administrator does."""
    (definition,) = (each for each in definitions(GROUP) if each["metadata"]["name"] == NAME)
    assert wire.server.handle("POST", DEFINITIONS, {}, {}, json.dumps(definition).encode()).status == 201


def end(wire: Any) -> None:
    assert wire.server.handle("DELETE", f"{DEFINITIONS}/{NAME}", {}, {}, b"").status == 200


async def test_the_client_writes_and_reads_snapshots_their_contents_and_classes(wire: Callable[[], Any]) -> None:
    line = wire()
    assert (await make(line, "a")).spec.source.persistent_volume_claim_name == "data"
    status = {"status": {"readyToUse": True, "restoreSize": 5}}
    shown = await line.client.patch(VOLUME_SNAPSHOTS, "default/a", status, subresource="status")
    assert (shown.status.ready_to_use, shown.status.restore_size) == (True, 5)
    spec = {
        "volumeSnapshotRef": {"namespace": "default", "name": "a"},
        "deletionPolicy": "Retain",
        "driver": "d.example.com",
        "source": {"snapshotHandle": "s"},
    }
    made = await line.client.create(
        VOLUME_SNAPSHOT_CONTENTS, VOLUME_SNAPSHOT_CONTENTS.body(metadata={"name": "v"}, spec=spec)
    )
    assert (made.spec.volume_snapshot_ref.key, made.spec.source.snapshot_handle) == ("default/a", "s")
    body = VOLUME_SNAPSHOT_CLASSES.body(metadata={"name": "k"}, driver="d.example.com", deletionPolicy="Delete")
    assert (await line.client.create(VOLUME_SNAPSHOT_CLASSES, body)).deletion_policy == "Delete"
    assert [each.key for each in (await line.client.list(VOLUME_SNAPSHOTS)).items] == ["default/a"]
    assert await line.client.delete(VOLUME_SNAPSHOTS, "default/a") is None


async def test_a_kind_that_appears_later_is_found_within_half_a_minute(
    wire: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="volplane.kube.reflector")
    line = wire(without=(GROUP,))
    async with following(line) as reflector:
        await asyncio.sleep(3600)
        assert not reflector.cache.listed.is_set()
        assert reflector.failing == "VolumeSnapshot is not served by this API server"
        assert 110 < len(line.calls) < 130
        assert [record.message for record in caplog.records] == [
            "volumesnapshots: trying again in 30.0 s: VolumeSnapshot is not served by this API server"
        ]
        begin(line)
        await make(line, "a")
        await asyncio.sleep(35)
        assert reflector.cache.listed.is_set()
        assert (reflector.cache.keys(), reflector.failing) == (["default/a"], "")
        await make(line, "b")
        await asyncio.sleep(1)
        assert "default/b" in reflector.cache


async def test_a_kind_that_vanishes_takes_nothing_else_with_it(
    wire: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    line = wire()
    gone: list[str] = []
    async with following(line) as reflector:
        await reflector.cache.listed.wait()
        reflector.cache.subscribe(lambda old, new: gone.append(old.key) if old and new is None else None)
        await make(line, "a")
        await asyncio.sleep(10)
        end(line)
        await asyncio.sleep(120)
        assert gone == ["default/a"]
        assert "is not served" in reflector.failing
        assert not reflector.cache.listed.is_set()
        begun = asyncio.get_running_loop().time()
        for _ in range(30):
            with pytest.raises(ApiUnavailable):
                await line.client.get(VOLUME_SNAPSHOTS, "default/a")
        assert (await line.client.list(VOLUMES)).items == []
        assert asyncio.get_running_loop().time() == begun, "the API server counts as one that answers"
        begin(line)
        await make(line, "a")
        await asyncio.sleep(35)
        assert reflector.cache.keys() == ["default/a"]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_what_went_while_nobody_watched_is_gone_once_the_kind_is_back(wire: Callable[[], Any]) -> None:
    line = wire()
    await make(line, "a")
    async with following(line) as reflector:
        await reflector.cache.listed.wait()
        await asyncio.sleep(10)
        line.fail(("WATCH", "/apis/snapshot"), times=1)
        line.server.end_watches()
        end(line)
        await asyncio.sleep(40)
        assert not reflector.cache.listed.is_set()
        begin(line)
        await asyncio.sleep(35)
        assert reflector.cache.listed.is_set()
        assert reflector.cache.keys() == []


async def test_a_kind_that_every_server_has_is_not_given_up_for_an_answer_of_a_proxy(wire: Callable[[], Any]) -> None:
    line = wire()
    reflector = Reflector(line.client, Cache(VOLUMES), random=Random(1))
    routes = line.server._routes
    task = asyncio.create_task(reflector.run())
    await reflector.cache.listed.wait()
    line.server._routes = type(routes)([])
    line.server.end_watches()
    await asyncio.sleep(60)
    assert reflector.cache.listed.is_set()
    assert "404" in reflector.failing
    line.server._routes = routes
    await asyncio.sleep(60)
    assert reflector.failing == ""
    task.cancel()
    await asyncio.wait([task])
