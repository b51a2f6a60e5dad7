"""The documentation says what the code says, and its links lead somewhere."""

import dataclasses
import functools
import re
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

import pytest
from tools.recording import PICTURE
from tools.reference import pages

import volplane
from volplane_testing.conformance import RULES

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [*sorted(REPOSITORY.glob("*.md")), *sorted(REPOSITORY.glob("docs/**/*.md")), *REPOSITORY.glob("plugins/*/*.md")]


@functools.cache
def completed() -> Mapping[Path, str]:
    """Return the pages that the site completes from the code, as it shows them."""
    return {REPOSITORY / "docs" / name: text for name, text in pages().items()}


def test_a_page_that_the_site_completes_says_so_in_the_repository() -> None:
    for page, shown in completed().items():
        begun = page.read_text("utf-8")
        assert begun.partition("\n")[0] == shown.partition("\n")[0]
        assert "The site (`make site`) has this page in full" in begun, page


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links."""
    headings = re.findall(r"^#+ (.*)$", completed().get(page) or page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    shown = page.read_text("utf-8") + completed().get(page, "")
    text = re.sub(r"```.*?```|`[^`\n]*`", "", shown, flags=re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, part = target.partition("#")
        wanted = (page.parent / path).resolve() if path else page
        if not wanted.exists() or (part and part not in anchors(wanted)):
            broken.append(target)
    assert broken == []


def test_every_field_of_the_contract_says_what_it_means() -> None:
    text = pages()["reference/hooks.md"]
    rows = re.findall(r"^\| `(\w+)` \| \[?`[^\n]*?`(?:\]\(#\w+\))? \| [^|\n]* \| (.*) \|$", text, re.MULTILINE)
    contract = [getattr(volplane, name) for name in volplane.__all__]
    fields = [field.name for kind in contract if dataclasses.is_dataclass(kind) for field in dataclasses.fields(kind)]
    assert sorted(name for name, _ in rows) == sorted(fields)
    assert [name for name, meaning in rows if len(meaning) < 8] == []


def test_the_recording_of_the_demo_is_one_small_file_that_runs_and_loads_nothing() -> None:
    text = PICTURE.read_text("utf-8")
    assert len(text.encode()) < 100_000
    elements = {element.tag.partition("}")[2] for element in ET.fromstring(text).iter()}
    assert elements <= {"svg", "title", "style", "rect", "g", "text", "tspan"}
    assert not re.search(r"@import|@font-face|url\(|href|\son\w+=|://(?!www\.w3\.org/2000/svg|127\.0\.0\.1)", text)
    assert {"prefers-color-scheme:dark", "prefers-reduced-motion:reduce"} <= set(re.findall(r"prefers-[\w:-]+", text))


def test_the_readme_is_read_at_once() -> None:
    assert len((REPOSITORY / "README.md").read_text("utf-8").splitlines()) <= 90


def test_the_proofs_of_the_promises_are_there() -> None:
    text = (REPOSITORY / "docs" / "design" / "proofs.md").read_text("utf-8")
    named = re.findall(r"`((?:tests|plugins|examples)/[^`]+)`", text)
    assert len(named) > 20
    assert [each for each in named if not _is_there(*each.partition("::")[::2])] == []
    assert f"{len(RULES)} rules judge a backend" in text
    assert f"[{len(RULES)} rules]" in (REPOSITORY / "README.md").read_text("utf-8")


def test_the_tests_of_the_faults_are_there() -> None:
    text = (REPOSITORY / "docs" / "design" / "faults.md").read_text("utf-8")
    named = re.findall(r"`((?:tests|plugins|examples)/[^`]+)`", text)
    rows = [line for line in text.splitlines() if line.startswith("| ") and line.endswith(" |")]
    assert [row for row in rows if "`" not in row] == ["| fault | test |", "| sentence | test |"]
    assert [each for each in named if not _is_there(*each.partition("::")[::2])] == []


def test_each_row_that_compares_directories_names_a_test_that_is_there() -> None:
    text = (REPOSITORY / "docs" / "design" / "directories-compared.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| | csi")]
    named = [re.findall(r"`((?:tests|plugins)/[^`]+)` \|$", row) for row in rows]
    assert len(rows) > 20
    assert [row for row, tests in zip(rows, named, strict=True) if not tests] == []
    assert [each for (each,) in named if not _is_there(*each.partition("::")[::2])] == []


@pytest.mark.parametrize(("plugin", "official"), [("aws_ebs", "aws-ebs"), ("gce_pd", "gcp-compute-persistent-disk")])
def test_each_row_that_compares_a_cloud_names_a_test_that_is_there(plugin: str, official: str) -> None:
    text = (REPOSITORY / "docs" / "design" / "clouds-compared.md").read_text("utf-8")
    section = text.split(f"\n## {plugin} and {official}-csi-driver\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| | here")]
    named = [re.findall(r"`((?:tests/[a-z_/]+)?test_\w+\.py::test_\w+)` \|$", row) for row in rows]
    assert len(rows) > 40
    assert [row for row, tests in zip(rows, named, strict=True) if not tests] == []
    paths = [test if test.startswith("tests/") else f"plugins/{plugin}/tests/{test}" for (test,) in named]
    assert [each for each in paths if not _is_there(*each.partition("::")[::2])] == []


def test_the_tests_that_the_page_of_requirements_names_are_there() -> None:
    text = (REPOSITORY / "docs" / "design" / "requirements.md").read_text("utf-8")
    named = re.findall(r"`((?:[a-z_]+/)+test_\w+\.py(?:::\w+)?)`", text)
    assert len(named) > 100
    assert [each for each in named if not _is_there(*f"tests/{each}".partition("::")[::2])] == []


def test_what_no_test_needs_to_notice_is_still_in_the_code_and_has_a_reason() -> None:
    table = tomllib.loads((REPOSITORY / "tools" / "mutants" / "excused.toml").read_text("utf-8"))
    entries = [(path, entry) for path, entries in table.items() for entry in entries]
    lines = {path: {line.strip() for line in (REPOSITORY / path).read_text("utf-8").splitlines()} for path in table}
    stale = [(path, entry["was"]) for path, entry in entries if not set(entry["was"].splitlines()) <= lines[path]]
    assert stale == []
    assert [entry for _, entry in entries if len(entry["reason"]) < 10 or not entry["now"]] == []


def _is_there(path: str, test: str) -> bool:
    """Whether the file exists, and has the test that is named with it."""
    file = REPOSITORY / path
    return file.exists() and (not test or f"def {test}(" in file.read_text("utf-8"))
