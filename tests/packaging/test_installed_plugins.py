"""Wheels in clean environments: all of ours work there, and what others may install breaks nothing but itself."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from tests.packaging.clean_environment import CleanEnvironment, borrow, environment, wheels_of

from ports import free_port

pytestmark = pytest.mark.more
REPOSITORY = Path(__file__).resolve().parents[2]
OURS = (
    REPOSITORY,
    REPOSITORY / "embedded",
    REPOSITORY / "testing",
    REPOSITORY / "plugins" / "hostpath",
    REPOSITORY / "plugins" / "aws_ebs",
    REPOSITORY / "plugins" / "gce_pd",
    REPOSITORY / "plugins" / "nfs",
    REPOSITORY / "examples" / "folders",
    REPOSITORY / "examples" / "loopfiles",
)
SECONDS = 100.0
IMPORT_SECONDS = 5.0
WITH_LESS_TIME = f"""
import sys
from volplane.cli.main import main
from volplane.drivers.discovery import InstalledPlugins
InstalledPlugins.deadline = {IMPORT_SECONDS}
sys.exit(main())
"""
VOLPLANE = ("python", "-c", WITH_LESS_TIME)
"""The command, with less time for an import."""
SHOW_EACH = """
import sys
from volplane.cli.main import main
for name in sys.argv[1:]:
    print("==", name, main(["plugins", "show", name]))
"""
"""The command for one plugin after the other, with its exit code after what it prints."""

BACKEND = """
    from volplane import BackendSpec, DriverInfo, hookimpl

    class Backend(BackendSpec):
        default_driver_name = "{name}.example.com"

        @hookimpl
        def describe(self, request):
            return DriverInfo(version="1", hookspec_version={version})

        @hookimpl
        def provision(self, request): ...

        @hookimpl
        def delete(self, request): ...
    {more}
"""
NEW_HOOK = """
        @hookimpl
        def clone(self, request): ...
"""
FOREIGN = {
    "fine": BACKEND.format(name="fine", version=1, more=""),
    "raises": "raise RuntimeError('no licence found')",
    "hangs": "import threading\nthreading.Event().wait()",
    "newer": BACKEND.format(name="newer", version=2, more=NEW_HOOK),
    "elsewhere": "from volplane import Teleport",
}
TWINS = ("first", "second")


def install_foreign(site: Path, name: str, backend: str, source: str) -> None:
    """Put a distribution of somebody else, with one module, where pip would put it."""
    (site / f"somebodys_{name}.py").write_text(textwrap.dedent(source).replace("\n    \n", "\n"))
    metadata = site / f"somebodys_{name}-1.5.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.4\nName: somebodys-{name}\nVersion: 1.5\n")
    (metadata / "entry_points.txt").write_text(f"[volplane.backends]\n{backend} = somebodys_{name}:Backend\n")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    """Every wheel that this repository can build."""
    clean = CleanEnvironment(tmp_path_factory.mktemp("ours") / "venv")
    borrow(clean.site, "volplane", "volplane-embedded", "boto3", "google-cloud-compute", "jeepney", "requests")
    clean.install(*wheels_of(*OURS))
    return clean


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    """Ours, and what others got wrong."""
    clean = CleanEnvironment(tmp_path_factory.mktemp("crowded") / "venv")
    borrow(clean.site, "volplane", "volplane-embedded")
    clean.install(*wheels_of(*OURS[:4]), compiled=True)  # imports have `IMPORT_SECONDS`
    for name, source in FOREIGN.items():
        install_foreign(clean.site, name, name, source)
    for name in TWINS:
        install_foreign(clean.site, name, "twin", FOREIGN["fine"].replace("fine", name))
    return clean


def rows(text: str) -> dict[str, tuple[str, str, str]]:
    """Name -> (distribution, state, drivers) of `volplane plugins`."""
    found = re.findall(r"^(?:backend|extension) +(\S+) {2,}(.+?) {2,}(ok|broken) {2,}(.+?) {2,}", text, re.MULTILINE)
    return {name: (distribution, state, drivers) for name, distribution, state, drivers in found}


def test_every_wheel_of_ours_shows_itself_in_a_clean_environment(ours: CleanEnvironment, tmp_path: Path) -> None:
    (tmp_path / "volplane.yaml").write_text(
        "drivers: [{name: ebs.example.com, backend: aws_ebs, options: {region: r-1}}]"
    )
    assert rows(ours.run("volplane", "plugins", "--config", "volplane.yaml", cwd=tmp_path)) == {
        "aws_ebs": ("volplane-aws-ebs 0.1.0", "ok", "ebs.example.com"),
        "folders": ("volplane-folders 0.1.0", "ok", "-"),
        "gce_pd": ("volplane-gce-pd 0.1.0", "ok", "-"),
        "hostpath": ("volplane-hostpath 0.1.0", "ok", "-"),
        "loopfiles": ("volplane-loopfiles 0.1.0", "ok", "-"),
        "nfs": ("volplane-nfs 0.1.0", "ok", "-"),
        "call_log": ("volplane 0.1.0", "ok", "-"),
        "dry_run": ("volplane 0.1.0", "ok", "-"),
        "quota": ("volplane 0.1.0", "ok", "-"),
    }
    names = ("aws_ebs", "folders", "gce_pd", "hostpath", "loopfiles", "nfs", "call_log", "dry_run", "quota")
    shown = re.split(r"^== (.*)\n", ours.run("python", "-c", SHOW_EACH, *names, cwd=tmp_path), flags=re.MULTILINE)
    assert shown[1::2] == [f"{name} 0" for name in names]
    assert [name for name, text in zip(names, shown[::2], strict=False) if "Options (in the con" not in text] == []


def test_their_requirements_are_met_there(ours: CleanEnvironment, tmp_path: Path) -> None:
    code = """
        import importlib.metadata, json
        from packaging.requirements import Requirement
        names = ("volplane", "volplane-hostpath", "volplane-aws-ebs", "volplane-gce-pd", "volplane-nfs")
        needed = [Requirement(text) for name in names
                  for text in importlib.metadata.requires(name)]
        print(json.dumps([str(each) for each in needed if (each.marker is None or each.marker.evaluate({"extra": ""}))
                          and not each.specifier.contains(importlib.metadata.version(each.name))]))
    """
    borrow(ours.site, "packaging")
    assert json.loads(ours.run("python", "-c", textwrap.dedent(code), cwd=tmp_path)) == []


class Page:
    """What a running process serves."""

    def __init__(self, port: int) -> None:
        self._port = port

    def read(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def once_started(self) -> str:
        """What /readyz answers when it is ready and no driver is starting. One healthy driver makes it ready."""
        end = time.monotonic() + SECONDS
        while True:
            try:
                if " is starting" not in (ready := self.read("/readyz")):
                    return ready
            except OSError as error:
                ready = str(error)
            assert time.monotonic() < end, ready
            time.sleep(0.2)


def test_what_others_got_wrong_is_reported_while_the_rest_runs(crowded: CleanEnvironment, tmp_path: Path) -> None:
    """The import that hangs has `IMPORT_SECONDS`: both commands wait for it at the same time."""
    told: list[subprocess.CompletedProcess[str]] = []
    listing = threading.Thread(target=lambda: told.append(crowded.tried(*VOLPLANE, "plugins", cwd=tmp_path)))
    listing.start()
    port = free_port()
    arguments = ["dev", "--memory", "--port", "0", "--http", f"127.0.0.1:{port}"]
    arguments += ["--kubeconfig-out", str(tmp_path / "kubeconfig"), "--config", str(configuration(tmp_path))]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [crowded.program(VOLPLANE[0]), *VOLPLANE[1:], *arguments],
            cwd=tmp_path,
            env=environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            page = Page(port)
            ready, metrics = page.once_started(), page.read("/metrics")
        finally:
            process.terminate()
            code = process.wait(30)
    listing.join()
    assert code == 0, (tmp_path / "log").read_text()

    [plugins] = told
    assert plugins.returncode == 1
    shown = rows(plugins.stdout)
    assert {name: state for name, (_, state, _) in shown.items()} == {
        "hostpath": "ok",
        "fine": "ok",
        "raises": "broken",
        "hangs": "broken",
        "newer": "broken",
        "elsewhere": "broken",
        "twin": "broken",
        "call_log": "ok",
        "dry_run": "ok",
        "quota": "ok",
    }
    reasons = {
        "raises": (
            "backend raises (somebodys-raises 1.5): importing somebodys_raises raised RuntimeError: no licence found"
        ),
        "hangs": "backend hangs (somebodys-hangs 1.5): importing somebodys_hangs did not end within 5 s",
        "newer": (
            "backend newer (somebodys-newer 1.5): is built for hookspec version 2, this volplane knows 1; "
            "upgrade volplane"
        ),
        "elsewhere": "it seems to need another version of volplane",
        "twin": "; uninstall all but one",
    }
    for name, reason in reasons.items():
        assert sum(reason in line for line in plugins.stderr.splitlines()) == 1, plugins.stderr
        [detail] = [line for line in ready.splitlines() if f"driver {name}.example.com is broken" in line]
        assert reason in detail
        assert f'volplane_driver_healthy{{driver="{name}.example.com"}} 0' in metrics
    twins = [f"somebodys-{name} 1.5 (somebodys_{name}:Backend)" for name in TWINS]
    assert any(f"backend twin is claimed by {a} and {b}" in plugins.stderr for a, b in (twins, twins[::-1]))
    assert ready.startswith("ok\n")
    assert len(ready.splitlines()) == 1 + len(reasons), ready
    for name in ("fine", "hostpath"):
        assert f'volplane_driver_healthy{{driver="{name}.example.com"}} 1' in metrics


def configuration(directory: Path) -> Path:
    """A driver for every backend that is installed."""
    lines = [f"  - {{name: {name}.example.com, backend: {name}}}" for name in (*FOREIGN, "twin")]
    (directory / "volumes").mkdir()
    lines.append(f"  - {{name: hostpath.example.com, backend: hostpath, options: {{root: {directory}/volumes}}}}")
    file = directory / "volplane.yaml"
    file.write_text("\n".join(["drivers:", *lines]))
    return file
