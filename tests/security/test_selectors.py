"""Tenants write selectors, as large as an object may be; the binder compares them with every free volume."""

from __future__ import annotations

import time

import msgspec
import pytest

from volplane.kube.objects import Claim, Volume
from volplane.state.matching import FreeVolumes, demand_of


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
