"""What rules use: instances of the backend, valid requests, and a record of what to clean up."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Final

from volplane.assets import (
    AccessMode,
    Asset,
    GroupSnapshot,
    InProgress,
    ListedAsset,
    Ownership,
    Segment,
    Snapshot,
    SnapshotOwnership,
    VolumeMode,
)
from volplane.errors import BackendError, PluginError
from volplane.requests import (
    AttachRequest,
    ClaimIdentity,
    DeleteGroupSnapshotRequest,
    DeleteRequest,
    DeleteSnapshotRequest,
    DetachRequest,
    ExpandRequest,
    FindGroupSnapshotRequest,
    FindRequest,
    FindSnapshotRequest,
    GroupSnapshotRequest,
    NodeIdentity,
    ProvisionRequest,
    SnapshotIdentity,
    SnapshotRequest,
    StartRequest,
    VolumeIdentity,
)
from volplane.schemas import DriverInfo
from volplane_testing.conformance.crash_injection import OwnCode, crash_at, die_at
from volplane_testing.conformance.instance import MOST_ROUNDS, UNANSWERED, Call, Instance, shown
from volplane_testing.conformance.picture import LEAVES_NOTHING, changes, picture_at_rest
from volplane_testing.conformance.subject import Subject
from volplane_testing.conformance.violations import HungCall, NotApplicable, Violation

__all__ = ["Bench", "Cut", "Made"]

_MODES: Final = (
    AccessMode.READ_WRITE_ONCE,
    AccessMode.READ_WRITE_ONCE_POD,
    AccessMode.READ_WRITE_MANY,
    AccessMode.READ_ONLY_MANY,
)


@dataclass(frozen=True, slots=True)
class Made:
    """An asset and the demand that it answers."""

    demand: ProvisionRequest
    asset: Asset

    def volume(self, **changes: Any) -> VolumeIdentity:
        """The volume as hooks get it once a PersistentVolume was saved."""
        volume = VolumeIdentity(
            name=self.demand.name,
            uid=f"pv-{self.demand.claim.uid}",
            handle=self.asset.handle,
            source=self.asset.source,
            capacity_bytes=self.asset.capacity_bytes,
            owner=self.demand.owner,
            attributes=self.asset.attributes,
            volume_mode=self.demand.volume_mode,
            access_modes=self.demand.access_modes,
            node_affinity=self.asset.node_affinity,
        )
        return replace(volume, **changes)


@dataclass(frozen=True, slots=True)
class Cut:
    """A snapshot and the request that it answers."""

    request: SnapshotRequest
    snapshot: Snapshot


@dataclass(slots=True)
class _Left:
    """What the rule may have left on the storage, in the order in which it came to be."""

    demands: dict[tuple[str, int], ProvisionRequest] = field(default_factory=dict)
    assets: dict[str, Made] = field(default_factory=dict)
    attached: list[AttachRequest] = field(default_factory=list)
    asked: dict[tuple[str, SnapshotOwnership], SnapshotRequest] = field(default_factory=dict)
    snapshots: dict[str, Cut] = field(default_factory=dict)
    groups: list[GroupSnapshotRequest] = field(default_factory=list)


class Bench:
    """The subject of one rule. `instance` is the process at work; `restart` ends it and starts the next one."""

    def __init__(self, subject: Subject) -> None:
        """Build and start the first instance. Raises what stops that."""
        self.subject = subject
        self.calls: list[Call] = []
        self.hung: HungCall | None = None
        """The call that did not return."""
        self._count = 0
        self._left = _Left()
        self.instance = self.another()
        self.info: DriverInfo = self.instance.driver.view.info

    # --- instances ----------------------------------------------------------------------------------------------

    def another(self, *, start: bool = True) -> Instance:
        """A further process on the same storage, beside the others."""
        self._count += 1
        instance = Instance(self.subject, self._count, self.calls)
        if start:
            instance.start()
        return instance

    def restart(self) -> Instance:
        """As after a crash: nothing of the old process is left, not even a `stop`."""
        self.instance = self.another()
        return self.instance

    def supports(self, *hooks: str) -> bool:
        return all(self.instance.driver.supports(hook) for hook in hooks)

    @property
    def lists_marks(self) -> bool:
        """Whether a listing tells whose assets are."""
        return self.supports("list_assets") and self.info.marks

    def require_marks(self) -> None:
        """NotApplicable where the storage keeps none."""
        if not self.info.marks:
            raise NotApplicable("the storage keeps no marks (`DriverInfo.marks`)")

    # --- requests -----------------------------------------------------------------------------------------------

    def demand(self, name: str = "", **changes: Any) -> ProvisionRequest:
        """A demand that the subject can meet, for a new claim. name: of the volume, else `pvc-<uid>`."""
        subject, uid = self.subject, str(uuid.uuid4())
        name = name or f"pvc-{uid}"
        request = ProvisionRequest(
            context=self.instance.context(),
            name=name,
            capacity_bytes=max(subject.capacity_bytes, self.info.minimum_bytes),
            owner=Ownership(cluster_id=subject.cluster_id, claim_uid=name.removeprefix("pvc-"), volume_name=name),
            claim=ClaimIdentity(namespace="default", name="data", uid=name.removeprefix("pvc-")),
            access_modes=(next(mode for mode in _MODES if mode in self.info.access_modes),),
            volume_mode=next(mode for mode in VolumeMode if mode in self.info.volume_modes),
            parameters=self.parameters(subject.parameters),
            segment=self.segment(),
        )
        return replace(request, **changes)

    def parameters(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Class parameters as the backend gets them."""
        return self.instance.driver.view.typed_parameters(given)

    def segment(self) -> Segment | None:
        return dict(self.subject.segments[0]) if self.subject.segments else None

    def generation(self, demand: ProvisionRequest, number: int) -> ProvisionRequest:
        """The same demand for another asset of the same claim's intent."""
        return replace(
            demand,
            owner=replace(demand.owner, generation=number),
            context=replace(demand.context, generation=number),
        )

    def deletion(self, made: Made, **volume: Any) -> DeleteRequest:
        context = self.instance.context(made.demand.owner.generation)
        return DeleteRequest(context=context, volume=made.volume(**volume))

    def question(self, demand: ProvisionRequest, **changes: Any) -> FindRequest:
        """What `find` is asked about a demand."""
        request = FindRequest(
            context=self.instance.context(demand.owner.generation),
            name=demand.name,
            owner=demand.owner,
            parameters=demand.parameters,
            segment=demand.segment,
        )
        return replace(request, **changes)

    def expansion(self, made: Made, capacity_bytes: int, **volume: Any) -> ExpandRequest:
        return ExpandRequest(
            context=self.instance.context(), volume=made.volume(**volume), capacity_bytes=capacity_bytes
        )

    def attachment(self, made: Made, node: NodeIdentity, **volume: Any) -> AttachRequest:
        request = AttachRequest(context=self.instance.context(), volume=made.volume(**volume), node=node)
        self._left.attached.append(request)
        return request

    def detachment(self, made: Made, node: NodeIdentity, **volume: Any) -> DetachRequest:
        return DetachRequest(context=self.instance.context(), volume=made.volume(**volume), node=node)

    def snapshot_request(self, made: Made, name: str = "", **changes: Any) -> SnapshotRequest:
        """What `create_snapshot` is asked for a new VolumeSnapshot. name: of the snapshot, else `snapshot-<uid>`."""
        uid = name.removeprefix("snapshot-") or str(uuid.uuid4())
        content = f"snapcontent-{uid}"
        owner = SnapshotOwnership(cluster_id=self.subject.cluster_id, snapshot_uid=uid, content_name=content)
        request = SnapshotRequest(
            context=self.instance.context(),
            name=name or f"snapshot-{uid}",
            volume=made.volume(),
            owner=owner,
            snapshot=SnapshotIdentity(namespace="default", name="before", content=content),
            parameters=self.instance.driver.view.typed_parameters(self.subject.snapshot_parameters, of_snapshot=True),
        )
        return replace(request, **changes)

    def snapshot_question(self, request: SnapshotRequest, **changes: Any) -> FindSnapshotRequest:
        """What `find_snapshot` is asked after a lost answer."""
        context, parameters = self.instance.context(), request.parameters
        question = FindSnapshotRequest(context=context, name=request.name, owner=request.owner, parameters=parameters)
        return replace(question, **changes)

    def snapshot_deletion(self, cut: Cut, **changes: Any) -> DeleteSnapshotRequest:
        context, handle = self.instance.context(), cut.snapshot.handle
        return replace(DeleteSnapshotRequest(context=context, handle=handle, owner=cut.request.owner), **changes)

    def nodes(self) -> tuple[NodeIdentity, NodeIdentity]:
        """Two nodes; NotApplicable if the subject has fewer."""
        if len(self.subject.nodes) < 2:
            raise NotApplicable("needs two entries in Subject.nodes")
        return self.subject.nodes[0], self.subject.nodes[1]

    # --- doing --------------------------------------------------------------------------------------------------

    def will_provision(self, demand: ProvisionRequest) -> ProvisionRequest:
        """Remember a demand that is about to be made, so that its asset is deleted in the end."""
        self._left.demands[demand.name, demand.owner.generation] = demand
        return demand

    def make(self, demand: ProvisionRequest | None = None, instance: Instance | None = None) -> Made:
        """Provision to the end."""
        demand = self.will_provision(demand if demand is not None else self.demand())
        return self.made(demand, (instance or self.instance).provision(demand))

    def made(self, demand: ProvisionRequest, asset: Asset) -> Made:
        """Remember an asset."""
        made = self._left.assets[asset.handle] = Made(demand, asset)
        return made

    def remove(self, made: Made) -> None:
        """Delete to the end."""
        self.instance.delete(self.deletion(made))
        self._left.assets.pop(made.asset.handle, None)

    def will_snapshot(self, request: SnapshotRequest) -> SnapshotRequest:
        """Remember a request that is about to be made, so that its snapshot is deleted in the end."""
        self._left.asked[request.name, request.owner] = request
        return request

    def will_group(self, request: GroupSnapshotRequest) -> GroupSnapshotRequest:
        """Remember a request for a group that is about to be made, so that its snapshots are deleted in the end."""
        self._left.groups.append(request)
        return request

    def cut(self, of: Made | SnapshotRequest) -> Cut:
        """Make a snapshot, and wait until it is ready."""
        request = self.will_snapshot(of if isinstance(of, SnapshotRequest) else self.snapshot_request(of))
        return self.was_cut(request, self.instance.create_snapshot(request))

    def was_cut(self, request: SnapshotRequest, snapshot: Snapshot) -> Cut:
        """Remember a snapshot, and wait until it is ready."""
        self._left.snapshots[snapshot.handle] = Cut(request, snapshot)
        cut = self._left.snapshots[snapshot.handle] = Cut(request, self.instance.ready_snapshot(snapshot, request))
        return cut

    def drop(self, cut: Cut) -> None:
        """Delete a snapshot to the end."""
        self.instance.delete_snapshot(self.snapshot_deletion(cut))
        self._left.snapshots.pop(cut.snapshot.handle, None)

    def entries(self, demand: ProvisionRequest) -> list[ListedAsset]:
        """What `list_assets` has for the claim of a demand."""
        return [
            asset
            for asset in self.instance.listed()
            if asset.owner is not None
            and (asset.owner.cluster_id, asset.owner.claim_uid) == (demand.owner.cluster_id, demand.owner.claim_uid)
        ]

    # --- expecting ----------------------------------------------------------------------------------------------

    def require(self, truth: object, message: str) -> None:
        """Violation unless it is so."""
        if not truth:
            raise Violation(message)

    def require_same(self, asset: object, expected: Asset, when: str) -> None:
        """Both are the one asset."""
        if asset != expected:
            raise Violation(f"{when} gave {_difference(asset, expected)}")

    def require_refused(
        self, hook: str, request: Any, *errors: type[BackendError], why: str, retry: bool = False
    ) -> BackendError:
        """The call raises one of the errors; which one. retry: obey `retry_after` before."""
        names = " or ".join(error.__name__ for error in errors)
        call: Callable[[str, Any], Any] = self.instance.finish if retry else self.instance.once
        try:
            result = call(hook, request)
        except BackendError as error:
            if isinstance(error, errors):
                return error
            raise Violation(f"{why}: {hook} raised {type(error).__name__} ({error}), expected {names}") from error
        raise Violation(f"{why}: {hook} answered {shown(result)}, expected {names}")

    def require_intact(self, made: Made, after: str) -> None:
        """The asset is there and as it was."""
        if self.supports("find"):
            self.require_same(self.instance.find(self.question(made.demand)), made.asset, f"find after {after}")
        self.require_same(self.instance.provision(made.demand), made.asset, f"provision after {after}")

    def require_gone(self, made: Made, after: str) -> None:
        """Nothing of the asset is left, as far as the backend can be asked."""
        if self.supports("find"):
            found = self.instance.find(self.question(made.demand))
            self.require(found is None, f"find after {after} still answers {shown(found)}, expected Absent")
        if self.lists_marks:
            entries = [each for each in self.entries(made.demand) if each.handle == made.asset.handle]
            self.require(not entries, f"list_assets after {after} still has {entries!r}")

    def require_one(self, made: Made, after: str) -> None:
        """There is exactly one asset for the claim, and it is this one."""
        if self.lists_marks:
            handles = [each.handle for each in self.entries(made.demand)]
            self.require(
                len(handles) == 1,  # that it is the handle of `provision` is a rule of its own
                f"after {after} list_assets has {handles} for one claim, expected only {made.asset.handle}",
            )

    @contextlib.contextmanager
    def unchanged(self, what: str) -> Iterator[None]:
        """The storage is the same afterwards, if the subject can look at it."""
        inspect = self.subject.inspect
        before = inspect() if inspect is not None else None
        yield
        changed = changes(before, inspect() if inspect is not None else None)
        self.require(not changed, f"{what} changed the storage: {changed}")

    def picture(self) -> object:
        """The storage at rest, to be compared by `require_nothing_left`."""
        return picture_at_rest(self.subject)

    def require_nothing_left(self, before: object, after: str) -> None:
        """The storage is again as in the picture `before`, if it can be looked at and the backend promises it."""
        if LEAVES_NOTHING in self.info.waived_rules:
            return
        changed = changes(before, self.picture())
        self.require(not changed, f"after {after} the storage is not what it was before the asset: {changed}")

    # --- cutting off --------------------------------------------------------------------------------------------

    def while_cut_off(self, check: Callable[[Instance], None]) -> None:
        """Call `check` with an instance that cannot reach the storage: with one for each way that the subject has.

        NotApplicable if it has none.
        """
        subject = self.subject
        if subject.outage is None and not subject.unreachable:
            raise NotApplicable("needs Subject.unreachable (--unreachable OPTION=VALUE) or Subject.outage")
        if subject.outage is not None:
            with subject.outage():
                check(self.instance)
        if subject.unreachable:
            self._count += 1
            options = {**subject.options, **subject.unreachable}
            instance = Instance(replace(subject, options=options), self._count, self.calls)
            # What it answers at `start` counts as little: a storage that goes away later is called by a started one.
            with contextlib.suppress(BackendError, PluginError):
                instance.once("start", StartRequest(context=self.instance.context()))
            check(instance)

    # --- crashing -----------------------------------------------------------------------------------------------

    def lines_of(self, hook: str, request: Any) -> int:
        """How many lines of the backend a call runs; it is made."""
        self.instance.note(hook, "", "counted, line by line")
        return crash_at(0, lambda: self.instance.driver.call(request), self._own, self.subject.patience, hook)

    def crash(self, hook: str, request: Any, step: int) -> None:
        """Make the call, crash at that line, restart."""
        end = die_at if self.subject.real_crashes else crash_at
        reached = end(step, lambda: self.instance.driver.call(request), self._own, self.subject.patience, hook)
        self.instance.note(hook, "", f"crashed at line {step}" if reached else f"ended before line {step}")
        self.restart()

    def resume(self, hook: str, request: Any, answer: Any, *, keep_state: bool = True) -> Any:
        """Follow work to its end, with a restart before each call. keep_state: else the state is lost each time."""
        waited = 0.0
        for _ in range(MOST_ROUNDS):
            if not isinstance(answer, InProgress):
                return answer
            waited = self.instance.wait(hook, answer.retry_after, waited)
            state = dict(answer.state) if keep_state else {}
            request = replace(request, context=replace(request.context, state=state))
            answer = self.restart().patiently(hook, request)
        raise Violation(f"{hook} is still in progress after {MOST_ROUNDS} calls with restarts between them")

    def crash_points(self, lines: int) -> list[int]:
        """The lines at which to crash, spread evenly over so many."""
        count = min(lines, self.subject.crash_points)
        return sorted({1 + number * (lines - 1) // max(count - 1, 1) for number in range(count)})

    @cached_property
    def _own(self) -> OwnCode:
        subject = self.subject
        return OwnCode(self.instance.backend, subject.storage_modules, spare=not subject.real_crashes)

    # --- leaving ------------------------------------------------------------------------------------------------

    def remains(self) -> tuple[str, ...]:
        """Names of what the rule has made, or may have made, and not deleted so far."""
        left, made = self._left, self._left.assets.values()
        known = {each.demand.name for each in made} | {each.request.name for each in left.snapshots.values()}
        return (
            *(each.asset.handle for each in made),
            *(f"snapshot {each.snapshot.handle}" for each in left.snapshots.values()),
            *(f"{name}, if it was made" for name in self._asked() if name not in known),
        )

    def _asked(self) -> tuple[str, ...]:
        """Names of all that the rule has asked for."""
        left = self._left
        asked = [*(each.name for each in left.demands.values()), *(each.name for each in left.asked.values())]
        return tuple(dict.fromkeys((*asked, *(f"group {each.name}" for each in left.groups))))

    def in_doubt(self) -> tuple[str, ...]:
        """Names of what a call that has not returned may make later."""
        last = self.calls[-1] if self.calls else None
        if last is None or last.outcome != UNANSWERED:
            return ()
        return tuple(
            f"{name}, if {last.hook} still makes it"
            for name in self._asked()
            if name.removeprefix("group ") in last.about
        )

    def close(self) -> tuple[str, ...]:
        """Delete whatever the rule made, last first, and stop; what could not be deleted, and why.

        Nothing is called any more after a call that hangs.
        """
        failures: list[str] = []

        def attempt(what: str, act: Callable[[], object], *, quiet: bool = False) -> None:
            why = self._why_not(act)
            if why and not quiet:
                failures.append(f"{what}: {why}")

        for request in reversed(self._left.attached):
            undo = DetachRequest(context=request.context, volume=request.volume, node=request.node)
            attempt("", lambda undo=undo: self.instance.detach(undo), quiet=True)  # type: ignore[misc]
        for asked in self._left.asked.values():
            attempt(asked.name, lambda asked=asked: self._recover_snapshot(asked))  # type: ignore[misc]
        for group in self._left.groups:
            attempt(group.name, lambda group=group: self._recover_group(group))  # type: ignore[misc]
        for cut in reversed(list(self._left.snapshots.values())):
            attempt(f"snapshot {cut.snapshot.handle}", lambda cut=cut: self.drop(cut))  # type: ignore[misc]
        for demand in self._left.demands.values():
            attempt(demand.name, lambda demand=demand: self._recover(demand))  # type: ignore[misc]
        for made in reversed(list(self._left.assets.values())):
            attempt(made.asset.handle, lambda made=made: self.remove(made))  # type: ignore[misc]
        attempt("stop", self.instance.stop, quiet=self.hung is not None)
        return tuple(failures)

    def _why_not(self, act: Callable[[], object]) -> str:
        """Do it; why that failed, or ""."""
        if self.hung is not None:
            return f"nothing is called after {self.hung.what}, which did not return"
        try:
            act()
        except HungCall as error:
            self.hung = error
            return str(error)
        except (BackendError, PluginError, Violation) as error:
            return str(error)
        return ""

    def _recover(self, demand: ProvisionRequest) -> None:
        """Find an asset that the rule made without getting a result."""
        if any(made.demand == demand for made in self._left.assets.values()) or not self.supports("find"):
            return
        found = self.instance.find(self.question(demand))
        if found is not None:
            self.made(demand, found)

    def _recover_snapshot(self, request: SnapshotRequest) -> None:
        """Find a snapshot that the rule made without getting a result."""
        if any(cut.request == request for cut in self._left.snapshots.values()):
            return
        found = self.instance.find_snapshot(self.snapshot_question(request))
        if found is not None:
            self._left.snapshots[found.handle] = Cut(request, found)

    def _recover_group(self, request: GroupSnapshotRequest) -> None:
        """Delete the snapshots of a group, if they are there."""
        context = self.instance.context()
        question = FindGroupSnapshotRequest(context=context, name=request.name, owner=request.owner)
        found = self.instance.found("find_group_snapshot", question)
        if isinstance(found, GroupSnapshot):
            members = tuple(each.handle for each in found.snapshots)
            deletion = DeleteGroupSnapshotRequest(
                context=context, handle=found.handle, snapshots=members, owner=request.owner
            )
            self.instance.finish("delete_group_snapshot", deletion)


def _difference(asset: object, expected: Asset) -> str:
    """What came, as far as it is not what was expected."""
    if not isinstance(asset, Asset):
        return f"{shown(asset)}, expected {shown(expected)}"
    wrong = [
        f"{each.name} {getattr(asset, each.name)!r} instead of {getattr(expected, each.name)!r}"
        for each in fields(expected)
        if getattr(asset, each.name) != getattr(expected, each.name)
    ]
    return f"an asset with {', '.join(wrong)}"
