"""A backend under test in the place of a simulated one: own storage and clock, hooks run in the loop."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NoReturn, TypeVar

from volplane.assets import AccessMode, Asset, ListedAsset, Ownership, VolumeMode
from volplane.drivers.contract import Plugin
from volplane.drivers.driver import Driver, Extension
from volplane.drivers.loading import build_driver
from volplane.errors import BackendError, ConfigurationError, PluginError, Unavailable
from volplane.requests import (
    Context,
    DeleteRequest,
    DetachRequest,
    HookRequest,
    ProvisionRequest,
    StartRequest,
    VolumeIdentity,
)
from volplane_testing.conformance import Subject, Violation
from volplane_testing.conformance.bench import Bench
from volplane_testing.conformance.crash_injection import OwnCode, crash_at, die_at
from volplane_testing.conformance.instance import Instance, Kept, shown
from volplane_testing.conformance.outage import NEEDS_NO_STORAGE, answers_nothing
from volplane_testing.conformance.picture import LEAVES_NOTHING, changes, picture_at_rest
from volplane_testing.simulation.attached_storage import AttachedStorage
from volplane_testing.simulation.backends import ZONE
from volplane_testing.simulation.disks import source_key
from volplane_testing.simulation.real_time import IN_TIME, call_timed
from volplane_testing.simulation.run_context import CLUSTER_ID, RunContext

__all__ = ["ExternalBackend", "Judged", "labels_of_nodes"]

R = TypeVar("R")

HOSTNAME: Final = "kubernetes.io/hostname"
PATIENCE: Final = 30.0
"""Real seconds a hook may take in a child process that is to die."""
MOST_LINES: Final = 200
"""How far into a hook a crash happens at most, in lines of the backend's own code."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What a run has judged of a backend. calls: hook that it has -> how often it was called. missing: what could not
    be judged, and which field of the subject that needs.
    """

    calls: Mapping[str, int]
    missing: tuple[str, ...]


class ExternalBackend:
    """One backend under test in one run. role: the driver's name."""

    def __init__(self, role: str, subject: Subject, run_context: RunContext) -> None:
        """Build it once, to read its description. Raises what building it raises, ConfigurationError for what cannot be
        simulated.
        """
        self.role = role
        self.subject = replace(subject, driver_name=role, cluster_id=CLUSTER_ID, patience=None)
        self._run_context = run_context
        self._kept = Kept(subject.factory)
        self._plugin = Plugin(kind="backend", name=str(getattr(subject.factory, "__name__", role)), factory=self._kept)
        self._known: dict[str, tuple[Asset, ProvisionRequest]] = {}
        self._asked: dict[tuple[str, int], float] = {}
        """(uid of a claim, generation) of an asset -> loop time at which `provision` was called for it last."""
        self._now = asyncio.get_running_loop().time()
        self._built = self.build(())
        self.info = self._built.view.info
        self._patience = subject.patience
        self.calls: Counter[str] = Counter(dict.fromkeys(self._built.view.hooks - {"describe", "stop"}, 0))
        """Hook that it has -> how often it was called."""
        self._own = OwnCode(self._kept.instance, subject.storage_modules, spare=not subject.real_crashes)
        self._check_modes()
        self._before = self._first_picture()
        self.attached = AttachedStorage(subject, run_context.safety.attachments, self._key_of)

    def _key_of(self, handle: str) -> str:
        return next((key for key, (asset, _) in self._known.items() if asset.handle == handle), "")

    def _first_picture(self) -> object:
        """Picture the storage after one asset was made and deleted: what the first one leaves may stay."""
        if self.subject.inspect is None:
            return None
        bench = Bench(self.subject)
        try:
            bench.remove(bench.make())
        except (BackendError, PluginError, Violation) as error:
            raise ConfigurationError(f"{self._plugin} cannot make and delete an asset: {error}") from error
        return picture_at_rest(self.subject)

    def _check_modes(self) -> None:
        if (
            AccessMode.READ_WRITE_ONCE not in self.info.access_modes
            or VolumeMode.FILESYSTEM not in self.info.volume_modes
        ):
            raise ConfigurationError(
                f"{self._plugin}: the claims of the simulation are ReadWriteOnce with volumeMode Filesystem, which it "
                "does not offer"
            )

    @property
    def scrubs(self) -> bool:
        """Whether its volumes can be recycled."""
        return self._built.supports("recycle")

    @property
    def gib(self) -> int:
        """How many GiB stand for one in the schedule."""
        return max(1, -(-max(self.subject.capacity_bytes, self.info.minimum_bytes) // 2**30))

    def build(self, extensions: Iterable[Extension]) -> Driver:
        """Return a fresh instance behind a driver, as after a restart."""
        return build_driver(self.role, self._plugin, self.subject.options, [*extensions])

    # --- calls --------------------------------------------------------------------------------------------------

    def call(self, driver: Driver, request: HookRequest[R]) -> R:
        """Call a hook, and count it and its real time."""
        if self._built.supports(request.hook):
            self.calls[request.hook] += 1

        def late(seconds: float, where: str) -> None:
            self._run_context.violations.report(
                IN_TIME,
                f"{request.hook} of {self.role} took {seconds:.1f} s of real time, and its patience is "
                f"{self._patience:g} s{where}",
            )

        return call_timed(lambda: driver.call(request), self._patience, late)

    def cuts_off(self, hook: str) -> bool:
        """Tell whether a call of the hook can be made while the storage cannot be reached."""
        able = self._built.supports(hook) and hook not in NEEDS_NO_STORAGE
        return able and bool(self.subject.unreachable or self.subject.outage)

    def call_cut_off(self, driver: Driver, request: HookRequest[Any]) -> NoReturn:
        """Call a hook while the storage cannot be reached; it must not answer as if nothing were there."""
        with self.subject.outage() if self.subject.outage is not None else nullcontext():
            result = self.call(driver if self.subject.outage is not None else self._unreachable, request)
        if answers_nothing(result):
            self._run_context.violations.report(
                "an-outage-is-an-error",
                f"{request.hook} of {self.role} answers {shown(result)} while its storage cannot be reached",
            )
        raise Unavailable("the storage cannot be reached")

    @cached_property
    def _unreachable(self) -> Driver:
        driver = build_driver(self.role, self._plugin, {**self.subject.options, **self.subject.unreachable})
        with suppress(BackendError):
            driver.call(StartRequest(context=Context(driver=self.role, cluster_id=CLUSTER_ID)))
        return driver

    def crash_inside(self, name: str, call: Callable[[], object]) -> None:
        """Run the call and crash at one of the lines of the backend's own code, or after the last.

        name: of the call; it says at which line.
        """
        line = 1 + int(self._run_context.chance.number(f"{name} line") ** 2 * MOST_LINES)
        if self.subject.real_crashes:
            die_at(line, call, self._own, PATIENCE)
        else:
            crash_at(line, call, self._own, None)

    def catch_up(self) -> None:
        """Bring the storage's clock to virtual time; a storage without a clock of its own lives in real time."""
        now = asyncio.get_running_loop().time()
        if now > self._now and self.subject.advance is not time.sleep:
            self.subject.advance(now - self._now)
        self._now = now
        self.attached.look()

    def judged(self) -> Judged:
        """Return what was judged so far."""
        missing = {
            "what list_assets does not show (Subject.inspect)": self.subject.inspect is None,
            "a storage that cannot be reached (Subject.unreachable or Subject.outage)": not self.cuts_off("provision"),
        }
        return Judged(dict(self.calls), tuple(what for what, lacks in missing.items() if lacks))

    # --- what it did --------------------------------------------------------------------------------------------

    def asked(self, owner: Ownership) -> None:
        """Note that `provision` is called for this owner: it may make the asset, with any result."""
        self._asked[_mark(owner)] = asyncio.get_running_loop().time()

    def made(self, request: ProvisionRequest, asset: Asset) -> None:
        """Note that `provision` returned this asset."""
        key = source_key(asset.source.kind, asset.source.fields)
        self._known[key] = (asset, request)
        if key not in self._run_context.disks.by_key:
            self._run_context.trace.note(
                self.role, f"has made {asset.handle} for {self._run_context.view.spell(request.name)}"
            )
            self._run_context.safety.made(self.role, key, request.owner, again=True)

    def unmade(self, volume: VolumeIdentity) -> None:
        """Note that `delete` returned Done for this volume."""
        key = source_key(volume.source.kind, volume.source.fields)
        self._known.pop(key, None)
        self._run_context.safety.unmade(key)

    def erased(self, volume: VolumeIdentity) -> None:
        """Note that `recycle` returned Erased for this volume."""
        self._run_context.safety.erased(source_key(volume.source.kind, volume.source.fields))

    # --- the end of a run ---------------------------------------------------------------------------------------

    def take_stock(self) -> None:
        """Compare `list_assets` with the results of its hooks, and correct the record of assets."""
        instance = self._instance()
        if not instance.driver.supports("list_assets"):
            return
        try:
            listed = [each for each in self._owned(instance) if each.owner and each.owner.cluster_id == CLUSTER_ID]
        except (BackendError, PluginError, Violation) as error:
            self._run_context.violations.report(
                "no-leak", f"{self.role} cannot list its assets, though nothing fails: {error}"
            )
            return
        there = {_mark(each.owner): each for each in listed if each.owner is not None}
        disks = self._run_context.disks.by_key
        for key, disk in list(disks.items()):
            if disk.driver == self.role and disk.made_for and (disk.made_for, disk.generation) not in there:
                self._run_context.trace.note(self.role, f"does not list {key}")
                del disks[key]
        known = {(disk.made_for, disk.generation) for disk in disks.values()}
        for mark, asset in sorted(there.items()):
            if mark not in known:
                self._record_unreported(asset)

    def _owned(self, instance: Instance) -> list[ListedAsset]:
        """List all assets, with the owners that a storage without marks does not show."""
        owners = self.subject.owners() if self.subject.owners is not None else {}
        return [replace(each, owner=each.owner or owners.get(each.handle)) for each in instance.listed()]

    def _record_unreported(self, asset: ListedAsset) -> None:
        self._run_context.trace.note(
            self.role, f"lists {asset.handle} of {asset.name}, which no result of a hook named"
        )
        if asset.owner is None:
            return
        safety = self._run_context.safety
        disk = safety.made(self.role, f"handle:{asset.handle}", asset.owner, again=True)
        if self._asked.get(_mark(asset.owner), math.inf) < safety.restored_at:
            disk.kept = "it was asked for before the server was restored from a backup, and not since"

    def check_nothing_left(self) -> None:
        """Delete the assets that are left; then the storage is what it was before the run, as far as it can be seen."""
        if self.subject.inspect is None or LEAVES_NOTHING in self.info.waived_rules or self._lists_what_is_unknown():
            return  # "no-leak" is about what is listed
        self.clean_up()
        changed = changes(self._before, picture_at_rest(self.subject))
        if changed:
            self._run_context.violations.report(
                "nothing-unseen",
                f"all assets of {self.role} are deleted, and its storage is not what it was: {changed}",
            )

    def _lists_what_is_unknown(self) -> bool:
        """Tell whether there are assets that no result of a hook named, so that no caller can delete them."""
        instance = self._instance()
        if not instance.driver.supports("list_assets"):
            return False
        known = {asset.handle for asset, _ in self._known.values()}
        return any(each.handle not in known for each in instance.listed())

    def clean_up(self) -> None:
        """Detach and delete the assets that are left. Raises ConfigurationError."""
        instance = self._instance()
        for asset, request in self._known.values():
            context = instance.context(request.owner.generation)
            volume = VolumeIdentity(
                name=request.name,
                uid=f"pv-{request.claim.uid}",
                handle=asset.handle,
                source=asset.source,
                capacity_bytes=asset.capacity_bytes,
                owner=request.owner,
                attributes=asset.attributes,
                node_affinity=asset.node_affinity,
            )
            try:
                for node in self.attached.nodes_of(asset.handle):
                    instance.finish("detach", DetachRequest(context=context, volume=volume, node=node))
                instance.delete(DeleteRequest(context=context, volume=volume))
            except (BackendError, PluginError, Violation) as error:
                raise ConfigurationError(f"{asset.handle} is left on the storage of {self._plugin}: {error}") from error
        self._known.clear()

    def _instance(self) -> Instance:
        self.catch_up()
        instance = Instance(self.subject, 1, [])
        instance.start()
        return instance


def _mark(owner: Ownership) -> tuple[str, int]:
    return owner.claim_uid, owner.generation


def labels_of_nodes(externals: Iterable[ExternalBackend]) -> Mapping[str, dict[str, str]]:
    """Node -> labels: two zones, and the places of the externals."""
    labels = {"node-a": {ZONE: "a"}, "node-b": {ZONE: "b"}}
    for external in externals:
        for index, (node, own) in enumerate(labels.items()):
            segments = external.subject.segments
            for key in external.info.topology_keys:
                if index < len(segments):
                    own[key] = str(segments[index].get(key, node))
                elif key == HOSTNAME or not segments:
                    own.setdefault(key, node)
                else:
                    own[key] = str(segments[-1].get(key, node))
    return labels
