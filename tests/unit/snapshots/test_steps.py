"""An event of a group of snapshots costs what it touches: counted in lines of core, never by a clock."""

from __future__ import annotations

from typing import Any

import msgspec
from bench.counting import lines_of_core

from unit.binding.objects import claim
from unit.placement.world import Keys
from unit.snapshots.objects import state_of
from volplane.kube import names
from volplane.snapshots.groups import claims_of
from volplane.snapshots.groups_handlers import GroupHandlers
from volplane.snapshots.groups_objects import VolumeGroupSnapshot


def group() -> VolumeGroupSnapshot:
    metadata = {"name": "g", "namespace": "default", "uid": "uid-g", "resourceVersion": "1"}
    spec = {"source": {"selector": {"matchLabels": {"app": "db"}}}}
    return msgspec.convert({"metadata": metadata, "spec": spec}, VolumeGroupSnapshot)


def held(name: str, namespace: str = "default", **more: Any) -> Any:
    finalizers = [names.CLAIM_AS_SOURCE]
    return claim(name, namespace=namespace, labels={"app": "db"}, finalizers=finalizers, **more)


def steps_of_an_event(others: int) -> int:
    """Lines that an event of a group takes, and the choice of its claims, beside claims of other namespaces."""
    strangers = [held(f"c{number}", f"team-{number % 7}", uid=f"uid-{number}") for number in range(others)]
    state = state_of(*strangers, held("b"), held("a"), claim("other"))
    sources = Keys()
    handlers = GroupHandlers(state, Keys(), Keys(), Keys(), sources)
    handlers.subscribe()
    with lines_of_core() as lines:
        state.groups.observe(group())
        chosen = [each.name for each in claims_of(group(), state)]
    assert (chosen, sources.keys) == (["a", "b"], ["default/a", "default/b"])
    return lines.count


def test_an_event_of_a_group_looks_at_the_claims_of_its_namespace_alone() -> None:
    assert steps_of_an_event(700) == steps_of_an_event(7)
