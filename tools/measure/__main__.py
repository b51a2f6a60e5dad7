"""Measure what the restructuring of the code is judged by.

python -m tools.measure                    every row, with its definition
python -m tools.measure --list ROW         what a row counts, one a line
python -m tools.measure --root DIRECTORY   another checkout (without the walk, which runs the code that is here)
python -m tools.measure --branches 7       50 branches that guard data, for a person to judge
python -m tools.measure --duplicates       places that share twelve lines of one shape, and are not argued
python -m tools.measure --tests 3487d747   tests of that commit that are neither here nor replaced
"""

from __future__ import annotations

import argparse
import subprocess
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.measure import code, copies
from tools.measure.tests_of import missing_tests
from tools.measure.walk import walk

__all__ = ["ROWS", "Row"]

HERE: Final = Path(__file__).resolve().parents[2]
ARGUED: Final = Path(__file__).with_name("argued.toml")
SOURCES: Final = (
    "core/volplane",
    "plugins/aws_ebs/src",
    "plugins/gce_pd/src",
    "plugins/hostpath/src",
    "plugins/nfs/src",
    "testing/src",
)
GENERATED: Final = (
    "deploy/renderings/",
    "deploy/monitoring/dashboard.json",
    "deploy/chart/files/rules.yaml",
    "docs/reference/aws-ebs-iam.json",
    "docs/reference/gce-pd-roles.json",
)
MARKS: Final = ("Written by tools/", "Written by `python -m tools.", "written from the code")
"""In one of the first lines of a generated file."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table. most: where it shall end; 0: judged by a person. found: what counts, one text each."""

    name: str
    most: int
    definition: str
    found: Callable[[Path], Sequence[str]]
    total: Callable[[Sequence[str]], int] = len


def _first_number(texts: Sequence[str]) -> int:
    return sum(int(text.split()[0]) for text in texts)


def _largest(texts: Sequence[str]) -> int:
    return max((int(text.split()[0]) for text in texts), default=0)


def _functions(root: Path) -> list[str]:
    return [f"{len(each.functions)} {each.path}" for each in code.core_modules(root)]


def _kits(root: Path) -> list[str]:
    return [f"{each.text.count(chr(10))} {each.path}" for each in code.core_modules(root, kits=True)]


def _places(root: Path) -> list[str]:
    places = code.places_of_controllers(code.core_modules(root))
    return [f"{len(files)} {queue}: {', '.join(files)}" for queue, files in places.items()]


def _copies(root: Path, *, declared: bool = False) -> list[str]:
    return [f"{lines} {pair}" for pair, lines in copies.shared_by_plugins(root, declared=declared).items()]


def tracked(root: Path) -> list[Path]:
    """Return the files of the checkout that git tracks."""
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, check=True)
    paths = (root / name for name in listed.stdout.decode().split("\0") if name)
    return [path for path in paths if path.is_file()]


def _generated(root: Path) -> list[str]:
    found = []
    for path in tracked(root):
        name, text = str(path.relative_to(root)), path.read_text("utf-8", errors="replace")
        marked = name.startswith(("docs/", "deploy/")) and any(mark in text[:400] for mark in MARKS)
        if name.startswith(GENERATED) or marked:
            found.append(f"{text.count(chr(10))} {name}")
    return found


def _words(root: Path) -> list[str]:
    pages = (path for path in tracked(root) if path.suffix == ".md" and path.is_relative_to(root / "docs"))
    kept = (path for path in pages if not path.is_relative_to(root / "docs" / "design"))
    return [f"{len(path.read_text('utf-8').split())} {path.relative_to(root)}" for path in kept]


ROWS: Final = (
    Row(
        "core lines",
        28_900,
        "lines of core/volplane without the kits: the packages cloud, directory, snapshots, trash, csi, ui, asking, "
        "and commands cli/NAME.py of such names; 28,000 at the end of the restructuring (27,983 at b4e1fb41), 900 for "
        "the seams of what came after it: the trash, snapshots and groups in contract and leak check, volumes with a "
        "source, CSI",
        lambda root: [f"{each.text.count(chr(10))} {each.path}" for each in code.core_modules(root)],
        _first_number,
    ),
    Row("core files", 165, "its files", lambda root: [str(each.path) for each in code.core_modules(root)]),
    Row(
        "functions in core",
        1_700,
        "def and async def in them, methods and inner ones included",
        _functions,
        _first_number,
    ),
    Row("lines of kits", 0, "lines of these kits, which have no bound", _kits, _first_number),
    Row(
        "reads of a role",
        5,
        "reads of what Role (once Settings) says a process is for, outside roles/ and the assembly "
        "(process/, and the functions of duties that make controllers): fields, and `runs`",
        lambda root: code.role_reads(code.core_modules(root)),
    ),
    Row(
        "files of a claim's walk",
        45,
        "files of core in which a function runs while a claim is provisioned, bound, released and deleted; all of them",
        lambda root: sorted(walk().files) if root == HERE else (),
    ),
    Row(
        "results of several types",
        8,
        "functions of core whose annotated result is a union of two types or more besides None; the contracts of "
        "hooks in hookspecs.py do not count: plugins have them",
        lambda root: code.mixed_results([each for each in code.core_modules(root) if each.path.name != "hookspecs.py"]),
    ),
    Row(
        "places for a new controller",
        2,
        "the most of: its package, and files elsewhere in core that import its Duty or have its queue as a text",
        _places,
        _largest,
    ),
    Row(
        "lines of plugins that stand in two",
        100,
        "runs of three lines or more, equal but for texts and numbers, of the two clouds and of the two on directories;"
        " lines that only declare something do not count: rows of tables, options, hooks' signatures",
        _copies,
        _first_number,
    ),
    Row(
        "the same with declarations",
        0,
        "without a bound, for the record: 683 + 300 at 3487d747, where the row above was 92 + 51",
        lambda root: _copies(root, declared=True),
        _first_number,
    ),
    Row(
        "generated lines in git",
        1_000,
        "lines of files that a tool writes: those with its mark, and renderings, dashboard, schema and IAM files;"
        " lock files, schemas of facts and recordings apart",
        _generated,
        _first_number,
    ),
    Row("words of docs/ outside docs/design/", 50_000, "words of Markdown pages", _words, _first_number),
)
BY_PERSONS: Final = (
    "branches whose why a reader finds: judged by a person, 45 of 50 at least; --branches SEED draws them",
    "CPU a life: python -m bench.paired --base 3487d747 --pairs 15, ratio 1.02 at most",
)


def table(root: Path) -> str:
    """Return every row: its name, how much it is now, where it shall end, and its definition."""
    lines = []
    for row in ROWS:
        now = f"{row.total(row.found(root)):,}" if root == HERE or "walk" not in row.name else "-"
        bound = f"at most {row.most:,}" if row.most else ""
        lines.append(f"{row.name:36} {now:>8}  {bound:15} {row.definition}")
    return "\n".join((*lines, "", *BY_PERSONS))


def duplicates(root: Path) -> list[str]:
    """Return the pairs of places of one shape for which no reason is given in argued.toml."""
    argued = [set(each["files"]) for each in tomllib.loads(ARGUED.read_text("utf-8"))["pairs"]]
    found = copies.shapes(root, SOURCES)
    return [str(pair) for pair in found if {pair.one.path, pair.other.path} not in argued]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=HERE, metavar="DIRECTORY")
    parser.add_argument("--list", metavar="ROW", choices=[row.name for row in ROWS])
    parser.add_argument("--branches", type=int, metavar="SEED")
    parser.add_argument("--duplicates", action="store_true")
    parser.add_argument("--tests", metavar="COMMIT")
    chosen = parser.parse_args()
    root = chosen.root.resolve()
    if chosen.list is not None:
        [row] = [row for row in ROWS if row.name == chosen.list]
        print("\n".join(row.found(root)))
    elif chosen.branches is not None:
        print("\n".join(code.guards(code.core_modules(root), chosen.branches)))
    elif chosen.duplicates:
        found = duplicates(root)
        print("\n".join((*found, f"{len(found)} pairs")))
    elif chosen.tests is not None:
        found = missing_tests(root, chosen.tests)
        print("\n".join((*found, f"{len(found)} tests of {chosen.tests} are neither here nor replaced")))
        raise SystemExit(1 if found else 0)
    else:
        print(table(root))


if __name__ == "__main__":
    main()
