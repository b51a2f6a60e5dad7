"""Build what is released: a source distribution and a wheel of each distribution, the Helm chart, and the checksums of
all in SHA256SUMS; the same bytes from the same commit.

python -m tools.dist --out DIRECTORY [--url LABEL=URL]...

Only files that git tracks go in, as they are in the working tree. Each wheel is built from the source distribution.
Times in the archives are SOURCE_DATE_EPOCH, by default that of the last commit. `--url` adds a project URL to the
metadata: the repository does not know where it is published.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from hatchling.build import build_sdist, build_wheel

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: Sequence[str]) -> int:
    """Build everything into `--out`; the exit code."""
    parser = argparse.ArgumentParser(description="Build every distribution, reproducibly.")
    parser.add_argument("--out", type=Path, required=True, help="an empty directory, or one to make")
    parser.add_argument("--url", action="append", default=[], metavar="LABEL=URL", help="a project URL; repeatable")
    given = parser.parse_args(arguments)
    try:
        urls = dict(_url(text) for text in given.url)
        for path in build(given.out.absolute(), urls):
            print(path)
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def build(out: Path, urls: Mapping[str, str]) -> list[Path]:
    """Build into `out`, which must be empty; what was built."""
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise ValueError(f"{out} is not empty")
    os.environ.setdefault("SOURCE_DATE_EPOCH", _git("log", "-1", "--format=%ct").strip())
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
    sums = out / "SHA256SUMS"
    lines = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(built))
    sums.write_text("".join(lines), "ascii")
    return [*built, sums]


def _chart(chart: Path, out: Path) -> Path:
    """Pack the chart as `helm package` does, with the times of the commit."""
    version = yaml.safe_load((chart / "Chart.yaml").read_text("utf-8"))["version"]
    packed = out / f"volplane-chart-{version}.tgz"
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    with gzip.GzipFile(packed, "wb", mtime=epoch) as stream, tarfile.open(fileobj=stream, mode="w") as archive:
        for path in sorted(each for each in chart.rglob("*") if each.is_file()):
            entry = tarfile.TarInfo(f"volplane/{path.relative_to(chart)}")
            entry.size, entry.mtime, entry.mode = path.stat().st_size, epoch, 0o644
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


def _url(text: str) -> tuple[str, str]:
    label, _, url = text.partition("=")
    if not re.fullmatch(r"[A-Za-z][A-Za-z ]{0,31}", label) or not re.fullmatch(r"https?://[^\s\"\\]+", url):
        raise ValueError(f"--url {text!r} must be LABEL=URL, such as Homepage=https://example.com/volplane")
    return label, url


def _add_urls(pyproject: Path, urls: Mapping[str, str]) -> None:
    if urls:
        lines = [f'"{label}" = "{url}"' for label, url in urls.items()]
        pyproject.write_text("\n".join([pyproject.read_text("utf-8"), "[project.urls]", *lines, ""]), "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
