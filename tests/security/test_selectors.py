"""Tenants write selectors, as large as an object may be; the binder compares them with every free volume."""

from __future__ import annotations

import time

import msgspec
import pytest

from unit.deciding import put
from unit.snapshots.objects import state_of
from volplane.controller.actions import LiveReads, Patch
from volplane.kube import names
from volplane.kube.objects import Claim, Volume
from volplane.snapshots.decide import decide_source
from volplane.snapshots.groups import decide_group
from volplane.snapshots.groups_objects import VolumeGroupSnapshot
from volplane.state.matching import FreeVolumes, WaitingClaims, demand_of


def volume(number: int) -> Volume:
    return msgspec.convert(
        {
            "metadata": {"name": f"pv-{number}", "uid": f"u-{number}", "labels": {"rack": f"r{number}"}},
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]},
            "status": {"phase": "Available"},
        },
        Volume,
    )


@pytest.mark.parametrize("operator", ["NotIn", "DoesNotExist", "In"])
def test_a_selector_of_thousands_of_expressions_does_not_hold_the_binder_up(operator: str) -> None:
    needs = [{"key": f"k{n}", "operator": operator, "values": ["a"]} for n in range(15_000)]
    needs += [{"key": "rack", "operator": "In", "values": ["nowhere"]}]
    claim = msgspec.convert(
        {
            "metadata": {"name": "data", "namespace": "default", "uid": "u"},
            "spec": {"selector": {"matchExpressions": needs}, "resources": {"requests": {"storage": "1Gi"}}},
        },
        Claim,
    )
    free = FreeVolumes()
    for number in range(1_000):
        free.changed(None, volume(number))
    begun = time.process_time()
    assert free.best(demand_of(claim)) is None
    assert time.process_time() - begun < 0.5


def test_thousands_of_waiting_claims_with_expressions_of_their_own_do_not_delay_a_volume() -> None:
    waiting = WaitingClaims()
    for number in range(4_000):
        need = {"key": "rack", "operator": "In", "values": [f"other-{number}"]}
        body = {
            "metadata": {"name": f"c{number}", "namespace": "default", "uid": f"u{number}"},
            "spec": {"selector": {"matchExpressions": [need]}, "resources": {"requests": {"storage": "1Gi"}}},
        }
        claim = msgspec.convert(body, Claim)
        waiting.add(claim, demand_of(claim))
    waiting.wake_for(volume(0))  # Selectors are read once.
    begun = time.process_time()
    for number in range(1_000):
        assert waiting.wake_for(volume(number)) is None
    assert time.process_time() - begun < 4.0


def group(number: int, selector: object, **status: object) -> VolumeGroupSnapshot:
    body = {
        "metadata": {"name": f"g{number}", "namespace": "default", "uid": f"ug{number}", "resourceVersion": "1"},
        "spec": {"source": {"selector": selector}},
        "status": status,
    }
    return msgspec.convert(body, VolumeGroupSnapshot)


def test_hundreds_of_groups_that_select_hundreds_of_claims_do_not_hold_others_up() -> None:
    """Each held claim asked each group for all that it selects among the claims of the cluster: seconds at a time."""
    state = state_of()
    for number in range(3_000):
        own, labels = number < 200, {"app": "db"}
        metadata = {"name": f"c{number}", "namespace": "default" if own else "other", "uid": f"u{number}"}
        held = {"labels": labels, "finalizers": [names.CLAIM_AS_SOURCE], "resourceVersion": "1"}
        put(state.cluster, msgspec.convert({"metadata": {**metadata, **held}}, Claim))
    refused = {"time": None, "message": "it is not bound"}
    for number in range(200):
        state.groups.observe(group(number, {"matchLabels": {"app": "db"}}, error=refused))
    begun = time.process_time()
    for number in range(200):
        assert isinstance(decide_source(f"default/c{number}", state), Patch)
    assert time.process_time() - begun < 2.0


def test_a_group_with_thousands_of_expressions_is_refused_before_they_are_read() -> None:
    needs = [{"key": f"k{n}", "operator": "In", "values": ["a"]} for n in range(15_000)]
    state = state_of()
    state.groups.observe(group(1, {"matchExpressions": needs}))
    action = decide_group("default/g1", state, LiveReads())
    assert isinstance(action, Patch)
    assert "its selector has 30000 labels, expressions and values; 1000 are allowed" in action.why
