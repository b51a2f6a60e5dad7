"""Coroutine tests and fixtures under the pytest plugin."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from volplane_testing.clock import VirtualTimeLoop
from volplane_testing.cluster import Cluster
from volplane_testing.coroutines import CoroutineRunner

FAILING = """
import asyncio
import functools

import pytest


async def work():
    return 1


async def test_a_failed_assertion_fails():
    await asyncio.sleep(0)
    assert False, "seen"


async def test_a_coroutine_that_nobody_awaits_fails():
    work()


def test_a_coroutine_that_a_plain_test_does_not_await_fails():
    work()


def hidden(function):
    @functools.wraps(function)
    def call():
        return function()

    return call


@hidden
async def test_a_coroutine_that_is_returned_fails():
    pass


@pytest.mark.asyncio
async def test_a_coroutine_test_of_an_absent_plugin_fails():
    pass


async def test_a_deadlock_fails():
    await asyncio.Event().wait()


@pytest.mark.real_time(seconds=0.01)
async def test_a_test_in_real_time_that_hangs_fails():
    await asyncio.Event().wait()


@pytest.fixture
async def broken():
    yield 1
    raise LookupError("at the end")


async def test_a_fixture_that_fails_at_its_end_is_an_error(broken):
    pass


async def test_a_skip_skips():
    pytest.skip("because")
"""


def test_a_coroutine_test_never_passes_by_mistake(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "--color=no", "test_it.py"]
    environment = {**os.environ, "COLUMNS": "200"}
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    shown = ran.stdout
    assert ran.returncode == 1, shown + ran.stderr
    failed = [line.partition("(")[0].split()[-1] for line in FAILING.splitlines() if "_fails(" in line]
    for name in failed:
        assert f"FAILED test_it.py::{name} - " in shown, name
    assert f"{len(failed)} failed, 1 passed, 1 skipped" in shown
    assert "1 error" in shown
    assert "PASSED test_it.py::test_a_fixture_that_fails_at_its_end_is_an_error" in shown
    assert "ERROR test_it.py::test_a_fixture_that_fails_at_its_end_is_an_error - LookupError: at the end" in shown
    assert "coroutine 'work' was never awaited" in shown
    assert "test: CoroutineRunner._serve, line" in shown, "a deadlock says who waits"
    assert "> test_a_deadlock_fails, line" in shown


async def test_time_is_virtual(virtual_time: VirtualTimeLoop) -> None:
    begun = time.monotonic()
    await asyncio.sleep(3600)
    assert virtual_time.time() == pytest.approx(3600)
    assert time.monotonic() < begun + 60


@pytest.mark.real_time
async def test_time_is_real_where_a_test_says_so() -> None:
    assert not isinstance(asyncio.get_running_loop(), VirtualTimeLoop)


@pytest.fixture
async def group() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group lets only the task end it that began it."""
    async with asyncio.timeout(100), asyncio.TaskGroup() as group:
        yield group


@pytest.fixture
async def later(group: asyncio.TaskGroup) -> asyncio.Task[Any]:
    return group.create_task(asyncio.sleep(50, "later"))


async def test_fixtures_are_entered_and_left_in_the_task_of_the_test(
    later: asyncio.Task[str], virtual_time: VirtualTimeLoop
) -> None:
    assert await later == "later"
    assert virtual_time.time() == pytest.approx(50)


async def orders() -> list[int]:
    order: list[int] = []

    async def work(number: int) -> None:
        order.append(number)

    async with asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(work(number))
    return order


async def test_tasks_go_in_the_order_of_asyncio_without_a_seed() -> None:
    assert await orders() == list(range(10))


@pytest.mark.virtual_time(seed=3)
async def test_tasks_go_in_the_order_of_a_seed() -> None:
    assert await orders() != list(range(10))


async def test_a_cluster_is_a_fixture(cluster: Cluster) -> None:
    await cluster.create_class("fast")
    await cluster.wait_bound(await cluster.create_claim("data", storage_class="fast"))


@pytest.mark.parametrize("cluster_options", [{"controllers": frozenset({"binder"})}])
async def test_a_cluster_takes_options(cluster: Cluster) -> None:
    await cluster.create_class("fast")
    claim = await cluster.create_claim("data", storage_class="fast")
    await cluster.advance(100)
    found = cluster.api.get("persistentvolumeclaims", claim["metadata"]["name"])
    assert found is not None
    assert found["status"]["phase"] == "Pending"


def test_a_runner_goes_on_after_what_the_loop_raised() -> None:
    ended: list[str] = []

    async def stuck() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("stuck")

    async def timed() -> str:
        async with asyncio.timeout(5):
            await asyncio.sleep(1)
        return "timed"

    with CoroutineRunner(VirtualTimeLoop) as runner:
        with pytest.raises(RuntimeError, match=r"> .*stuck, line"):
            runner.run(stuck())
        assert ended == ["stuck"]
        assert runner.run(timed()) == "timed"
