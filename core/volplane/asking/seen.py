"""An object as somebody sees it who may read little else, where the leader does not say more."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from volplane.errors import ApiForbidden
from volplane.explain.explain import Explanation
from volplane.kube.client import Client
from volplane.kube.events import EVENTS, Event
from volplane.kube.kinds import Kind

_MOST_EVENTS: Final = 5


async def explained_by_events(client: Client, subject: str, kind: Kind[Any], key: str) -> Explanation:
    """Explain an object by its state and its newest events. Raises ApiForbidden without the right to get it."""
    found = await client.find(kind, key)
    if found is None:
        return Explanation(kind=subject, name=key, found=False, situation=(f"there is no {subject} {key}",))
    phase = getattr(getattr(found, "status", None), "phase", "")
    situation = f"{subject} {key} is {'Terminating' if found.terminating else phase or 'there'}"
    told: list[Event] = []
    with suppress(ApiForbidden):
        about = f"involvedObject.kind={kind.kind},involvedObject.name={found.name}"
        told = (await client.list(EVENTS, namespace=found.namespace or "default", field_selector=about)).items
    told.sort(key=lambda each: each.last_timestamp or "")
    tried = tuple(f"{each.last_timestamp}: {each.message}" for each in told[-_MOST_EVENTS:])
    return Explanation(kind=subject, name=key, situation=(situation,), tried=tried)
