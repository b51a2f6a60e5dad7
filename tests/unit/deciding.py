"""Plain objects for the tests of decisions: a state of the cluster, views of drivers, what was read live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from unit.binding.objects import claim
from volplane.assets import AccessMode, VolumeMode, VolumeSource
from volplane.attach.desired import NODE_INDEX
from volplane.controller.actions import Action, LiveReads, Wait
from volplane.controller.controller import Role
from volplane.drivers.driver import DriverView
from volplane.drivers.owners import SourceOwner
from volplane.expand import resize
from volplane.kube.cache import Cache
from volplane.kube.kinds import CLAIMS, NODES, PODS, STORAGE_CLASSES, VOLUMES
from volplane.kube.objects import Claim, CsiDriver, KubeObject, Node, Pod, StorageClass, Volume, VolumeAttachment
from volplane.placement.one_node import RaceTimes
from volplane.process.duties import ALL_CONTROLLERS
from volplane.reclaim import delete, recycle
from volplane.roles import decisions
from volplane.schemas import DriverInfo
from volplane.state.cluster_state import CLAIM_INDEXES, POD_INDEXES, VOLUME_INDEXES, ClusterState
from volplane.state.records import Sealer

DRIVER: Final = "disk.example.com"
GIB = 1 << 30
"""What the claims of tests ask for."""
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
HOOKS: Final = frozenset({"describe", "owns", "provision", "delete", "recycle"})


def disk(name: str = DRIVER, *, hooks: frozenset[str] = HOOKS, **info: Any) -> DriverView:
    """A driver that takes every mode, and owns every static volume. info: of `DriverInfo`."""
    modes = {"access_modes": frozenset(AccessMode), "volume_modes": frozenset(VolumeMode)}
    return DriverView(name=name, backend="disk", info=DriverInfo(**{"version": "1", **modes, **info}), hooks=hooks)


class Views:
    """Drivers that can be used, and those that cannot with the reason."""

    def __init__(
        self, views: Sequence[DriverView], broken: Mapping[str, str], distributed: Sequence[DriverView] = ()
    ) -> None:
        self._views = {view.name: view for view in views}
        self._distributed = {view.name: view for view in distributed}
        self._broken = broken

    def get(self, name: str) -> DriverView | None:
        return self._views.get(name)

    def distributed(self, name: str) -> DriverView | None:
        return self._distributed.get(name)

    def on_nodes(self, name: str) -> bool:
        return name in self._distributed

    def publishes(self, name: str) -> bool:
        return name in self._distributed

    def starting(self, name: str) -> bool:
        return self._broken.get(name) == "is starting"

    def broken(self, name: str) -> str:
        return self._broken.get(name, "")

    def attachers(self, csi_driver: str) -> tuple[str, ...]:
        return tuple(name for name, view in self._views.items() if view.info.csi_driver_name == csi_driver)

    def owner_of(self, source: VolumeSource) -> SourceOwner:
        return SourceOwner(driver=next(iter(self._views.values()), None))


@dataclass(slots=True, kw_only=True)
class StateOfTest(ClusterState):
    """With the role of the process that decides."""

    role: Role
    race: RaceTimes | None = None

    @property
    def decisions(self) -> Any:
        """What the role decides."""
        return decisions(self.role, self, self.race)


def empty_state(
    *,
    drivers: Sequence[DriverView] = (),
    broken: Mapping[str, str] | None = None,
    distributed: Sequence[DriverView] = (),
    lease: str = "",
    node_name: str = "",
    without: Sequence[str] = (),
    **more: Any,
) -> StateOfTest:
    """A cluster without objects; nothing follows its caches. without: controllers that the process does not run.
    more: of `Role`; NAME=False for one of these controllers.
    """
    off = {*without, *(name.replace("_", "-") for name, value in more.items() if value is False)}
    role = Role(
        controllers=frozenset(ALL_CONTROLLERS) - off,
        cluster_id="test",
        lease=lease,
        node_name=node_name,
        **{name: value for name, value in more.items() if not isinstance(value, bool)},
    )
    return StateOfTest(
        role=role,
        cluster_id="test",
        lease=lease,
        node_name=node_name,
        claims=Cache(CLAIMS, CLAIM_INDEXES),
        volumes=Cache(VOLUMES, VOLUME_INDEXES),
        classes=Cache(STORAGE_CLASSES),
        pods=Cache(PODS, {**POD_INDEXES, **NODE_INDEX}),
        nodes=Cache(NODES),
        drivers=Views(drivers, broken or {}, distributed),
        sealer=Sealer(b"k" * 32),
        now=lambda: NOW,
        monotonic=lambda: 1000.0,
    )


def state_with(*objects: KubeObject, **more: Any) -> StateOfTest:
    """A cluster in which these objects exist. more: as `empty_state` has it."""
    state = empty_state(**more)
    state.volumes.subscribe(state.free.changed)
    state.volumes.subscribe(state.overlaps.changed)
    put(state, *objects)
    return state


def put(state: ClusterState, *objects: KubeObject) -> None:
    for item in objects:
        match item:
            case Claim():
                state.claims.observe(item)
            case Volume():
                state.volumes.observe(item)
            case StorageClass():
                state.classes.observe(item)
            case Pod():
                state.pods.observe(item)
            case Node():
                state.nodes.observe(item)
            case VolumeAttachment():
                state.attachments.observe(item)
            case CsiDriver():
                state.csi_drivers.observe(item)
            case _:
                raise TypeError(item)


def read(kind: Any, key: str, answer: KubeObject | None = None) -> LiveReads:
    """What a pass knows that read one object live."""
    reads = LiveReads()
    reads.put(kind, key, answer)
    return reads


def decide_claim(key: str, state: StateOfTest, reads: LiveReads) -> Action:
    """What the role of the state decides about a claim."""
    return state.decisions.decide_claim(key, reads)


def decide_volume(key: str, state: StateOfTest, reads: LiveReads) -> Action:
    """What the role of the state decides about a volume."""
    return state.decisions.decide_volume(key, reads)


def decide_provision(item: Claim, of_class: StorageClass, state: StateOfTest, reads: LiveReads) -> Action:
    """What the role of the state decides about a claim for which no volume fits."""
    decided = state.decisions
    here = decided._provision_here if state.node_name else decided._provision
    return here(item, of_class, reads)


def decide_delete(item: Volume, state: StateOfTest) -> Action:
    """The same about a volume whose asset is to go."""
    return delete.decide_delete(item, state, state.decisions.reclaim)


def decide_recycle(item: Volume, state: StateOfTest, reads: LiveReads) -> Action:
    """The same about a volume whose contents are to go."""
    return recycle.decide_recycle(item, state, reads, state.decisions.reclaim)


def end_scrub(item: Volume, state: StateOfTest, reads: LiveReads) -> Action:
    """The same about a volume that is not to be scrubbed any more."""
    return recycle.end_scrub(item, state, reads, state.decisions.reclaim)


def decide_resize(key: str, state: StateOfTest) -> Action:
    """The same about the size of a claim."""
    return resize.decide_resize(key, state, whole=state.role.runs("binder"))


def decided(item: Claim, *others: KubeObject, reads: LiveReads | None = None, **more: Any) -> Any:
    """What is decided about a claim among these objects."""
    return decide_claim(item.key, state_with(item, *others, **more), reads or LiveReads())


def told(action: Any) -> tuple[str, str, str]:
    """Type, reason and message of the one event of a wait."""
    assert isinstance(action, Wait), action
    (event,) = action.events
    return event.type, event.reason, event.message


def fast(**fields: Any) -> Claim:
    """A claim of class fast."""
    return claim(storageClassName="fast", **fields)
