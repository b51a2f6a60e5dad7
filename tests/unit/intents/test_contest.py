"""Scrubs that another process, or another installation, works on too."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from unit.binding.objects import volume
from unit.deciding import empty_state
from volplane.controller.actions import Wait
from volplane.intents.contest import scrub_contested
from volplane.kube import names
from volplane.kube.objects import Volume
from volplane.state.cluster_state import ClusterState
from volplane.state.records import INTENT_VERSION, RecycleIntent, Sealer, write_intent

OURS, THEIRS = "3/us/lease-b", "0/them/lease-c"
SCRUB = RecycleIntent(v=INTENT_VERSION, claim="uid-gone", installation="ours")


def state(namespace: str = "ours") -> tuple[ClusterState, list[float]]:
    """Of a process of our term, and its clock."""
    made, now = empty_state(), [1000.0]
    made.sealer.installation = Sealer(b"k" * 32, namespace).installation
    made.fence = lambda: OURS
    made.monotonic = lambda: now[0]
    made.volumes.subscribe(made.contests.volume_changed)
    return made, now


def released(term: str, version: int, **more: object) -> Volume:
    record = write_intent(replace(SCRUB, fence=term, **more))
    return volume("v", annotations={names.INTENT: record}, resourceVersion=str(version))


def waits(made: ClusterState, intent: RecycleIntent | None) -> Wait | None:
    found = made.volumes.get("v") or volume("v")
    return scrub_contested(found, intent, made)


@pytest.mark.parametrize(("times", "seconds"), [(0, None), (1, None), (2, 1.0), (3, 2.0), (12, 300.0)])
def test_a_scrub_that_another_process_takes_again_and_again_is_taken_back_ever_later(
    times: int, seconds: float | None
) -> None:
    made, _ = state()
    made.volumes.observe(released(THEIRS, 1))
    for number in range(times):
        made.volumes.observe(released(OURS, 2 * number + 2))
        made.volumes.observe(released(THEIRS, 2 * number + 3))
    found = waits(made, replace(SCRUB, fence=THEIRS))
    assert (found.seconds if found is not None else None) == seconds


def test_a_scrub_that_begins_anew_starts_from_the_shortest_delay() -> None:
    made, _ = state()
    for number in range(10):
        made.volumes.observe(released(OURS, 2 * number + 1))
        made.volumes.observe(released(THEIRS, 2 * number + 2))
    made.volumes.observe(volume("v", resourceVersion="100"))
    assert waits(made, replace(SCRUB, fence=THEIRS)) is None


@pytest.mark.parametrize(("namespace", "installation"), [("ours", "ours"), ("ours", ""), ("", "theirs")])
def test_a_scrub_of_this_installation_or_of_an_older_release_is_worked_on(namespace: str, installation: str) -> None:
    made, _ = state(namespace)
    assert waits(made, replace(SCRUB, fence=THEIRS, installation=installation)) is None


def test_a_scrub_of_another_installation_is_left_to_it_and_says_what_to_do() -> None:
    made, now = state()
    now[0] = 1e9
    found = waits(made, replace(SCRUB, fence=THEIRS, installation="theirs"))
    assert found is not None
    assert found.seconds is None
    assert "in namespace theirs scrubs this volume" in found.reason
    assert [event.reason for event in found.events] == ["DriverServedTwice"]
