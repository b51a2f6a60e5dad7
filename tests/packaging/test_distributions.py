"""What is published: metadata, entry points, the contents of the wheels and of the source distribution."""

import ast
import email.parser
import importlib
import importlib.metadata
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.packaging.clean_environment import wheels_of

REPOSITORY = Path(__file__).resolve().parents[2]
DISTRIBUTIONS = {
    "volplane": (REPOSITORY, REPOSITORY / "core" / "volplane"),
    **{
        f"volplane-{part}": (REPOSITORY / part, REPOSITORY / part / "src" / f"volplane_{part}")
        for part in ("embedded", "testing")
    },
    **{
        f"volplane-{directory.name.replace('_', '-')}": (directory, directory / "src" / f"volplane_{directory.name}")
        for directory in sorted(REPOSITORY.glob("plugins/*"))
        if (directory / "pyproject.toml").is_file()
    },
}
PARTS = ["volplane-embedded", "volplane-testing"]
PLUGINS = [name for name in DISTRIBUTIONS if name not in ("volplane", *PARTS)]

SHOWN_PARTS = {"aiohttp": "yarl", "boto3": "botocore"}
"""Packages whose interface has types of another one that they require."""

everywhere = pytest.mark.parametrize("name", DISTRIBUTIONS)


def project(name: str) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((DISTRIBUTIONS[name][0] / "pyproject.toml").read_text("utf-8"))["project"]
    return table


def wheel_of(name: str) -> Path:
    [wheel] = wheels_of(DISTRIBUTIONS[name][0])
    return wheel


def source_distribution_of(name: str, into: Path) -> Path:
    """Build as the build front ends do, with what is installed and without a network."""
    script = "import sys; from hatchling.build import build_sdist as build; print(build(sys.argv[1]))"
    made = subprocess.run(
        [sys.executable, "-c", script, str(into)],
        cwd=DISTRIBUTIONS[name][0],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert made.returncode == 0, made.stderr
    return into / made.stdout.split()[-1]


def sources(package: Path) -> set[str]:
    return {
        str(path.relative_to(package.parent))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@everywhere
def test_type_checkers_may_read_its_types(name: str) -> None:
    assert (DISTRIBUTIONS[name][1] / "py.typed").is_file()


@everywhere
def test_its_project_table_is_complete(name: str) -> None:
    table = project(name)
    assert table["name"] == name
    assert table["requires-python"] == ">=3.11"
    assert table["license"] == "Apache-2.0"
    assert table["version"] == project("volplane")["version"], "all are released together"
    assert (DISTRIBUTIONS[name][0] / table["readme"]).read_text("utf-8").startswith("#")
    assert (DISTRIBUTIONS[name][0] / "LICENSE").is_file()


@pytest.mark.parametrize("name", PLUGINS)
def test_a_plugin_asks_for_the_core_as_a_third_party_would(name: str) -> None:
    assert "volplane>=0.1,<0.2" in project(name)["dependencies"]


@pytest.mark.parametrize("name", PLUGINS)
def test_a_plugin_works_without_the_testing_kit_and_says_how_to_install_it(name: str, tmp_path: Path) -> None:
    package = name.replace("-", "_")
    with zipfile.ZipFile(wheel_of(name)) as wheel:
        wheel.extractall(tmp_path / "site")
    script = f"""
import importlib, pkgutil, sys
sys.path.insert(0, {str(tmp_path / "site")!r})
sys.modules["volplane_testing"] = None  # as if it were not installed
package = importlib.import_module({package!r})
assert package.__file__.startswith(sys.path[0])
testing = {package + ".testing"!r}
for module in pkgutil.walk_packages(package.__path__, {package + "."!r}, onerror=lambda name: None):
    if module.name != testing and not module.name.startswith(testing + "."):
        importlib.import_module(module.name)
try:
    importlib.import_module(testing).subject().__enter__()
except ModuleNotFoundError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert f'pip install "{name}[testing]"' in ran.stdout


@pytest.mark.parametrize("name", PARTS)
def test_what_uses_the_core_from_within_asks_for_exactly_its_version(name: str) -> None:
    assert f"volplane=={project('volplane')['version']}" in project(name)["dependencies"]


@everywhere
def test_its_entry_points_load(name: str) -> None:
    points = [*importlib.metadata.distribution(name).entry_points]
    assert points
    for point in points:
        loaded = point.load()
        assert callable(loaded.subject if point.group == "volplane.fakes" else loaded) or point.group == "pytest11"


@everywhere
def test_its_wheel_holds_its_package_and_nothing_else(name: str) -> None:
    with zipfile.ZipFile(wheel_of(name)) as wheel:
        inside = set(wheel.namelist())
        metadata_file = next(entry for entry in inside if entry.endswith(".dist-info/METADATA"))
        metadata = email.parser.Parser().parsestr(wheel.read(metadata_file).decode())
    package = {entry for entry in inside if ".dist-info/" not in entry}
    assert package == sources(DISTRIBUTIONS[name][1])
    assert len({entry.partition("/")[0] for entry in package}) == 1
    assert any(entry.endswith("/licenses/LICENSE") for entry in inside)
    assert metadata["Name"] == name
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_payload()


def test_the_core_holds_no_api_server_no_kubelet_and_no_test_kit() -> None:
    modules = {path.removesuffix(".py") for path in sources(DISTRIBUTIONS["volplane"][1])}
    kits = ("apiserver", "kubelet", "scheduler", "sandbox", "testing", "conformance", "simulation", "inprocess")
    assert [module for module in modules if set(kits) & set(module.split("/"))] == []


def test_the_source_distribution_of_the_core_has_no_plugin_or_test(tmp_path: Path) -> None:
    with tarfile.open(source_distribution_of("volplane", tmp_path)) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "core/volplane/py.typed"} <= inside
    assert not [name for name in inside if name.startswith(("plugins/", "tests/", "docs/"))]


def pins() -> dict[str, str]:
    text = "".join(path.read_text("utf-8") for path in sorted(REPOSITORY.glob("constraints*.txt")))
    return {canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)}


def wanted(name: str) -> list[Requirement]:
    """What a distribution needs from outside, with what its development needs."""
    table = tomllib.loads((DISTRIBUTIONS[name][0] / "pyproject.toml").read_text("utf-8"))
    extras = table["project"].get("optional-dependencies", {}).values()
    groups = table.get("dependency-groups", {}).values()
    lists = [table["project"]["dependencies"], table["build-system"]["requires"], *extras, *groups]
    found = [Requirement(text) for each in lists for text in each]
    return [requirement for requirement in found if requirement.name not in DISTRIBUTIONS]


@everywhere
def test_every_dependency_is_pinned_within_its_bounds(name: str) -> None:
    pinned = pins()
    wrong = [
        str(requirement)
        for requirement in wanted(name)
        if not requirement.specifier.contains(pinned.get(canonicalize_name(requirement.name), "0"))
    ]
    assert wrong == [], "make constraints"


@everywhere
def test_every_dependency_has_a_reason(name: str) -> None:
    reasons = (REPOSITORY / "docs" / "design" / "dependencies.md").read_text("utf-8")
    silent = [each for each in project(name)["dependencies"] if f"**{Requirement(each).name}**" not in reasons]
    assert [each for each in silent if Requirement(each).name not in DISTRIBUTIONS] == []


@everywhere
def test_every_package_that_it_imports_is_among_its_dependencies(name: str) -> None:
    homes = importlib.metadata.packages_distributions()
    own = DISTRIBUTIONS[name][1].name
    extras = [each for extra in project(name).get("optional-dependencies", {}).values() for each in extra]
    declared = {canonicalize_name(Requirement(each).name) for each in (*project(name)["dependencies"], *extras)}
    declared |= {part for whole, part in SHOWN_PARTS.items() if whole in declared}
    if name == "volplane-testing":
        declared.add("pytest")  # only pytest loads the module that imports it
    imported = set()
    for path in DISTRIBUTIONS[name][1].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {each.name.partition(".")[0] for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.partition(".")[0])
    foreign = imported - set(sys.stdlib_module_names) - {own}
    undeclared = {
        each for each in foreign if not declared & {canonicalize_name(home) for home in homes.get(each, [each])}
    }
    assert undeclared == set()


def test_every_tool_of_development_has_a_reason() -> None:
    reasons = (REPOSITORY / "docs" / "design" / "dependencies.md").read_text("utf-8")
    table = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
    tools = [Requirement(each).name for group in ("dev", "mutants") for each in table["dependency-groups"][group]]
    assert [name for name in tools if not re.search(rf"\b{re.escape(name)}\b", reasons)] == []
