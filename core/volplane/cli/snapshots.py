"""`volplane snapshot`: has a snapshot cut of a claim, and waits until it is cut, or until it can be used.

`volplane restore`: makes a claim with the data of a snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar

import typer
from typer import Argument, Option

from volplane.cli.controller_client import Access
from volplane.cli.framework.console import Console
from volplane.cli.framework.options import Namespace, completed, duration_option, with_options
from volplane.errors import ApiError, ApiForbidden, ConfigurationError, VolplaneError
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, STORAGE_CLASSES
from volplane.kube.names import DEFAULT_SNAPSHOT_CLASS
from volplane.kube.objects import Claim
from volplane.kube.quantity import format_bytes, parse
from volplane.snapshots.objects import VOLUME_SNAPSHOT_CONTENTS, VOLUME_SNAPSHOTS, VolumeSnapshot
from volplane.snapshots.source import GROUP, SNAPSHOT, is_name, restore_size_of
from volplane.snapshots.state import is_terminal
from volplane.state.matching import class_of_claim, held_by, request_of, source_of, whole_bytes

POLL_SECONDS: Final = 0.5
NOT_SERVED: Final = (
    "this cluster serves no VolumeSnapshots: install the CustomResourceDefinitions of external-snapshotter"
)

T = TypeVar("T")


@with_options
def snapshot(
    access: Access,
    claim: Annotated[
        str,
        Argument(metavar="CLAIM", help="NAME, or NAMESPACE/NAME. It may be in use.", autocompletion=completed("claim")),
    ],
    *,
    name: Annotated[str, Option("--name", help="Name of the VolumeSnapshot; default: the claim's, and the time.")] = "",
    of_class: Annotated[
        str, Option("--class", metavar="NAME", help="The VolumeSnapshotClass; default: that of the driver.")
    ] = "",
    wait: Annotated[bool, Option("--wait", help="Wait until it can be used, not only until it is cut.")] = False,
    timeout: Annotated[float, duration_option("--timeout", says="How long to wait.", default="5m")] = 300.0,
    namespace: Namespace = "",
) -> None:
    """Have a snapshot cut of a claim, as of now, and wait until that has happened.

    What is written to the volume afterwards is not in it. Exit code 1 if it has not happened in time, or failed; the
    VolumeSnapshot stays, and may come to be later.
    """
    claim = claim if "/" in claim else f"{access.namespace(namespace)}/{claim}"
    if claim.count("/") != 1 or "" in claim.split("/"):
        raise ConfigurationError(f'the claim "{claim}" must be NAME or NAMESPACE/NAME')
    console = Console()
    key = f"{claim.partition('/')[0]}/{name or name_at(claim, datetime.now(UTC))}"
    reached: Callable[[VolumeSnapshot], bool] = is_ready if wait else is_cut

    async def cut() -> VolumeSnapshot:
        async with access.cluster() as (client, _):
            await wish(client, claim, key, of_class)
            with console.progress(f"waiting for snapshot {key}") as shown:
                return await until(client, key, reached, timeout, shown.show)

    made = asyncio.run(cut())
    if reached(made):
        done = "can be used" if made.status.ready_to_use else "is cut, and not ready to be used yet"
        console.done(f"snapshot {key} {done}; it is of {made.status.creation_time}")
        return
    why = f": {made.status.error.message}" if made.status.error is not None else ""
    console.failed(f"snapshot {key} is not {'ready' if wait else 'cut'} yet{why}")
    if "default snapshot class" in why:
        console.sentence(
            f"name one with --class, or mark one as the default by the annotation {DEFAULT_SNAPSHOT_CLASS}: true"
        )
    raise typer.Exit(1)


def name_at(claim: str, now: datetime) -> str:
    """Return the name of a snapshot of the claim that is wished for now."""
    return f"{claim.partition('/')[2][:236]}-{now:%Y%m%dt%H%M%S}"


def is_cut(made: VolumeSnapshot) -> bool:
    return made.status.creation_time is not None


def is_ready(made: VolumeSnapshot) -> bool:
    return made.status.ready_to_use


async def wish(client: Client, claim: str, key: str, of_class: str = "") -> None:
    """Create the VolumeSnapshot of this key, of the claim. Raises VolplaneError if that makes no sense."""
    found = await client.find(CLAIMS, claim)
    if found is None:
        raise VolplaneError(f"there is no claim {claim}")
    if found.status.phase != "Bound":
        raise VolplaneError(f"claim {claim} is {found.status.phase or 'Pending'}: only a bound one can be cut")
    namespace, _, name = key.partition("/")
    spec: dict[str, Any] = {"source": {"persistentVolumeClaimName": found.name}}
    if of_class:
        spec["volumeSnapshotClassName"] = of_class
    body = VOLUME_SNAPSHOTS.body(metadata={"name": name, "namespace": namespace}, spec=spec)
    try:
        await client.create(VOLUME_SNAPSHOTS, body)
    except ApiError as error:
        if error.already_exists:
            raise VolplaneError(f"snapshot {key} exists already; give another --name") from error
        if error.status == 404:
            raise VolplaneError(NOT_SERVED) from error
        raise


async def until(
    client: Client,
    key: str,
    reached: Callable[[VolumeSnapshot], bool],
    seconds: float,
    tell: Callable[[str], None],
) -> VolumeSnapshot:
    """Return the VolumeSnapshot once that is reached, once it has failed for good, or after so many seconds.

    tell: hears the error that it shows meanwhile.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        made = await client.find(VOLUME_SNAPSHOTS, key)
        if made is None:
            raise VolplaneError(f"snapshot {key} was deleted meanwhile")
        if made.status.error is not None:
            tell(made.status.error.message)
        if reached(made) or is_terminal(made.status.error) or loop.time() > end:
            return made
        await asyncio.sleep(POLL_SECONDS)


# --- back into a claim ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a person says about the claim. Empty: as the claim of which the snapshot was cut."""

    snapshot: str
    """NAMESPACE/NAME"""
    claim: str
    """NAMESPACE/NAME"""
    storage_class: str = ""
    size: str = ""
    access_modes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Made:
    """What was made, in words."""

    text: str
    notes: Sequence[str] = ()
    """What it waits for."""
    late: bool = False
    """Whether it waits for a pod, too."""


@with_options
def restore(
    access: Access,
    snapshot: Annotated[
        str, Argument(metavar="SNAPSHOT", help="NAME, or NAMESPACE/NAME.", autocompletion=completed("snapshot"))
    ],
    *,
    claim: Annotated[str, Option("--claim", metavar="NAME", help="The claim to make, in the snapshot's namespace.")],
    namespace: Namespace = "",
    of_class: Annotated[
        str, Option("--class", metavar="NAME", help="Its StorageClass; default: that of the snapshot's claim.")
    ] = "",
    size: Annotated[
        str, Option("--size", metavar="QUANTITY", help="Its size, such as 10Gi; default: that of the snapshot's claim.")
    ] = "",
    access_mode: Annotated[
        list[str] | None,
        Option("--access-mode", metavar="MODE", help="May be repeated; default: those of the snapshot's claim."),
    ] = None,
    wait: Annotated[bool, Option("--wait", help="Wait until it is bound, or needs only a pod that uses it.")] = False,
    timeout: Annotated[float, duration_option("--timeout", says="How long to wait.", default="5m")] = 300.0,
) -> None:
    """Make a claim with the data of a snapshot.

    The snapshot need not be ready: the claim waits for it. Exit code 1 if the claim is not bound in time; it stays, and
    may be bound later.
    """
    if "/" not in snapshot:
        snapshot = f"{access.namespace(namespace)}/{snapshot}"
    wanted = Wanted(*keys_of(snapshot, claim, namespace), of_class, size, tuple(access_mode or ()))
    console = Console()

    async def act() -> str:
        async with access.cluster() as (client, _):
            made = await make(client, wanted)
            console.done(made.text)
            for note in made.notes:
                console.note(note)
            if wait and made.late:  # Whoever makes the pod may wait for this command.
                with console.progress(f"waiting for snapshot {wanted.snapshot}") as shown:
                    ready = is_ready(await until(client, wanted.snapshot, is_ready, timeout, shown.show))
                return "can be used: a pod that uses it has it bound" if ready else ""
            with console.progress(f"waiting for claim {wanted.claim}"):
                return "is bound" if not wait or await bound(client, wanted.claim, timeout) else ""

    if not (reached := asyncio.run(act())):
        console.failed(f"claim {wanted.claim} is not bound yet")
        for reason in asyncio.run(_reasons(wanted.claim, access)):
            console.sentence(reason)
        raise typer.Exit(1)
    if wait:
        console.done(f"claim {wanted.claim} {reached}")


def keys_of(snapshot: str, claim: str, of: str = "") -> tuple[str, str]:
    """Return the keys of both. Raises ConfigurationError for what cannot exist, or is in two namespaces."""
    within, slash, name = snapshot.rpartition("/")
    if slash and of and of != within:
        raise ConfigurationError(f"-n {of} contradicts {snapshot}")
    namespace = within if slash else of or "default"
    theirs, slash, new = claim.rpartition("/")
    if slash and theirs != namespace:
        raise ConfigurationError(f'--claim: "{claim}" is not in namespace {namespace} of the snapshot, and has to be')
    for what, given in (("SNAPSHOT", name), ("namespace", namespace), ("--claim", new)):
        _require_name(what, given)
    return f"{namespace}/{name}", f"{namespace}/{new}"


def _require_name(what: str, given: str) -> None:
    if not is_name(given):
        raise ConfigurationError(
            f'{what}: "{given}" cannot be the name of an object: those have lower case letters, digits, "-" and "."'
        )


async def make(client: Client, wanted: Wanted) -> Made:
    """Create the claim. Raises VolplaneError, before anything is written, if that makes no sense."""
    snapshot = await _snapshot_of(client, wanted)
    present = await _allowed(client.find(CLAIMS, wanted.claim), "get persistentvolumeclaims", wanted)
    if present is not None:
        if not _is_of(present, snapshot):
            raise _taken(present, wanted)
        notes: tuple[str, ...] = ()
        if present.status.phase != "Bound":
            with suppress(VolplaneError):  # Its class may be gone.
                notes = await _class(client, class_of_claim(present) or "")
        text = f"claim {present.key} of snapshot {snapshot.key} is there already"
        return Made(text, (*_waits_for(snapshot), *notes), late=bool(notes))
    body, notes = await body_of(client, wanted, snapshot)
    try:
        created = await _allowed(client.create(CLAIMS, body), "create persistentvolumeclaims", wanted)
    except ApiError as error:
        if error.already_exists:
            raise VolplaneError(f"claim {wanted.claim} was made by somebody else meanwhile; look at it") from error
        raise
    spec = created.spec
    size = format_bytes(whole_bytes(request_of(created)))
    what = f"{size}, {', '.join(spec.access_modes or ())}, class {class_of_claim(created)}"
    return Made(
        f"claim {created.key} of snapshot {snapshot.key} is made: {what}", (*_waits_for(snapshot), *notes), bool(notes)
    )


async def _snapshot_of(client: Client, wanted: Wanted) -> VolumeSnapshot:
    try:
        found = await _allowed(client.find(VOLUME_SNAPSHOTS, wanted.snapshot), "get volumesnapshots", wanted)
    except ApiError as error:
        if error.status == 404:
            raise VolplaneError(NOT_SERVED) from error
        raise
    namespace = wanted.snapshot.partition("/")[0]
    if found is None:
        shows = f"`kubectl -n {namespace} get volumesnapshots` shows those there are"
        raise VolplaneError(f"there is no snapshot {wanted.snapshot}; {shows}")
    if found.terminating:
        raise VolplaneError(f"snapshot {found.key} is being deleted: nothing can be made of it any more")
    if not found.status.ready_to_use and is_terminal(found.status.error):
        why = found.status.error.message if found.status.error is not None else ""
        raise VolplaneError(f"snapshot {found.key} has failed, and will not be ready: {why}")
    return found


async def _allowed(request: Awaitable[T], right: str, wanted: Wanted) -> T:
    """Return the answer of the server. Raises VolplaneError with the right that was lacking."""
    try:
        return await request
    except ApiForbidden as error:
        # Quotas and admission answer 403 too, and rights do not help there.
        if "cannot" not in error.message:
            raise
        namespace = wanted.claim.partition("/")[0]
        text = f"you may not: {error}; ask an administrator for the right to {right} in namespace {namespace}"
        raise VolplaneError(text) from error


def _is_of(claim: Claim, snapshot: VolumeSnapshot) -> bool:
    source = source_of(claim)
    return (
        not claim.terminating
        and source is not None
        and (source.kind, source.api_group, source.name) == (SNAPSHOT, GROUP, snapshot.name)
        and (source.namespace or claim.namespace) == snapshot.namespace
    )


def _taken(present: Claim, wanted: Wanted) -> VolplaneError:
    if present.terminating:
        return VolplaneError(f"claim {present.key} is being deleted; try again once it is gone")
    first = f"kubectl -n {present.namespace} delete pvc {present.name}"
    then = f"volplane restore {wanted.snapshot} --claim {present.name}"
    return VolplaneError(
        f"claim {present.key} exists: its name is taken. Name another claim; or, if its data may go, stop its pods, "
        f"then `{first}`, then `{then}`"
    )


def _waits_for(snapshot: VolumeSnapshot) -> tuple[str, ...]:
    if snapshot.status.ready_to_use:
        return ()
    why = f": {snapshot.status.error.message}" if snapshot.status.error is not None else ""
    return (f"it waits: snapshot {snapshot.key} is not ready{why}",)


async def body_of(
    client: Client, wanted: Wanted, snapshot: VolumeSnapshot
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return the claim to create, and what its class waits for. Raises VolplaneError for what cannot be known."""
    origin = snapshot.spec.source.persistent_volume_claim_name
    source: Claim | None = None
    if is_name(origin):  # A person may have written anything.
        found = client.find(CLAIMS, f"{snapshot.namespace}/{origin}")
        source = await _allowed(found, "get persistentvolumeclaims", wanted)
    gone = f"claim {origin} of the snapshot is gone" if origin else "the snapshot names no claim that it is of"
    storage_class = wanted.storage_class or (class_of_claim(source) if source is not None else "")
    if not storage_class:
        why = gone if source is None else f"claim {origin} of the snapshot has no class"
        raise VolplaneError(f"which class? {why}: name one with --class; `kubectl get storageclasses` shows them")
    modes = list(wanted.access_modes or (source.spec.access_modes if source is not None else None) or ())
    if not modes:
        raise VolplaneError(f"which access mode? {gone}: name it, as in --access-mode ReadWriteOnce")
    spec = {
        "storageClassName": storage_class,
        "accessModes": modes,
        "volumeMode": await _mode_of(client, snapshot, source),
        "resources": {"requests": {"storage": _size(wanted, snapshot, source, gone)}},
        "dataSource": {"apiGroup": GROUP, "kind": SNAPSHOT, "name": snapshot.name},
    }
    namespace, _, name = wanted.claim.partition("/")
    return CLAIMS.body(metadata={"name": name, "namespace": namespace}, spec=spec), await _class(client, storage_class)


def _size(wanted: Wanted, snapshot: VolumeSnapshot, source: Claim | None, gone: str) -> str:
    least = restore_size_of(snapshot)
    if wanted.size:
        try:
            nanos = parse(wanted.size).nanos
        except ValueError:
            nanos = 0
        if nanos <= 0:
            raise ConfigurationError(f'--size: "{wanted.size}" is no size; such as 10Gi')
        if nanos < least:
            needed = f"{format_bytes(whole_bytes(least))}, the size of snapshot {snapshot.key}"
            raise VolplaneError(f"--size {wanted.size} is less than {needed}: ask for at least that")
        return wanted.size
    asked = (request_of(source), held_by(source)) if source is not None else ()
    size = max((least, *asked))
    if not size:
        raise VolplaneError(f"which size? {gone}, and shows no size yet: name it, as in --size 10Gi")
    return format_bytes(whole_bytes(size))


async def _mode_of(client: Client, snapshot: VolumeSnapshot, source: Claim | None) -> str:
    """Return the volume mode: of the content, which the controller compares, where it may be read."""
    cut = None
    if is_name(bound := snapshot.status.bound_volume_snapshot_content_name):
        with suppress(ApiForbidden):
            content = await client.find(VOLUME_SNAPSHOT_CONTENTS, bound)
            cut = content.spec.source_volume_mode if content is not None else None
    return cut or (source.spec.volume_mode if source is not None else None) or "Filesystem"


async def _class(client: Client, name: str) -> tuple[str, ...]:
    """Return what the class waits for. Raises VolplaneError if there is no such class."""
    try:
        found = await client.find(STORAGE_CLASSES, name) if is_name(name) else None
    except ApiForbidden:  # The claim's event will tell.
        return ()
    if found is None:
        shows = "`kubectl get storageclasses` shows those there are"
        raise VolplaneError(f'there is no StorageClass "{name}": name another with --class; {shows}')
    waits = found.volume_binding_mode == "WaitForFirstConsumer"
    return (f"its class {name} makes volumes once a pod uses the claim",) if waits else ()


async def bound(client: Client, key: str, seconds: float) -> bool:
    """Return whether the claim is bound within so many seconds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        found = await client.find(CLAIMS, key)
        if found is None:
            raise VolplaneError(f"claim {key} was deleted meanwhile")
        if found.status.phase == "Bound":
            return True
        if found.status.phase == "Lost" or loop.time() > end:
            return False
        await asyncio.sleep(POLL_SECONDS)


async def _reasons(key: str, access: Access) -> list[str]:
    """Return what `volplane explain` says about the claim."""
    from volplane.cli.explain import explained  # noqa: PLC0415 - start-up time

    explanations, notes = await explained(access, "claim", key)
    return [text for each in explanations for part in ("situation", "next") for text in each[part]] + list(notes)
