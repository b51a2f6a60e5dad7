"""Binding: fast, one volume to one claim, and finished whatever was half done."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from scenarios.backends import ScriptedBackend
from scenarios.binding import BY_CONTROLLER, plain
from scenarios.harness import Harness, Json
from scenarios.stories import DRIVER, claim, reference, volume
from schedules import schedules

ALL = frozenset({"binder", "provisioner", "reclaimer", "protection"})


async def _pairs(harness: Harness, count: int) -> None:
    for number in range(count):
        await harness.create("volumes", volume(f"v{number:03}"))
        await harness.create("claims", claim(f"c{number:03}"))


def _matched(claims: list[Json], volumes: list[Json]) -> int:
    """Pairs that point at each other, each volume counted once."""
    owners = {v["metadata"]["name"]: (v["spec"].get("claimRef") or {}).get("uid") for v in volumes}
    pairs = [(c["spec"].get("volumeName"), c["metadata"]["uid"]) for c in claims]
    return len({name for name, uid in pairs if name and owners.get(name) == uid})


# --- fast --------------------------------------------------------------------------------------------------------


async def test_binds_do_not_wait_for_each_other() -> None:
    """Item 20.1: 100 binds of four writes each, 20 ms a write, end in far less than 8 seconds."""

    async with plain() as harness:
        await _pairs(harness, 100)
        harness.rules.latency = 0.01
        await harness.start()
        await asyncio.sleep(1.0)
        assert Counter((await harness.claims()).values()) == {"Bound": 100}
        assert _matched(await harness.everything("claims"), await harness.everything("volumes")) == 100


async def test_a_bind_takes_four_writes_and_no_reads() -> None:
    """Items 20.7 and 20.8: neither a live read nor a needless write, also when the volume was reserved."""

    async with plain() as harness:
        await harness.create("volumes", {**volume("v"), "status": {"phase": "Available"}})
        await harness.create("claims", claim("c"))
        await harness.start()
        await harness.settle()
        assert harness.rules.writes() == [
            "update persistentvolumes",
            "update persistentvolumes/status",
            "update persistentvolumeclaims",
            "update persistentvolumeclaims/status",
        ]
        assert harness.rules.reads() == []


async def test_both_sides_of_a_reserved_pair_write_without_conflict() -> None:
    """Item 21.3: the volume's side leaves the phase to the claim's side while a bind is due."""

    async with plain() as harness:
        for number in range(20):
            await harness.create("volumes", volume(f"v{number}", claimRef=reference(f"c{number}")))
            await harness.create("claims", claim(f"c{number}"))
        await harness.start()
        await harness.settle()
        assert Counter((await harness.claims()).values()) == {"Bound": 20}
        assert harness.rules.conflicts() == 0
        assert len(harness.rules.writes()) == 80


async def test_a_volume_wakes_the_claim_that_waits_for_it() -> None:
    """Item 20.3, and 22.6: claims before volumes cost nothing."""

    async with plain() as harness:
        await harness.start()
        for number in range(100):
            await harness.create("claims", claim(f"c{number}"))
        await asyncio.sleep(1.0)
        for number in range(100):
            await harness.create("volumes", volume(f"v{number}"))
        await asyncio.sleep(0.5)
        assert Counter((await harness.claims()).values()) == {"Bound": 100}


async def test_a_cluster_at_rest_is_left_alone() -> None:
    """Items 20.4, 20.6 and 20.7: no resync, no repeated events, no live reads of retained volumes."""

    async with plain() as harness:
        await _pairs(harness, 30)
        await harness.create("claims", claim("waiting", "100Gi"))
        retained = volume("retained", claimRef=reference("w", uid="00000000-0000-0000-0000-000000000001"))
        await harness.create("volumes", {**retained, "status": {"phase": "Released"}})
        await harness.create("claims", claim("w", "100Gi"))
        await harness.start()
        await harness.settle()
        calls, told = len(harness.rules.calls), dict(harness.events)
        await asyncio.sleep(3600.0)
        later = [call.what for call in harness.rules.calls[calls:] if call.verb not in ("list", "watch")]
        assert later == []
        assert dict(harness.events) == told


# --- one volume, many claims -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", schedules(range(8)))
async def test_one_volume_goes_to_one_of_many_claims(seed: int) -> None:
    harness = plain()
    try:
        await harness.start()
        await asyncio.gather(*(harness.create("claims", claim(f"c{number}")) for number in range(20)))
        await harness.create("volumes", volume("only"))
        await harness.settle()
        phases = Counter((await harness.claims()).values())
        assert phases == {"Bound": 1, "Pending": 19}
        assert _matched(await harness.everything("claims"), await harness.everything("volumes")) == 1
        assert harness.rules.conflicts() == 0
    finally:
        await harness.close()


async def test_a_volume_taken_by_somebody_else_at_the_last_moment_is_not_fought_for() -> None:
    """Another binder reserves it between our decision and our write: 409, and the claim looks again."""

    async with plain() as harness:
        await harness.create("volumes", {**volume("v"), "status": {"phase": "Available"}})
        await harness.create("volumes", {**volume("w", "2Gi"), "status": {"phase": "Available"}})
        other = await harness.create("claims", claim("other", "9Gi"))
        await harness.create("claims", claim("c"))
        harness.rules.latency = 0.05
        await harness.start()
        ref = reference("other", uid=other["metadata"]["uid"])
        await harness.patch("volumes", "v", {"spec": {"claimRef": ref}})
        await harness.settle()
        assert harness.rules.conflicts() == 1
        assert (await harness.claim("c"))["spec"]["volumeName"] == "w"
        assert (await harness.volume("v"))["spec"]["claimRef"]["name"] == "other"


# --- half done ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writes", [1, 2])
@pytest.mark.parametrize("policy", ["Delete", "Recycle", "Retain"])
async def test_a_claim_deleted_before_it_pointed_back_costs_the_volume_nothing(policy: str, writes: int) -> None:
    """Item 21.6: what no pod can have used is neither destroyed nor scrubbed, but offered again."""
    backend = ScriptedBackend(DRIVER)

    async with Harness(backend, controllers=ALL, disabled_admission=()) as harness:
        await harness.create("volumes", volume("v", persistentVolumeReclaimPolicy=policy))
        await harness.create("claims", claim("c"))
        harness.fail("update persistentvolumeclaims", "away", 10**6)
        if writes == 1:
            harness.fail("update persistentvolumes/status", "away", 10**6, skip=1)
        await harness.start()
        await asyncio.sleep(1.0)
        assert (await harness.volume("v"))["spec"]["claimRef"]["name"] == "c"
        harness.rules.faults.clear()
        await harness.kill()
        await harness.delete("claims", "c")
        await harness.start()
        await harness.settle()
        assert await harness.claims() == {}
        assert await harness.volumes() == {"v": "Available"}
        assert (await harness.volume("v"))["spec"].get("claimRef") is None
        assert not backend.calls


async def test_a_volume_that_stopped_fitting_is_given_back() -> None:
    """Reserved with uid, then grown out of shape: the claim takes another one, and the first is offered again."""

    async with plain() as harness:
        made = await harness.create("claims", claim("c", "3Gi"))
        ref = reference("c", uid=made["metadata"]["uid"])
        small = volume("small", "1Gi", claimRef=ref)
        small["metadata"]["annotations"] = dict(BY_CONTROLLER)
        await harness.create("volumes", small)
        await harness.start()
        await harness.settle()
        assert await harness.claims() == {"c": "Pending"}
        await harness.create("volumes", volume("large", "5Gi"))
        await harness.settle()
        assert (await harness.claim("c"))["spec"]["volumeName"] == "large"
        assert await harness.volumes() == {"large": "Bound", "small": "Available"}
        assert (await harness.volume("small"))["spec"].get("claimRef") is None
