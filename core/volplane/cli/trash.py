"""`volplane trash`: the volumes of deleted claims that are kept, and until when; and purging one of them. Apart from
them what backends of directories keep of volumes that are deleted.

`volplane undelete`: gives such a volume to a claim.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from typer import Option

from volplane._messages import age_text, size_text
from volplane.asking.leader import LeaderSilent
from volplane.cli.controller_client import Access
from volplane.cli.framework.console import Console, Output
from volplane.cli.framework.options import (
    AllNamespaces,
    Namespace,
    OutputFormat,
    completed,
    duration_option,
    with_options,
)
from volplane.errors import ApiConflict, ApiError, ApiForbidden, ConfigurationError, VolplaneError
from volplane.kube import names
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, NAMESPACES, STORAGE_CLASSES, VOLUMES
from volplane.kube.objects import Volume, timestamp
from volplane.state.matching import capacity_of, class_of_claim, mode_of
from volplane.state.records import NEVER, TrashRecord, time_of
from volplane.trash.decide import in_trash, made_after, taken_or_unfit

POLL_SECONDS: Final = 0.5
MOST_ROWS: Final = 100
HEADERS: Final = ("VOLUME", "CLASS", "SIZE", "RELEASED FROM", "SINCE", "UNTIL", "LEFT", "THEN")
OF_ARCHIVES: Final = ("ARCHIVE OF", "DRIVER", "SIZE", "FORMER CLAIM", "SINCE", "UNTIL", "PLACE")


@dataclass(frozen=True, slots=True)
class Row:
    """What is shown of a volume in the trash."""

    volume: str
    storage_class: str
    capacity_bytes: int
    released_from: str
    claim_uid: str
    since: str
    until: str
    seconds_left: float
    then: str
    """What becomes of its directory or disk: "destroyed", or "archived" by a backend of directories."""

    def cells(self) -> tuple[str, ...]:
        left = age_text(self.seconds_left) if self.seconds_left > 0 else "due"
        of_claim = (self.released_from or "-", self.since or "-", self.until or "-")
        return (self.volume, self.storage_class or "-", size_text(self.capacity_bytes), *of_claim, left, self.then)


@dataclass(frozen=True, slots=True)
class Archives:
    """What backends of directories keep of deleted volumes. rows: with the fields of ListedArchive, and "driver"."""

    rows: Sequence[Mapping[str, Any]] = ()
    untold: Sequence[str] = ()
    """Why some are not known."""


@with_options
def trash(
    access: Access,
    *,
    namespace: Namespace = "",
    all_namespaces: AllNamespaces = False,
    purge: Annotated[str, Option("--purge", metavar="VOLUME", help="Destroy this volume now, with its data.")] = "",
    yes: Annotated[bool, Option("--yes", help="Do it; otherwise only show what would be destroyed.")] = False,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Show the volumes of deleted claims that are kept, until when, and what becomes of them then.

    Of the claims of one namespace, or of all. `volplane undelete` gives one of them to a claim. --purge deletes the
    volume object, so that the controller destroys the data at once. Directories that were archived are listed apart, as
    the running controller finds them now: no command gives them back, a person copies them.
    """
    if yes and not purge:
        raise typer.BadParameter("--yes needs --purge VOLUME")
    console = Console()
    of = access.namespace(namespace, everywhere=all_namespaces or bool(purge))
    rows, archiving = asyncio.run(_trash(console, access, of, purge, yes=yes))
    # Before backends are asked, which may take long.
    if output is Output.TEXT and rows:
        console.table(HEADERS, [row.cells() for row in rows], most=MOST_ROWS)
    elif output is Output.TEXT:
        console.line("nothing is in the trash" + (f" of namespace {of}; -A shows that of all" if of else ""))
    archives = Archives() if purge else asyncio.run(read_archives(access, of, wanted=bool(archiving)))
    if output is not Output.TEXT:
        volumes = [{name: getattr(row, name) for name in Row.__slots__} for row in rows]
        console.data({"volumes": volumes, "archives": archives.rows, "untold": archives.untold}, output)
        return
    if archives.rows:
        console.heading("Archives")
        console.table(OF_ARCHIVES, [cells_of(each) for each in archives.rows], most=MOST_ROWS)
    for note in archives.untold:
        console.note(note)
    if purge and not yes:
        console.note("nothing was changed; --yes destroys it")


async def _trash(console: Console, access: Access, of: str, purge: str, *, yes: bool) -> tuple[list[Row], set[str]]:
    """Return the rows, and the classes that archive. With `purge` the row of this volume alone, which is deleted if
    `yes`.
    """
    async with access.cluster() as (client, _):
        if purge:
            volume, record = await _kept_volume(client, purge)
            if yes:
                version = volume.metadata.resource_version
                await client.delete(VOLUMES, volume.key, uid=volume.uid, resource_version=version)
                console.warning(f"volume {volume.name} is being destroyed")
            kept = [(volume, record)]
        else:
            volumes = (await client.list(VOLUMES)).items
            kept = [(each, known) for each in volumes if (known := in_trash(each)) is not None]
        archiving = await _archiving_classes(client)
    rows = [row_of(volume, record, archiving, datetime.now(UTC)) for volume, record in kept]
    chosen = (row for row in rows if row.released_from.startswith(f"{of}/" if of else ""))
    return sorted(chosen, key=lambda row: row.until), archiving


async def read_archives(access: Access, of: str, *, wanted: bool) -> Archives:
    """Ask the controller, which asks the backends. wanted: whether a person misses them where none answers."""
    async with access.leader() as leader:
        try:
            answer = await leader.ask("/archives", method="POST")
        except LeaderSilent as silent:
            return Archives(untold=(f"archives are not known: {silent}",) if wanted else ())
        except ConfigurationError:
            raise
        except VolplaneError as error:
            return Archives(untold=(f"archives are not known: {error}",))
    chosen = (each for each in answer["archives"] if each["claim"].startswith(f"{of}/" if of else ""))
    rows = sorted(chosen, key=lambda each: (each["until"] is None, each["until"] or 0.0, each["place"]))
    return Archives(rows, [f"archives of driver {name} are not known: {why}" for name, why in answer["untold"].items()])


def cells_of(archive: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the row of an archive."""
    since = _date_of(archive["archived_at"]) or "-"
    until = _date_of(archive["until"]) or "a person removes it"
    about = (archive["volume"], archive["driver"], size_text(archive["capacity_bytes"]), archive["claim"] or "-")
    return (*about, since, until, archive["place"])


def _date_of(seconds: float | None) -> str:
    return timestamp(datetime.fromtimestamp(seconds, UTC)) if seconds is not None else ""


def row_of(volume: Volume, record: TrashRecord, archiving: Iterable[str], now: datetime) -> Row:
    """archiving: names of the classes whose directories are archived when their volumes are deleted."""
    storage_class = class_of_claim(volume) or ""
    return Row(
        volume=volume.name,
        storage_class=storage_class,
        capacity_bytes=capacity_of(volume) // 10**9,
        released_from=record.released,
        claim_uid=record.claim,
        since=record.since,
        until=record.until,
        seconds_left=(time_of(record.until, NEVER) - now).total_seconds(),
        then="archived" if storage_class in archiving else "destroyed",
    )


async def _archiving_classes(client: Client) -> set[str]:
    try:
        classes = (await client.list(STORAGE_CLASSES)).items
    except ApiForbidden:
        return set()
    return {each.name for each in classes if (each.parameters or {}).get("onDelete") == "archive"}


async def _kept_volume(client: Client, name: str) -> tuple[Volume, TrashRecord]:
    """Return the volume and its record. Raises VolplaneError if it is not in the trash, or may not be read."""
    try:
        volume = await client.find(VOLUMES, name)
    except ApiForbidden as error:
        raise VolplaneError(
            f"you may not read volumes ({error}): create a claim that names the volume and shows that it was yours "
            f"(spec.volumeName: {name}; annotation {names.UNDELETE}: the uid of the former claim), or ask an "
            "administrator"
        ) from error
    record = in_trash(volume) if volume is not None else None
    if volume is None or record is None:
        state = "" if volume is None else "being deleted" if volume.terminating else volume.status.phase or "Pending"
        raise VolplaneError(f"volume {name} is not in the trash: it {f'is {state}' if state else 'does not exist'}")
    return volume, record


# --- out of the trash -------------------------------------------------------------------------------------------------


@with_options
def undelete(
    access: Access,
    volume: Annotated[
        str, typer.Argument(metavar="VOLUME", help="`volplane trash` shows it.", autocompletion=completed("volume"))
    ],
    *,
    claim: Annotated[
        str, Option("--claim", metavar="NAME", help="Who gets it, or NAMESPACE/NAME; made if there is no such claim.")
    ],
    namespace: Namespace = "",
    timeout: Annotated[
        float, duration_option("--timeout", says="How long to wait until the claim is bound.", default="1m")
    ] = 60.0,
) -> None:
    """Give a volume in the trash to a claim, and wait until that is bound.

    In the namespace of the former claim the right to create claims is enough. For another namespace, one that was made
    again since, and a claim that exists, the right to change volumes is needed. A claim that is bound keeps its volume.
    Exit code 1 if the claim is not bound in time.
    """
    claim = claim if "/" in claim else f"{access.namespace(namespace)}/{claim}"
    if claim.count("/") != 1 or "" in claim.split("/"):
        raise ConfigurationError(f'--claim: "{claim}" must be NAME or NAMESPACE/NAME')
    console = Console()
    if not asyncio.run(_undelete(console, access, volume, claim, timeout)):
        console.failed(f"claim {claim} is not bound yet; `volplane explain pvc {claim}` says why")
        raise typer.Exit(1)
    console.done(f"claim {claim} is bound to volume {volume}")


async def _undelete(console: Console, access: Access, name: str, key: str, seconds: float) -> bool:
    async with access.cluster() as (client, _):
        await give(client, name, key)
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        with console.progress(f"waiting for claim {key}"):
            while True:
                found = await client.find(CLAIMS, key)
                if found is not None and found.status.phase == "Bound" and found.spec.volume_name == name:
                    return True
                if loop.time() > until:
                    return False
                await asyncio.sleep(POLL_SECONDS)


async def give(client: Client, name: str, key: str) -> None:
    """Write what the controller needs to give the volume to the claim. Raises VolplaneError if it will not."""
    volume, record = await _kept_volume(client, name)
    present = await client.find(CLAIMS, key)
    if present is not None and (why := taken_or_unfit(volume, present)):
        raise VolplaneError(why)
    if present is not None or not await _is_owners(client, key, record, volume):
        await _name_claim(client, volume, key)
    if present is None:
        await client.create(CLAIMS, claim_body(volume, record, key))


async def _is_owners(client: Client, key: str, record: TrashRecord, volume: Volume) -> bool:
    """Return whether a claim of this key needs no more than the uid of the former one."""
    namespace = key.partition("/")[0]
    if namespace != record.released.partition("/")[0] or not record.claim:
        return False
    with suppress(ApiError):  # Who may not read it finds out by the events of the claim.
        return not made_after(await client.find(NAMESPACES, namespace), record, volume)
    return True


async def _name_claim(client: Client, volume: Volume, key: str) -> None:
    version = volume.metadata.resource_version
    body = {"metadata": {"annotations": {names.UNDELETE: key}, "resourceVersion": version}}
    try:
        await client.patch(VOLUMES, volume.key, body)
    except ApiConflict as error:
        raise VolplaneError(f"volume {volume.name} has changed meanwhile; look at it and try again") from error
    except ApiForbidden as error:
        raise VolplaneError(
            f"claim {key} gets volume {volume.name} only by an administrator, who may change volumes: "
            f"kubectl annotate pv {volume.name} {names.UNDELETE}={key}"
        ) from error


def claim_body(volume: Volume, record: TrashRecord, key: str) -> Mapping[str, Any]:
    """Return a claim that the volume suits, and that shows that it has the owner of the former one."""
    namespace, _, name = key.partition("/")
    metadata = {"name": name, "namespace": namespace, "annotations": {names.UNDELETE: record.claim}}
    spec = {
        "accessModes": list(volume.spec.access_modes or ()),
        "volumeMode": mode_of(volume),
        "volumeName": volume.name,
        "storageClassName": class_of_claim(volume) or "",
        "resources": {"requests": dict(volume.spec.capacity or {})},
    }
    attributes = volume.spec.volume_attributes_class_name
    return CLAIMS.body(metadata=metadata, spec=spec | ({"volumeAttributesClassName": attributes} if attributes else {}))


def counted(volumes: Iterable[Volume]) -> tuple[int, int]:
    """Return how many of the volumes are in the trash, and their bytes together."""
    sizes = [capacity_of(each) // 10**9 for each in volumes if in_trash(each) is not None]
    return len(sizes), sum(sizes)


def expired(volumes: Iterable[Volume]) -> int:
    """Return how many of the volumes are still in the trash though their time there is over."""
    records = [record for each in volumes if (record := in_trash(each)) is not None]
    return sum(time_of(record.until, NEVER) <= datetime.now(UTC) for record in records)
