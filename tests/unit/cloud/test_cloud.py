"""The parts that every driver of a cloud needs: rates, the poller of states, error tables, batches, marks, fences."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest

from volplane import (
    AlreadyExists,
    AttachedElsewhere,
    BackendError,
    Context,
    Fence,
    Fenced,
    InProgress,
    InvalidArgument,
    Ownership,
    ResourceExhausted,
    Throttled,
    Unavailable,
)
from volplane.cloud import (
    LABELS,
    TAGS,
    CloudError,
    ErrorRow,
    ErrorTable,
    Fences,
    Marks,
    RateLimiter,
    RetryLater,
    StateAges,
    StatePoller,
    TokenBucket,
    in_turns,
    label_text,
    measured,
    read_without_bad_ids,
)
from volplane.controller.metrics import Metrics


class Times:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_pacer_gives_places_in_the_order_of_asking() -> None:
    clock = Times()
    limiter = RateLimiter(rate=2, burst=1, clock=clock)
    assert limiter.wait("make", "a") == 0.0
    assert [limiter.wait("make", key) for key in "bcd"] == [0.5, 1.0, 1.5]
    assert limiter.wait("make", "b") == 0.5, "asking again keeps the place"
    assert limiter.wait("drop", "b") == 0.0, "each call has a bucket of its own"
    clock.now += 1.0
    assert [limiter.wait("make", key) for key in "cb"] == [0.0, 0.0]
    assert limiter.wait("make", "e") == 1.0


def test_a_place_that_nobody_takes_is_given_away() -> None:
    clock = Times()
    limiter = RateLimiter(rate=1, burst=1, clock=clock)
    limiter.wait("make", "a")
    assert limiter.wait("make", "b") == 1.0
    clock.now += 300.0
    assert limiter.wait("make", "b") == 0.0


def test_a_throttled_pacer_halves_its_rate_lines_up_anew_and_eases() -> None:
    clock = Times()
    limiter = RateLimiter(rate=4, burst=1, clock=clock)
    limiter.wait("make", "a")
    assert [limiter.wait("make", key) for key in "bc"] == [0.25, 0.5]
    limiter.throttled("make")
    assert [limiter.wait("make", key) for key in "bc"] == [1.0, 1.5]
    clock.now += 100.0
    assert limiter.wait("make", "d") == 0.0
    assert limiter.wait("make", "e") == 0.5
    for _ in range(20):
        limiter.succeeded("make")
    clock.now += 100.0
    limiter.wait("make", "f")
    assert limiter.wait("make", "g") == 0.25


def test_a_board_answers_nobody_with_what_was_before_a_change() -> None:
    clock, shown = Times(), {"a": 1}
    poller: StatePoller[str, int] = StatePoller(
        lambda keys: {key: shown[key] for key in keys}, clock=clock, interval=0.5
    )
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

    poller: StatePoller[str, int] = StatePoller(fetch, clock=clock, interval=0.5)
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


def test_a_caller_that_waits_for_something_else_anyway_leaves_the_fetch_to_others() -> None:
    clock, fetches = Times(), []

    def fetch(keys: Sequence[str]) -> dict[str, int]:
        fetches.append(sorted(keys))
        return dict.fromkeys(keys, 7)

    poller: StatePoller[str, int] = StatePoller(fetch, clock=clock, interval=0.5, early=True)
    for key in ("a", "b"):
        with pytest.raises(RetryLater) as told:
            poller.current(key, patience=4.0)
        assert 4.0 <= told.value.seconds < 4.5
    assert fetches == []
    assert poller.current("c") == 7, "in a hurry"
    assert fetches == [["a", "b", "c"]], "all of them at once"
    clock.now += 4.0
    assert poller.current("b", max_age=30.0, patience=4.0) == 7
    assert len(fetches) == 1


def test_a_caller_that_was_patient_once_is_not_asked_to_wait_again() -> None:
    clock = Times()
    poller: StatePoller[str, int] = StatePoller(
        lambda keys: dict.fromkeys(keys, 7), clock=clock, interval=0.5, early=True
    )
    assert poller.ask("a", patience=4.0) is None
    clock.now += poller.next_poll("a", after=4.0)
    found = poller.ask("a", patience=4.0)
    assert found is not None
    assert found.value == 7


def test_a_board_whose_callers_wait_for_something_else_fetches_less_often_until_then() -> None:
    clock = Times()
    poller: StatePoller[str, int] = StatePoller(lambda keys: dict.fromkeys(keys, 7), clock=clock, interval=1.0)
    clock.now = 120.0
    assert poller.next_poll("a", after=0.1) == pytest.approx(1.0)
    poller.relax(10.0)
    poller.relax(5.0)
    assert poller.next_poll("b", after=0.1) == pytest.approx(1.5)
    clock.now = 129.0
    assert poller.next_poll("c", after=0.1) == pytest.approx(1.5), "the longer of the two counts"
    clock.now = 130.0
    assert poller.next_poll("d", after=0.1) == pytest.approx(1.0)
    clock.now = 132.0
    poller.relax(5.0, 4.0)
    assert poller.next_poll("e", after=0.1) == pytest.approx(4.0)


def test_a_poller_that_nobody_asks_keeps_nothing_of_what_is_invalidated() -> None:
    poller: StatePoller[str, int] = StatePoller(lambda keys: dict.fromkeys(keys, 7), clock=Times(), interval=0.5)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(10_000):
        poller.invalidate(f"disk-{number}")
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 50_000


def test_a_key_that_is_expected_is_fetched_with_the_next_one_and_begins_no_fetch() -> None:
    clock, fetched = Times(), []

    def fetch(keys: Any) -> dict[str, int]:
        fetched.append(sorted(keys))
        return dict.fromkeys(keys, 7)

    poller: StatePoller[str, int] = StatePoller(fetch, clock=clock, interval=0.5)
    poller.expect("b")
    assert fetched == []
    assert poller.current("a") == 7
    assert poller.current("b") == 7
    assert fetched == [["a", "b"]]


def test_whoever_asks_how_long_the_queue_is_takes_no_place_in_it() -> None:
    clock = Times()
    limiter = RateLimiter(rate=2, burst=1, clock=clock)
    assert limiter.queue_seconds("make") == 0.0
    assert limiter.wait("make", "a") == 0.0
    assert [limiter.queue_seconds("make") for _ in range(3)] == [0.5] * 3
    assert limiter.wait("make", "b") == 0.5
    assert limiter.queue_seconds("make") == 1.0


def test_a_fetch_that_is_cut_off_leaves_nobody_waiting() -> None:
    told: list[Any] = [SystemExit, {"a": 1}]

    def fetch(_keys: Any) -> dict[str, int]:
        answer = told.pop(0)
        if answer is SystemExit:
            raise SystemExit
        return dict(answer)

    poller: StatePoller[str, int] = StatePoller(fetch, clock=lambda: 0.0, interval=1.0)
    with pytest.raises(SystemExit):
        poller.fetch_now("a")
    assert poller.fetch_now("a").value == 1


def test_a_board_forgets_what_nobody_asks_for_any_more() -> None:
    clock = Times()
    poller: StatePoller[str, int] = StatePoller(lambda keys: dict.fromkeys(keys, 1), clock=clock, interval=0.5)
    for number in range(100):
        poller.ask(f"k{number}")
        clock.now += 1.0
    clock.now += 1_000.0
    poller.ask("last")
    assert len(poller._known) == 1
    assert not poller._wanted


# --- buckets ----------------------------------------------------------------------------------------------------


def test_a_bucket_lets_a_burst_of_one_second_through_and_then_the_rate() -> None:
    bucket = TokenBucket(2.0, now=100.0)
    for _ in range(2):
        assert bucket.wait(100.0) == 0
        bucket.take(100.0)
    assert bucket.wait(100.0) == pytest.approx(0.5)
    assert bucket.wait(100.25) == pytest.approx(0.25)
    assert bucket.wait(100.5) == 0


def test_a_slow_bucket_still_holds_one_token_and_saves_no_more() -> None:
    bucket = TokenBucket(0.1, now=0.0)
    bucket.take(0.0)
    assert bucket.wait(0.0) == pytest.approx(10)
    assert bucket.wait(1000.0) == 0
    bucket.take(1000.0)
    assert bucket.wait(1000.0) == pytest.approx(10)


def test_reserved_tokens_come_one_after_another() -> None:
    bucket = TokenBucket(4.0, now=10.0, burst=1)
    assert [bucket.reserve(10.0) for _ in range(3)] == [10.0, 10.25, 10.5]


# --- turns ------------------------------------------------------------------------------------------------------


def context(**fields: Any) -> Context:
    return Context(**{"driver": "d", "cluster_id": "c", **fields})


def test_a_turn_with_nothing_to_do_ends_as_in_progress_with_the_state_it_had() -> None:
    def wait(_call: object) -> None:
        raise RetryLater(2.5)

    result = in_turns(context(state={"zone": "a"}), lambda: 0.0, wait)
    assert result == InProgress(retry_after=2.5, state={"zone": "a"})


def test_no_change_is_begun_when_half_of_the_time_is_over_or_nobody_waits() -> None:
    clock = Times()

    def late(call: Any) -> str:
        call.require_time()
        clock.now += 61.0
        call.require_time()
        return "changed"

    assert isinstance(in_turns(context(timeout=120.0), clock, late), InProgress)
    with pytest.raises(Unavailable, match="cancelled"):
        in_turns(context(cancelled=lambda: True), clock, late)


def test_the_age_of_a_state_begins_anew_after_a_reset_and_after_a_long_silence() -> None:
    clock = Times()
    ages = StateAges(clock)
    assert ages.seconds("vol", "creating") == 0.0
    clock.now += 30.0
    assert ages.seconds("vol", "creating") == 30.0
    assert ages.seconds("vol", "detaching") == 0.0
    ages.reset("vol", "creating")
    assert ages.seconds("vol", "creating") == 0.0
    clock.now += 601.0
    assert ages.seconds("vol", "creating") == 0.0


# --- errors -----------------------------------------------------------------------------------------------------

TABLE = ErrorTable(
    (
        ErrorRow(codes=("Busy", "Slow*"), error=Throttled, advice="wait", doubt=False, retry_after=3.0),
        ErrorRow(codes=("Quota",), error=ResourceExhausted, advice="ask for more", doubt=True),
        ErrorRow(codes=("Full",), error=ResourceExhausted, scope="zone", reschedule=True),
        ErrorRow(codes=("Bad*",), error=InvalidArgument, advice="allow {call}"),
    )
)


def test_a_row_decides_class_text_and_time() -> None:
    error = TABLE.translated(CloudError("make", "SlowDown", "Too many. "), "make a box")
    assert (type(error), error.retry_after, error.code) == (Throttled, 3.0, "SlowDown")
    assert error.message == "cannot make a box: Too many: wait"
    assert "allow make" in str(TABLE.translated(CloudError("make", "BadName", ""), "make a box"))


def test_what_is_full_is_named_and_may_send_the_claim_elsewhere() -> None:
    quota, full = (TABLE.translated(CloudError("make", code, ""), "make a box") for code in ("Quota", "Full"))
    assert isinstance(quota, ResourceExhausted)
    assert isinstance(full, ResourceExhausted)
    assert (quota.scope, quota.reschedule) == ("Quota", False)
    assert (full.scope, full.reschedule) == ("zone", True)


@pytest.mark.parametrize(
    ("code", "doubt"), [("Busy", False), ("Quota", True), ("Full", False), ("BadName", False), ("Strange", True)]
)
def test_a_row_says_whether_the_call_may_have_taken_effect(code: str, doubt: bool) -> None:
    assert TABLE.in_doubt(CloudError("make", code, "")) is doubt


def test_an_unknown_code_is_told_with_its_call() -> None:
    error = TABLE.translated(CloudError("make", "Strange", "odd"), "make a box")
    assert type(error) is BackendError
    assert str(error) == "cannot make a box: odd (make) (Strange)"


def test_a_row_cannot_promise_a_node_that_no_code_names() -> None:
    with pytest.raises(TypeError, match="name of a node"):
        ErrorRow(codes=("Elsewhere",), error=AttachedElsewhere)


# --- batches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tells", [True, False], ids=["named", "not named"])
@pytest.mark.parametrize("bad", [(), ("b",), ("a", "h"), tuple("abcdefgh")])
def test_bad_ids_do_not_spoil_the_others(bad: tuple[str, ...], tells: bool) -> None:
    calls = []

    def read(ids: Sequence[str]) -> list[str]:
        calls.append(ids)
        guilty = [id_ for id_ in ids if id_ in bad]
        if guilty:
            raise CloudError("show", "NoBox", f"no {guilty[0]} there" if tells else "not there")
        return [id_.upper() for id_ in ids]

    found, missing = read_without_bad_ids(
        "abcdefgh", read, is_bad=lambda error: error.code == "NoBox", named=lambda error: error.message.split()
    )
    assert sorted(found) == [id_.upper() for id_ in "abcdefgh" if id_ not in bad]
    assert sorted(missing) == sorted(bad)
    assert len(calls) <= 15


def test_an_error_that_is_about_no_id_is_raised() -> None:
    def read(_ids: Sequence[str]) -> list[str]:
        raise CloudError("show", "Busy", "")

    with pytest.raises(CloudError, match="Busy"):
        read_without_bad_ids("ab", read, is_bad=lambda error: error.code == "NoBox", named=lambda _error: ())


# --- marks ------------------------------------------------------------------------------------------------------

OWNER = Ownership(cluster_id="c1", claim_uid="0b6e1c1e-6c38-4d62-8a2e-1d4b4f6a7c11", volume_name="pvc-1", generation=2)


@pytest.mark.parametrize("marks", [TAGS, LABELS])
def test_marks_are_read_as_they_were_written(marks: Marks) -> None:
    assert marks.owner(marks.of(OWNER)) == OWNER
    assert marks.owner({}) is None
    assert marks.owner({**marks.of(OWNER), marks.generation: "two"}) is None
    assert marks.belongs(marks.of(OWNER), OWNER)


@pytest.mark.parametrize("text", ["Prod_Cluster.1", "a" * 63, "é", "__", "_x_", "a.b/c", "😀", "x" * 80, "Ä" * 40])
def test_any_text_fits_into_a_label_and_is_read_again_unless_it_is_too_long(text: str) -> None:
    value = label_text(text)
    assert len(value) <= 63
    assert value.isascii()
    assert value == value.lower()
    owner = Ownership(cluster_id=text, claim_uid="u", volume_name="v")
    assert LABELS.owner(LABELS.of(owner), cluster_id=text) == owner
    if len(text) < 20:
        assert LABELS.owner(LABELS.of(owner)) == owner


def test_different_texts_have_different_labels() -> None:
    texts = ["a.b", "a_2e_b", "a__b", "A", "a", "x" * 64, "x" * 65, "x" * 63]
    assert len({label_text(text) for text in texts}) == len(texts)


def test_a_label_that_somebody_else_wrote_stays_readable() -> None:
    hostile = {**LABELS.of(OWNER), LABELS.cluster: "_d800_"}
    owner = LABELS.owner(hostile)
    assert owner is not None
    assert owner.cluster_id == "_d800_"


@pytest.mark.parametrize("generation", ["", "x", "-1", "\u0663", "9" * 5000])
def test_marks_with_a_damaged_generation_are_none(generation: str) -> None:
    assert LABELS.owner({**LABELS.of(OWNER), LABELS.generation: generation}) is None


def test_what_is_not_ours_is_refused() -> None:
    other = Ownership(cluster_id="c2", claim_uid=OWNER.claim_uid, volume_name="pvc-1", generation=2)
    with pytest.raises(AlreadyExists, match="in cluster 'c2', not to pvc-1 of cluster 'c1'"):
        LABELS.refuse_foreign("disk", LABELS.of(other), OWNER)
    with pytest.raises(AlreadyExists, match="carries no marks"):
        LABELS.refuse_foreign("disk", {}, OWNER)
    with pytest.raises(AlreadyExists, match="made by a driver"):
        TAGS.refuse_foreign("disk", {"CSIVolumeName": "x"}, None, others=("CSIVolumeName",))
    TAGS.refuse_foreign("disk", {"Name": "x"}, None)
    LABELS.refuse_foreign("disk", LABELS.of(OWNER), OWNER)


def test_a_former_leader_is_refused_by_memory_and_by_the_mark() -> None:
    fences, marks = Fences(LABELS), LABELS.of(OWNER)
    fences.refuse_former_leader("disk", marks, context(fence="7/a/lease"))
    with pytest.raises(Fenced, match="term 7; this call belongs to the former leader b of term 6"):
        fences.refuse_former_leader("disk", marks, context(fence="6/b/lease"))
    written = {**marks, **LABELS.of_term(context(fence="9/c/lease"))}
    with pytest.raises(Fenced, match="leader of term 9") as refused:
        Fences(LABELS).refuse_former_leader("disk", written, context(fence="7/a/lease"))
    later = Fence.parse(refused.value.fence)
    assert later is not None
    assert (later.transitions, later.lease) == (9, "lease")
    fences.forget("disk")
    fences.refuse_former_leader("disk", marks, context(fence="6/b/lease"))


def test_a_lease_that_was_made_anew_counts_from_0_and_locks_nobody_out() -> None:
    fences, marks = Fences(LABELS), LABELS.of(OWNER)
    fences.refuse_former_leader("disk", marks, context(fence="7/a/first"))
    written = {**marks, **LABELS.of_term(context(fence="7/a/first"))}
    fences.refuse_former_leader("disk", written, context(fence="0/a/second"))
    assert fences.mark_to_write(written, context(cluster_id="c1", fence="0/a/second")) == {
        LABELS.fence: "0_2f__2f_second"
    }


def test_a_mark_that_is_no_term_refuses_nobody() -> None:
    fences, marks = Fences(TAGS), TAGS.of(OWNER)
    for text in ("12", f"{2**31 - 1}//lease", f"{2**40}//lease", f"{'9' * 5000}//lease"):
        fences.refuse_former_leader("disk", {**marks, TAGS.fence: text}, context(fence="7/a/lease"))
        assert fences.mark_to_write({**marks, TAGS.fence: text}, context(cluster_id="c1", fence="7/a/lease")), (
            "it is written anew"
        )


def test_a_fence_is_written_once_and_only_to_what_is_ours() -> None:
    fences, marks = Fences(LABELS), LABELS.of(OWNER)
    assert fences.mark_to_write(marks, context(cluster_id="c1", fence="7/a/lease")) == {LABELS.fence: "7_2f__2f_lease"}
    assert (
        fences.mark_to_write({**marks, LABELS.fence: "7_2f__2f_lease"}, context(cluster_id="c1", fence="7/a/lease"))
        == {}
    )
    assert fences.mark_to_write({}, context(cluster_id="c1", fence="7/a/lease")) == {}
    foreign = {**marks, LABELS.cluster: "another"}
    assert fences.mark_to_write(foreign, context(cluster_id="c1", fence="7/a/lease")) == {}
    assert fences.mark_to_write(marks, context(cluster_id="c1")) == {}


def test_calls_of_a_cloud_are_metrics_of_the_process() -> None:
    metrics = Metrics()

    def seen(name: str, **labels: str) -> float:
        return metrics.registry.get_sample_value(f"volplane_cloud_request_{name}", {"cloud": "toy", **labels}) or 0.0

    with measured("toy", "MakeDisk"):
        pass
    with pytest.raises(CloudError), measured("toy", "MakeDisk"):
        raise CloudError("MakeDisk", "SlowDown", "Slow down.")
    assert seen("duration_seconds_count", request="MakeDisk") == 2
    assert seen("errors_total", request="MakeDisk", error="SlowDown") == 1
    assert {"volplane_cloud_request_duration_seconds", "volplane_cloud_request_errors_total"} <= {
        each.name for each in metrics.descriptions
    }
