"""The steps of a drain: find what is held, release or delete it, report what is left and who holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from volplane.cli.controller_client import get_answer
from volplane.cli.framework.console import Console
from volplane.controller.actions import EventRecord, Patch
from volplane.errors import ApiConflict, ApiNotFound
from volplane.kube.client import Client
from volplane.kube.events import EventRecorder
from volplane.kube.kinds import CLAIMS, PODS, VOLUMES
from volplane.kube.objects import Claim, Pod, Volume
from volplane.reclaim.drain import Held, held_claims, held_volumes, release_claim, release_volume
from volplane.reclaim.scrub_pod import SCRUB_LABEL
from volplane.state.indexes import claims_of_pod, scrubbed_volume

__all__ = ["Drain", "Leftover"]

POLL_SECONDS = 1.0
CONFLICTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """What is still held. by: finalizers, claim, pods and the controllers' reason, as texts for people."""

    held: Held
    by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drain:
    """What to drain. driver: "" = of all drivers. namespace: ours. timeout: seconds that a deletion may take.

    All methods raise ApiError.
    """

    driver: str
    namespace: str
    timeout: float

    async def find(self, client: Client) -> list[Held]:
        """All volumes and claims that our finalizers or intents hold."""
        volumes, claims = await self._held(client)
        return [held for _, held in volumes] + [held for _, held in claims]

    async def _held(self, client: Client) -> tuple[list[tuple[Volume, Held]], list[tuple[Claim, Held]]]:
        claims = list(held_claims((await client.list(CLAIMS)).items, self.driver))
        volumes = list(held_volumes((await client.list(VOLUMES)).items, self.driver))
        return volumes, claims

    # --- keeping the assets -------------------------------------------------------------------------------------

    async def release(self, console: Console, client: Client, recorder: EventRecorder) -> None:
        """Remove our finalizers and intents from everything, and delete scrubber pods."""
        volumes, claims = await self._held(client)
        with console.progress("releasing", total=len(volumes) + len(claims)) as bar:
            for volume, held in volumes:
                if await _write(client, release_volume, volume):
                    text = (
                        f"volplane drain released it and keeps asset {held.asset or '?'} of driver {held.driver or '?'}"
                    )
                    recorder.record(EventRecord(VOLUMES, volume, "Normal", "Released", text))
                bar.advance(detail=held.key)
            for claim, held in claims:
                if await _write(client, release_claim, claim):
                    text = (
                        f"volplane drain released it; an asset {held.asset} may be left on driver {held.driver or '?'}"
                    )
                    recorder.record(EventRecord(CLAIMS, claim, "Warning", "Released", text))
                bar.advance(detail=held.key)
        scrubbed = {volume.name for volume, _ in volumes}
        await self._remove_scrubbers(client, scrubbed)

    async def _remove_scrubbers(self, client: Client, volumes: set[str]) -> None:
        pods = await client.list(PODS, namespace=self.namespace, label_selector=SCRUB_LABEL)
        for pod in pods.items:
            if scrubbed_volume(pod) in volumes:
                await _delete(client, PODS, pod, grace_seconds=0)

    # --- deleting -----------------------------------------------------------------------------------------------

    async def delete(self, console: Console, client: Client, recorder: EventRecorder, address: str) -> list[Leftover]:
        """Delete all claims, then wait for the controllers; returns what is left. address: of the controller."""
        begun = await self._held(client)
        names = {volume.name for volume, _ in begun[0]} | {claim.key for claim, _ in begun[1]}
        loop = asyncio.get_running_loop()
        until = loop.time() + self.timeout
        with console.progress("deleting", total=len(names)) as bar:
            done = 0
            while True:
                volumes, claims = await self._held(client)
                ours = [pair for pair in volumes if pair[0].name in names], [p for p in claims if p[0].key in names]
                gone = len(names) - len(ours[0]) - len(ours[1])
                bar.advance(gone - done)
                done = gone
                if not (ours[0] or ours[1]) or loop.time() > until:
                    break
                await self._request_deletion(client, *ours)
                await asyncio.sleep(POLL_SECONDS)
        return await self._left(client, recorder, address, *ours)

    async def _request_deletion(
        self, client: Client, volumes: Iterable[tuple[Volume, Held]], claims: Iterable[tuple[Claim, Held]]
    ) -> None:
        """Delete the claims, the claims that volumes are bound to, and available volumes."""
        for claim, _ in claims:
            await _delete(client, CLAIMS, claim)
        for volume, _ in volumes:
            reference = volume.spec.claim_ref
            if reference is not None and reference.uid:
                bound = await _get(client, f"{reference.namespace}/{reference.name}")
                if bound is not None and bound.uid == reference.uid:
                    await _delete(client, CLAIMS, bound)
            elif volume.status.phase == "Available":
                await _delete(client, VOLUMES, volume)

    async def _left(
        self,
        client: Client,
        recorder: EventRecorder,
        address: str,
        volumes: list[tuple[Volume, Held]],
        claims: list[tuple[Claim, Held]],
    ) -> list[Leftover]:
        if not volumes and not claims:
            return []
        reasons: Mapping[str, Mapping[str, str]] = (await get_answer(address, "/status") or {}).get("reasons", {})
        users = _users((await client.list(PODS)).items)
        left: list[Leftover] = []
        for volume, held in volumes:
            by = (*_finalizers(volume), *_claim_of(volume, users), *_reason(reasons, "volumes", volume.key))
            recorder.record(EventRecord(VOLUMES, volume, "Warning", "DrainWaits", f"still held by {'; '.join(by)}"))
            left.append(Leftover(held=held, by=by))
        for claim, held in claims:
            by = (*_finalizers(claim), *_pods(users, claim.key), *_reason(reasons, "claims", claim.key))
            recorder.record(EventRecord(CLAIMS, claim, "Warning", "DrainWaits", f"still held by {'; '.join(by)}"))
            left.append(Leftover(held=held, by=by))
        return left


async def _write(client: Client, change: Any, target: Any) -> bool:
    """Write the patch that `change` makes of the newest object; False if it is gone. Raises ApiError."""
    for _ in range(CONFLICTS):
        step: Patch = change(target)
        metadata = {**step.body.get("metadata", {}), "resourceVersion": target.metadata.resource_version}
        try:
            await client.patch(step.kind, target.key, {**step.body, "metadata": metadata})
        except ApiNotFound:
            return False
        except ApiConflict:
            try:
                target = await client.get(step.kind, target.key)
            except ApiNotFound:
                return False
        else:
            return True
    raise ApiConflict(f"{target.key} changes all the time; try again", status=409)


async def _delete(client: Client, kind: Any, target: Any, *, grace_seconds: int | None = None) -> None:
    if target.terminating:
        return
    try:
        await client.delete(kind, target.key, uid=target.uid, grace_seconds=grace_seconds)
    except (ApiNotFound, ApiConflict):
        return  # gone, or replaced by an object with another uid, which the next list shows


async def _get(client: Client, key: str) -> Claim | None:
    try:
        return await client.get(CLAIMS, key)
    except ApiNotFound:
        return None


def _users(pods: Iterable[Pod]) -> dict[str, list[str]]:
    users: dict[str, list[str]] = {}
    for pod in pods:
        for key in claims_of_pod(pod):
            users.setdefault(key, []).append(pod.key)
    return users


def _finalizers(target: Claim | Volume) -> tuple[str, ...]:
    return tuple(f"finalizer {name}" for name in target.metadata.finalizers or ())


def _claim_of(volume: Volume, users: Mapping[str, list[str]]) -> tuple[str, ...]:
    reference = volume.spec.claim_ref
    if reference is None or not reference.name:
        return ()
    key = f"{reference.namespace}/{reference.name}"
    return (f"claim {key}", *_pods(users, key))


def _pods(users: Mapping[str, list[str]], claim: str) -> tuple[str, ...]:
    return tuple(f"pod {pod}" for pod in users.get(claim, ()))


def _reason(reasons: Mapping[str, Mapping[str, str]], runner: str, key: str) -> tuple[str, ...]:
    why = reasons.get(runner, {}).get(key)
    return (why,) if why else ()
