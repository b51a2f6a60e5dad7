"""The source distribution and the wheel of each distribution, and the Helm chart: the same bytes from the same commit.

Only files that git tracks go in, as they are in the working tree. Each wheel is built from the source distribution.
Times in the archives are SOURCE_DATE_EPOCH, by default that of the last commit.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import yaml
from hatchling.build import build_sdist, build_wheel

ROOT: Final = Path(__file__).resolve().parents[2]
CONSTRAINTS: Final = (ROOT / "constraints.txt", ROOT / "constraints-google.txt")
"""The second has what the backend gce_pd alone needs."""


def build(out: Path, urls: Mapping[str, str]) -> list[Path]:
    """Build into `out`, which must be empty; what was built."""
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise ValueError(f"{out} is not empty")
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch())  # for hatchling
    built: list[Path] = []
    with TemporaryDirectory() as directory:
        stage = Path(directory, "stage")
        for name in _git("ls-files", "-z").split("\0"):
            if name and (ROOT / name).is_file():
                (stage / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, stage / name)
        for project in _projects(stage):
            _add_urls(project / "pyproject.toml", urls)
            with chdir(project):
                source = out / build_sdist(str(out))
            subprocess.run(["tar", "-xzf", str(source), "-C", directory], check=True)
            with chdir(Path(directory, source.name.removesuffix(".tar.gz"))):
                built += [source, out / build_wheel(str(out))]
        built.append(_chart(stage / "deploy" / "chart", out))
    return built


def epoch() -> int:
    """Return SOURCE_DATE_EPOCH, by default the time of the last commit."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct"))


def version() -> str:
    """Return that of volplane."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["version"])


def pins(constraints: Path) -> list[str]:
    """Return the versions that a file pins: name==version."""
    return re.findall(r"^([A-Za-z0-9._-]+==[^\s;]+)", constraints.read_text("utf-8"), re.MULTILINE)


def write_checksums(out: Path, files: Iterable[Path]) -> Path:
    """Write SHA256SUMS, which `sha256sum --check` reads; the file."""
    sums = out / "SHA256SUMS"
    lines = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(files))
    sums.write_text("".join(lines), "ascii")
    return sums


def _chart(chart: Path, out: Path) -> Path:
    """Pack the chart as `helm package` does, with the times of the commit."""
    of_chart, time = yaml.safe_load((chart / "Chart.yaml").read_text("utf-8"))["version"], epoch()
    packed = out / f"volplane-chart-{of_chart}.tgz"
    with gzip.GzipFile(packed, "wb", mtime=time) as stream, tarfile.open(fileobj=stream, mode="w") as archive:
        for path in sorted(each for each in chart.rglob("*") if each.is_file()):
            entry = tarfile.TarInfo(f"volplane/{path.relative_to(chart)}")
            entry.size, entry.mtime, entry.mode = path.stat().st_size, time, 0o644
            with path.open("rb") as file:
                archive.addfile(entry, file)
    return packed


def _projects(root: Path) -> Iterator[Path]:
    yield root
    yield from (root / "embedded", root / "testing")
    yield from sorted(path.parent for path in root.glob("plugins/*/pyproject.toml"))


def _git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _add_urls(pyproject: Path, urls: Mapping[str, str]) -> None:
    if urls:
        lines = [f'"{label}" = "{url}"' for label, url in urls.items()]
        pyproject.write_text("\n".join([pyproject.read_text("utf-8"), "[project.urls]", *lines, ""]), "utf-8")

