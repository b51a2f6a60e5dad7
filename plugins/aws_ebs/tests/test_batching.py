"""Many volumes, few calls; throttling; and that nobody waits in a thread."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from volplane import Done, InProgress, PermissionDenied, Throttled
from volplane_aws_ebs.testing import EC2_LIMITS, Behaviour, FaultKind, Rate

GIB = 1 << 30
CHANGES = 4


def describes(region: Any) -> int:
    return sum(count for action, count in region.fake.calls.items() if action.startswith("Describe"))


def finish(hook: Callable[[Any], Any], request: Any) -> Generator[float, None, Any]:
    """A hook to its end, giving the seconds to wait; a throttled one is tried again as the core does."""
    while True:
        try:
            result = hook(request)
        except Throttled as error:
            yield error.retry_after or 1.0
            continue
        if not isinstance(result, InProgress):
            return result
        request = replace(request, context=replace(request.context, state=dict(result.state)))
        yield result.retry_after


def life(region: Any, uid: str, node: Any) -> Generator[float, None, None]:
    asset = yield from finish(region.backend.provision, region.demand(uid))
    yield from finish(region.backend.attach, region.attachment(asset, node, uid))
    yield from finish(region.backend.detach, region.detachment(asset, node, uid))
    yield from finish(region.backend.delete, region.deletion(asset, uid))


def live(region: Any, count: int, in_flight: int) -> float:
    """Whole lives of volumes, so many at a time; the seconds that passed."""
    begun, order = region.clock.now, itertools.count()
    nodes = [region.node(region.fake.add_instance(instance_type="m7i.48xlarge"), f"worker-{n}") for n in range(8)]
    lives: Iterator[Generator[float, None, None]] = (life(region, f"u{n}", nodes[n % len(nodes)]) for n in range(count))
    queue = [(begun + n * 0.003, next(order), each) for n, each in enumerate(itertools.islice(lives, in_flight))]
    while queue:
        due, _, each = heapq.heappop(queue)
        region.clock.now = max(region.clock.now, due)
        wait = next(each, None)
        if wait is not None:
            heapq.heappush(queue, (region.clock.now + wait, next(order), each))
        elif (following := next(lives, None)) is not None:
            heapq.heappush(queue, (region.clock.now, next(order), following))
    return float(region.clock.now - begun)


def test_a_hundred_in_flight_cost_a_tenth_of_a_look_for_each_change(new_region: Any) -> None:
    region = new_region(mutations_per_second=1000, mutation_burst=1000)
    seconds = live(region, 300, 100)
    assert region.fake.volumes == {}
    assert describes(region) / 300 / CHANGES <= 0.1
    assert seconds < 300 / 100 * CHANGES * 1.5 * 1.2


def test_at_the_limits_of_ec2_nothing_is_refused_and_no_time_is_lost(new_region: Any) -> None:
    region = new_region(Behaviour(throttle=EC2_LIMITS))
    seconds = live(region, 200, 100)
    assert region.fake.refused["RequestLimitExceeded"] == 0
    assert seconds < (200 - 50) / 5 + CHANGES * 1.5 + 6


def late(region: Any, random: Random, hook: Callable[[Any], Any], requests: list[Any]) -> float:
    """Call the hook for all of them, up to 0.4 s later than they ask for; the seconds that passed."""
    begun, order = region.clock.now, itertools.count()
    queue = [(begun, next(order), finish(hook, request)) for request in requests]
    while queue:
        due, _, each = heapq.heappop(queue)
        region.clock.now = max(region.clock.now, due)
        if (wait := next(each, None)) is not None:
            heapq.heappush(queue, (region.clock.now + wait + random.uniform(0.0, 0.4), next(order), each))
    return float(region.clock.now - begun)


def test_calls_that_come_late_lose_no_look_while_they_wait_for_another_one(new_region: Any) -> None:
    region, random, count = new_region(Behaviour(throttle=EC2_LIMITS), attach=True), Random(1), 40
    assets = {f"u{n}": region.provision(f"u{n}") for n in range(count)}
    region.clock.advance(60.0)
    cuts = [region.cut(asset, f"snap-{uid}", uid=uid) for uid, asset in assets.items()]
    assert late(region, random, region.backend.create_snapshot, cuts) < 6.0
    growths = [region.expansion(asset, 2 * GIB, uid=uid) for uid, asset in assets.items()]
    assert late(region, random, region.backend.expand, growths) < count / 5 + 4.0


def test_somebody_else_in_the_account_slows_us_down_and_stops_nothing(new_region: Any) -> None:
    region = new_region(
        Behaviour(throttle={action: Rate(burst=5, per_second=2) for action in ("CreateVolume", "AttachVolume")})
    )
    live(region, 60, 60)
    assert region.fake.volumes == {}
    assert region.fake.refused["RequestLimitExceeded"] < 60
    assert region.fake.calls["CreateVolume"] < 100


def test_volumes_of_many_claims_are_looked_up_and_watched_in_single_calls(new_region: Any) -> None:
    region = new_region(mutations_per_second=1000, mutation_burst=1000)
    demands = [region.demand(f"u{n}") for n in range(450)]
    before = describes(region)
    answers = [region.backend.provision(demand) for demand in demands]
    region.clock.advance(max(answer.retry_after for answer in answers))
    answers = [region.backend.provision(demand) for demand in demands]
    assert region.fake.calls["CreateVolume"] == 450
    assert describes(region) - before <= 1 + 3 + 1, "the first alone, the others 200 names at a time"
    region.clock.advance(max(answer.retry_after for answer in answers if isinstance(answer, InProgress)))
    before = describes(region)
    for demand in demands[1:]:
        region.backend.provision(demand)
    assert describes(region) - before == 1, "up to 500 ids at a time"


def test_one_id_that_is_gone_does_not_hide_the_others(region: Any) -> None:
    assets = {f"u{n}": region.provision(f"u{n}") for n in range(5)}
    region.clock.advance(5.0)
    region.fake.remove_volume(assets["u2"].handle)
    for uid, asset in assets.items():
        region.backend.expand(region.expansion(asset, 2 * GIB, uid=uid)) if uid != "u2" else region.backend.delete(
            region.deletion(asset, uid)
        )
    region.clock.advance(1.0)
    assert region.delete(assets["u2"], "u2") == Done()
    for uid, asset in assets.items():
        if uid != "u2":
            assert region.expand(asset, 2 * GIB, uid=uid).capacity_bytes == 2 * GIB


def test_an_id_that_ec2_cannot_read_does_not_stop_the_others(region: Any) -> None:
    """Ids have 8 or 17 digits. Of 10 digits, EC2 refuses the whole DescribeVolumes that contains one."""
    innocent = region.provision("u1")
    malformed = region.deletion("vol-0123456789", "u9")
    for _ in range(8):
        region.backend.delete(malformed)
        region.expand(innocent, innocent.capacity_bytes, uid="u1")
        region.clock.advance(0.6)
    assert region.fake.refused["InvalidParameterValue"] == 1, "it is remembered which id that was"
    assert region.finish(region.backend.delete, malformed) == Done()


@pytest.mark.parametrize("code", ["InvalidParameterValue", "InvalidVolumeID.Malformed"])
def test_a_refusal_that_names_no_id_is_answered_by_a_filter(region: Any, code: str) -> None:
    asset = region.provision()
    region.clock.advance(30.0)
    region.refuse("DescribeVolumes", code, "One of the ids is wrong", when=lambda given: "VolumeIds" in given)
    assert region.expand(asset, 2 * GIB).capacity_bytes == 2 * GIB


def test_ids_that_are_expected_to_vanish_are_asked_for_without_failing(region: Any) -> None:
    assets = [region.provision(f"u{n}") for n in range(6)]
    for number, asset in enumerate(assets):
        region.backend.delete(region.deletion(asset, f"u{number}"))
    region.clock.advance(3.0)
    before = describes(region)
    for number, asset in enumerate(assets):
        assert region.backend.delete(region.deletion(asset, f"u{number}")) == Done()
    assert describes(region) - before == 1
    assert region.fake.refused["InvalidVolume.NotFound"] == 0


def test_waiting_for_ec2_holds_no_thread(region: Any) -> None:
    begun = threading.active_count()
    answers = [region.backend.provision(region.demand(f"u{n}")) for n in range(20)]
    assert all(isinstance(answer, InProgress) for answer in answers)
    assert threading.active_count() == begun


def test_the_burst_goes_at_once_and_the_rest_keeps_its_place(new_region: Any) -> None:
    region = new_region(mutations_per_second=5, mutation_burst=10)
    for number in range(30):
        region.backend.provision(region.demand(f"u{number}"))
    region.clock.advance(0.5)
    for number in range(30):
        region.backend.provision(region.demand(f"u{number}"))
    assert region.fake.calls["CreateVolume"] in range(10, 13)
    made = []
    for _ in range(4):
        region.clock.advance(1.0)
        before = region.fake.calls["CreateVolume"]
        for number in reversed(range(30)):
            region.backend.provision(region.demand(f"u{number}"))
        made.append(region.fake.calls["CreateVolume"] - before)
    assert set(made) <= {3, 4, 5, 6}
    assert sum(made) + 10 >= 29


def test_a_failing_look_is_told_to_everybody_who_asked(region: Any) -> None:
    demands = [region.demand(f"u{n}") for n in range(4)]
    region.backend.provision(demands[0])
    for demand in demands[1:]:
        assert isinstance(region.backend.provision(demand), InProgress)
    region.refuse("DescribeVolumes", "UnauthorizedOperation", when=lambda given: "Filters" in given)
    region.clock.advance(0.5)
    for demand in demands[1:]:
        with pytest.raises(PermissionDenied, match="allow ec2:DescribeVolumes"):
            region.backend.provision(demand)
    region.clock.advance(0.5)
    assert region.provision("u3").capacity_bytes == GIB


def test_throttled_looks_become_rarer_and_recover(region: Any) -> None:
    asset = region.backend.provision(region.demand())
    region.fault("DescribeVolumes", FaultKind.REFUSE, code="RequestLimitExceeded", times=2)
    waits = []
    for _ in range(2):
        region.clock.advance(asset.retry_after)
        with pytest.raises(Throttled):
            region.backend.provision(region.demand())
        waits.append(region.clock.now)
    assert region.provision().capacity_bytes == GIB
