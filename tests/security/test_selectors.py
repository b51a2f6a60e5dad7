"""Tenants write selectors, as large as an object may be; the binder compares them with every free volume."""

from __future__ import annotations

import time

import msgspec
import pytest

from volplane.kube.objects import Claim, Volume
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
