import errno
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from volplane import Unavailable
from volplane.cli import main as frame
from volplane.errors import ConfigurationError

Body = Callable[[], None]
Install = Callable[[Body], None]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make `volplane example` do what the test says."""

    def install(body: Body) -> None:
        module = types.ModuleType("volplane.cli.example")
        module.example = body  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "volplane.cli.example", module)
        monkeypatch.setattr(
            frame, "COMMANDS", {"example": frame.Command("An example"), "other": frame.Command("Never imported")}
        )

    return install


def raising(failure: BaseException) -> Body:
    def body() -> None:
        raise failure

    return body


def test_a_command_that_returns_ends_with_0(command: Install, capsys: pytest.CaptureFixture[str]) -> None:
    command(lambda: typer.echo("here"))
    assert frame.main(["example"]) == 0
    assert capsys.readouterr().out == "here\n"


def test_a_command_says_1_by_exit(command: Install) -> None:
    command(raising(typer.Exit(1)))
    assert frame.main(["example"]) == 1


def test_an_error_of_ours_is_one_line_and_1(command: Install, capsys: pytest.CaptureFixture[str]) -> None:
    command(raising(ConfigurationError("drivers[0].bakend is unknown;\n  did you mean backend?")))
    assert frame.main(["example"]) == 1
    assert capsys.readouterr().err == "error: drivers[0].bakend is unknown; did you mean backend?\n"


def test_errors_of_ours_inside_groups_are_said_once_each(command: Install, capsys: pytest.CaptureFixture[str]) -> None:
    inner = ExceptionGroup("tasks", [Unavailable("the disk is not mounted"), ValueError("noise")])
    command(raising(ExceptionGroup("tasks", [inner, Unavailable("the disk is not mounted")])))
    assert frame.main(["example"]) == 1
    assert capsys.readouterr().err == "error: the disk is not mounted\n"


def test_a_bug_is_said_without_a_traceback(command: Install, capsys: pytest.CaptureFixture[str]) -> None:
    command(raising(KeyError("spec")))
    assert frame.main(["example"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: unexpected KeyError: 'spec'")
    assert err.count("\n") == 1


def test_wrong_usage_is_2(command: Install, capsys: pytest.CaptureFixture[str]) -> None:
    command(lambda: None)
    assert frame.main(["example", "--nope"]) == 2
    assert frame.main(["exmple"]) == 2
    assert "example" in capsys.readouterr().err


def test_ctrl_c_is_130(command: Install) -> None:
    command(raising(KeyboardInterrupt()))
    assert frame.main(["example"]) == 130


@pytest.mark.parametrize(("services", "code"), [({"example"}, 0), (set(), 143)])
def test_a_command_that_is_stopped_before_it_began_ends_in_order(
    command: Install, monkeypatch: pytest.MonkeyPatch, services: set[str], code: int
) -> None:
    monkeypatch.setattr(frame, "SERVICES", frozenset(services))
    command(lambda: signal.raise_signal(signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert frame.main(["example"]) == code
    finally:
        signal.signal(signal.SIGTERM, before)


IMPORTING = """
import os, signal, sys, types
from volplane import __main__ as start
{body}
sys.argv = ["volplane", "example"]
start.main()
"""
AT_AN_IMPORT = """
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "volplane._messages":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.modules.pop("volplane._messages", None)
"""
IN_A_FINALIZER = """
from volplane.cli import main as frame
class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        sum(range(10))
def body():
    import time
    Finalized()
    time.sleep(60)
module = types.ModuleType("volplane.cli.example")
module.example = body
sys.modules["volplane.cli.example"] = module
frame.COMMANDS = {"example": frame.Command("")}
"""
ON_A_BUSY_MACHINE = f"""
{IN_A_FINALIZER}
import threading
start_thread = threading.Thread.start
def start_late(thread):
    start_thread(thread)
    thread.join(0.1)
threading.Thread.start = start_late
"""
AT_THE_END = """
from volplane.cli import main as frame
frame.main = lambda: 0
import atexit
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
"""


@pytest.mark.parametrize("body", [AT_AN_IMPORT, IN_A_FINALIZER, ON_A_BUSY_MACHINE, AT_THE_END])
def test_ctrl_c_is_silent_and_130_whatever_python_does_at_the_moment(body: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTING.format(body=body)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_a_file_that_may_not_be_used_is_no_bug(command: Install, capsys: pytest.CaptureFixture[str]) -> None:
    command(raising(PermissionError(errno.EACCES, "Permission denied", "/var/lib/x")))
    assert frame.main(["example"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: /var/lib/x cannot be used: Permission denied")
    assert "bug" not in err
    assert err.count("\n") == 1


def test_output_that_nobody_reads_ends_a_command_without_a_word() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as nobody:
        ended = subprocess.run(
            [sys.executable, "-m", "volplane", "manifests"],
            stdout=nobody,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert (ended.returncode, ended.stderr) == (1, "")


def test_closed_streams_are_no_bug() -> None:
    ended = subprocess.run(
        ["/bin/sh", "-c", '"$0" -m volplane manifests >&-', sys.executable],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_help_lists_every_command_and_imports_none(command: Install, capsys: pytest.CaptureFixture[str]) -> None:
    command(lambda: None)
    assert frame.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "An example" in out
    assert "Never imported" in out


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "volplane", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def test_the_module_is_the_command() -> None:
    shown = run("--version")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("volplane 0.")


def test_garbage_is_collected_while_a_command_runs_and_not_while_it_is_imported(tmp_path: Path) -> None:
    says = "import gc\n{}print(gc.isenabled())\n"
    (tmp_path / "example.py").write_text(says.format("") + "def example() -> None:\n    " + says.format("    "))
    script = (
        f"import sys, volplane.cli\nvolplane.cli.__path__.append({str(tmp_path)!r})\n"
        "from volplane import __main__\nfrom volplane.cli import main as frame\n"
        "frame.COMMANDS = {'example': frame.Command('')}\nsys.argv[1:] = ['example']\n__main__.main()\n"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (shown.stdout.split(), shown.stderr) == (["False", "True"], "")


def test_debug_shows_where_a_failure_came_from() -> None:
    script = (
        "import sys, types\n"
        "from volplane.cli import main as frame\n"
        "module = types.ModuleType('volplane.cli.example')\n"
        "def body():\n    raise KeyError('spec')\n"
        "module.example = body\n"
        "sys.modules['volplane.cli.example'] = module\n"
        "frame.COMMANDS = {'example': frame.Command('')}\n"
        "sys.exit(frame.main(['--debug', 'example']))\n"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert shown.returncode == 1
    assert "Traceback" in shown.stderr
    assert "in body" in shown.stderr


def test_help_loads_no_network_library() -> None:
    script = (
        "import sys\n"
        "from volplane.cli.main import main\n"
        "main(['--help'])\n"
        "heavy = {'aiohttp', 'kubernetes', 'rich', 'sqlite3', 'yaml', 'ssl', 'msgspec'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert shown.stderr == ""


def test_a_command_for_people_loads_neither_controllers_nor_servers_before_it_asks() -> None:
    names = ["trash", "undelete", "leaks", "adopt", "drain", "snapshot", "restore", "support-bundle"]
    script = (
        "import sys\n"
        "from volplane.cli.main import main\n"
        f"assert not any([main([name, '--help']) for name in {names}])\n"
        "heavy = {'aiohttp', 'kubernetes', 'volplane.process', 'volplane.explain'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert shown.stderr == ""


@pytest.mark.parametrize("name", frame.COMMANDS)
def test_every_command_of_the_help_exists(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: volplane {name}")
    assert out.isascii() or "…" in out


@pytest.mark.parametrize("arguments", [[], ["--memory"], ["--help"]])
def test_a_command_whose_distribution_is_absent_says_what_to_install(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    assert frame.main(["dev", *arguments]) == 1
    assert 'pip install "volplane[dev]"' in capsys.readouterr().err
