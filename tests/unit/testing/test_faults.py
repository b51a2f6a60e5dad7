"""Backends that fail on demand, called as threads call them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from volplane import (
    Asset,
    ClaimIdentity,
    Context,
    Done,
    FindRequest,
    InProgress,
    Ownership,
    ProvisionRequest,
    StartRequest,
    Throttled,
    hookimpl,
)
from volplane.drivers.contract import Plugin
from volplane.drivers.driver import Driver
from volplane.drivers.loading import build_driver
from volplane.errors import ConfigurationError, OutcomeUnknown
from volplane_testing import (
    Answer,
    FailAfter,
    FailBefore,
    FaultyBackend,
    Hang,
    MemoryBackend,
    MemoryStorage,
    Slow,
    Twice,
)

CONTEXT = Context(driver="faulty.example.com", cluster_id="test")
OWNER = Ownership(cluster_id="test", claim_uid="u1", volume_name="pvc-u1")
DEMAND = ProvisionRequest(
    context=CONTEXT,
    name="pvc-u1",
    capacity_bytes=1 << 30,
    owner=OWNER,
    claim=ClaimIdentity(namespace="default", name="data", uid="u1"),
)


def driver_of(backend: object) -> Driver:
    plugin = Plugin(kind="backend", name="faulty", factory=lambda _options: backend)
    return build_driver("faulty.example.com", plugin, {})


def made(backend: FaultyBackend) -> int:
    storage: MemoryStorage = backend.backend.storage  # type: ignore[attr-defined]
    return storage.made


def test_it_is_a_backend_with_the_hooks_of_the_wrapped_one() -> None:
    plain = MemoryBackend()
    assert driver_of(FaultyBackend(plain)).view.hooks == driver_of(plain).view.hooks


def test_without_a_script_everything_goes_through() -> None:
    backend = FaultyBackend(MemoryBackend())
    driver = driver_of(backend)
    assert isinstance(driver.call(DEMAND), Asset)
    assert driver.call(StartRequest(context=CONTEXT)) == Done()
    assert [(call.hook, call.number, call.error) for call in backend.calls][-2:] == [
        ("provision", 1, None),
        ("start", 1, None),
    ]


def test_faults_come_at_their_calls() -> None:
    backend = FaultyBackend(
        MemoryBackend(),
        {"provision": [FailBefore(Throttled("slow down")), None, FailAfter()], "find": {2: Answer(None)}},
    )
    driver = driver_of(backend)
    with pytest.raises(Throttled):
        driver.call(DEMAND)
    assert made(backend) == 0
    assert isinstance(driver.call(DEMAND), Asset)
    with pytest.raises(OutcomeUnknown, match="the answer was lost"):
        driver.call(DEMAND)
    question = FindRequest(context=CONTEXT, name="pvc-u1", owner=OWNER)
    assert isinstance(driver.call(question), Asset)
    with pytest.raises(OutcomeUnknown, match="returned None"):
        driver.call(question)
    assert [type(error).__name__ for error in backend.errors("provision")] == ["Throttled", "TimeoutError"]


def test_a_lost_answer_has_its_effect() -> None:
    backend = FaultyBackend(MemoryBackend(), {"provision": [FailAfter()]})
    with pytest.raises(OutcomeUnknown):
        driver_of(backend).call(DEMAND)
    assert made(backend) == 1


@pytest.mark.parametrize(("effect", "count"), [(True, 1), (False, 0)])
def test_a_wrong_answer_may_have_its_effect(effect: bool, count: int) -> None:
    backend = FaultyBackend(MemoryBackend(), {"provision": [Answer("done", effect=effect)]})
    with pytest.raises(OutcomeUnknown, match="returned str, expected Asset or InProgress"):
        driver_of(backend).call(DEMAND)
    assert made(backend) == count


def test_a_call_may_be_delivered_twice() -> None:
    seen: list[Any] = []

    class Counting(MemoryBackend):
        def _make(self, request: ProvisionRequest) -> Any:
            seen.append(request.name)
            return super()._make(request)

        @hookimpl
        def provision(self, request: ProvisionRequest) -> Any:
            seen.append("called")
            return super().provision(request)

    backend = FaultyBackend(Counting(), {"provision": [Twice()]})
    assert isinstance(driver_of(backend).call(DEMAND), Asset)
    assert seen == ["called", "pvc-u1", "called"]
    assert [call.hook for call in backend.calls].count("provision") == 1


def test_a_call_hangs_until_it_is_released() -> None:
    backend = FaultyBackend(MemoryBackend(), {"provision": [Hang()]})
    answers: list[Asset | InProgress] = []
    thread = threading.Thread(target=lambda: answers.append(driver_of(backend).call(DEMAND)))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    assert made(backend) == 0
    backend.release()
    thread.join(10)
    assert [type(answer) for answer in answers] == [Asset]


def test_a_slow_call_takes_its_time() -> None:
    backend = FaultyBackend(MemoryBackend(), {"provision": [Slow(before=0.001, after=0.001)]})
    assert isinstance(driver_of(backend).call(DEMAND), Asset)


def test_a_fault_can_be_added_for_the_next_call() -> None:
    backend = FaultyBackend(MemoryBackend())
    driver = driver_of(backend)
    driver.call(DEMAND)
    backend.fail("provision", FailBefore(Throttled("slow down")))
    with pytest.raises(Throttled):
        driver.call(DEMAND)
    driver.call(DEMAND)


def test_faults_in_a_list_are_those_of_the_next_calls() -> None:
    backend = FaultyBackend(MemoryBackend())
    driver = driver_of(backend)
    driver.call(DEMAND)
    backend.fail("provision", [FailBefore(Throttled("slow down")), FailAfter()])
    with pytest.raises(Throttled):
        driver.call(DEMAND)
    with pytest.raises(OutcomeUnknown, match="the answer was lost"):
        driver.call(DEMAND)
    driver.call(DEMAND)


def test_a_script_for_what_is_no_hook_or_call_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="hook 'privision' is none"):
        FaultyBackend(MemoryBackend(), {"privision": [FailAfter()]})
    with pytest.raises(ConfigurationError, match="call 0 of provision is none; the first is 1"):
        FaultyBackend(MemoryBackend(), {"provision": {0: FailAfter()}})
