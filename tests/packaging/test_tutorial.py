"""The tutorial, the how-to of tests and the README's backend do what they say."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest
import yaml

from volplane import (
    Asset,
    BackendSpec,
    ClaimIdentity,
    Context,
    DeleteRequest,
    Done,
    Ownership,
    ProvisionRequest,
    VolumeIdentity,
)
from volplane.controller.config import parse_configuration
from volplane.drivers.contract import Plugin
from volplane.drivers.discovery import InstalledPlugins
from volplane.drivers.loading import build_driver, build_extension, options_schema
from volplane.drivers.parameters import check
from volplane_testing import Cluster, MemoryBackend
from volplane_testing.cli.new_backend import distribution_files

REPOSITORY = Path(__file__).resolve().parents[2]
README = REPOSITORY / "README.md"
TUTORIAL = REPOSITORY / "docs" / "tutorial" / "write-a-backend.md"
SIMULATING = REPOSITORY / "docs" / "how-to" / "simulate-a-backend.md"
TESTING = REPOSITORY / "docs" / "how-to" / "test-a-backend.md"
API = REPOSITORY / "docs" / "reference" / "cluster_api.md"
WRAPPING = REPOSITORY / "docs" / "how-to" / "wrap-every-backend.md"
DECLARING = REPOSITORY / "docs" / "how-to" / "declare-options.md"
SECRETS = REPOSITORY / "docs" / "how-to" / "give-a-driver-a-secret.md"
EXAMPLE = REPOSITORY / "examples" / "folders"
CONTEXT = Context(driver="folders.example.com", cluster_id="test")
OWNER = Ownership(cluster_id="test", claim_uid="5a1e", volume_name="pvc-5a1e")
CLAIM = ClaimIdentity(namespace="default", name="data", uid="5a1e")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)


def steps(page: Path) -> Iterator[tuple[str, str]]:
    """What a reader does, in the order of the page: (name of a file, its text), or ("", a console block)."""
    found = re.finditer(r"(?:`([\w.]+)`:\n\n)?```(\w+)\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)
    for match in found:
        assert match[1] or match[2] == "console", f"a block without the name of its file: {match[3][:60]}"
        yield (match[1] or "", match[3])


def commands(block: str) -> Iterator[tuple[str, list[str]]]:
    """(command, what its output must contain)."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *told = part.strip().splitlines()
        yield command, [line.partition("…")[0].rstrip() for line in told]


def test_the_backend_of_the_readme_makes_and_deletes_volumes(tmp_path: Path) -> None:
    [code] = blocks(README, "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 25
    names: dict[str, Any] = {}
    exec(compile(code, str(README), "exec"), names)
    [backend] = [kind for kind in names.values() if isinstance(kind, type) and issubclass(kind, BackendSpec)][1:]
    plugin = Plugin(kind="backend", name="folders", factory=backend)
    driver = build_driver("folders.example.com", plugin, {"root": str(tmp_path)})

    demand = ProvisionRequest(context=CONTEXT, name="pvc-5a1e", capacity_bytes=5, owner=OWNER, claim=CLAIM)
    asset = driver.call(demand)
    assert isinstance(asset, Asset)
    assert driver.call(demand) == asset
    [made] = [path for path in tmp_path.iterdir() if path.is_dir()]
    (made / "file").write_text("contents")

    volume = VolumeIdentity(
        name="pvc-5a1e", uid="77", handle=asset.handle, source=asset.source, capacity_bytes=5, owner=OWNER
    )
    for _ in range(2):
        assert driver.call(DeleteRequest(context=CONTEXT, volume=volume)) == Done()
    assert list(tmp_path.iterdir()) == []


class Reader:
    """Does in an empty directory what a page says; what is installed goes into a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.here = directory / "here"
        self.here.mkdir()
        self.site = directory / "site"
        self.environment = {**os.environ, "PYTHONPATH": str(self.site), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def run(self, command: str, told: list[str]) -> None:
        words = shlex.split(command)
        programs = {
            "volplane": [sys.executable, "-m", "volplane"],
            "python": [sys.executable],
            "pip": [sys.executable, "-m", "pip"],
        }
        arguments = [*programs.get(words[0], [words[0]]), *words[1:]]
        if words[:2] == ["pip", "install"]:
            arguments += ["--no-index", "--target", str(self.site)]
        ran = subprocess.run(
            arguments, cwd=self.here, env=self.environment, capture_output=True, text=True, check=False, timeout=180
        )
        fails = any(line.startswith("FAIL") for line in told)
        assert ran.returncode == int(fails), f"{command}\n{ran.stdout}{ran.stderr}"
        for line in told:
            assert line in ran.stdout, f"{command}\n{ran.stdout}"
        assert ran.stdout.count("FAIL  ") == sum(line.startswith("FAIL") for line in told), ran.stdout
        if words[:2] == ["pip", "install"]:
            (self.here / "volplane_folders.py").unlink()  # from here on, only what is installed counts


@pytest.mark.more
def test_the_tutorial_works_word_for_word(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    written: dict[str, str] = {}
    for name, text in steps(TUTORIAL):
        if name:
            written[name] = text
            (reader.here / name).write_text(text)
            continue
        for command, told in commands(text):
            reader.run(command, told)
    for name, text in written.items():
        assert (EXAMPLE / name).read_text("utf-8") == text, "the example is the tutorial's files"
    assert {path.name for path in EXAMPLE.iterdir() if path.is_file()} == set(written)


def test_the_command_writes_the_backend_of_the_tutorial_which_grows_too() -> None:
    written = distribution_files("folders")["src/volplane_folders/backend.py"].splitlines()
    shown = (EXAMPLE / "volplane_folders.py").read_text("utf-8").splitlines()
    changes = [line for line in unified_diff(shown, written, n=0, lineterm="") if line[0] in "+-"][2:]
    assert {line[1:].strip() for line in changes if line[0] == "-"} == {
        "marks = wanted",
        "elif marks != wanted:",
        'listed = ListedAsset(handle=name, name=name, capacity_bytes=marks["capacity_bytes"], owner=owner)',
        'return Asset(handle=name, source=source, capacity_bytes=marks["capacity_bytes"])',
    }
    assert any("def expand(" in line for line in changes)


def test_the_configuration_of_the_tutorial_is_valid() -> None:
    text = (EXAMPLE / "volplane.yaml").read_text("utf-8")
    [driver] = parse_configuration(text, "volplane.yaml").drivers or ()
    assert (driver.name, driver.backend) == ("folders.example.com", "folders")
    assert yaml.safe_load(text)["drivers"][0]["options"] == driver.options


async def test_the_how_to_of_extensions_is_right() -> None:
    [code] = blocks(WRAPPING, "python")
    names: dict[str, Any] = {}
    exec(compile(code, str(WRAPPING), "exec"), names)
    freeze = names["Freeze"]

    frozen = build_extension(Plugin(kind="extension", name="freeze", factory=freeze), {"reason": "audit"}).instance
    async with Cluster([MemoryBackend()], extensions=[frozen]) as cluster:
        await cluster.create_class("fast")
        claim = await cluster.create_claim("data", storage_class="fast")
        await cluster.advance(1)
        assert any("frozen: audit" in each["message"] for each in cluster.api.events(claim))
    configured = parse_configuration(blocks(WRAPPING, "yaml")[0], "volplane.yaml")
    assert [each.name for each in configured.extensions] == ["call_log", "quota"]
    for settings in configured.extensions:
        schema = options_schema(InstalledPlugins().load("extension", settings.name))
        assert check(schema, settings.options, "option")[1] == ()


def test_the_how_to_of_options_is_right() -> None:
    code = "\n".join(blocks(DECLARING, "python"))
    exec(compile(code, str(DECLARING), "exec"), {})


def test_the_how_to_of_secrets_is_right() -> None:
    [code] = blocks(SECRETS, "python")
    exec(compile(code, str(SECRETS), "exec"), {})
    [driver] = parse_configuration(blocks(SECRETS, "yaml")[0], "volplane.yaml").drivers or ()
    plugin = InstalledPlugins().load("backend", driver.backend)
    assert set(build_driver(driver.name, plugin, driver.options).secrets) == {
        "option access_key_id",
        "option secret_access_key",
    }


@pytest.mark.more
@pytest.mark.parametrize("page", [TESTING, SIMULATING, API], ids=lambda page: page.stem)
def test_the_how_tos_of_tests_work_block_by_block(page: Path, tmp_path: Path) -> None:
    """All blocks of a page as one run of pytest: each that is a test as its file, the others run from a test."""
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    shutil.copy(EXAMPLE / "volplane_folders.py", tmp_path)
    for number, code in enumerate(blocks(page, "python")):
        if "import pytest" in code:
            (tmp_path / f"test_block_{number}.py").write_text(code)
        else:
            (scripts / f"block_{number}.py").write_text(code)
            call = f"runpy.run_path({str(scripts / f'block_{number}.py')!r}, run_name='__main__')"
            running = f"import runpy\n\n\ndef test_it_runs():\n    {call}\n"
            (tmp_path / f"test_script_{number}.py").write_text(running)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-v", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    files = list(tmp_path.glob("test_*.py"))
    assert len(files) == len(blocks(page, "python")) > 0
    for file in files:
        assert re.search(rf"^{file.name}::\S+ PASSED", ran.stdout, re.MULTILINE), f"no test of {file.name} ran"
