"""Logs for people and for machines."""

import asyncio
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Literal

import pytest

from volplane.controller import logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """Put the process's logging back as it was."""
    root = logging.getLogger()
    names = ("volplane", *logs._QUIET)
    before = (root.level, list(root.handlers), {name: logging.getLogger(name).level for name in names})
    yield root
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    for name, level in before[2].items():
        logging.getLogger(name).setLevel(level)


def written(form: Literal["text", "json"], stream: io.StringIO, verbosity: int = 0) -> str:
    logs.configure(form, verbosity=verbosity, stream=stream)
    log = logging.getLogger("volplane.reconcile")
    with logs.bound(controller="claims"), logs.bound(object="default/data", driver=""):
        log.warning("no room on %s", "fast")
        log.debug("in detail")
    return stream.getvalue()


@pytest.mark.parametrize("time", ["once", "again"])
def test_what_a_test_configures_ends_with_the_test(time: str) -> None:
    ours = [handler for handler in logging.getLogger().handlers if type(handler.formatter).__module__ == logs.__name__]
    assert ours == []
    logs.configure(stream=io.StringIO())


def test_text_has_time_level_place_message_and_fields(root: logging.Logger) -> None:
    text = written("text", io.StringIO())
    assert text.splitlines()[0][13:] == "W reconcile: no room on fast  controller=claims object=default/data"
    assert "\x1b" not in text
    assert "in detail" not in text


def test_colour_appears_only_on_a_terminal(root: logging.Logger) -> None:
    assert written("text", Terminal()).startswith("\x1b[33m")


def test_verbose_shows_detail(root: logging.Logger) -> None:
    assert "in detail" in written("text", io.StringIO(), verbosity=1)


def test_json_is_one_object_per_line(root: logging.Logger) -> None:
    (line,) = written("json", io.StringIO()).splitlines()
    entry = json.loads(line)
    assert entry.pop("time").endswith("+00:00")
    assert entry == {
        "level": "warning",
        "logger": "volplane.reconcile",
        "message": "no room on fast",
        "controller": "claims",
        "object": "default/data",
    }


@pytest.mark.parametrize("form", ["text", "json"])
def test_errors_carry_their_traceback(root: logging.Logger, form: Literal["text", "json"]) -> None:
    stream = io.StringIO()
    logs.configure(form, stream=stream)
    try:
        {}["broken"]
    except KeyError:
        logging.getLogger("volplane").exception("it failed")
    assert "KeyError: 'broken'" in stream.getvalue()


@pytest.mark.real_time
async def test_fields_belong_to_a_task_and_its_children() -> None:
    async def seen() -> dict[str, str]:
        await asyncio.sleep(0)
        return dict(logs.fields())

    async def work(key: str) -> dict[str, str]:
        with logs.bound(object=key):
            return await asyncio.create_task(seen())

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work(key)) for key in ("a", "b")]
    assert ([task.result() for task in tasks] + [await seen()]) == [{"object": "a"}, {"object": "b"}, {}]


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_is_told_cannot_break_out_of_its_line(root: logging.Logger, form: Literal["text", "json"]) -> None:
    stream = io.StringIO()
    logs.configure(form, stream=stream)
    with logs.bound(object="default/data\n00:00:00.000 I nobody: all is well"):
        logging.getLogger("volplane.reconcile").warning("no file %s", "/srv/\udcff\x1b[2J\nnext")
    (line,) = stream.getvalue().splitlines()
    assert "\x1b" not in line
    line.encode()


STRAY = """
import sys, threading
from volplane.controller import logs
from volplane.secret import Secret
logs.configure()
logs.log_stray_errors()
secret = Secret("secret:ns/name/key")
secret.give("correct horse")
phrase = secret.reveal()

# Python 3.13 shows these lines in tracebacks, so that they have no secret in them.
class Odd:
    def __del__(self):
        raise ValueError("third: " + phrase.replace(" ", "\\t") + " \\x1b[2J")

def fail():
    raise ValueError("first: " + phrase + " \\x1b[2J")

thread = threading.Thread(target=fail, name="worker")
thread.start()
thread.join()
odd = Odd()
del odd
raise ValueError("second: " + phrase.upper() + " \\x1b[2J")
"""


def test_what_ends_a_thread_or_the_process_is_logged_without_secrets_and_control_characters() -> None:
    ended = subprocess.run([sys.executable, "-c", STRAY], capture_output=True, text=True, check=False, timeout=60)
    assert "thread worker has ended with an error" in ended.stderr
    assert "the process ends with an error" in ended.stderr
    for which in ("first", "second", "third"):
        assert f"ValueError: {which}: *** \\x1b[2J" in ended.stderr, ended.stderr
    assert "\x1b" not in ended.stderr
    assert "horse" not in ended.stderr.lower()
