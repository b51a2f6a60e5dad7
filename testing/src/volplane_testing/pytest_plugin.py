"""The pytest plugin of volplane: coroutine tests in virtual time, a cluster, and the conformance suite as tests.

A coroutine test (`async def test_...`) that no other plugin is asked to run is run here, with its coroutine fixtures,
in one task on a `VirtualTimeLoop`. Marks: `virtual_time(seed=..., limit=...)` with the loop's arguments,
`real_time(seconds=...)` for a test that needs real threads or sockets: it gets asyncio's own loop and fails after so
many seconds (60). A coroutine that a test made and never awaited fails that test.

Importing this module loads next to nothing.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from volplane_testing.clock import VirtualTimeLoop
    from volplane_testing.cluster import Cluster
    from volplane_testing.conformance import RuleStatus
    from volplane_testing.coroutines import CoroutineRunner

__all__ = [
    "cluster",
    "cluster_options",
    "conformance_statuses",
    "coroutine_runner",
    "pytest_configure",
    "pytest_fixture_setup",
    "pytest_itemcollected",
    "pytest_pyfunc_call",
    "pytest_terminal_summary",
    "virtual_time",
]

pytest.register_assert_rewrite("volplane_testing.conformance")

_RUNNER = "coroutine_runner"
_VIRTUAL_TIME = "virtual_time"
_REAL_TIME = "real_time"
_REAL_SECONDS = 60.0
_OTHERS = ("anyio", "asyncio", "trio")
_NOT_AWAITED = r"Exception ignored.*coroutine"
_WAIVED = "waived"
_NOT_APPLICABLE = "not applicable"
_PROPERTY = "volplane-conformance"


@pytest.fixture(scope="class")
def conformance_statuses() -> Iterator[dict[str, RuleStatus]]:
    """Return the statuses of the rules of one `BackendConformance` class so far."""
    statuses: dict[str, RuleStatus] = {}
    yield statuses
    statuses.clear()


@pytest.fixture
def coroutine_runner(request: pytest.FixtureRequest) -> Iterator[CoroutineRunner]:
    """Runs a coroutine test and its fixtures; its marks choose the loop."""
    import asyncio  # noqa: PLC0415 - only tests that need it pay

    from volplane_testing.clock import LIMIT, VirtualTimeLoop  # noqa: PLC0415
    from volplane_testing.coroutines import CoroutineRunner  # noqa: PLC0415

    real, virtual = (request.node.get_closest_marker(name) for name in (_REAL_TIME, _VIRTUAL_TIME))
    options = {"limit": LIMIT, **(virtual.kwargs if virtual else {})}
    with CoroutineRunner(asyncio.new_event_loop if real else lambda: VirtualTimeLoop(**options)) as runner:
        yield runner


@pytest.fixture
def virtual_time(coroutine_runner: CoroutineRunner) -> VirtualTimeLoop:
    """Return the loop of this test, whose `time()` starts at 0 and never waits.

    Raises TypeError in a `real_time` test.
    """
    from volplane_testing.clock import VirtualTimeLoop  # noqa: PLC0415

    loop = coroutine_runner.loop
    if not isinstance(loop, VirtualTimeLoop):
        raise TypeError("a test marked real_time has no virtual time")
    return loop


@pytest.fixture
def cluster_options() -> dict[str, Any]:
    """Arguments of `Cluster` for the fixture `cluster`: to be overridden."""
    return {}


@pytest.fixture
async def cluster(cluster_options: dict[str, Any]) -> AsyncIterator[Cluster]:
    """Return a running `Cluster(**cluster_options)` in the time of the test."""
    from volplane_testing.cluster import Cluster  # noqa: PLC0415

    async with Cluster(**cluster_options) as running:
        yield running


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks. Make a coroutine that was never awaited an error of its test."""
    for line in (
        f"{_VIRTUAL_TIME}(seed=None, limit=...): arguments of the VirtualTimeLoop of a coroutine test",
        f"{_REAL_TIME}(seconds=60): run a coroutine test on asyncio's own loop, for so long at most",
    ):
        config.addinivalue_line("markers", line)
    # The warning is given while the coroutine is freed, where nothing can be raised: pytest turns that into a second.
    config.addinivalue_line("filterwarnings", "error:coroutine .* was never awaited:RuntimeWarning")
    config.addinivalue_line("filterwarnings", f"error:{_NOT_AWAITED}:pytest.PytestUnraisableExceptionWarning")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Take the coroutine tests that are not marked for another plugin."""
    if not isinstance(item, pytest.Function) or not inspect.iscoroutinefunction(item.obj):
        return
    if not any(item.get_closest_marker(name) for name in _OTHERS) and _RUNNER not in item.fixturenames:
        item.fixturenames.insert(0, _RUNNER)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """Run coroutine fixtures in the task of the test that asks for them."""
    function: Callable[..., Any] = fixturedef.func
    generator = inspect.isasyncgenfunction(function)
    if _RUNNER not in request.fixturenames or not (generator or inspect.iscoroutinefunction(function)):
        return (yield)
    runner = cast("CoroutineRunner", request.getfixturevalue(_RUNNER))

    @wraps(function)
    def value(**arguments: Any) -> Any:
        return runner.run(function(**arguments))

    @wraps(function)
    def values(**arguments: Any) -> Iterator[Any]:
        generated = function(**arguments)
        yield runner.run(anext(generated))
        try:
            runner.run(anext(generated))
        except StopAsyncIteration:
            return
        raise RuntimeError(f"the fixture {fixturedef.argname} yields twice")

    fixturedef.func = values if generator else value  # type: ignore[misc]
    try:
        return (yield)
    finally:
        fixturedef.func = function  # type: ignore[misc]


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test to its end."""
    if _RUNNER not in pyfuncitem.funcargs or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    runner = cast("CoroutineRunner", pyfuncitem.funcargs[_RUNNER])
    real = pyfuncitem.get_closest_marker(_REAL_TIME)
    seconds = real.kwargs.get("seconds", _REAL_SECONDS) if real else None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    runner.run(pyfuncitem.obj(**arguments), seconds=seconds)
    return True


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name every waived rule with its reason, whatever the verbosity; count the rules that do not apply, by reason."""
    waived = [f"{report.nodeid}: {status}" for report, status in _statuses(terminalreporter, "xfailed", _WAIVED)]
    elsewhere = Counter(
        f"{report.nodeid.rpartition('::')[0]}: {status}"
        for report, status in _statuses(terminalreporter, "passed", _NOT_APPLICABLE)
    )
    counted = [f"{row} ({count} rules)" for row, count in sorted(elsewhere.items())]
    for title, rows in (("waived rules", waived), ("rules that say nothing about a backend", counted)):
        if rows:
            terminalreporter.section(f"volplane conformance: {title}")
        for row in rows:
            terminalreporter.write_line(row)


def _statuses(terminalreporter: Any, result: str, kind: str) -> Iterator[tuple[Any, str]]:
    for report in terminalreporter.getreports(result):
        for name, value in getattr(report, "user_properties", ()):
            if name == _PROPERTY and str(value).startswith(kind):
                yield report, str(value)
