"""Every operation costs what it touches: the lines of core that run for it are the same however many objects there are.

`python -m bench.growth` measures the same axes up to a million objects, with CPU, memory and latencies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from bench.counting import lines_of_callbacks
from bench.growth import AXES, steps_of
from bench.objects import DRIVER, bound_claim, bound_volume

import volplane_testing
from volplane.process.control_plane import ControlPlane
from volplane_embedded.apiserver.store import key_of
from volplane_testing import Cluster
from volplane_testing.memory import MemoryBackend

SIZES = {
    "objects": (100, 1_000),
    "nodes": (10, 200),
    "flips": (10, 300),
    "classes": (10, 100),
    "drivers": (10, 40),
    "selectors": (3, 90),
    "changes": (1, 100),
}


@pytest.mark.parametrize("axis", SIZES)
def test_a_unit_takes_as_many_steps_among_many_as_among_few(axis: str) -> None:
    few, many = (steps_of(AXES[axis], size) for size in SIZES[axis])
    assert many == pytest.approx(few, rel=0.002), f"lines of core for one {AXES[axis].unit}: {few:g}, then {many:g}"


def test_a_claim_of_a_large_namespace_that_is_deleted_takes_no_more_steps_than_one_of_a_small_one() -> None:
    few, many = (steps_of(AXES["namespace"], size) for size in (10, 60))
    assert many <= few * 1.002


def _longest_callback(pairs: int, queue: Callable[[ControlPlane], Awaitable[None]]) -> int:
    """Lines of core in the longest callback of the loop while all objects of `pairs` bound volumes are queued."""

    async def main() -> int:
        async with Cluster({DRIVER: MemoryBackend()}) as cluster:
            for number in range(pairs):
                for plural, body in (
                    ("persistentvolumes", bound_volume(number)),
                    ("persistentvolumeclaims", bound_claim(number)),
                ):
                    metadata = body["metadata"]
                    cluster.server.store.put(plural, key_of(metadata.get("namespace", ""), metadata["name"]), body)
            await cluster.restart()
            await cluster.settle()
            with lines_of_callbacks() as counts:
                await queue(cluster.controllers.plane)
                await asyncio.sleep(10.0)
            return max(counts)

    return volplane_testing.run(main())


async def _driver_turns(plane: ControlPlane) -> None:
    plane.changed.put_nowait(DRIVER)


@pytest.mark.parametrize("queue", [_driver_turns, ControlPlane.resync])
def test_other_work_goes_on_while_all_objects_are_queued(queue: Callable[[ControlPlane], Awaitable[None]]) -> None:
    few, many = (_longest_callback(pairs, queue) for pairs in (300, 900))
    assert many <= few * 1.05
