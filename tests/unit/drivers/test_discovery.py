"""Entry points of fake distributions in a directory on sys.path, and their import."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from volplane.drivers.contract import Plugin
from volplane.drivers.discovery import InstalledPlugins, installed
from volplane.errors import PluginError
from volplane_testing.given_plugins import GivenPlugins

Distribute = Callable[..., None]

ENDS_DURING_AN_IMPORT = """
import pathlib, sys, time
sys.path.insert(0, sys.argv[1])
from volplane.drivers.discovery import InstalledPlugins
from volplane.drivers.loading import in_daemon_thread
in_daemon_thread("import", InstalledPlugins().load, "backend", "fake")
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.01)
"""
CLASS = "class Backend:\n    def __init__(self, options): pass\n"


@pytest.fixture
def distribute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Distribute:
    """Install a distribution with one module into a fresh place on sys.path."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    before = set(sys.modules)

    def make(
        name: str,
        entries: str,
        *,
        module: str = "",
        source: str = CLASS,
        version: str = "1.0",
        group: str = "volplane.backends",
        where: Path = site,
    ) -> None:
        info = where / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[console_scripts]\nx = y:z\n\n[{group}]\n{entries}\n")
        if module:
            (where / f"{module}.py").write_text(textwrap.dedent(source))

    yield make
    for loaded in set(sys.modules) - before:
        if loaded.startswith("fake_"):
            del sys.modules[loaded]


def mine(kind: str = "backend") -> list[str]:
    return [entry.name for entry in installed(kind) if "fake" in entry.value]


def refusal(name: str, deadline: float = 30.0) -> str:
    plugins = InstalledPlugins()
    plugins.deadline = deadline
    with pytest.raises(PluginError) as refused:
        plugins.load("backend", name)
    return str(refused.value)


def test_a_distribution_is_found_without_being_imported(distribute: Distribute) -> None:
    distribute("volplane-fake", "fake = fake_one:Backend", module="fake_one", source="raise SystemExit('imported')")
    entry = InstalledPlugins().entries.get(("backend", "fake"))
    assert entry is not None
    assert (entry.name, entry.value, entry.distribution, entry.error) == (
        "fake",
        "fake_one:Backend",
        "volplane-fake 1.0",
        "",
    )
    assert "fake_one" not in sys.modules


def test_a_backend_is_imported_when_asked_for(distribute: Distribute) -> None:
    source = "class Outer:\n    class Backend:\n        pass\n"
    distribute("volplane-fake", "fake = fake_one:Outer.Backend", module="fake_one", source=source)
    plugin = InstalledPlugins().load("backend", "fake")
    assert str(plugin) == "backend fake (volplane-fake 1.0)"
    assert plugin.factory is sys.modules["fake_one"].Outer.Backend


def test_extensions_are_another_group(distribute: Distribute) -> None:
    distribute("one", "fake = fake_one:Backend", group="volplane.backends")
    distribute("two", "fake = fake_two:Watcher", group="volplane.extensions")
    assert mine("backend") == ["fake"]
    assert mine("extension") == ["fake"]


def test_a_name_claimed_by_two_distributions_is_an_error_that_names_both(distribute: Distribute) -> None:
    distribute("first", "fake = fake_one:Backend", module="fake_one")
    distribute("second", "fake = fake_two:Backend", module="fake_two")
    distribute("third", "fake3 = fake_three:Backend", module="fake_three")
    message = refusal("fake")
    assert re.fullmatch(
        r"backend fake is claimed by (first 1\.0 \(fake_one:Backend\)|second 1\.0 \(fake_two:Backend\)) and "
        r"(first 1\.0 \(fake_one:Backend\)|second 1\.0 \(fake_two:Backend\)); uninstall all but one",
        message,
    )
    assert InstalledPlugins().load("backend", "fake3")


def test_a_name_claimed_twice_by_one_distribution_is_an_error_too(distribute: Distribute) -> None:
    distribute("first", "fake = fake_one:A\nfake = fake_one:B")
    assert "is claimed by first 1.0 (fake_one:A) and first 1.0 (fake_one:B)" in refusal("fake")


def test_the_same_distribution_further_down_the_path_is_shadowed(distribute: Distribute, tmp_path: Path) -> None:
    older = tmp_path / "older"
    distribute("volplane-fake", "fake = fake_one:Backend", module="fake_one", version="2.0")
    distribute("volplane_fake", "fake = fake_old:Backend", version="1.0", where=older)
    sys.path.append(str(older))
    entry = InstalledPlugins().entries.get(("backend", "fake"))
    assert entry is not None
    assert (entry.distribution, entry.error) == ("volplane-fake 2.0", "")


def test_what_is_not_installed_is_refused_with_the_nearest(distribute: Distribute) -> None:
    distribute("volplane-fake", "fakepath = fake_one:Backend")
    assert refusal("fakepth") == "backend 'fakepth' is not installed; did you mean 'fakepath'?"


def test_an_import_that_raises_is_reported_with_the_reason(distribute: Distribute) -> None:
    distribute("volplane-fake", "fake = fake_bad:Backend", module="fake_bad", source="1 /\\\n 0")
    assert refusal("fake") == (
        "backend fake (volplane-fake 1.0): importing fake_bad raised ZeroDivisionError: division by zero"
    )
    assert "fake_bad" not in sys.modules


def test_an_import_for_another_version_of_volplane_says_so(distribute: Distribute) -> None:
    distribute(
        "volplane-fake", "fake = fake_new:Backend", module="fake_new", source="from volplane import CloneRequest"
    )
    message = refusal("fake")
    assert "importing fake_new raised ImportError: cannot import name 'CloneRequest'" in message
    assert message.endswith("; it seems to need another version of volplane")


def test_a_module_that_is_missing_is_reported(distribute: Distribute) -> None:
    distribute("volplane-fake", "fake = fake_missing:Backend")
    assert "importing fake_missing raised ModuleNotFoundError: No module named 'fake_missing'" in refusal("fake")


def test_a_process_that_ends_during_an_import_leaves_nothing_of_it_behind(
    distribute: Distribute, tmp_path: Path
) -> None:
    source = f"""
        import os, threading
        with open({str(tmp_path / "begun")!r}, "w") as file:
            file.write(str(os.getpid()))
        os.rename({str(tmp_path / "begun")!r}, {str(tmp_path / "pid")!r})
        threading.Event().wait()
    """
    distribute("volplane-fake", "fake = fake_hang:Backend", module="fake_hang", source=source)
    command = [sys.executable, "-c", ENDS_DURING_AN_IMPORT, str(tmp_path / "site"), str(tmp_path / "pid")]
    subprocess.run(command, check=True, timeout=60)
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_an_import_that_hangs_is_reported_within_its_deadline(distribute: Distribute) -> None:
    source = "import threading\nthreading.Event().wait()\n"
    distribute("volplane-fake", "fake = fake_hang:Backend", module="fake_hang", source=source)
    assert refusal("fake", deadline=0.5) == (
        "backend fake (volplane-fake 1.0): importing fake_hang did not end within 0.5 s"
    )


def test_a_process_that_an_import_started_does_not_outlive_the_check(distribute: Distribute, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    source = f"""
        import subprocess, sys, threading
        child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
        open({str(pid_file)!r}, "w").write(str(child.pid))
        threading.Event().wait()
    """
    distribute("volplane-fake", "fake = fake_fork:Backend", module="fake_fork", source=source)
    for seconds in (1.5, 6.0, 24.0):  # Until the import was long enough to start it.
        assert "did not end" in refusal("fake", deadline=seconds)
        if pid_file.exists():
            break
    with contextlib.suppress(ProcessLookupError):
        ended = os.pidfd_open(int(pid_file.read_text()))
        try:
            assert select.select([ended], [], [], 10)[0]
        finally:
            os.close(ended)


def test_an_import_that_kills_its_process_is_reported(distribute: Distribute) -> None:
    source = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    distribute("volplane-fake", "fake = fake_crash:Backend", module="fake_crash", source=source)
    assert refusal("fake") == (
        "backend fake (volplane-fake 1.0): importing fake_crash crashes: the process was killed by signal 9"
    )


def test_an_import_that_exits_is_reported(distribute: Distribute) -> None:
    distribute("volplane-fake", "fake = fake_exit:Backend", module="fake_exit", source="import sys\nsys.exit(0)\n")
    assert "importing fake_exit raised SystemExit: 0" in refusal("fake")
    distribute("volplane-hard", "hard = fake_hard:Backend", module="fake_hard", source="import os\nos._exit(3)\n")
    assert "importing fake_hard crashes: the process was ended with exit code 3" in refusal("hard")


@pytest.mark.parametrize(
    "written",
    ["b'garbage'", "b'[]'", "b'{}'", "b'7'", "b'\\xff\\x00'", "b'x' * 1_000_000", 'b\'{"error": "E", "token": "x"}\''],
)
def test_what_an_import_writes_into_the_report_is_no_answer(distribute: Distribute, written: str) -> None:
    """It may write to any descriptor that it finds open."""
    source = f"""
import os, sys
for fd in range(3, 10) if "pytest" not in sys.modules else ():
    try:
        os.write(fd, {written})
    except OSError:
        pass
"""
    distribute("volplane-fake", "fake = fake_noise:Backend", module="fake_noise", source=source + CLASS)
    InstalledPlugins().load("backend", "fake")
    distribute("volplane-hard", "hard = fake_end:Backend", module="fake_end", source=source + "os._exit(0)\n")
    assert "importing fake_end crashes: the process was ended with exit code 0" in refusal("hard")


def test_an_import_that_closes_every_descriptor_is_reported(distribute: Distribute) -> None:
    source = "import os, sys\nif 'pytest' not in sys.modules:\n    os.closerange(0, 100)\n" + CLASS
    distribute("volplane-fake", "fake = fake_closed:Backend", module="fake_closed", source=source)
    assert "importing fake_closed crashes: the process was ended with exit code 1" in refusal("fake")


def test_an_import_that_prints_much_disturbs_nothing(distribute: Distribute) -> None:
    source = "import sys\nprint('x' * 100_000)\nsys.stderr.write('y' * 100_000)\n" + CLASS
    distribute("volplane-fake", "fake = fake_loud:Backend", module="fake_loud", source=source)
    InstalledPlugins().load("backend", "fake")


def test_a_module_that_fails_only_in_this_process_is_reported(distribute: Distribute) -> None:
    source = "import sys\nif 'pytest' in sys.modules:\n    raise RuntimeError('not here')\n" + CLASS
    distribute("volplane-fake", "fake = fake_here:Backend", module="fake_here", source=source)
    assert "importing fake_here raised RuntimeError: not here" in refusal("fake")


def test_an_attribute_that_is_missing_is_named(distribute: Distribute) -> None:
    distribute("volplane-fake", "fake = fake_one:Backnd", module="fake_one")
    assert refusal("fake") == (
        "backend fake (volplane-fake 1.0): module fake_one has no Backnd, which its entry point names"
    )


def test_what_cannot_be_called_is_refused(distribute: Distribute) -> None:
    distribute("volplane-fake", "fake = fake_one:Backend", module="fake_one", source="Backend = 5")
    assert "fake_one:Backend is no class and cannot be called with options" in refusal("fake")


@pytest.mark.parametrize("value", ["fake_one", "fake_one:", "fake-one:Backend", "a b:c"])
def test_an_entry_point_that_names_no_class_is_refused(distribute: Distribute, value: str) -> None:
    distribute("volplane-fake", f"fake = {value}", module="fake_one")
    assert f"its entry point is {value!r}, expected 'module:Class'" in refusal("fake")


def test_a_broken_distribution_does_not_hide_the_others(distribute: Distribute) -> None:
    distribute("broken", "this is no entry")
    distribute("volplane-fake", "fake = fake_one:Backend", module="fake_one")
    (Path(sys.path[0]) / "nameless-1.dist-info").mkdir()
    assert "fake" in mine()
    assert InstalledPlugins().load("backend", "fake")


def test_a_failure_is_remembered_and_told_again(distribute: Distribute) -> None:
    distribute("volplane-fake", "fake = fake_bad:Backend", module="fake_bad", source="raise RuntimeError('once')")
    plugins = InstalledPlugins()
    for _ in range(2):
        with pytest.raises(PluginError, match="once"):
            plugins.load("backend", "fake")


def test_given_plugins_are_found_by_kind_and_name() -> None:
    plugin = Plugin(kind="backend", name="memory", factory=dict)
    plugins = GivenPlugins([plugin])
    assert plugins.names("backend") == ("memory",)
    assert plugins.names("extension") == ()
    assert plugins.load("backend", "memory") is plugin
    with pytest.raises(PluginError, match=r"backend 'memry' is not there; did you mean 'memory'\?"):
        plugins.load("backend", "memry")
