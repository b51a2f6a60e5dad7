"""Whoever comes with a question finds the answer within two clicks from the first page of the documentation."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from tools.reference_contract import errors_page

DOCS = Path(__file__).resolve().parents[2] / "docs"
FIRST = DOCS / "README.md"
QUESTIONS = [
    # I try it
    ("What does it do?", "tutorial/watch-volumes-live.md", "make demo"),
    ("Can I use it with my own kubectl, without a cluster?", "how-to/try-it-with-kubectl.md", "volplane dev --data"),
    ("How do I get the commands onto my machine?", "how-to/get-volplane.md", "make dist|--find-links"),
    ("What does it do otherwise than the stock controllers?", "explanation/differences.md#binding", "stock|volplane"),
    ("How many claims does it bring a second?", "explanation/performance.md#one-claim", "claims per second"),
    # I run a cluster
    ("How do I install it?", "tutorial/install-volplane.md", "volplane manifests|kubectl apply -f install.yaml"),
    ("How do I configure a driver?", "reference/configuration.md", "drivers[].backend|drivers[].options"),
    ("Where do credentials of a storage system go?", "how-to/give-a-driver-a-secret.md", "secret:NAMESPACE/NAME/KEY"),
    ("Why is my claim Pending?", "how-to/watch-it-work.md#why-is-this-claim-waiting", "volplane explain pvc"),
    ("An alert fires: what do I do?", "how-to/answer-alerts.md#volplanedriverunhealthy", "volplane status|credentials"),
    ("How do I move pods from a dead node?", "how-to/attach-volumes.md#a-node-is-lost", "out-of-service|six minutes"),
    (
        "Somebody deleted a claim: are the data gone?",
        "how-to/undelete-a-volume.md",
        "volplane.dev/trash|volplane undelete",
    ),
    ("How do I go back to yesterday's data?", "how-to/restore-and-clone.md", "dataSource|VolumeSnapshot"),
    ("Which disks does nobody use?", "how-to/find-leaks.md", "orphan|volplane leaks --fix"),
    ("What can a tenant do to others?", "explanation/trust.md#what-a-tenant-can-reach", "sealed|subPath"),
    ("How do I get rid of it, and keep the data?", "how-to/leave-a-cluster.md#keep-the-data", "drain --release"),
    # I have storage
    ("What do I have to write?", "tutorial/write-a-backend.md#1-a-first-try", "Three hooks are required|def provision"),
    ("How do I attach disks, and grow them?", "how-to/attach-and-grow-in-a-backend.md", "AttachedElsewhere|def expand"),
    ("Which error do I raise?", "reference/errors.md", "ResourceExhausted|nothing_done"),
    ("How do I know that my backend loses nothing?", "how-to/test-a-backend.md", "volplane check|crash at any line"),
]
"""(a question, the page and perhaps the section that answers it, words of the answer)."""


def text_of(page: Path) -> str:
    """The page; that of errors as the site completes it."""
    return "\n".join(errors_page()) if page == DOCS / "reference" / "errors.md" else page.read_text("utf-8")


def linked(page: Path) -> set[Path]:
    """The pages of the documentation that one click leads to."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", text_of(page), flags=re.DOTALL)
    targets = {(page.parent / target).resolve() for target in re.findall(r"\]\(([^)\s#:]+\.md)[^)\s]*\)", text)}
    return {target for target in targets if target.is_relative_to(DOCS) and target.is_file()}


@functools.cache
def within(clicks: int) -> frozenset[Path]:
    if not clicks:
        return frozenset({FIRST})
    return within(clicks - 1) | {page for each in within(clicks - 1) for page in linked(each)}


def section(page: Path, anchor: str) -> str:
    """What stands below the heading of this anchor; without one the whole page."""
    if not anchor:
        return text_of(page)
    found, here, fenced = [], False, False
    for line in text_of(page).splitlines():
        fenced ^= line.lstrip().startswith("```")
        if line.startswith("#") and not fenced:
            here = re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-") == anchor
        elif here:
            found.append(line)
    return "\n".join(found)


@pytest.mark.parametrize(("question", "place", "words"), QUESTIONS, ids=[question for question, _, _ in QUESTIONS])
def test_an_answer_is_two_clicks_away(question: str, place: str, words: str) -> None:
    path, _, anchor = place.partition("#")
    page = (DOCS / path).resolve()
    assert page in within(2), question
    assert [each for each in words.split("|") if each not in section(page, anchor)] == [], question


def test_there_are_twenty_questions_behind_three_doors() -> None:
    assert len({question for question, _, _ in QUESTIONS}) == 20
    headings = re.findall(r"^## (.*)$", text_of(FIRST), re.MULTILINE)
    assert headings[:3] == ["I try it", "I run a cluster", "I have storage"]


def test_every_page_is_two_clicks_away() -> None:
    everything = {page.resolve() for page in DOCS.glob("**/*.md")} - {DOCS / "index.md"}
    assert sorted(str(page.relative_to(DOCS)) for page in everything - within(2)) == []
