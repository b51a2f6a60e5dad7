"""Random calls, with duplicates, other arguments, callers without time, and kills, judged by a model of CSI."""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from clocks import SteppedClock
from integration.csi.caller import GIB, Caller, bridged
from integration.csi.model import Model, RandomCalls, ViolationError
from integration.csi.test_sanity import of_plugin
from volplane import ParameterSchema
from volplane.csi import snapshots, volumes
from volplane.csi.codes import CsiError
from volplane.csi.flights import Flights
from volplane.csi.wire import build, message, method_path
from volplane.errors import (
    BackendError,
    InvalidArgument,
    OutcomeUnknown,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from volplane_testing.clock import run
from volplane_testing.conformance import Subject
from volplane_testing.conformance.subject import opened
from volplane_testing.faults import FailAfter, FailBefore, Fault, FaultyBackend, Twice
from volplane_testing.memory import MemoryBackend
from volplane_testing.memory_storage import MemoryStorage

CHANGES = ("provision", "delete", "expand", "attach", "detach", "create_snapshot", "delete_snapshot")
STEPS = 60


def fault(chance: random.Random) -> Fault | None:
    """Return what goes wrong with a hook: mostly nothing."""
    if chance.random() < 0.75:
        return None
    errors = (Unavailable("away"), PermissionDenied("no"), OutcomeUnknown("lost"), RuntimeError("an accident"))
    before = (*errors, ResourceExhausted("full"), InvalidArgument("not today"))
    return chance.choice((FailBefore(chance.choice(before)), FailAfter(chance.choice(errors)), Twice()))


def unsteady(subject: Subject, chance: random.Random) -> Subject:
    """Return a backend that fails now and then, before it has done something or after that."""
    script = {hook: [fault(chance) for _ in range(200)] for hook in CHANGES}

    def make(options: Any) -> FaultyBackend:
        backend = FaultyBackend(subject.factory(options))
        for hook, faults in script.items():
            if hook in backend.hooks:
                backend.fail(hook, {number: each for number, each in enumerate(faults, 1) if each is not None})
        return backend

    make.options_schema = getattr(subject.factory, "options_schema", ParameterSchema())  # type: ignore[attr-defined]
    return replace(subject, factory=make)


def features_of(response: Any) -> frozenset[str]:
    """Return the methods that the capabilities promise."""
    rpc = message("ControllerServiceCapability.RPC").DESCRIPTOR.enum_types_by_name["Type"].values_by_number
    methods = {
        "LIST_VOLUMES": ["ListVolumes"],
        "LIST_SNAPSHOTS": ["ListSnapshots"],
        "CREATE_DELETE_SNAPSHOT": ["CreateSnapshot", "DeleteSnapshot"],
        "EXPAND_VOLUME": ["ControllerExpandVolume"],
        "PUBLISH_UNPUBLISH_VOLUME": ["ControllerPublishVolume", "ControllerUnpublishVolume"],
    }
    names = (rpc[each.rpc.type].name for each in response.capabilities if each.rpc.type in rpc)
    return frozenset(method for name in names for method in methods.get(name, ()))


@dataclass(eq=False)
class Virtual:
    """A bridge in virtual time that can be killed."""

    subject: Subject
    chance: random.Random
    features: frozenset[str] = frozenset()
    calls: set[asyncio.Task[Any]] = field(default_factory=set)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        def latency(_driver: str, what: str) -> tuple[float, float]:
            longest = 1.0 if what in CHANGES else 0.05
            return self.chance.choice((0.0, longest / 20, longest)), self.chance.choice((0.0, longest / 2))

        self.csi: Caller = await self.stack.enter_async_context(bridged(self.subject, latency=latency))
        self.features = features_of(await self.csi.call("ControllerGetCapabilities"))

    async def restart(self) -> None:
        for task in (*self.calls, *(flight.task for flight in self.csi.bridge.flights._taken.values())):
            task.cancel()
        await self.stack.aclose()
        await asyncio.sleep(0.0)
        await self.start()

    async def call(self, method: str, seconds: float, **fields: Any) -> tuple[str, Any]:
        task = asyncio.ensure_future(self.csi.call(method, seconds=seconds, **fields))
        self.calls.add(task)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()  # if the caller is killed
            self.calls.discard(task)
        if task.cancelled():
            return "UNAVAILABLE", "killed"
        error = task.exception()
        if isinstance(error, CsiError):
            return error.code, error.message
        return "OK", task.result()


def memory() -> Subject:
    clock = SteppedClock()
    storage = MemoryStorage(page=2, clock=clock, now=clock)
    subject = Subject(
        lambda options: MemoryBackend(options, storage=storage),
        driver_name="memory.volplane.dev",
        advance=clock.advance,
    )
    object.__setattr__(subject, "inspect", lambda: {*storage.assets, *storage.snapshots})
    return subject


BACKENDS: dict[str, Callable[[], Any]] = {
    "memory": memory,
    "hostpath": lambda: of_plugin("volplane_hostpath.testing", shared=False),
    "nfs": lambda: of_plugin("volplane_nfs.testing"),
    "aws_ebs": lambda: of_plugin("volplane_aws_ebs.testing"),
    "gce_pd": lambda: of_plugin("volplane_gce_pd.testing", hyperdisks=True),
}
CLOUDS = ("aws_ebs", "gce_pd")


async def judged(backend: str, seed: int, steps: int = STEPS) -> None:
    """Judge one sequence. Raises ViolationError with the seed."""
    chance = random.Random(f"{backend} {seed}")
    with opened(BACKENDS[backend]) as subject:
        server = Virtual(unsteady(subject, chance), chance)
        await server.start()
        try:
            far: dict[str, Any] = {"pause": 5.0, "unit": GIB} if backend in CLOUDS else {}
            far |= {"again": False} if backend == "gce_pd" else {}
            await RandomCalls(server, chance, Model(), nodes=server.csi.nodes[:2], **far).run(steps)
        except ViolationError as error:
            raise ViolationError(f"backend {backend}, seed {seed}:\n{error}") from None
        finally:
            await server.stack.aclose()
        if backend == "memory":
            assert subject.inspect is not None
            assert subject.inspect() == set(), f"seed {seed} leaks"


@pytest.mark.parametrize(
    ("backend", "seed"),
    [("memory", 0), ("memory", 1), ("memory", 2), ("hostpath", 0), ("hostpath", 1), ("nfs", 0)],
)
async def test_random_calls_are_answered_as_a_model_allows(backend: str, seed: int) -> None:
    await judged(backend, seed)


@pytest.mark.soak
@pytest.mark.parametrize("backend", BACKENDS)
def test_thousands_of_random_calls(backend: str) -> None:
    for seed in range({"memory": 2000, "aws_ebs": 100, "gce_pd": 50}.get(backend, 500)):
        run(judged(backend, seed, 100))


# --- processes ----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Process:
    """A server in a process of its own, on a socket."""

    arguments: Sequence[str]
    path: Path
    features: frozenset[str] = frozenset()
    process: asyncio.subprocess.Process | None = None
    channel: grpc.aio.Channel | None = None

    async def start(self) -> None:
        quiet = asyncio.subprocess.DEVNULL
        self.process = await asyncio.create_subprocess_exec(*self.arguments, stdout=quiet, stderr=quiet)
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 100)]
        self.channel = grpc.aio.insecure_channel(f"unix:{self.path}", options=options)
        for _ in range(600):
            code, response = await self.call("Probe", 5.0)
            if code == "OK" and (response.ready.value or not response.HasField("ready")):
                break
            await asyncio.sleep(0.05)
        code, response = await self.call("ControllerGetCapabilities", 30.0)
        assert code == "OK", response
        self.features = features_of(response)

    async def stop(self) -> None:
        if self.process is not None and self.channel is not None:
            await self.channel.close()
            self.process.kill()
            await self.process.wait()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def call(self, method: str, seconds: float, **fields: Any) -> tuple[str, Any]:
        assert self.channel is not None
        content = build(f"{method}Request", **fields).SerializeToString()
        try:
            answer = await self.channel.unary_unary(method_path(method))(content, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details()
        except (asyncio.CancelledError, grpc.aio.UsageError):
            return "CANCELLED", "the channel is closed"
        return "OK", message(f"{method}Response").FromString(answer)


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="csi-") as made:
        yield Path(made)


async def judged_process(server: Process, seed: int, model: Model, nodes: Sequence[str]) -> None:
    await server.start()
    try:
        calls = RandomCalls(server, random.Random(seed), model, 20.0, (0.001, 0.003, 0.02), nodes, 0.05)
        # A kill can leave the reference driver with half of its state, with which it does not start.
        await calls.run(100, kills=not model.lax)
    except ViolationError as error:
        raise ViolationError(f"seed {seed}:\n{error}") from None
    finally:
        await server.stop()


@pytest.mark.soak
@pytest.mark.real_time(seconds=3000)
async def test_a_process_that_is_killed_answers_as_the_model_allows(directory: Path) -> None:
    path, root = directory / "csi.sock", directory / "root"
    root.mkdir()
    options = ["--backend", "hostpath", "-o", f"root={root}", "-o", "node_name=node-1", "--cluster", "here"]
    command = [sys.executable, "-m", "volplane", "csi", *options, "--endpoint", f"unix://{path}"]
    for seed in range(6):
        await judged_process(Process(command, path), seed, Model(), ())
        assert not list(root.glob("csi/*"))


@pytest.mark.soak
@pytest.mark.real_time(seconds=3000)
async def test_the_reference_driver_answers_as_the_model_allows(directory: Path) -> None:
    """Judge the model: by csi-driver-host-path, where it is installed."""
    if (found := shutil.which("hostpathplugin")) is None:
        pytest.skip("there is no hostpathplugin in PATH")
    path = directory / "csi.sock"
    options = ["--nodeid", "node-1", "--enable-attach", "--endpoint", f"unix://{path}", "--statedir", str(directory)]
    for seed in range(20):
        model = Model(exclusive=False, lax=True)
        await judged_process(Process([found, *options], path), seed, model, ("node-1",))


# --- the model itself ---------------------------------------------------------------------------------------------


async def _always(*_arguments: Any, **_named: Any) -> bool:
    return True


def without_proof(patch: pytest.MonkeyPatch) -> None:
    """Send codes that callers take for the end though something may be there."""
    patch.setattr(volumes.Volumes, "_nothing_there", _always)


def without_proof_of_snapshots(patch: pytest.MonkeyPatch) -> None:
    """Do the same for snapshots."""
    patch.setattr(snapshots.Making, "_absent", _always)


def deleted_at_once(patch: pytest.MonkeyPatch) -> None:
    """Answer that a volume is gone though its deletion has failed."""
    delete = volumes.Volumes._delete

    async def wrong(self: volumes.Volumes, flight: Any, id_: str) -> Any:
        with suppress(BackendError):
            return await delete(self, flight, id_)
        return build("DeleteVolumeResponse")

    patch.setattr(volumes.Volumes, "_delete", wrong)


def all_at_once(patch: pytest.MonkeyPatch) -> None:
    """Let no call join or wait for another one."""

    async def alone(self: Flights, method: str, key: str, *more: Any) -> Any:
        digest, work, seconds = more
        flight = self._begin(method, f"{key} {id(work)}", digest, work)
        await asyncio.wait([flight.task], timeout=max(seconds, 0.0))
        if not flight.task.done():
            raise CsiError("ABORTED", "goes on")
        return flight.task.result()

    patch.setattr(Flights, "run", alone)


@pytest.mark.parametrize(
    ("bug", "seed"), [(without_proof, 0), (without_proof_of_snapshots, 0), (deleted_at_once, 0), (all_at_once, 50)]
)
async def test_the_model_sees_a_bug(bug: Callable[[pytest.MonkeyPatch], None], seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        with pytest.raises(ViolationError):
            await judged("memory", seed)


# --- two bridges --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "backend", [pytest.param(each, marks=pytest.mark.soak if each in CLOUDS else ()) for each in BACKENDS]
)
async def test_two_bridges_at_once_make_and_delete_each_volume_once(backend: str) -> None:
    """As during an update, with another socket: no lock keeps them apart, the names and marks on the storage do."""

    async def create(csi: Caller, name: str, units: int) -> str:
        for _ in range(100):
            size = {"required_bytes": units * csi.subject.capacity_bytes}
            try:
                answer = await csi.call("CreateVolume", **csi.demand(name, capacity_range=size), seconds=30.0)
            except CsiError as error:
                if error.code not in ("ABORTED", "UNAVAILABLE"):
                    return error.code
                await asyncio.sleep(1.0)
            else:
                return str(answer.volume.volume_id)
        return "ABORTED"

    async def gone(csi: Caller, id_: str) -> None:
        for _ in range(100):
            with suppress(CsiError):
                await csi.call("DeleteVolume", volume_id=id_, seconds=30.0)
                return
            await asyncio.sleep(1.0)
        raise AssertionError(id_)

    with opened(BACKENDS[backend]) as subject:
        async with bridged(subject, latency=lambda *_call: (0.1, 0.1)) as one, bridged(subject) as other:
            names = [f"pvc-{number}" for number in range(8)]
            both = [(csi, name) for name in names for csi in (one, other)]
            ids = await asyncio.gather(*(create(csi, name, 1) for csi, name in both))
            assert ids[::2] == ids[1::2]
            assert len({*ids}) == len(names)
            racing = await asyncio.gather(*(create(csi, "pvc-race", 1 + (csi is other)) for csi in (one, other)))
            made = [each for each in racing if each not in ("ALREADY_EXISTS", "ABORTED")]
            assert len(made) == 1, racing
            assert sorted(await other.ids()) == sorted({*ids, *made})
            await asyncio.gather(*(gone(csi, id_) for id_ in {*ids, *made} for csi in (one, other)))
            assert await one.ids() == []
