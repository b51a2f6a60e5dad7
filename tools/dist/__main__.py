"""Build what is released: a source distribution and a wheel of each distribution, the Helm chart, the list of packages
(SBOM), the image if asked for, and the checksums of all in SHA256SUMS; the same bytes from the same commit.

python -m tools.dist --out DIRECTORY [--url LABEL=URL]... [--image BACKENDS]

`--url` adds a project URL to the metadata: the repository does not know where it is published.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tools.dist.distributions import ROOT, build, epoch, version, write_checksums
from tools.image.__main__ import build as build_image
from tools.image.__main__ import context
from tools.sbom import of_wheels

IMAGE: Final = "volplane-image"


def main(arguments: Sequence[str]) -> int:
    """Build everything into `--out`; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.dist", description="Build what is released, reproducibly.")
    parser.add_argument("--out", type=Path, required=True, help="an empty directory, or one to make")
    parser.add_argument("--url", action="append", default=[], metavar="LABEL=URL", help="a project URL; repeatable")
    parser.add_argument("--image", default="", metavar="BACKENDS", help="the image with these too: hostpath,nfs")
    given = parser.parse_args(arguments)
    try:
        urls = dict(_url(text) for text in given.url)
        for path in release(given.out.absolute(), urls, [name for name in given.image.split(",") if name]):
            print(path)
    except subprocess.CalledProcessError as error:
        print(f"error: {' '.join(map(str, error.cmd[:3]))}: {error.stderr or error}", file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def release(out: Path, urls: Mapping[str, str], backends: Sequence[str] = ()) -> list[Path]:
    """Build into `out`, which must be empty; what was built. backends: of the image; none = no image."""
    built = build(out, urls)
    packages = out / f"volplane-{version()}.cdx.json"
    packages.write_text(of_wheels([path for path in built if path.suffix == ".whl"], epoch()), "utf-8")
    built.append(packages)
    if backends:
        with TemporaryDirectory() as directory:
            prepared = Path(directory, "image")
            context(prepared, backends)
            archive = build_image(prepared, f"localhost/volplane:{version()}")
            for source, end in ((archive, "tar"), (prepared / "sbom.cdx.json", "cdx.json")):
                built.append(Path(shutil.copyfile(source, out / f"{IMAGE}-{version()}.{end}")))
    return [*built, write_checksums(out, built)]


def _url(text: str) -> tuple[str, str]:
    label, _, url = text.partition("=")
    if not re.fullmatch(r"[A-Za-z][A-Za-z ]{0,31}", label) or not re.fullmatch(r"https?://[^\s\"\\]+", url):
        raise ValueError(f"--url {text!r} must be LABEL=URL, such as Homepage=https://example.com/volplane")
    return label, url


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
