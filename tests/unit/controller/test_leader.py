"""Leader election: never two at work, whatever the API server does."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from schedules import schedules
from volplane.controller import leader
from volplane.controller.leader import Elector, Leadership
from volplane.controller.metrics import Metrics
from volplane.errors import ApiError, ApiUnavailable, ConfigurationError
from volplane.intents.bootstrap import ensure_namespace
from volplane.kube.client import Client
from volplane.kube.kinds import LEASES, NAMESPACES
from volplane.kube.leases import LeaseLock
from volplane.kube.transport import Response
from volplane_testing.clock import now
from volplane_testing.transport import ApiCall, Ask, FaultTransport, requests

KEY = "default/provisioner"


class Candidate:
    """A process that wants to lead; `log` is shared and has (time, identity, what)."""

    def __init__(
        self,
        wire: Any,
        identity: str,
        log: list[tuple[float, str, str]],
        *,
        slow: float = 0.0,
        namespace: str = "default",
        clock: Callable[[], datetime] = now,
        metrics: Metrics | None = None,
    ) -> None:
        self.state = "up"
        """Of its own connection to the server: up, hangs, refused, or lost (the answers are)."""
        link = FaultTransport(wire)
        link.script.add(requests(), self._connection, times=math.inf)
        self.identity = identity
        self.log = log
        self.slow = slow
        self.overran = 0
        self.terms: list[Leadership] = []
        self.calls: list[tuple[float, str]] = []
        """Time and method of each call about a Lease."""
        self.hanging: list[bool] = []
        """Of the next calls about a Lease, whether they never get an answer."""
        client = Client(link)
        lock = LeaseLock(client, namespace=namespace, name="provisioner", identity=identity, now=clock)
        self.elector = Elector(
            lock,
            random=Random(identity),
            overrun=self.overrun,
            ensure_namespace=lambda: ensure_namespace(client, namespace),
            metrics=metrics,
        )
        self.task = asyncio.create_task(self.elector.run(self.work), name=identity)

    def overrun(self) -> None:
        self.overran += 1
        self.note("overran")

    def note(self, what: str) -> None:
        self.log.append((asyncio.get_running_loop().time(), self.identity, what))

    async def _connection(self, call: ApiCall, ask: Ask) -> Response:
        assert call.verb != "watch", "an elector does not watch"
        method = call.request.method
        if "/leases" in call.request.path:
            self.calls.append((asyncio.get_running_loop().time(), method))
            if self.hanging and self.hanging.pop(0):
                await asyncio.Event().wait()
        if self.state == "hangs":
            await asyncio.Event().wait()
        if self.state == "refused":
            raise ApiUnavailable("connection refused", status=0)
        answer = await ask()
        if self.state == "lost":
            raise ApiUnavailable("connection reset", status=0)
        return answer

    async def work(self, leadership: Leadership) -> None:
        self.terms.append(leadership)
        self.note("begins")
        try:
            await asyncio.Event().wait()
        finally:
            if self.slow:
                await asyncio.sleep(self.slow)
            self.note("ends")

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


def at_work(log: list[tuple[float, str, str]]) -> list[str]:
    """Identities at work in the end; fails if two ever were."""
    working: list[str] = []
    for _, identity, what in log:
        if what == "begins":
            assert not working, log
            working.append(identity)
        elif what == "ends":
            working.remove(identity)
    return working


async def lease(wire: Any) -> Any:
    return (await wire.client.get(LEASES, KEY)).spec


def delete_at_next_conflict(line: Any) -> None:
    """Let the Lease vanish between a write that is refused and the look at who holds it."""
    answer = line.inner.send

    async def send(request: Any) -> Response:
        found: Response = await answer(request)
        if found.status == 409 and "/leases/" in request.path:
            line.inner.send = answer
            await line.client.delete(LEASES, KEY)
        return found

    line.inner.send = send


async def test_the_first_candidate_leads_and_renews(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    two = Candidate(line, "two", log)
    await asyncio.sleep(3600)
    assert at_work(log) == ["one"]
    assert one.elector.leadership is one.terms[0]
    assert two.elector.leadership is None
    assert not one.terms[0].lost
    assert 5 < one.terms[0].until - asyncio.get_running_loop().time() <= 15
    spec = await lease(line)
    assert spec.holder_identity == "one"
    assert spec.lease_transitions == 0
    assert spec.renew_time >= "2026-01-01T00:59:55.000000Z"
    assert spec.acquire_time == "2026-01-01T00:00:00.000000Z"
    for candidate in (two, one):
        await candidate.stop()


async def test_nothing_is_begun_in_the_last_seconds_of_a_lease_whatever_has_been_noticed_of_its_end(
    wire: Callable[[], Any],
) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(60)
    term = one.terms[0]
    assert term.may_begin()
    # As after SIGSTOP for an hour: the clock went on, and no timer has fired yet.
    term.until -= 3600.0
    assert not term.may_begin()
    term.until = asyncio.get_running_loop().time() + 4.9
    assert not term.may_begin(), "another leader may start in less than a call takes"
    term.until = asyncio.get_running_loop().time() + 5.1
    assert term.may_begin()
    await one.stop()
    assert not term.may_begin()


async def test_a_lease_that_is_made_anew_is_another_term(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(10)
    await line.client.delete(LEASES, KEY)
    await asyncio.sleep(10)
    first, second = (term.fence for term in one.terms)
    assert (first.transitions, second.transitions) == (0, 0)
    assert first != second
    assert not second.outdates(first)
    await one.stop()


async def test_a_leader_that_stops_releases_and_the_next_begins_at_once(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(10)
    two = Candidate(line, "two", log)
    await asyncio.sleep(10)
    await one.stop()
    await asyncio.sleep(3)
    assert at_work(log) == ["two"]
    assert two.terms[0].fence.transitions == 1
    lease_uid = (await line.client.get(LEASES, KEY)).uid
    assert str(two.terms[0].fence) == f"1/two/{lease_uid}"
    assert str(one.terms[0].fence) == f"0/one/{lease_uid}"
    assert one.terms[0].lost
    await two.stop()


@pytest.mark.parametrize("seed", range(10))
async def test_another_leads_within_a_second_and_a_half_of_a_release(wire: Callable[[], Any], seed: int) -> None:
    log: list[tuple[float, str, str]] = []
    line, random = wire(), Random(seed)
    one = Candidate(line, f"one{seed}", log)
    await asyncio.sleep(random.uniform(1, 3))
    two = Candidate(line, f"two{seed}", log)
    await asyncio.sleep(random.uniform(5, 60))
    await one.stop()
    released = asyncio.get_running_loop().time()
    await asyncio.sleep(1.5)
    assert at_work(log) == [two.identity]
    assert log[-1][0] <= released + 1.5
    await two.stop()


@pytest.mark.parametrize("seed", range(10))
async def test_another_leads_within_the_lease_and_two_seconds_of_a_death(wire: Callable[[], Any], seed: int) -> None:
    log: list[tuple[float, str, str]] = []
    line, random = wire(), Random(seed)
    one = Candidate(line, f"one{seed}", log)
    await asyncio.sleep(random.uniform(1, 3))
    candidates = [Candidate(line, f"next{seed}-{number}", log) for number in range(2)]
    # At once after a renewal is the worst moment.
    await asyncio.sleep(random.uniform(5, 60))
    seen = (await lease(line)).renew_time
    while (await lease(line)).renew_time == seen:
        await asyncio.sleep(0.05)
    one.state = "hangs"
    died = asyncio.get_running_loop().time()
    await asyncio.sleep(17)
    [(_, leader, what)] = [entry for entry in log if entry[1] != one.identity]
    assert what == "begins"
    assert at_work(log) == [leader]
    assert log[-1][0] > died + 13, "the lease was still good"
    for candidate in (one, *candidates):
        await candidate.stop()


@pytest.mark.parametrize("state", ["hangs", "refused"])
async def test_a_leader_cut_off_stops_before_another_begins(wire: Callable[[], Any], state: str) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log, slow=2)
    await asyncio.sleep(1)
    two = Candidate(line, "two", log)
    await asyncio.sleep(60)
    one.state = state
    cut = asyncio.get_running_loop().time()
    await asyncio.sleep(60)
    assert at_work(log) == ["two"]
    ended = next(when for when, identity, what in log if (identity, what) == ("one", "ends"))
    assert ended < cut + 15
    assert not one.overran
    one.state = "up"
    await asyncio.sleep(60)
    assert at_work(log) == ["two"]
    for candidate in (one, two):
        await candidate.stop()


async def test_a_short_outage_costs_no_leadership(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(60)
    one.state = "hangs"
    await asyncio.sleep(7)
    one.state = "up"
    await asyncio.sleep(600)
    assert at_work(log) == ["one"]
    assert len(one.terms) == 1
    await one.stop()


async def test_renewals_whose_answers_are_lost_still_count(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(1)
    for _ in range(20):
        one.state = "lost"
        await asyncio.sleep(4)
        one.state = "up"
        await asyncio.sleep(4)
    assert len(one.terms) == 1
    await one.stop()


async def test_a_take_whose_answer_was_lost_does_not_lock_everybody_out(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    line.after = lambda method, _path: setattr(one, "state", "lost" if method == "POST" else "up")
    await asyncio.sleep(1)
    assert (await lease(line)).holder_identity == "one"
    assert at_work(log) == []
    one.state = "up"
    await asyncio.sleep(3)
    assert at_work(log) == ["one"]
    assert one.terms[0].fence.transitions == 1
    await one.stop()


async def test_work_that_does_not_stop_in_time_is_reported_before_another_may_begin(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log, slow=30)
    await asyncio.sleep(60)
    two = Candidate(line, "two", log)
    await asyncio.sleep(60)
    one.state = "hangs"
    cut = asyncio.get_running_loop().time()
    await asyncio.sleep(16)
    assert one.overran == 1
    overran = next(when for when, _, what in log if what == "overran")
    began = [when for when, identity, what in log if (identity, what) == ("two", "begins")]
    assert overran < cut + 15
    assert all(when >= overran for when in began)
    for candidate in (two, one):
        candidate.state = "refused"
        await candidate.stop()


async def test_a_lease_taken_by_force_or_deleted_stops_the_work(
    wire: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(10)
    await line.client.patch(LEASES, KEY, {"spec": {"holderIdentity": "usurper"}})
    await asyncio.sleep(5)
    assert at_work(log) == []
    assert "is held by usurper now" in caplog.text
    await asyncio.sleep(20)
    assert at_work(log) == ["one"]
    assert [term.fence.transitions for term in one.terms] == [0, 1]
    await line.client.delete(LEASES, KEY)
    await asyncio.sleep(5)
    assert len(one.terms) == 3
    assert at_work(log) == ["one"]
    await one.stop()


async def test_somebody_who_labels_the_lease_disturbs_nobody(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    for number in range(20):
        await asyncio.sleep(3)
        await line.client.patch(LEASES, KEY, {"metadata": {"labels": {"n": str(number)}}})
    assert len(one.terms) == 1
    await one.stop()


async def test_work_that_returns_ends_the_run_and_releases(wire: Callable[[], Any]) -> None:
    line = wire()
    lock = LeaseLock(line.client, namespace="default", name="provisioner", identity="one", now=now)
    elector = Elector(lock, random=Random(1), overrun=lambda: None)

    async def work(leadership: Leadership) -> None:
        await asyncio.sleep(leadership.until - asyncio.get_running_loop().time() + 20)

    await elector.run(work)
    assert (await lease(line)).holder_identity is None


async def test_a_lease_is_released_although_the_answer_to_the_last_renewal_was_lost(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(10)
    renewed = (await lease(line)).renew_time
    one.state = "lost"
    while (await lease(line)).renew_time == renewed:
        await asyncio.sleep(0.05)
    one.state = "up"
    await one.stop()
    assert (await lease(line)).holder_identity is None


async def test_a_lease_that_another_took_is_left_to_it(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(10)
    await line.client.patch(LEASES, KEY, {"spec": {"holderIdentity": "two"}})
    await one.stop()
    assert (await lease(line)).holder_identity == "two"


async def test_work_that_fails_ends_the_run_with_its_error_and_releases(wire: Callable[[], Any]) -> None:
    line = wire()
    lock = LeaseLock(line.client, namespace="default", name="provisioner", identity="one", now=now)
    elector = Elector(lock, random=Random(1), overrun=lambda: None)

    async def work(_: Leadership) -> None:
        await asyncio.sleep(1)
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await elector.run(work)
    assert (await lease(line)).holder_identity is None


@pytest.mark.parametrize(("duration", "longest"), [(5, 2.4), (10, 2.4), (15, 10.0)])
async def test_times_that_leave_no_room_are_refused(wire: Callable[[], Any], duration: int, longest: float) -> None:
    lock = LeaseLock(wire().client, namespace="default", name="x", identity="one", now=now, duration=duration)
    with pytest.raises(ConfigurationError, match="leader election of x: the period"):
        Elector(lock, random=Random(1), overrun=lambda: None, period=(2.0, longest))


@pytest.mark.parametrize("seed", schedules(range(20), few=8))
async def test_among_three_flaky_candidates_two_are_never_at_work(wire: Callable[[], Any], seed: int) -> None:
    random = Random(seed)
    line, log = wire(), []  # type: ignore[var-annotated]
    candidates = [Candidate(line, f"c{n}", log, slow=random.choice([0, 1, 4])) for n in range(3)]
    for _ in range(60):
        await asyncio.sleep(random.uniform(0, 12))
        random.choice(candidates).state = random.choice(["up", "hangs", "refused", "lost", "up"])
    for candidate in candidates:
        candidate.state = "up"
    await asyncio.sleep(40)
    assert len(at_work(log)) == 1
    assert not any(candidate.overran for candidate in candidates)
    epochs = [term.fence for candidate in candidates for term in candidate.terms]
    assert len(set(epochs)) == len(epochs)
    for candidate in candidates:
        await candidate.stop()


@pytest.mark.parametrize("jump", [timedelta(days=-1), timedelta(days=400), timedelta(seconds=-2)])
async def test_wall_clocks_that_jump_or_stand_still_decide_nothing(wire: Callable[[], Any], jump: timedelta) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    times = {"one": datetime(2026, 1, 1, tzinfo=UTC), "two": datetime(2020, 1, 1, tzinfo=UTC)}
    candidates = [Candidate(line, name, log, clock=lambda name=name: times[name]) for name in times]
    for _ in range(10):
        await asyncio.sleep(60)
        times["one"] += jump
        times["two"] -= jump
    assert at_work(log) == ["one"]
    assert len(log) == 1
    for candidate in candidates:
        await candidate.stop()


async def test_what_a_machine_sleeps_counts_for_its_lease(
    wire: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop's clock stands still while the machine is suspended; the Lease, and other candidates, do not."""
    line, log = wire(), []  # type: ignore[var-annotated]
    slept = 0.0
    monkeypatch.setattr(leader, "suspended", lambda: slept)
    one = Candidate(line, "one", log)
    await asyncio.sleep(10)
    assert at_work(log) == ["one"]
    leadership = one.elector.leadership
    assert leadership is not None
    assert leadership.may_begin()
    slept = 3600.0
    assert not leadership.may_begin()
    await asyncio.sleep(3)
    assert [what for _, _, what in log][:2] == ["begins", "ends"]
    await asyncio.sleep(20)
    assert at_work(log) == ["one"]
    slept = 3604.0
    assert leadership is not one.elector.leadership
    await asyncio.sleep(20)
    assert at_work(log) == ["one"]
    await one.stop()


def test_the_time_that_a_machine_slept_is_told_by_the_clock_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert leader.suspended() == 0.0
    present = time.clock_gettime
    later = {time.CLOCK_BOOTTIME: 3600.0}
    monkeypatch.setattr(time, "clock_gettime", lambda clock: present(clock) + later.get(clock, 0.0))
    assert leader.suspended() == 3600.0


async def test_a_namespace_that_is_missing_or_was_deleted_is_made(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log, namespace="ours")
    await asyncio.sleep(10)
    assert at_work(log) == ["one"]
    await line.client.delete(NAMESPACES, "ours")
    await asyncio.sleep(60)
    assert at_work(log) == ["one"]
    assert [what for _, _, what in log] == ["begins", "ends", "begins"]
    await one.stop()


async def test_why_there_is_no_election_is_said_once_and_shown_while_it_is_so(
    wire: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    body = b'{"kind":"Status","reason":"Forbidden","message":"leases is forbidden: not you","code":403}'
    line.before = lambda _method, path: Response(403, {}, body) if "/leases/" in path else None
    one = Candidate(line, "one", log)
    await asyncio.sleep(600)
    assert "leases is forbidden" in one.elector.failing
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    line.before = lambda _method, _path: None
    await asyncio.sleep(5)
    assert one.elector.failing == ""
    assert at_work(log) == ["one"]
    await one.stop()


@pytest.mark.parametrize("noticed", ["by a renewal", "by the caches"])
async def test_after_a_restore_of_the_server_terms_are_counted_on(wire: Callable[[], Any], noticed: str) -> None:
    """Backends have seen the former term, and would refuse who comes with a lower number."""
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(10)
    await one.stop()
    two = Candidate(line, "two", log)
    await asyncio.sleep(10)
    former = two.terms[0].fence
    backup = {"holderIdentity": "one", "leaseTransitions": 0}
    await line.client.patch(LEASES, KEY, {"spec": backup})
    if noticed == "by the caches":
        await two.stop()
    three = Candidate(line, "three", log)
    await asyncio.sleep(60)
    terms = [term.fence for term in (*two.terms[1:], *three.terms)]
    assert terms
    assert all(term.outdates(former) for term in terms)
    await two.stop()
    await three.stop()


async def test_a_leader_of_a_restored_server_counts_on_from_the_term_that_a_storage_knows(
    wire: Callable[[], Any],
) -> None:
    """Who led in that term ended before the restore: nobody else could tell."""
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(10)
    former = replace(one.terms[0].fence, transitions=7, holder="gone")
    one.terms[0].fenced(str(former))
    await asyncio.sleep(5)
    assert len(one.terms) == 2
    assert one.terms[1].fence.outdates(former)
    assert at_work(log) == ["one"]
    await one.stop()


@pytest.mark.parametrize("damage", [{"leaseTransitions": 2**31 - 1}, {"leaseDurationSeconds": 2**31 - 1}])
async def test_a_lease_with_damaged_numbers_is_taken_all_the_same(wire: Callable[[], Any], damage: Any) -> None:
    """The API server refuses a count of terms above int32, and nobody would lead for 68 years."""
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(10)
    await line.client.patch(LEASES, KEY, {"spec": damage})
    one.state = "hangs"
    two = Candidate(line, "two", log)
    await asyncio.sleep(660)
    assert at_work(log) == ["two"]
    assert (await lease(line)).lease_transitions < 10
    await one.stop()
    await two.stop()


@pytest.mark.parametrize("count", [2**31 - 1, 2**40])
async def test_a_damaged_mark_stops_no_leader(wire: Callable[[], Any], count: int) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(10)
    one.terms[0].fenced(str(replace(one.terms[0].fence, transitions=count)))
    await asyncio.sleep(60)
    assert at_work(log) == ["one"]
    assert len(one.terms) == 1
    await one.stop()


@pytest.mark.parametrize("term", ["7/gone/another-lease", "", "nonsense"])
async def test_a_term_that_does_not_outdate_its_own_changes_nothing_for_a_leader(
    wire: Callable[[], Any], term: str
) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(10)
    one.terms[0].fenced(term)
    one.terms[0].fenced(str(one.terms[0].fence))
    await asyncio.sleep(10)
    assert len(one.terms) == 1
    await one.stop()


async def test_a_former_leader_does_not_count_on_from_the_term_of_its_successor(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(10)
    one.state = "hangs"
    two = Candidate(line, "two", log)
    await asyncio.sleep(30)
    one.terms[0].fenced(str(two.terms[0].fence))
    one.state = "up"
    await asyncio.sleep(10)
    assert (await lease(line)).lease_transitions == two.terms[0].fence.transitions
    assert at_work(log) == ["two"]
    await one.stop()
    await two.stop()


async def test_nothing_is_begun_from_the_very_moment_at_which_the_margin_begins() -> None:
    term = Leadership(fence=None, until=20.0, margin=5.0, clock=lambda: 10.0, suspended=lambda: 5.0)
    assert not term.may_begin()
    term.until = 20.001
    assert term.may_begin()


@pytest.mark.parametrize("state", ["hangs", "refused"])
async def test_the_work_is_stopped_as_long_before_the_end_of_its_lease_as_was_promised_and_the_lease_left_alone(
    wire: Callable[[], Any], state: str
) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(60)
    one.state = state
    await asyncio.sleep(20)
    ended = next(when for when, _, what in log if what == "ends")
    assert ended == pytest.approx(one.terms[0].until - 5.0, abs=0.2)
    assert {method for when, method in one.calls if when >= ended} == {"GET"}
    await one.stop()


async def test_a_lease_is_taken_at_the_very_moment_at_which_it_is_over(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(1)
    two = Candidate(line, "two", log)
    await asyncio.sleep(30)
    one.state = "refused"
    await asyncio.sleep(20)
    began = next(when for when, identity, what in log if (identity, what) == ("two", "begins"))
    assert any(began - 15 == pytest.approx(when, abs=1e-6) for when, _ in two.calls)
    gaps = {round(later - when, 6) for (when, _), (later, _) in zip(two.calls[:9], two.calls[1:10], strict=True)}
    assert all(1.0 <= gap <= 1.2 for gap in gaps)
    assert len(gaps) > 5, "candidates do not ask in step"
    for candidate in (two, one):
        await candidate.stop()


@pytest.mark.parametrize("change", [{"holderIdentity": "three"}, {"leaseTransitions": 9}, None])
async def test_a_lease_that_changes_without_a_new_time_is_a_new_one(
    wire: Callable[[], Any], change: dict[str, Any] | None
) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(1)
    two = Candidate(line, "two", log)
    await asyncio.sleep(30)
    one.state = "hangs"
    await asyncio.sleep(8)
    if change is not None:
        await line.client.patch(LEASES, KEY, {"spec": change})
    else:
        spec = msgspec.to_builtins(await lease(line))
        await line.client.delete(LEASES, KEY)
        await line.client.create(
            LEASES, LEASES.body(metadata={"name": "provisioner", "namespace": "default"}, spec=spec)
        )
    await asyncio.sleep(14)
    assert at_work(log) == []
    await asyncio.sleep(4)
    assert at_work(log) == ["two"]
    for candidate in (two, one):
        await candidate.stop()


async def test_a_lease_lasts_as_long_as_it_says(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    spec = {"holderIdentity": "other", "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"}
    await line.client.create(LEASES, LEASES.body(metadata={"name": "provisioner", "namespace": "default"}, spec=spec))
    one = Candidate(line, "one", log)
    await asyncio.sleep(39)
    assert at_work(log) == []
    await asyncio.sleep(2)
    assert at_work(log) == ["one"]
    await one.stop()


async def test_a_lease_that_says_that_nobody_holds_it_is_taken_at_once(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(10)
    one.state = "hangs"
    two = Candidate(line, "two", log)
    await line.client.patch(LEASES, KEY, {"spec": {"holderIdentity": ""}})
    await asyncio.sleep(1.5)
    assert two.terms
    for candidate in (two, one):
        await candidate.stop()


async def test_a_conflict_that_took_nothing_is_followed_by_another_renewal_at_once(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(10)
    await line.client.patch(LEASES, KEY, {"metadata": {"labels": {"n": "1"}}})
    since = len(one.calls)
    await asyncio.sleep(2.4)
    (first, _), *rest = one.calls[since : since + 3]
    assert [(when - first, method) for when, method in rest] == [(0, "GET"), (0, "PATCH")]
    await one.stop()


@pytest.mark.parametrize("moment", ["renewal", "release"])
async def test_a_lease_that_vanishes_after_a_conflict_is_lost(wire: Callable[[], Any], moment: str) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(10)
    await line.client.patch(LEASES, KEY, {"metadata": {"labels": {"n": "1"}}})
    delete_at_next_conflict(line)
    if moment == "renewal":
        await asyncio.sleep(5)
        assert [term.fence.transitions for term in one.terms] == [0, 0]
        assert at_work(log) == ["one"]
    await one.stop()
    assert one.task.cancelled()


async def test_a_lease_that_another_took_keeps_its_count(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(10)
    taken = {"holderIdentity": "two", "leaseTransitions": 5}
    await line.client.patch(LEASES, KEY, {"spec": taken})
    await one.stop()
    assert (await lease(line)).lease_transitions == 5


async def test_a_leader_of_a_restored_server_writes_the_count_once(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(10)
    one.terms[0].fenced(str(replace(one.terms[0].fence, transitions=7)))
    since = len(one.calls)
    await asyncio.sleep(2.4)
    assert [method for _, method in one.calls[since : since + 3]] == ["PATCH", "GET", "PATCH"]
    await one.stop()


@pytest.mark.parametrize("hanging", [[True], [False, True]], ids=["to read", "to take"])
async def test_an_election_in_which_a_call_hangs_goes_on(wire: Callable[[], Any], hanging: list[bool]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    one.hanging = hanging
    await asyncio.sleep(10.5)
    assert one.elector.failing == "no answer within 10 s"
    await asyncio.sleep(2)
    assert at_work(log) == ["one"]
    await one.stop()


@pytest.mark.parametrize("conflict", [False, True])
async def test_a_release_that_hangs_delays_the_end_by_two_seconds(wire: Callable[[], Any], conflict: bool) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(10)
    if conflict:
        await line.client.patch(LEASES, KEY, {"metadata": {"labels": {"n": "1"}}})
    one.hanging = [False, False, True] if conflict else [True]
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(60):
        await one.stop()
    assert asyncio.get_running_loop().time() - began == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("moment", ["renewal", "release"])
async def test_a_count_that_cannot_be_raised_holds_nothing_up(wire: Callable[[], Any], moment: str) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(10)
    await one.stop()
    two = Candidate(line, "two", log)
    await asyncio.sleep(10)
    await line.client.patch(LEASES, KEY, {"spec": {"leaseTransitions": 0}})
    two.hanging = [False, False, True]
    if moment == "renewal":
        await asyncio.sleep(15)
        assert len(two.terms) == 2
        await two.stop()
        return
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(60):
        await two.stop()
    assert asyncio.get_running_loop().time() - began == pytest.approx(2.0, abs=0.1)
    assert (await lease(line)).holder_identity is None


async def test_a_leader_that_is_to_count_on_tries_again_where_that_hangs(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(10)
    first = one.terms[0]
    first.fenced(str(replace(first.fence, transitions=7)))
    first.fenced(str(replace(first.fence, transitions=5)))
    one.hanging = [True]
    await asyncio.sleep(9)
    assert [term.fence.transitions for term in one.terms] == [0, 8]
    await one.stop()


def test_without_an_election_no_term_is_noted() -> None:
    free = Leadership(fence=None, until=math.inf, clock=lambda: 0.0, suspended=lambda: 0.0)
    free.fenced("7/gone/a-lease")
    assert free.behind is None
    assert free.may_begin()


async def test_a_namespace_that_cannot_be_made_ends_no_election(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log, namespace="ours")
    made, tries = one.elector.ensure_namespace, []  # type: ignore[var-annotated]
    assert made is not None

    async def ensure() -> None:
        tries.append(asyncio.get_running_loop().time())
        match len(tries):
            case 1:
                raise ApiError("forbidden", status=403)
            case 2:
                await asyncio.Event().wait()
        await made()

    one.elector.ensure_namespace = ensure
    await asyncio.sleep(20)
    assert at_work(log) == ["one"]
    assert 10 < tries[2] - tries[1] < 12
    await one.stop()


async def test_without_a_way_to_make_the_namespace_it_is_waited_for(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log, namespace="ours")
    one.elector.ensure_namespace = None
    await asyncio.sleep(10)
    assert "ours" in one.elector.failing
    await line.client.create(NAMESPACES, {"metadata": {"name": "ours"}})
    await asyncio.sleep(2)
    assert at_work(log) == ["one"]
    await one.stop()


async def test_a_namespace_is_made_only_where_it_is_missing(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    made: list[str] = []

    async def ensure() -> None:
        made.append("made")

    one.elector.ensure_namespace = ensure
    one.state = "refused"
    await asyncio.sleep(5)
    assert made == []
    await one.stop()


async def test_what_held_up_an_election_is_not_shown_any_more_behind_another_leader(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one, two = Candidate(line, "one", log), Candidate(line, "two", log)
    two.state = "refused"
    await asyncio.sleep(5)
    assert two.elector.failing == "connection refused"
    two.state = "up"
    await asyncio.sleep(5)
    assert two.elector.failing == ""
    for candidate in (two, one):
        await candidate.stop()


async def test_work_that_fails_while_it_is_stopped_is_said_and_the_election_goes_on(
    wire: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    line = wire()
    lock = LeaseLock(line.client, namespace="default", name="provisioner", identity="one", now=now)
    elector, begun = Elector(lock, random=Random(1), overrun=lambda: None), []  # type: ignore[var-annotated]

    async def work(_: Leadership) -> None:
        begun.append(asyncio.get_running_loop().time())
        try:
            await asyncio.Event().wait()
        finally:
            if len(begun) == 1:
                raise RuntimeError("broken")

    task = asyncio.create_task(elector.run(work))
    for _ in range(2):
        await asyncio.sleep(10)
        await line.client.delete(LEASES, KEY)
    await asyncio.sleep(10)
    assert len(begun) == 3
    told = [record.getMessage() for record in caplog.records if "while stopping" in record.getMessage()]
    assert told == ["the work under lease provisioner failed while stopping: broken"]
    task.cancel()
    await asyncio.wait([task])


async def test_work_that_stops_late_is_waited_for_and_then_another_term_begins(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log, slow=30)
    await asyncio.sleep(60)
    one.state = "hangs"
    await asyncio.sleep(20)
    assert one.overran == 1
    one.state = "up"
    await asyncio.sleep(30)
    assert [what for _, _, what in log] == ["begins", "overran", "ends", "begins"]
    await one.stop()


async def test_work_that_goes_on_after_a_long_sleep_of_the_machine_is_reported_at_once(
    wire: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    slept = 0.0
    monkeypatch.setattr(leader, "suspended", lambda: slept)
    one = Candidate(line, "one", log, slow=30)
    await asyncio.sleep(10)
    slept = 3600.0
    since = asyncio.get_running_loop().time()
    await asyncio.sleep(2.5)
    [overran] = [when for when, _, what in log if what == "overran"]
    renewals = [when for when, method in one.calls if when <= since]
    assert overran - renewals[-1] <= 2.4 + 1e-6
    await one.stop()


async def test_who_leads_is_measured_and_logged(wire: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    line, log = wire(), []  # type: ignore[var-annotated]
    caplog.set_level("INFO", "volplane.controller.leader")
    one = Candidate(line, "one", log, metrics=Metrics(registry))

    def leading() -> float | None:
        return registry.get_sample_value("volplane_leading", {"lease": "provisioner"})

    await asyncio.sleep(1)
    assert leading() == 1
    await one.stop()
    assert leading() == 0
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        f"lease provisioner: leading as {one.terms[0].fence}",
        "lease provisioner: no longer leading",
    ]


async def test_a_look_at_who_holds_the_lease_that_hangs_costs_no_leadership(wire: Callable[[], Any]) -> None:
    line, log = wire(), []  # type: ignore[var-annotated]
    one = Candidate(line, "one", log)
    await asyncio.sleep(10)
    await line.client.patch(LEASES, KEY, {"metadata": {"labels": {"n": "1"}}})
    one.hanging = [False, True]
    await asyncio.sleep(30)
    assert len(one.terms) == 1
    assert one.terms[0].may_begin()
    await one.stop()


async def test_an_elector_that_has_not_begun_leads_nothing_and_fails_at_nothing(
    wire: Callable[[], Any],
) -> None:
    lock = LeaseLock(wire().client, namespace="default", name="x", identity="one", now=now)
    elector = Elector(lock, random=Random(1), overrun=lambda: None)
    assert (elector.failing, elector.leadership, elector.period, elector.renew_seconds) == ("", None, (2.0, 2.4), 10.0)
    assert elector.ensure_namespace is None
    assert elector.metrics is None
