"""Many volumes, few calls; throttling; and that nobody waits in a thread."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from volplane import Done, InProgress, PermissionDenied, Throttled
from volplane.cloud import Board, RateLimiter
from volplane_aws_ebs.api import Action
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


# --- the parts --------------------------------------------------------------------------------------------------


class Times:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_pacer_gives_places_in_the_order_of_asking() -> None:
    clock = Times()
    limiter = RateLimiter(rate=2, burst=1, clock=clock)
    assert limiter.wait(Action.CREATE_VOLUME, "a") == 0.0
    assert [limiter.wait(Action.CREATE_VOLUME, key) for key in "bcd"] == [0.5, 1.0, 1.5]
    assert limiter.wait(Action.CREATE_VOLUME, "b") == 0.5, "asking again keeps the place"
    assert limiter.wait(Action.DELETE_VOLUME, "b") == 0.0, "each call has a bucket of its own"
    clock.now += 1.0
    assert [limiter.wait(Action.CREATE_VOLUME, key) for key in "cb"] == [0.0, 0.0]
    assert limiter.wait(Action.CREATE_VOLUME, "e") == 1.0


def test_a_place_that_nobody_takes_is_given_away() -> None:
    clock = Times()
    limiter = RateLimiter(rate=1, burst=1, clock=clock)
    limiter.wait(Action.CREATE_VOLUME, "a")
    assert limiter.wait(Action.CREATE_VOLUME, "b") == 1.0
    clock.now += 300.0
    assert limiter.wait(Action.CREATE_VOLUME, "b") == 0.0


def test_a_throttled_pacer_halves_its_rate_lines_up_anew_and_eases() -> None:
    clock = Times()
    limiter = RateLimiter(rate=4, burst=1, clock=clock)
    limiter.wait(Action.CREATE_VOLUME, "a")
    assert [limiter.wait(Action.CREATE_VOLUME, key) for key in "bc"] == [0.25, 0.5]
    limiter.throttled(Action.CREATE_VOLUME)
    assert [limiter.wait(Action.CREATE_VOLUME, key) for key in "bc"] == [1.0, 1.5]
    clock.now += 100.0
    assert limiter.wait(Action.CREATE_VOLUME, "d") == 0.0
    assert limiter.wait(Action.CREATE_VOLUME, "e") == 0.5
    for _ in range(20):
        limiter.succeeded(Action.CREATE_VOLUME)
    clock.now += 100.0
    limiter.wait(Action.CREATE_VOLUME, "f")
    assert limiter.wait(Action.CREATE_VOLUME, "g") == 0.25


def test_a_board_answers_nobody_with_what_was_before_a_change() -> None:
    clock, shown = Times(), {"a": 1}
    poller: Board[str, int] = Board(lambda keys: {key: shown[key] for key in keys}, clock=clock, interval=0.5)
    first = poller.ask("a")
    assert first is not None
    assert first.value == 1
    shown["a"] = 2
    again = poller.ask("a")
    assert again is not None
    assert again.value == 1, "young enough"
    poller.invalidate("a")
    assert poller.ask("a") is None
    clock.now += poller.next_poll("a")
    last = poller.ask("a")
    assert last is not None
    assert last.value == 2
    assert poller.cached("a", 10.0) == last


def test_callers_of_a_board_ride_along_with_a_fetch_that_is_under_way() -> None:
    clock, fetches = Times(), []
    entered, proceed = threading.Event(), threading.Event()

    def fetch(keys: Any) -> dict[str, int]:
        fetches.append(sorted(keys))
        entered.set()
        assert proceed.wait(10)
        return dict.fromkeys(keys, 7)

    poller: Board[str, int] = Board(fetch, clock=clock, interval=0.5)
    answers: dict[str, Any] = {}

    def ask(name: str, key: str) -> None:
        answers[name] = poller.ask(key, wait_seconds=10.0)

    leader = threading.Thread(target=ask, args=("leader", "a"))
    leader.start()
    assert entered.wait(10)
    rider = threading.Thread(target=ask, args=("rider", "a"))
    rider.start()
    assert poller.ask("b") is None, "not in the fetch that is under way"
    proceed.set()
    leader.join(10)
    rider.join(10)
    assert answers["leader"].value == answers["rider"].value == 7
    assert fetches == [["a"]]


def test_a_fetch_that_is_cut_off_leaves_nobody_waiting() -> None:
    told: list[Any] = [SystemExit, {"a": 1}]

    def fetch(_keys: Any) -> dict[str, int]:
        answer = told.pop(0)
        if answer is SystemExit:
            raise SystemExit
        return dict(answer)

    poller: Board[str, int] = Board(fetch, clock=lambda: 0.0, interval=1.0)
    with pytest.raises(SystemExit):
        poller.fetch_now("a")
    assert poller.fetch_now("a").value == 1


def test_a_board_forgets_what_nobody_asks_for_any_more() -> None:
    clock = Times()
    poller: Board[str, int] = Board(lambda keys: dict.fromkeys(keys, 1), clock=clock, interval=0.5)
    for number in range(100):
        poller.ask(f"k{number}")
        clock.now += 1.0
    clock.now += 1_000.0
    poller.ask("last")
    assert len(poller._known) == 1
    assert not poller._wanted
