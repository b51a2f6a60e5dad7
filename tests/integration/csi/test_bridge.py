"""What csi-sanity does not see: deadlines, retries, doubt, owners, places, secrets, strange requests."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from backends import Filer
from integration.csi.caller import GIB, WRITER, Caller, bridged
from volplane import (
    Absent,
    AlreadyDeleted,
    Asset,
    AssetPage,
    BackendError,
    DeleteRequest,
    Done,
    FindRequest,
    InProgress,
    InvalidArgument,
    ListRequest,
    ListSnapshotsRequest,
    Ownership,
    PermissionDenied,
    ProvisionRequest,
    ResourceExhausted,
    SnapshotPage,
    hookimpl,
)
from volplane.csi import flights
from volplane.csi.codes import CsiError
from volplane.csi.contract import SERVICES
from volplane.csi.wire import message
from volplane_testing.conformance import Subject
from volplane_testing.memory import ZONE, MemoryBackend
from volplane_testing.memory_storage import MemoryStorage

UID = "0b5cd3f4-7f0c-4d5e-9b3b-6f1f6d1c2a11"
WITH_SECRETS = {
    each
    for methods in SERVICES.values()
    for each in methods
    if "secrets" in message(f"{each}Request").DESCRIPTOR.fields_by_name
}


def subject(kind: Callable[..., MemoryBackend] = MemoryBackend, **storage: Any) -> Subject:
    memory = MemoryStorage(**storage)
    made = Subject(lambda options: kind(options, storage=memory), driver_name="memory.volplane.dev")
    object.__setattr__(made, "inspect", lambda: memory)  # for the tests below
    return made


def storage_of(csi: Caller) -> MemoryStorage:
    assert csi.subject.inspect is not None
    memory = csi.subject.inspect()
    assert isinstance(memory, MemoryStorage)
    return memory


def hooks(seconds: float) -> Callable[[str, str], tuple[float, float]]:
    """A latency of hooks that change something."""
    return lambda _driver, what: (seconds, 0.0) if what in ("provision", "delete", "expand", "attach") else (0.0, 0.0)


# --- retries and deadlines ----------------------------------------------------------------------------------------


async def test_a_hook_outlives_its_caller_and_the_retry_joins_it() -> None:
    async with bridged(subject(), latency=hooks(7.0)) as csi:
        for _ in range(2):
            began = asyncio.get_running_loop().time()
            await csi.refused("ABORTED", "CreateVolume", seconds=3.0, **csi.demand("pvc-1"))
            assert asyncio.get_running_loop().time() - began == pytest.approx(2.8), "before the caller's deadline"
        volume = (await csi.call("CreateVolume", seconds=3.0, **csi.demand("pvc-1"))).volume
        assert storage_of(csi).made == 1
        assert volume.volume_id == "memory-1"


async def test_a_caller_that_hangs_up_changes_nothing() -> None:
    async with bridged(subject(), latency=hooks(7.0)) as csi:
        caller = asyncio.create_task(csi.call("CreateVolume", **csi.demand("pvc-1")))
        await asyncio.sleep(1.0)
        caller.cancel()
        await asyncio.sleep(10.0)
        assert list(storage_of(csi).assets) == ["pvc-1"]


async def test_another_call_for_the_same_volume_waits_for_the_first_until_its_own_deadline() -> None:
    async with bridged(subject(), latency=hooks(7.0)) as csi:
        first = asyncio.create_task(csi.call("CreateVolume", **csi.demand("pvc-1")))
        await asyncio.sleep(0.1)
        other = csi.demand("pvc-1", capacity_range={"required_bytes": 2 * GIB})
        assert "goes on" in await csi.refused("ABORTED", "CreateVolume", seconds=3.0, **other)
        await csi.refused("ALREADY_EXISTS", "CreateVolume", seconds=60.0, **other)
        assert (await first).volume.capacity_bytes == GIB


async def test_a_volume_is_not_deleted_while_it_is_made_again() -> None:
    async with bridged(subject(), latency=hooks(7.0)) as csi:
        volume = await csi.create("pvc-1")
        again = asyncio.create_task(csi.call("CreateVolume", **csi.demand("pvc-1")))
        await asyncio.sleep(0.1)
        await csi.refused("ABORTED", "DeleteVolume", volume_id=volume.volume_id, seconds=60.0)
        assert (await again).volume.volume_id == volume.volume_id


async def test_long_work_is_followed_to_its_end_in_one_call() -> None:
    class Slow(MemoryBackend):
        asked: ClassVar[list[Any]] = []

        @hookimpl
        def provision(self, request: ProvisionRequest) -> Asset | InProgress:
            self.asked.append(dict(request.context.state))
            if len(self.asked) < 3:
                return InProgress(retry_after=5.0, state={"step": len(self.asked)})
            return super().provision(request)

    async with bridged(subject(Slow)) as csi:
        assert (await csi.create("pvc-1")).volume_id == "memory-1"
        assert Slow.asked == [{}, {"step": 1}, {"step": 2}]


async def test_long_work_for_which_nobody_asks_any_more_ends() -> None:
    class Endless(MemoryBackend):
        @hookimpl
        def provision(self, request: ProvisionRequest) -> Asset | InProgress:
            return InProgress(retry_after=60.0)

    async with bridged(subject(Endless)) as csi:
        await csi.refused("ABORTED", "CreateVolume", seconds=10.0, **csi.demand("pvc-1"))
        assert len(csi.bridge.flights) == 1
        await asyncio.sleep(flights.PATIENCE + 120.0)
        assert len(csi.bridge.flights) == 0


async def test_a_hook_that_overruns_its_time_keeps_its_volume_to_itself() -> None:
    async with bridged(subject(), latency=hooks(300.0)) as csi:
        demand = csi.demand("pvc-1")
        assert "did not return" in await csi.refused("ABORTED", "CreateVolume", seconds=200.0, **demand)
        await csi.refused("ABORTED", "CreateVolume", seconds=10.0, **demand)
        assert len(csi.bridge.flights) == 1
        await asyncio.sleep(300.0)
        assert len(csi.bridge.flights) == 0
        assert storage_of(csi).made == 1


async def test_so_many_hooks_run_at_once_and_the_others_wait() -> None:
    async with bridged(subject(), latency=hooks(10.0), concurrency=2) as csi:
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(csi.create(f"pvc-{number}") for number in range(6)))
        assert asyncio.get_running_loop().time() - began == pytest.approx(30.0)
        assert (await csi.call("Probe")).ready.value


class Sidecar:
    """Asks as csi-provisioner 6.3 does: for 10 s, and again after a pause that doubles."""

    def __init__(self, csi: Caller) -> None:
        self._csi = csi
        self.codes: set[str] = set()

    async def finish(self, method: str, **fields: Any) -> Any:
        for attempt in range(30):
            try:
                return await self._csi.call(method, seconds=10.0, **fields)
            except CsiError as error:
                self.codes.add(error.code)
            await asyncio.sleep(min(2.0**attempt, 300.0))
        raise AssertionError(f"{method} never ends")

    async def twice(self, method: str, **fields: Any) -> Any:
        """Ask, and ask beside that without a pause, as after a restart within the call."""
        first, second = await asyncio.gather(self.finish(method, **fields), self.finish(method, **fields))
        assert first == second
        return first


async def test_a_thousand_claims_at_once_have_one_volume_each_and_leave_none() -> None:
    """Ten hooks of a quarter of a second run at once, so that most callers give up before their turn."""
    async with bridged(subject(), latency=hooks(0.25)) as csi:
        sidecar = Sidecar(csi)
        began = asyncio.get_running_loop().time()
        asks = (sidecar.twice if number % 10 == 0 else sidecar.finish for number in range(1000))
        made = await asyncio.gather(
            *(ask("CreateVolume", **csi.demand(f"pvc-{number}")) for number, ask in enumerate(asks))
        )
        assert len({each.volume.volume_id for each in made}) == 1000
        assert (len(storage_of(csi).assets), storage_of(csi).made) == (1000, 1000)
        assert sidecar.codes == {"ABORTED"}
        assert asyncio.get_running_loop().time() - began < 60.0, "25 s of hooks, and the last pause of a caller"
        await asyncio.gather(*(sidecar.finish("DeleteVolume", volume_id=each.volume.volume_id) for each in made))
        assert not storage_of(csi).assets
        assert not len(csi.bridge.flights)


# --- doubt --------------------------------------------------------------------------------------------------------


class Failing(MemoryBackend):
    """Fails as `errors` says, one after the other, before or after it makes the asset."""

    errors: ClassVar[list[BackendError | None]] = []
    after: bool = False
    settles: float = 60.0

    @hookimpl
    def describe(self, request: Any) -> Any:
        return dataclasses.replace(super().describe(request), settle_seconds=self.settles)

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        error = type(self).errors.pop(0) if type(self).errors else None
        made = super().provision(request) if self.after or error is None else None
        if error is not None:
            raise error
        assert made is not None
        return made


@pytest.fixture
def failing() -> type[Failing]:
    return type("FailingOnce", (Failing,), {"errors": [], "after": False})


async def test_a_final_code_comes_only_once_absence_is_proven(failing: type[Failing]) -> None:
    failing.errors = [PermissionDenied("not yours"), InvalidArgument("bad"), InvalidArgument("bad")]
    async with bridged(subject(failing)) as csi:
        demand = csi.demand("pvc-1")
        await csi.refused("ABORTED", "CreateVolume", **demand)
        await asyncio.sleep(30.0)
        await csi.refused("ABORTED", "CreateVolume", **demand)
        await asyncio.sleep(31.0)
        await csi.refused("INVALID_ARGUMENT", "CreateVolume", **demand)


async def test_what_is_there_is_never_called_absent(failing: type[Failing]) -> None:
    failing.errors, failing.after = [PermissionDenied("half done")] + [InvalidArgument("bad")] * 3, True
    async with bridged(subject(failing)) as csi:
        for _ in range(4):
            await csi.refused("ABORTED", "CreateVolume", **csi.demand("pvc-1"))
            await asyncio.sleep(100.0)
        assert (await csi.create("pvc-1")).volume_id == "memory-1"


async def test_a_bridge_that_has_just_started_knows_nothing_of_earlier_attempts(failing: type[Failing]) -> None:
    failing.errors = [InvalidArgument("bad")] * 2
    async with bridged(subject(failing), settled=False) as csi:
        await csi.refused("ABORTED", "CreateVolume", **csi.demand("pvc-1"))
        await asyncio.sleep(61.0)
        await csi.refused("INVALID_ARGUMENT", "CreateVolume", **csi.demand("pvc-1"))


async def test_a_backend_that_is_certain_is_believed_at_once(failing: type[Failing]) -> None:
    failing.errors = [ResourceExhausted("full", nothing_done=True)]
    async with bridged(subject(failing), settled=False) as csi:
        await csi.refused("RESOURCE_EXHAUSTED", "CreateVolume", **csi.demand("pvc-1"))


async def test_another_demand_is_no_end_while_an_attempt_is_in_doubt(failing: type[Failing]) -> None:
    failing.errors, failing.after = [PermissionDenied("half done")], True
    async with bridged(subject(failing)) as csi:
        await csi.refused("ABORTED", "CreateVolume", **csi.demand("pvc-1"))
        other = csi.demand("pvc-1", capacity_range={"required_bytes": 2 * GIB})
        await csi.refused("ABORTED", "CreateVolume", **other)
        await csi.create("pvc-1")
        await csi.refused("ALREADY_EXISTS", "CreateVolume", **other)


async def test_what_was_made_of_a_source_is_answered_also_once_the_source_is_gone() -> None:
    """The answer may have been lost; nobody else knows the id."""
    async with bridged(subject()) as csi:
        source = (await csi.create("pvc-1")).volume_id
        cut = {"name": "snapshot-1", "source_volume_id": source}
        snapshot = (await csi.call("CreateSnapshot", **cut)).snapshot
        contents = {"snapshot": {"snapshot_id": snapshot.snapshot_id}}
        restored = await csi.create("pvc-2", volume_content_source=contents)
        copied = await csi.create("pvc-3", volume_content_source={"volume": {"volume_id": source}})
        await csi.delete(source)
        assert (await csi.call("CreateSnapshot", **cut)).snapshot == snapshot
        await csi.refused("ALREADY_EXISTS", "CreateSnapshot", name="snapshot-1", source_volume_id=copied.volume_id)
        await csi.call("DeleteSnapshot", snapshot_id=snapshot.snapshot_id)
        await csi.refused("NOT_FOUND", "CreateSnapshot", **cut)
        assert await csi.create("pvc-2", volume_content_source=contents) == restored
        assert await csi.create("pvc-3", volume_content_source={"volume": {"volume_id": source}}) == copied
        await csi.refused("NOT_FOUND", "CreateVolume", **csi.demand("pvc-4", volume_content_source=contents))


async def test_an_accident_of_the_backend_is_no_end_and_shows_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Accident(MemoryBackend):
        @hookimpl
        def provision(self, request: ProvisionRequest) -> Asset | InProgress:
            raise RuntimeError("no such key")

    async with bridged(subject(Accident)) as csi:
        text = await csi.refused("ABORTED", "CreateVolume", **csi.demand("pvc-1", secrets={"token": "hunter2"}))
        assert "RuntimeError" in text
        assert "hunter2" not in text + caplog.text


async def test_no_call_shows_its_secrets_whatever_becomes_of_it(caplog: pytest.LogCaptureFixture) -> None:
    class Tells(MemoryBackend):
        """Has all that it knows in its errors."""

        @hookimpl
        def delete(self, request: DeleteRequest) -> Done | InProgress:
            raise BackendError(f"cannot do it: {request!r}")

    secret = {"password": "hunter2"}
    with caplog.at_level(logging.DEBUG):
        async with bridged(subject(Tells)) as csi:
            volume = await csi.create(secrets=secret)
            assert "hunter2" not in str(volume)
            with_secrets = [each for each in csi.dispatch.methods if each in WITH_SECRETS]
            assert len(with_secrets) >= 10
            for method in with_secrets:
                known = {"volume_id": volume.volume_id, "name": "a", "snapshot_id": "b", "node_id": "n"}
                fields = message(f"{method}Request").DESCRIPTOR.fields_by_name
                given = {key: value for key, value in known.items() if key in fields}
                try:
                    answer = str(await csi.call(method, secrets=secret, **given))
                except CsiError as error:
                    answer = str(error)
                assert "hunter2" not in answer + caplog.text, method


async def test_a_probe_asks_no_storage() -> None:
    """Kubelets and sidecars probe often; a storage that hangs must not have the bridge killed."""
    asked: list[object] = []

    class Counts(MemoryBackend):
        @hookimpl
        def probe(self, request: Any) -> Done:
            asked.append(request)
            return Done()

    async with bridged(subject(Counts)) as csi:
        for _ in range(100):
            assert (await csi.call("Probe")).ready.value
            await asyncio.sleep(0.1)
        assert len(asked) <= 1


async def test_an_accident_of_the_bridge_is_no_end_and_shows_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bridged(subject()) as csi:

        async def fail(*_arguments: Any) -> None:
            raise KeyError("hunter2")

        monkeypatch.setattr(csi.bridge.flights, "run", fail)
        with caplog.at_level(logging.DEBUG):
            text = await csi.refused("ABORTED", "CreateVolume", **csi.demand("pvc-1"))
        assert "KeyError in fail" in caplog.text
        assert "hunter2" not in text + caplog.text


async def test_a_deleted_name_of_an_old_token_gets_the_next_generation() -> None:
    class Tokens(MemoryBackend):
        used: ClassVar[set[tuple[str, int]]] = set()

        @hookimpl
        def provision(self, request: ProvisionRequest) -> Asset | InProgress:
            there = self.storage.assets.get(request.name)
            key = (request.name, request.owner.generation)
            if key in self.used and (there is None or there.owner != request.owner):
                raise AlreadyDeleted(f"{request.name} was deleted")
            self.used.add(key)
            return super().provision(request)

    async with bridged(subject(Tokens)) as csi:
        for generation in (1, 2, 3):
            volume = await csi.create("data")
            owner = storage_of(csi).assets["data"].owner
            assert owner is not None
            assert owner.generation == generation
            assert (await csi.create("data")).volume_id == volume.volume_id
            await csi.delete(volume.volume_id)


async def test_the_volume_of_a_deleted_claim_is_not_made_again() -> None:
    async with bridged(subject()) as csi:
        volume = await csi.create(f"pvc-{UID}")
        await csi.delete(volume.volume_id)
        await csi.refused("FAILED_PRECONDITION", "CreateVolume", **csi.demand(f"pvc-{UID}"))
        assert await csi.ids() == []
        await asyncio.sleep(3601.0)
        assert (await csi.create(f"pvc-{UID}")).volume_id == "memory-2", "a cluster that was restored may want it"


# --- owners and ids -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cluster", ["sanity", "other/csi", None], ids=["controllers", "another bridge", "a person"])
async def test_what_is_anothers_is_neither_deleted_nor_changed_nor_shown(cluster: str | None) -> None:
    async with bridged(subject()) as csi:
        volume = await csi.create("pvc-1")
        marks = Ownership(cluster_id=cluster, claim_uid="1", volume_name="pvc-1") if cluster else None
        storage_of(csi).assets["pvc-1"].owner = marks
        text = await csi.refused("FAILED_PRECONDITION", "DeleteVolume", volume_id=volume.volume_id)
        assert "not deleted" in text
        assert await csi.ids() == []
        if cluster:
            for method, more in (
                ("ControllerExpandVolume", {"capacity_range": {"required_bytes": 2 * GIB}}),
                ("ControllerPublishVolume", {"node_id": "node-1", "volume_capability": WRITER}),
                ("ControllerUnpublishVolume", {"node_id": "node-1"}),
                ("ControllerModifyVolume", {"mutable_parameters": {"colour": "red"}}),
            ):
                await csi.refused("FAILED_PRECONDITION", method, volume_id=volume.volume_id, **more)
        assert storage_of(csi).assets["pvc-1"].capacity_bytes == GIB


async def test_an_id_that_resembles_that_of_a_volume_deletes_nothing() -> None:
    class Lenient(MemoryBackend):
        """It finds what it is asked for in more than one spelling."""

        @hookimpl
        def inspect(self, request: Any) -> Any:
            return super().inspect(dataclasses.replace(request, handle=request.handle.partition("~")[0]))

    async with bridged(subject(Lenient)) as csi:
        volume = await csi.create("pvc-1")
        await csi.delete(f"{volume.volume_id}~x")
        assert await csi.ids() == [volume.volume_id]


@pytest.mark.parametrize("impatient", [0, 4])
async def test_what_is_not_to_be_seen_yet_is_not_called_gone(impatient: int) -> None:
    class Late(MemoryBackend):
        """What it has made may be seen a while after that."""

        hidden: ClassVar[bool] = False

        @hookimpl
        def describe(self, request: Any) -> Any:
            return dataclasses.replace(super().describe(request), settle_seconds=60.0)

        @hookimpl
        def inspect(self, request: Any) -> Any:
            return Absent() if Late.hidden else super().inspect(request)

        @hookimpl
        def find_snapshot(self, request: Any) -> Any:
            return Absent() if Late.hidden and request.handle else super().find_snapshot(request)

    async with bridged(subject(Late)) as csi:
        volume = (await csi.create("pvc-1")).volume_id
        snapshot = (await csi.call("CreateSnapshot", name="snapshot-1", source_volume_id=volume)).snapshot
        await csi.call("ControllerPublishVolume", volume_id=volume, node_id="node-1", volume_capability=WRITER)
        for method, ids in (
            ("DeleteSnapshot", {"snapshot_id": snapshot.snapshot_id}),
            ("ControllerUnpublishVolume", {"volume_id": volume, "node_id": "node-1"}),
            ("DeleteVolume", {"volume_id": volume}),
        ):
            Late.hidden = True
            asyncio.get_running_loop().call_later(59.0, setattr, Late, "hidden", False)
            for _ in range(impatient):
                await csi.refused("ABORTED", method, seconds=10.0, **ids)
            await csi.call(method, **ids)
        assert not storage_of(csi).assets
        assert not storage_of(csi).snapshots


async def test_what_stays_missing_is_gone() -> None:
    """Also to callers that do not wait so long, and ask after the answer was lost."""

    class Slow(MemoryBackend):
        @hookimpl
        def describe(self, request: Any) -> Any:
            return dataclasses.replace(super().describe(request), settle_seconds=60.0)

    async with bridged(subject(Slow)) as csi:
        began = asyncio.get_running_loop().time()
        await csi.refused("ABORTED", "DeleteVolume", seconds=10.0, volume_id="memory-1")
        await asyncio.sleep(300.0)
        await csi.call("DeleteVolume", seconds=10.0, volume_id="memory-1")
        assert asyncio.get_running_loop().time() - began < 320.0


async def test_a_backend_without_inspect_is_looked_through() -> None:
    class Plain(MemoryBackend):
        inspect = None  # type: ignore[assignment]

    async with bridged(subject(Plain, page=2)) as csi:
        assert not csi.has("inspect")
        made = [await csi.create(f"pvc-{number}") for number in range(5)]
        for volume in made:
            await csi.delete(volume.volume_id)
        assert await csi.ids() == []


async def test_a_backend_is_told_how_many_the_caller_wants() -> None:
    class Asked(MemoryBackend):
        most: ClassVar[list[int]] = []

        @hookimpl
        def list_assets(self, request: ListRequest) -> AssetPage:
            Asked.most.append(request.max_entries)
            return super().list_assets(request)

        @hookimpl
        def list_snapshots(self, request: ListSnapshotsRequest) -> SnapshotPage:
            Asked.most.append(request.max_entries)
            return super().list_snapshots(request)

    async with bridged(subject(Asked)) as csi:
        made = [(await csi.create(f"pvc-{number}")).volume_id for number in range(3)]
        assert await csi.ids() == made
        page = await csi.call("ListVolumes", max_entries=2)
        rest = await csi.call("ListVolumes", max_entries=2, starting_token=page.next_token)
        assert [each.volume.volume_id for each in (*page.entries, *rest.entries)] == made
        await csi.call("ListSnapshots", max_entries=1)
        assert Asked.most == [0, 2, 2, 2, 1]


async def test_texts_that_are_too_long_or_no_text_reach_no_hook() -> None:
    async with bridged(subject()) as csi:
        for name in ("n" * 129, "a\nb", "\x00"):
            await csi.refused("INVALID_ARGUMENT", "CreateVolume", **csi.demand(name))
        await csi.refused("INVALID_ARGUMENT", "DeleteVolume", volume_id="x" * 1025)
        await csi.refused("ABORTED", "ListVolumes", starting_token="W10=")
        await csi.refused("INVALID_ARGUMENT", "ListVolumes", max_entries=-1)
        for required, limit, code in ((-1, 0, "INVALID_ARGUMENT"), (5, 4, "INVALID_ARGUMENT")):
            size = {"required_bytes": required, "limit_bytes": limit}
            await csi.refused(code, "CreateVolume", **csi.demand("pvc-1", capacity_range=size))
        both = [WRITER, {"block": {}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}]
        await csi.refused("INVALID_ARGUMENT", "CreateVolume", **csi.demand("pvc-1", volume_capabilities=both))


async def test_bytes_that_are_no_request_are_no_end() -> None:
    async with bridged(subject()) as csi:
        for content in (b"\xff\xff", bytes((4 << 20) + 1)):
            with pytest.raises(CsiError) as error:
                await csi.dispatch.call("CreateVolume", content, 10.0)
            assert error.value.code == "ABORTED"


# --- what sidecars say --------------------------------------------------------------------------------------------


class Watched(MemoryBackend):
    demands: ClassVar[list[ProvisionRequest]] = []
    deletions: ClassVar[list[DeleteRequest]] = []

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        self.demands.append(request)
        return super().provision(request)

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        self.deletions.append(request)
        return super().delete(request)


async def test_a_hook_gets_the_claim_the_modes_and_no_parameter_of_the_sidecar() -> None:
    Watched.demands, Watched.deletions = [], []
    async with bridged(subject(Watched)) as csi:
        volume = await csi.create(
            f"pvc-{UID}",
            parameters={
                "colour": "red",
                "csi.storage.k8s.io/pvc/name": "data",
                "csi.storage.k8s.io/pvc/namespace": "shop",
                "csi.storage.k8s.io/pv/name": f"pvc-{UID}",
            },
            volume_capabilities=[
                {"block": {}, "access_mode": {"mode": "SINGLE_NODE_SINGLE_WRITER"}},
                {"block": {}, "access_mode": {"mode": "MULTI_NODE_MULTI_WRITER"}},
            ],
        )
        await csi.delete(volume.volume_id)
    (demand,) = Watched.demands
    assert demand.owner == Ownership(cluster_id="sanity/csi", claim_uid=UID, volume_name=f"pvc-{UID}")
    assert (demand.claim.namespace, demand.claim.name, demand.claim.uid) == ("shop", "data", UID)
    assert demand.parameters == {"colour": "red"}
    assert [str(mode) for mode in demand.access_modes] == ["ReadWriteOncePod", "ReadWriteMany"]
    assert demand.volume_mode == "Block"
    (deletion,) = Watched.deletions
    assert deletion.volume.uid, "it was given out, so there may be data in it"


async def test_a_retry_that_names_another_place_gets_the_volume_where_it_is() -> None:
    zones = [{"segments": {ZONE: zone}} for zone in ("a", "b", "c")]
    async with bridged(subject(zones=("a", "b", "c"))) as csi:
        first = {"requisite": zones, "preferred": zones[1:]}
        volume = await csi.create("pvc-1", accessibility_requirements=first)
        assert [dict(each.segments) for each in volume.accessible_topology] == [{ZONE: "b"}]
        again = await csi.create("pvc-1", accessibility_requirements={"requisite": zones, "preferred": zones[2:]})
        assert again == volume
        elsewhere = csi.demand("pvc-1", accessibility_requirements={"requisite": zones[:1], "preferred": zones[:1]})
        await csi.refused("ALREADY_EXISTS", "CreateVolume", **elsewhere)
        assert storage_of(csi).made == 1


async def test_attributes_that_cannot_be_set_delete_no_volume_that_was_there_before() -> None:
    async with bridged(subject()) as csi:
        volume = await csi.create("pvc-1")
        await csi.refused("ABORTED", "CreateVolume", **csi.demand("pvc-1", mutable_parameters={"no-such": "x"}))
        assert await csi.ids() == [volume.volume_id]


async def test_nor_one_that_was_made_a_moment_ago_and_cannot_be_found_yet() -> None:
    class Late(MemoryBackend):
        @hookimpl
        def describe(self, request: Any) -> Any:
            return dataclasses.replace(super().describe(request), settle_seconds=60.0)

        @hookimpl
        def find(self, request: Any) -> Any:
            return Absent()

    async with bridged(subject(Late)) as csi:
        volume = await csi.create("pvc-1")
        await csi.refused("ABORTED", "CreateVolume", **csi.demand("pvc-1", mutable_parameters={"no-such": "x"}))
        assert await csi.ids() == [volume.volume_id]


async def test_while_the_driver_has_not_started_nothing_is_an_end() -> None:
    class Away(Filer):
        """Its password cannot be read."""

    away = Subject(Away, {"password": "env:NO_SUCH_VARIABLE"}, driver_name="filer.example.com")
    async with bridged(away) as csi:
        assert not (await csi.call("Probe")).ready.value
        assert (await csi.call("GetPluginInfo")).name == "filer.example.com"
        text = await csi.refused("UNAVAILABLE", "CreateVolume", **csi.demand("pvc-1"))
        assert "NO_SUCH_VARIABLE" in text


async def test_capacity_is_that_of_the_place_and_none_for_what_is_not_served() -> None:
    async with bridged(subject(zones=("a",), capacity_bytes=5 * GIB, largest=3 * GIB)) as csi:
        place = {"segments": {ZONE: "a", "kubernetes.io/hostname": "n"}}
        answer = await csi.call("GetCapacity", accessible_topology=place)
        assert (answer.available_capacity, answer.maximum_volume_size.value) == (5 * GIB, 3 * GIB)
        assert (await csi.call("GetCapacity", accessible_topology={"segments": {ZONE: "z"}})).available_capacity == 0


async def test_a_block_device_needs_no_node_to_grow_and_a_file_system_may() -> None:
    class OnNodes(MemoryBackend):
        @hookimpl
        def describe(self, request: Any) -> Any:
            return dataclasses.replace(super().describe(request), node_expansion_required=True)

    block = {"block": {}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}
    async with bridged(subject(OnNodes)) as csi:
        volume, size = await csi.create("pvc-1"), {"required_bytes": 2 * GIB}
        for capability, on_node in ((WRITER, True), (block, False)):
            grown = await csi.call(
                "ControllerExpandVolume",
                volume_id=volume.volume_id,
                capacity_range=size,
                volume_capability=capability,
            )
            assert grown.node_expansion_required is on_node


async def test_find_is_asked_by_the_marks_of_the_bridge() -> None:
    class Asked(Failing):
        questions: ClassVar[list[FindRequest]] = []

        @hookimpl
        def find(self, request: FindRequest) -> Asset | Absent:
            self.questions.append(request)
            return super().find(request)

    Asked.errors = [InvalidArgument("bad")]
    async with bridged(subject(Asked)) as csi:
        await csi.refused("INVALID_ARGUMENT", "CreateVolume", **csi.demand("Nomad's Volume"))
    (question,) = Asked.questions
    assert question.owner.cluster_id == "sanity/csi"
    assert question.name == question.owner.volume_name
    assert question.name.startswith("csi-")
    assert len(question.name) == 52
