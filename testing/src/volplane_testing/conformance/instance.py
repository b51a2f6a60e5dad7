"""One running process with the backend, as far as the kit can tell: a driver that was started."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Final

from volplane.assets import Absent, Asset, Attachment, InProgress, ListedAsset, Ownership, Snapshot
from volplane.drivers.contract import Plugin
from volplane.drivers.driver import Driver
from volplane.drivers.loading import build_driver
from volplane.errors import BackendError, PluginError
from volplane.requests import (
    AttachRequest,
    CapacityRequest,
    Context,
    DeleteRequest,
    DeleteSnapshotRequest,
    DetachRequest,
    ExpandRequest,
    FindGroupSnapshotRequest,
    FindRequest,
    FindSnapshotRequest,
    ListRequest,
    ListSnapshotsRequest,
    ModifyRequest,
    ProvisionRequest,
    RecycleRequest,
    SnapshotRequest,
    StartRequest,
    StopRequest,
)
from volplane.schemas import ParameterSchema
from volplane_testing.conformance.crash_injection import call_in_thread
from volplane_testing.conformance.subject import Subject
from volplane_testing.conformance.violations import HungCall, Violation

__all__ = ["MOST_ROUNDS", "Call", "Instance", "Kept", "pages_of", "shown"]

MOST_ROUNDS: Final = 10_000
"""How often one piece of work is asked for at most."""
_MOST_RETRIES: Final = 50
UNANSWERED: Final = "did not return"
"""The outcome of a call that hangs, or was interrupted."""
_MOST_PAGES: Final = 10_000
_LONGEST: Final = 160
_BUILDING: Final = "the constructor, or describe,"


@dataclass(frozen=True, slots=True)
class Call:
    """One hook call that was made. instance: which process made it, from 1."""

    instance: int
    hook: str
    about: str
    outcome: str

    def __str__(self) -> str:
        return f"process {self.instance}: {self.hook}({self.about}) -> {self.outcome}"


class Instance:
    """Calls hooks as the core does: checked results, other threads, `InProgress` followed up, `retry_after` obeyed."""

    def __init__(self, subject: Subject, number: int, calls: list[Call]) -> None:
        """Build a driver. calls: where every call is noted. Raises PluginError, ConfigurationError or HungCall."""
        self.subject = subject
        self.number = number
        self._calls = calls
        kept = Kept(subject.factory)
        plugin = Plugin(kind="backend", name=_name_of(subject.factory), factory=kept)
        self.driver: Driver = call_in_thread(
            lambda: build_driver(subject.driver_name, plugin, subject.options), subject.patience, _BUILDING
        )
        self.backend = kept.instance
        """The instance itself, for what is not a hook: its `repr`, its code."""

    def context(self, generation: int = 1, **fields: Any) -> Context:
        """The context of a call by this driver."""
        subject = self.subject
        return Context(
            driver=subject.driver_name,
            cluster_id=subject.cluster_id,
            generation=generation,
            **{"timeout": 120.0, **fields},
        )

    def start(self) -> None:
        """As the core does before any hook but `describe`."""
        self.finish("start", StartRequest(context=self.context(), node_name=self.subject.node_name))

    def stop(self) -> None:
        self.finish("stop", StopRequest(context=self.context()))

    def once(self, hook: str, request: Any) -> Any:
        """One call; its result, checked for type, or its BackendError. HungCall if it takes too long."""
        about = _about(request, self.subject.cluster_id)
        try:
            result = call_in_thread(lambda: self.driver.call(request), self.subject.patience, hook)
        except (BackendError, PluginError) as error:
            self.note(hook, about, f"{type(error).__name__}: {error}")
            raise
        except (HungCall, KeyboardInterrupt):
            self.note(hook, about, UNANSWERED)
            raise
        self.note(hook, about, shown(result))
        return result

    def note(self, hook: str, about: str, outcome: str) -> None:
        """Keep a call for the report."""
        self._calls.append(Call(self.number, hook, about, outcome))

    def finish(self, hook: str, request: Any) -> Any:
        """Call until it is over: while it is in progress with the state of the last answer, later when it asks for
        that.
        """
        waited = 0.0
        for attempt in range(1, MOST_ROUNDS):
            result = self.patiently(hook, request)
            if not isinstance(result, InProgress):
                return result
            waited = self.wait(hook, result.retry_after, waited)
            state = json.loads(json.dumps(dict(result.state)))  # as it comes back from the intent
            request = replace(request, context=replace(request.context, state=state, attempt=attempt + 1))
        raise Violation(
            f"{hook} of {_about(request, self.subject.cluster_id)} is still in progress after {MOST_ROUNDS} calls"
        )

    def patiently(self, hook: str, request: Any) -> Any:
        """One call, made again as often as the backend asks for that (`retry_after`)."""
        waited = 0.0
        for _ in range(_MOST_RETRIES):
            try:
                return self.once(hook, request)
            except BackendError as error:
                if error.retry_after is None:
                    raise
                waited = self.wait(hook, error.retry_after, waited)
        return self.once(hook, request)

    def wait(self, hook: str, seconds: float, waited: float = 0.0) -> float:
        """Let time pass before the hook is called again. waited: how long that took so far; returns it with this.

        Violation if it would be longer than the subject's patience.
        """
        most = self.subject.progress_patience
        if not waited + seconds <= most:  # NaN is none either
            raise Violation(
                f"{hook} wants to be called again in {seconds:g} s, after {waited:g} s of waiting: longer than "
                f"progress_patience, {most:g} s"
            )
        self.subject.advance(seconds)
        return waited + seconds

    # --- hooks, to their end ------------------------------------------------------------------------------------

    def provision(self, request: ProvisionRequest) -> Asset:
        asset: Asset = self.finish("provision", request)
        return asset

    def delete(self, request: DeleteRequest) -> None:
        self.finish("delete", request)

    def find(self, request: FindRequest) -> Asset | None:
        """None is proof: absent, and still so after `settle_seconds`."""
        found = self.found("find", request)
        return found if isinstance(found, Asset) else None

    def found(self, hook: str, request: FindRequest | FindSnapshotRequest | FindGroupSnapshotRequest) -> Any:
        """What a hook finds, or the `Absent` that is proof."""
        found = self.patiently(hook, request)
        settle = self.driver.view.info.settle_seconds
        if isinstance(found, Absent) and settle > 0:
            self.wait(hook, settle)
            found = self.patiently(hook, request)
        return found

    def attach(self, request: AttachRequest) -> Attachment:
        attachment: Attachment = self.finish("attach", request)
        return attachment

    def detach(self, request: DetachRequest) -> None:
        self.finish("detach", request)

    def expand(self, request: ExpandRequest) -> Asset:
        asset: Asset = self.finish("expand", request)
        return asset

    def modify(self, request: ModifyRequest) -> None:
        self.finish("modify", request)

    def recycle(self, request: RecycleRequest) -> Any:
        return self.finish("recycle", request)

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        """Until its moment has passed; it need not be ready."""
        snapshot: Snapshot = self.finish("create_snapshot", request)
        return snapshot

    def ready_snapshot(self, snapshot: Snapshot, request: SnapshotRequest) -> Snapshot:
        """Ask for it until it is ready. Violation if it never will be."""
        question = FindSnapshotRequest(context=self.context(), handle=snapshot.handle, parameters=request.parameters)
        waited = 0.0
        for _ in range(MOST_ROUNDS):
            if snapshot.ready:
                return snapshot
            if snapshot.failed:
                raise Violation(f"snapshot {snapshot.handle} failed: {snapshot.failed}")
            waited = self.wait("find_snapshot", snapshot.retry_after, waited)
            found = self.patiently("find_snapshot", question)
            if not isinstance(found, Snapshot):
                raise Violation(f"find_snapshot says that snapshot {snapshot.handle}, which was made, is absent")
            snapshot = found
        raise Violation(f"snapshot {snapshot.handle} is not ready after {MOST_ROUNDS} calls of find_snapshot")

    def find_snapshot(self, request: FindSnapshotRequest) -> Snapshot | None:
        """None is proof, as from `find`."""
        found = self.found("find_snapshot", request)
        return found if isinstance(found, Snapshot) else None

    def delete_snapshot(self, request: DeleteSnapshotRequest) -> None:
        self.finish("delete_snapshot", request)

    def available_bytes(self, **fields: Any) -> int:
        capacity = self.patiently("get_capacity", CapacityRequest(context=self.context(), **fields))
        return int(capacity.available_bytes)

    def listed(self) -> list[ListedAsset]:
        """All pages."""
        return [asset for page in pages_of(self, ListRequest) for asset in page.assets]

    def listed_snapshots(self) -> list[Snapshot]:
        """All pages."""
        return [snapshot for page in pages_of(self, ListSnapshotsRequest) for snapshot in page.snapshots]


def pages_of(instance: Instance, ask: Callable[..., ListRequest | ListSnapshotsRequest]) -> Any:
    """The pages of one listing, each fetched when it is asked for."""
    token: str | None = None
    hook = ask(context=instance.context()).hook
    for _ in range(_MOST_PAGES):
        page = instance.patiently(hook, ask(context=instance.context(), page=token))
        yield page
        if page.next_page is None:
            return
        if page.next_page == token:
            raise Violation(f"{hook} answers page {token!r} with the same page as the next one: it would never end")
        token = page.next_page
    raise Violation(f"{hook} has more than {_MOST_PAGES} pages")


class Kept:
    """A factory that keeps what it made."""

    def __init__(self, factory: Callable[[Mapping[str, Any]], object]) -> None:
        self._factory = factory
        self.options_schema = getattr(factory, "options_schema", ParameterSchema())
        self.instance: object = None

    def __call__(self, options: Mapping[str, Any]) -> object:
        self.instance = self._factory(options)
        return self.instance


def _name_of(factory: object) -> str:
    return str(getattr(factory, "__name__", type(factory).__name__))


def _about(request: Any, cluster_id: str) -> str:
    """What a request is about, in few words; its owner only where that is not the usual one."""
    parts: list[str] = []
    volume = getattr(request, "volume", None)
    parts += [str(value) for field in ("name", "handle") if (value := getattr(request, field, None))]
    if volume is not None:
        parts.append(str(volume.handle))
    for field in ("capacity_bytes", "segment", "page", "parameters"):
        value = getattr(request, field, None)
        if value:
            parts.append(f"{field}={value}")
    node = getattr(request, "node", None)
    if node is not None:
        parts.append(f"node={node.name}")
    owner = getattr(volume if volume is not None else request, "owner", None)
    if isinstance(owner, Ownership) and not owner.volume_name.endswith(owner.claim_uid):
        parts.append(f"claim={owner.claim_uid}")
    if owner is not None and owner.cluster_id != cluster_id:
        parts.append(f"cluster={owner.cluster_id}")
    if request.context.generation != 1:
        parts.append(f"generation={request.context.generation}")
    if request.context.state:
        parts.append(f"state={request.context.state}")
    return _cut(", ".join(parts))


def shown(result: Any) -> str:
    """A result in few words."""
    if result is None:
        return "Absent()"
    if isinstance(result, Asset):
        return _cut(f"Asset({result.handle}, {result.capacity_bytes} bytes)")
    return _cut(repr(result) if is_dataclass(result) else str(result))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
