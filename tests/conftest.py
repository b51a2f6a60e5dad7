"""Fixtures that tests of every kind share."""

import functools
import gc
import inspect
import logging
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

# aiohttp reads the machine's certificate authorities as it is imported: 40 ms in each of some hundred processes that
# the tests start. None of them talks to a server that one of these authorities vouches for.
os.environ["SSL_CERT_FILE"] = os.devnull

# A shell lets what it starts in the background ignore Ctrl-C, which some of these processes are sent.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Nor is any of them behind the proxy of this machine.
for _variable in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"):
    os.environ.pop(_variable, None)
    os.environ.pop(_variable.lower(), None)


# Tests make some twenty thousand drivers. A quarter of the time of each goes into looking again at the same classes for
# what stands in the place of their __dict__; Python 3.12 remembers that by itself.
if sys.version_info < (3, 12):
    inspect._shadowed_dict = functools.cache(inspect._shadowed_dict)


@pytest.fixture(scope="session")
def repository() -> Path:
    """Return the root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the directory of recordings and scenarios that stands beside some checkouts."""
    directory = REPOSITORY.parent / "shared"
    if not directory.is_dir():
        pytest.skip("the recordings and scenarios (../shared) are not beside this checkout")
    return directory


class LeftOut:
    """Makes no tests of cases that -m leaves out: a third of all, which each process would make and then deselect."""

    def __init__(self, expression: str) -> None:
        self.marks = {mark for mark in ("soak", "more") if f"not {mark}" in expression}

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        parametrize = metafunc.parametrize

        def of_the_rest(names: str | Sequence[str], cases: Iterable[Any], *more: Any, **settings: Any) -> None:
            cases = list(cases)
            rest = [each for each in cases if not self.marks & {mark.name for mark in getattr(each, "marks", ())}]
            # Where all are left out, they are deselected: without a case there would be a test that is skipped.
            named = isinstance(settings.get("ids"), Sequence)
            parametrize(names, cases if named or not rest else rest, *more, **settings)

        if self.marks:
            metafunc.parametrize = of_the_rest


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LeftOut(config.option.markexpr))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among modules and tests, neither while they are collected nor afterwards: they all stay.

    Each of the thousands of tests would pay for it otherwise, and those that simulate most.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(20_000)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Take back what a command that ran in this process has set for its own: logs, and what becomes of stray errors.

    Its handlers would write the logs of each later test to a stream that is closed: twenty times the work of a test.
    Secrets that another test has revealed are hidden no more: they may be ordinary words of this one.
    """
    if (secret := sys.modules.get("volplane.secret")) is not None:
        vars(secret).update(_hidden=(), _revealed={})
    root = logging.getLogger()
    handlers = root.handlers[:]
    levels = [(logger, logger.level) for logger in (root, logging.getLogger("volplane"))]
    disabled = logging.root.manager.disable
    hooks = (sys.excepthook, sys.unraisablehook, threading.excepthook)
    try:
        return (yield)
    finally:
        root.handlers[:] = handlers
        logging.disable(disabled)
        for logger, level in levels:
            if logger.level != level:
                logger.setLevel(level)
        sys.excepthook, sys.unraisablehook, threading.excepthook = hooks


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let logs with bytes that are no text pass from a worker of pytest-xdist, which takes only what is valid UTF-8."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report
