"""`volplane drain`: release or delete everything that our finalizers hold, before volplane leaves a cluster."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer import Option

from volplane.asking.leader import Leader, LeaderSilent, held_lease
from volplane.cli.controller_client import Access, require_driver
from volplane.cli.framework.console import Console, Output
from volplane.cli.framework.options import OutputFormat, duration_option, with_options
from volplane.controller.actions import EventRecord
from volplane.errors import ApiConflict, ApiNotFound, ApiUnavailable, VolplaneError
from volplane.kube.client import Client
from volplane.kube.events import EventRecorder
from volplane.kube.kinds import ATTACHMENTS, CLAIMS, NODES, PODS, VOLUMES, Kind
from volplane.kube.names import NODE, PROVISIONING_FINALIZER
from volplane.kube.objects import Claim, Volume, VolumeAttachment
from volplane.placement.nodes import is_ready
from volplane.reclaim.drain import Held, Target, held_of, released
from volplane.reclaim.scrub_pod import SCRUB_LABEL
from volplane.state.cluster_state import SCRUB_VOLUME, claims_of_pod
from volplane.state.naming import node_hash
from volplane.state.records import trashed

POLL_SECONDS = 1.0
CONFLICTS = 10
MOST_ROWS = 200
EVENT_SECONDS = 10.0
ADVICE = {
    "release": "with --yes these lose our finalizers, and their assets stay",
    "delete": "with --yes these are deleted with their claims and all data in them",
    "": "--release releases them and keeps the assets, --delete deletes them",
}
"""By mode: what to do after a command that only showed what is held."""

KINDS: Mapping[str, Kind[Any]] = {"attachment": ATTACHMENTS, "volume": VOLUMES, "claim": CLAIMS}
"""By `Held.kind`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    held: Held
    by: tuple[str, ...]
    """Finalizers, claim, pods and the controllers' reason, as texts for people."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Finds what is held, releases or deletes it, and reports what is left and who holds it. Methods raise ApiError."""

    driver: str
    """Only what this driver made; "" = every driver."""
    namespace: str
    timeout: float
    """Seconds that a deletion may take."""
    node: str = ""
    """Only what is on this node; "" = everywhere."""

    async def node_is_gone(self, client: Client) -> bool:
        """Return whether no controller can work on what is on the node, so that none is needed or in the way.

        Raises VolplaneError for a node that exists and is not ready: it may come back any moment.
        """
        if not self.node:
            return False
        node = await client.find(NODES, self.node)
        if node is None:
            return True
        if not is_ready(node):
            raise VolplaneError(
                f"node {self.node} is not ready, but may come back: wait for it, or, if it is gone for good, delete "
                f"the object first (kubectl delete node {self.node})"
            )
        return False

    async def find(self, client: Client) -> list[tuple[Target, Held]]:
        """Return all attachments, volumes and claims that our finalizers or intents hold."""
        selector = f"{NODE}={node_hash(self.node)}" if self.node else ""
        attachments = [] if self.node else held_of((await client.list(ATTACHMENTS)).items, self.driver)
        claims = held_of((await client.list(CLAIMS, label_selector=selector)).items, self.driver)
        volumes = held_of((await client.list(VOLUMES, label_selector=selector)).items, self.driver)
        return [*attachments, *volumes, *claims]

    async def release(self, console: Console, client: Client, recorder: EventRecorder) -> None:
        """Remove our finalizers and intents from everything, and delete scrubber pods. The assets stay."""
        found = await self.find(client)
        with console.progress("releasing", total=len(found)) as bar:
            for target, held in found:
                driver, level = held.driver or "?", "Normal"
                if isinstance(target, VolumeAttachment):
                    left = f"; asset {held.asset} of driver {driver} stays attached to node {target.spec.node_name}"
                elif isinstance(target, Volume):
                    left = f" and keeps asset {held.asset or '?'} of driver {driver}"
                else:
                    level, left = "Warning", f"; an asset {held.asset} may be left on driver {driver}"
                if await _write(client, target):
                    text = f"volplane drain released it{left}"
                    recorder.record(EventRecord(KINDS[held.kind], target, level, "Released", text))
                bar.advance(detail=held.key)
        scrubbed = {target.name for target, _ in found if isinstance(target, Volume)}
        for pod in (await client.list(PODS, namespace=self.namespace, label_selector=SCRUB_LABEL)).items:
            if pod.annotation(SCRUB_VOLUME) in scrubbed:
                await _delete(client, PODS, pod, grace_seconds=0)

    async def delete(
        self, console: Console, client: Client, recorder: EventRecorder, leader: Leader, *, gone: bool = False
    ) -> list[Leftover]:
        """Delete all claims, then wait for the controllers; return what is held then. leader: asked for reasons.

        Objects made meanwhile are not deleted, but they are held, and so among what is left. Attachments go when no pod
        needs them. gone: the node is gone, so that volumes without a claim are released, and their assets stay on its
        disks. Raises ApiUnavailable if the API server cannot be reached at the end of the time.
        """
        known = {held.key for _, held in await self.find(client)}
        loop = asyncio.get_running_loop()
        until = loop.time() + self.timeout
        with console.progress("deleting", total=len(known)) as bar:
            left = len(known)
            while True:
                try:
                    ours = [target for target, held in await self.find(client) if _keys(target, held) & known]
                    bar.advance(max(0, left - len(ours)))
                    left = min(left, len(ours))
                    if not ours or loop.time() > until:
                        break
                    for target in sorted(ours, key=lambda each: not isinstance(each, Claim)):
                        await self._request_deletion(client, target, gone=gone)
                except ApiUnavailable:
                    if loop.time() > until:
                        raise
                await asyncio.sleep(POLL_SECONDS)
        return await self._left(client, recorder, leader, await self.find(client))

    async def _request_deletion(self, client: Client, target: Target, *, gone: bool) -> None:
        """Delete a claim, the claim that a volume is bound to, or an available volume; never what a pod may use."""
        if isinstance(target, VolumeAttachment):
            # The controllers detach it once no pod needs it; deleted here, it would be taken from under the pod.
            return
        if isinstance(target, Claim):
            await _delete(client, CLAIMS, target)
            if gone and target.has_finalizer(PROVISIONING_FINALIZER):
                await _write(client, target)
            return
        reference = target.spec.claim_ref
        if reference is not None and reference.uid:
            # The claim goes first: its protection finalizer keeps it, and so the volume, while a pod uses it.
            bound = await client.find(CLAIMS, reference.key)
            if bound is not None and bound.uid == reference.uid:
                await _delete(client, CLAIMS, bound)
                return
            if gone or trashed(target) is not None:
                await _delete(client, VOLUMES, target)
            if gone:
                await _write(client, target)
        elif target.status.phase == "Available":
            await _delete(client, VOLUMES, target)

    async def _left(
        self, client: Client, recorder: EventRecorder, leader: Leader, ours: Sequence[tuple[Target, Held]]
    ) -> list[Leftover]:
        if not ours:
            return []
        reasons: Mapping[str, Mapping[str, str]] = {}
        with suppress(LeaderSilent):
            reasons = (await leader.ask("/status"))["reasons"]
        users: dict[str, list[str]] = {}
        for pod in (await client.list(PODS)).items:
            for key in claims_of_pod(pod):
                users.setdefault(key, []).append(pod.key)
        left: list[Leftover] = []
        for target, held in ours:
            why = reasons.get(f"{held.kind}s", {}).get(target.key)
            finalizers = (f"finalizer {name}" for name in target.metadata.finalizers or ())
            by = (*finalizers, *await _holders(client, target, users), *([why] if why else ()))
            waits = f"still held by {'; '.join(by)}"
            recorder.record(EventRecord(KINDS[held.kind], target, "Warning", "DrainWaits", waits))
            left.append(Leftover(held=held, by=by))
        return left


def _keys(target: Target, held: Held) -> set[str]:
    """Return its key and that of its claim: a claim that is provisioned may be a volume a moment later."""
    reference = target.spec.claim_ref if isinstance(target, Volume) else None
    return {held.key, reference.key} if reference is not None else {held.key}


async def _holders(client: Client, target: Target, users: Mapping[str, list[str]]) -> list[str]:
    """Return node, claim and pods for which it is held, as texts for people. users: key of a claim -> its pods."""
    key, holders = target.key, []
    if not isinstance(target, Claim):
        volume = target if isinstance(target, Volume) else None
        if isinstance(target, VolumeAttachment):
            holders.append(f"node {target.spec.node_name}")
            volume = await client.find(VOLUMES, target.spec.source.persistent_volume_name or "")
        reference = volume.spec.claim_ref if volume is not None else None
        if reference is None or not reference.name:
            return holders
        key = reference.key
        holders.append(f"claim {key}")
    return [*holders, *(f"pod {pod}" for pod in users.get(key, ()))]


async def _write(client: Client, target: Any) -> bool:
    """Write what releases the newest object; return False if it is gone. Raises ApiError."""
    for _ in range(CONFLICTS):
        step = released(target)
        metadata = {**step.body.get("metadata", {}), "resourceVersion": target.metadata.resource_version}
        try:
            await client.patch(step.kind, target.key, {**step.body, "metadata": metadata})
        except ApiNotFound:
            return False
        except ApiConflict:
            target = await client.find(step.kind, target.key)
            if target is None:
                return False
        else:
            return True
    raise ApiConflict(f"{target.key} changes all the time; try again", status=409)


async def _delete(client: Client, kind: Any, target: Any, *, grace_seconds: int | None = None) -> None:
    if not target.terminating:
        # What is gone, or replaced by an object with another uid, shows in the next list.
        with suppress(ApiNotFound, ApiConflict):
            await client.delete(kind, target.key, uid=target.uid, grace_seconds=grace_seconds)


@with_options
def drain(
    access: Access,
    *,
    driver: Annotated[str, Option("--driver", metavar="NAME", help="Only what this driver made or is making.")] = "",
    node: Annotated[
        str,
        Option(
            "--node", metavar="NAME", help="Only what is on this node, of distributed drivers; also one that is gone."
        ),
    ] = "",
    release: Annotated[
        bool, Option("--release", help="Keep every asset; take our finalizers off. Stop the controllers first.")
    ] = False,
    delete: Annotated[
        bool, Option("--delete", help="Delete the claims, their volumes and assets. The controllers must run.")
    ] = False,
    yes: Annotated[bool, Option("--yes", help="Do it; otherwise only show what is held.")] = False,
    timeout: Annotated[
        float, duration_option("--timeout", says="How long --delete waits for everything to be gone.", default="5m")
    ] = 300.0,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Show what volplane's finalizers hold, and release or delete it.

    Without --yes nothing is changed. --release keeps the data: volumes turn to policy Retain and lose our finalizer,
    claims lose their intent, and pods go on using bound ones. --delete deletes the users' claims with all data; of a
    node that is gone nobody can delete the assets, so that they are left on its disks.
    Exit code 1 if something is still held at the end.
    """
    if release and delete:
        raise typer.BadParameter("--release and --delete exclude each other: give one of them")
    if yes and not (release or delete):
        raise typer.BadParameter("--yes needs --release or --delete: say what shall become of the assets")
    mode = "release" if release else "delete" if delete else ""
    # Progress is no part of a result for programs.
    console = Console() if output is Output.TEXT else Console(out=sys.stderr)
    work = Drain(driver, access.system_namespace, timeout, node)
    held, left = asyncio.run(_drain(console, access, work, mode=mode, yes=yes))
    if output is not Output.TEXT:
        Console().data({"held": held, "left": left}, output)
    if left:
        raise typer.Exit(1)


async def _drain(
    console: Console, access: Access, work: Drain, *, mode: str, yes: bool
) -> tuple[Sequence[Held], Sequence[Leftover]]:
    """Return what was held, and what is still held after the release or deletion."""
    async with access.cluster() as (client, leader):
        held = [each for _, each in await work.find(client)]
        if not held:
            console.line("nothing is held")
            # A misspelt driver holds nothing either: a controller that answers knows the right names.
            with suppress(LeaderSilent):
                require_driver(work.driver, (each["name"] for each in (await leader.ask("/status"))["drivers"]))
            return (), ()
        console.heading("Held by volplane")
        rows = [(each.kind, each.key, each.phase, each.driver or "?", each.asset or "-", each.why) for each in held]
        console.table(("KIND", "NAME", "PHASE", "DRIVER", "ASSET", "BY"), rows, most=MOST_ROWS)
        if not yes:
            console.note(f"nothing was changed; {ADVICE[mode]}")
            return held, ()
        gone = await work.node_is_gone(client)
        if not gone:
            await _check_controllers(client, work.namespace, leader, mode)
        recorder = EventRecorder(client, instance=f"drain@{socket.gethostname()}")
        writing = asyncio.ensure_future(recorder.run())
        try:
            if mode == "release":
                await work.release(console, client, recorder)
                left: Sequence[Leftover] = [Leftover(held=each, by=(each.why,)) for _, each in await work.find(client)]
            else:
                left = await work.delete(console, client, recorder, leader, gone=gone)
        finally:
            await recorder.close(EVENT_SECONDS)
            await writing
        if gone:
            console.note(f"what they were is left on the disks of {work.node}: erase these before they are used again")
        _report(console, left)
        return held, left


async def _check_controllers(client: Client, namespace: str, leader: Leader, mode: str) -> None:
    """Raise VolplaneError if a running controller would undo a release, or none runs that could delete."""
    lease = await held_lease(client, namespace)
    holder = (lease.spec.holder_identity or "") if lease is not None else ""
    if not holder and leader.http:  # It may work without a lease.
        with suppress(LeaderSilent):
            holder = leader.http if await leader.ask("/status") else ""
    if mode == "release" and holder:
        raise VolplaneError(
            f"a controller is at work ({holder}) and would take its finalizers back: stop it first, as with "
            f"`kubectl -n {namespace} scale deployment volplane --replicas=0`"
        )
    if mode == "delete" and not holder:
        raise VolplaneError(
            f"no controller is at work (by the lease in namespace {namespace}): nobody would delete the assets. Start "
            "it, name one that works without a lease by --http, or use --release"
        )


def _report(console: Console, left: Sequence[Leftover]) -> None:
    console.line()
    if not left:
        console.done("nothing is held any more")
        return
    console.failed(f"{len(left)} still held")
    rows = [(each.held.kind, each.held.key, each.held.driver or "?", "; ".join(each.by)) for each in left]
    console.table(("KIND", "NAME", "DRIVER", "HELD BY"), rows, most=MOST_ROWS)
