"""`make dist`: what is released, the same bytes each time, of use without the repository; and what checks it."""

from __future__ import annotations

import email.message
import email.parser
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from tests.packaging.clean_environment import CleanEnvironment, borrow
from tools.dist.check import differing, wrong_metadata
from tools.dist.distributions import CONSTRAINTS, pins
from trove_classifiers import classifiers

REPOSITORY = Path(__file__).resolve().parents[2]
NAMES = [
    "volplane",
    "volplane_embedded",
    "volplane_testing",
    *sorted(f"volplane_{path.parent.name}" for path in REPOSITORY.glob("plugins/*/pyproject.toml")),
]


def build(out: Path, *options: str, umask: int = 0o022, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.dist", "--out", str(out), *options],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is built, once for all processes that run tests. Only read from it."""
    if not (REPOSITORY / ".git").exists():
        pytest.skip("not a git checkout")
    own = tmp_path_factory.getbasetemp()
    place = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with (place / "dist.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "dist").exists():
            built = build(made := tmp_path_factory.mktemp("made"))
            assert built.returncode == 0, built.stderr
            made.rename(place / "dist")
    return place / "dist"


def metadata_of(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.parser.Parser().parsestr(archive.read(name).decode())


def test_each_distribution_has_a_wheel_and_a_source_distribution(dist: Path) -> None:
    wanted = {f"{name}-0.1.0{end}" for name in NAMES for end in ("-py3-none-any.whl", ".tar.gz")}
    others = {"SHA256SUMS", "volplane-chart-0.1.0.tgz", "volplane-0.1.0.cdx.json"}
    assert {path.name for path in dist.iterdir()} == wanted | others


def test_the_checksums_are_those_of_all_files(dist: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=dist, check=True, capture_output=True)
    named = {line.split()[1] for line in (dist / "SHA256SUMS").read_text().splitlines()}
    assert named == {path.name for path in dist.iterdir()} - {"SHA256SUMS"}


def test_the_chart_is_packed_as_helm_packs_it(dist: Path) -> None:
    with tarfile.open(dist / "volplane-chart-0.1.0.tgz") as archive:
        names = set(archive.getnames())
    assert {"volplane/Chart.yaml", "volplane/values.yaml", "volplane/values.schema.json"} <= names


def test_the_list_of_packages_has_what_cyclonedx_requires_and_no_address(dist: Path) -> None:
    """The required fields are those of the JSON schema of CycloneDX 1.6."""
    text = (dist / "volplane-0.1.0.cdx.json").read_text()
    told = json.loads(text)
    assert (told["bomFormat"], told["specVersion"], told["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch("urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", told["serialNumber"])
    assert re.fullmatch(r"[0-9-]{10}T[0-9:]{8}Z", told["metadata"]["timestamp"])
    components = [told["metadata"]["component"], *told["components"]]
    assert all(each["type"] in ("application", "library") and each["name"] for each in components)
    references = [each["bom-ref"] for each in told["components"]]
    assert len(set(references)) == len(references)
    assert "://" not in text
    hashes = {each["name"]: each["hashes"][0]["content"] for each in told["components"] if "hashes" in each}
    assert hashes == {
        name.replace("_", "-"): hashlib.sha256((dist / f"{name}-0.1.0-py3-none-any.whl").read_bytes()).hexdigest()
        for name in NAMES
    }


@pytest.mark.more
def test_the_list_has_each_package_that_ours_need_in_the_version_that_is_pinned(dist: Path) -> None:
    told = json.loads((dist / "volplane-0.1.0.cdx.json").read_text())["components"]
    versions = {each["name"]: each["version"] for each in told}
    pinned = dict(pin.split("==") for file in CONSTRAINTS for pin in pins(file))
    others = {name: version for name, version in versions.items() if not name.startswith("volplane")}
    assert others.items() <= pinned.items()
    assert {"kubernetes", "uvloop", "grpcio", "boto3", "google-cloud-compute", "yarl", "cryptography"} <= others.keys()
    assert not {"pytest", "ruff", "mypy", "sphinx"} & others.keys(), "what only the work on volplane needs"


def test_a_file_that_differs_or_is_missing_in_another_build_is_named(tmp_path: Path) -> None:
    for directory, names in (("one", "ab"), ("other", "ac")):
        (tmp_path / directory).mkdir()
        for name in names:
            (tmp_path / directory / name).write_text(directory)
    found = list(differing(tmp_path / "one", tmp_path / "other"))
    assert found == [f"{name} is not the same in two builds" for name in "abc"]


def test_metadata_that_an_index_would_refuse_is_named(dist: Path, tmp_path: Path) -> None:
    assert list(wrong_metadata(dist)) == []
    wheel = tmp_path / "volplane-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "volplane-0.1.0.dist-info/METADATA",
            "Metadata-Version: 2.4\nName: volplane\nVersion: 0.2\nClassifier: Topic :: Everything\n\nWords.\n",
        )
    assert list(wrong_metadata(tmp_path)) == [
        f"{wheel.name}: there is no Topic :: Everything",
        f"{wheel.name}: its page is empty, or no Markdown",
        f"{wheel.name} has version 0.2; volplane has 0.1.0",
    ]
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("volplane-0.1.0.dist-info/METADATA", "Metadata-Version: 2.4\nName: volplane\nVersion: new\n")
    [refused] = wrong_metadata(tmp_path)
    assert "'new' is invalid for 'version'" in refused


@pytest.mark.soak
def test_what_is_built_may_be_published(tmp_path: Path) -> None:
    """As `make release-check`: builds twice, compares, installs with the pinned versions, runs the demo."""
    command = [sys.executable, "-m", "tools.dist.check", "--out", str(tmp_path / "dist")]
    checked = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=900)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_another_build_gives_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    built = build(tmp_path / "again", umask=0o077, TZ="Pacific/Auckland", PYTHONHASHSEED="7", TMPDIR=str(tmp_path))
    assert built.returncode == 0, built.stderr
    differing = [
        path.name for path in dist.iterdir() if path.read_bytes() != (tmp_path / "again" / path.name).read_bytes()
    ]
    assert differing == []


@pytest.mark.parametrize("name", NAMES)
def test_its_page_on_an_index_has_no_link_that_leads_nowhere(dist: Path, name: str) -> None:
    metadata = metadata_of(dist / f"{name}-0.1.0-py3-none-any.whl")
    page = re.sub(r"```.*?```|`[^`\n]*`", "", str(metadata.get_payload()), flags=re.DOTALL)
    assert page.lstrip().startswith("#")
    targets = re.findall(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: *(\S+)|(?:href|src)=\"([^\"]+)\"", page, re.MULTILINE)
    assert [target for found in targets for target in found if target and not target.startswith("https://")] == []
    assert [each for each in metadata.get_all("Classifier", []) if each not in classifiers] == []
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_the_publisher_says_where_and_when_it_is_published(tmp_path: Path) -> None:
    urls = ["--url", "Homepage=https://example.com/volplane", "--url", "Issue Tracker=https://example.com/issues"]
    built = build(tmp_path / "dist", *urls, SOURCE_DATE_EPOCH="1700000000")
    assert built.returncode == 0, built.stderr
    with zipfile.ZipFile(tmp_path / "dist" / "volplane_nfs-0.1.0-py3-none-any.whl") as wheel:
        assert {entry.date_time for entry in wheel.infolist()} == {(2023, 11, 14, 22, 13, 20)}
    for name in NAMES:
        assert metadata_of(tmp_path / "dist" / f"{name}-0.1.0-py3-none-any.whl").get_all("Project-URL") == [
            "Homepage, https://example.com/volplane",
            "Issue Tracker, https://example.com/issues",
        ]


@pytest.mark.parametrize("options", [("--url", "Homepage=volplane"), ("--url", 'Home"=https://a'), ("--url", "x")])
def test_what_is_no_url_is_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    built = build(tmp_path / "dist", *options)
    assert (built.returncode, built.stdout) == (1, "")
    assert "must be LABEL=URL" in built.stderr
    assert not list(tmp_path.iterdir())


def test_nothing_is_built_over_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "volplane-0.0.9.tar.gz").touch()
    built = build(tmp_path)
    assert (built.returncode, built.stderr) == (1, f"error: {tmp_path} is not empty\n")


@pytest.mark.parametrize(
    ("name", "borrowed"),
    [
        ("volplane", ()),
        pytest.param("volplane_embedded", ("volplane-embedded",), marks=pytest.mark.soak),
        pytest.param("volplane_testing", ("volplane-embedded", "volplane-testing"), marks=pytest.mark.soak),
        pytest.param("volplane_aws_ebs", ("boto3",), marks=pytest.mark.soak),
        pytest.param("volplane_gce_pd", ("google-cloud-compute", "requests"), marks=pytest.mark.soak),
        pytest.param("volplane_hostpath", (), marks=pytest.mark.soak),
        pytest.param("volplane_nfs", ("jeepney",), marks=pytest.mark.soak),
        pytest.param("volplane_csi", ("grpcio", "protobuf"), marks=pytest.mark.soak),
    ],
)
def test_it_works_where_nothing_of_the_repository_is(
    dist: Path, tmp_path: Path, name: str, borrowed: tuple[str, ...]
) -> None:
    """The ordinary run has the core's wheel alone; test_installed_plugins.py has all of them beside each other."""
    clean = CleanEnvironment(tmp_path / "venv")
    borrow(clean.site, "volplane", *borrowed)
    ours = ["volplane", *(["volplane_embedded"] if name == "volplane_testing" else []), name]
    clean.install(*(dist / f"{each}-0.1.0-py3-none-any.whl" for each in dict.fromkeys(ours)))
    (tmp_path / "elsewhere").mkdir()
    assert "Run the controllers for a cluster" in clean.run("volplane", "--help", cwd=tmp_path / "elsewhere")
    plugins = clean.run("volplane", "plugins", cwd=tmp_path / "elsewhere")
    assert "call_log" in plugins
    backend = name.removeprefix("volplane_")
    assert ("volplane-" in plugins) == (backend in ("aws_ebs", "csi", "gce_pd", "hostpath", "nfs")), plugins
    where = clean.run("python", "-c", f"import {name}; print({name}.__file__)", cwd=tmp_path / "elsewhere")
    assert Path(where.strip()) == clean.site / name / "__init__.py"
