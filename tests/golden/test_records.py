"""What earlier releases have written to claims, volumes and attachments is read, and written again byte for byte."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from volplane.snapshots.schedule import RunRecord
from volplane.snapshots.state import SnapshotIntent
from volplane.state.records import (
    AttachmentIntent,
    ChangeIntent,
    DeleteIntent,
    RecycleIntent,
    Sealer,
    TrashRecord,
    named_in_record,
    read_intent,
    write_intent,
)

GOLDEN = json.loads((Path(__file__).parent / "records.json").read_text("utf-8"))
KEY, CLAIM = bytes.fromhex(GOLDEN["key"]), GOLDEN["claim"]
OURS = "volplane-system"
READ: dict[str, Callable[[str], Any]] = {
    "recycle": partial(read_intent, RecycleIntent),
    "delete": partial(read_intent, DeleteIntent),
    "change": partial(read_intent, ChangeIntent),
    "attachment": partial(read_intent, AttachmentIntent),
    "trash": partial(read_intent, TrashRecord),
    "snapshot": partial(read_intent, SnapshotIntent),
    "run": partial(read_intent, RunRecord),
}


def rows(*kinds: str) -> list[Any]:
    return [pytest.param(kind, row, id=f"{kind}: {row['what']}") for kind in kinds for row in GOLDEN[kind]]


@pytest.mark.parametrize(("kind", "row"), rows(*READ))
def test_a_record_is_written_again_as_it_was_read(kind: str, row: dict[str, str]) -> None:
    read = READ[kind](row["text"])
    assert read is not None
    assert write_intent(read) == row["text"]


@pytest.mark.parametrize("row", GOLDEN["sealed"], ids=lambda row: row["what"])
def test_a_sealed_record_opens_and_is_sealed_again_to_the_same_bytes(row: dict[str, str]) -> None:
    sealer = Sealer(KEY, row["installation"])
    opened = sealer.open(CLAIM, row["text"])
    assert opened is not None
    assert sealer.seal(CLAIM, opened) == row["text"]
    written = json.loads(row["text"])["intent"]
    named = named_in_record(row["text"])
    assert (named.driver, named.segment) == (written["driver"], written.get("segment"))


@pytest.mark.parametrize("row", GOLDEN["sealed"], ids=lambda row: row["what"])
def test_a_record_names_the_installation_that_has_sealed_it(row: dict[str, str]) -> None:
    other = Sealer(b"another key, of 32 bytes or more", "elsewhere")
    assert other.other_author(CLAIM, row["text"]) == row["installation"]


@pytest.mark.parametrize("row", GOLDEN["signed"], ids=lambda row: row["subject"])
def test_a_seal_of_a_pod_or_a_claim_of_a_scrub_is_the_same(row: dict[str, str]) -> None:
    sealer, content = Sealer(KEY, OURS), row["content"].encode()
    assert sealer.sign(row["subject"], content) == row["seal"]
    assert sealer.signed(row["subject"], content, row["seal"])
    assert not sealer.signed(row["subject"], content + b" ", row["seal"])


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        pytest.param(kind, text, id=f"{kind}: {what}")
        for kind, texts in GOLDEN["unreadable"].items()
        for what, text in texts.items()
    ],
)
def test_what_was_unreadable_stays_unreadable(kind: str, text: str) -> None:
    assert (Sealer(KEY, OURS).open(CLAIM, text) if kind == "sealed" else READ[kind](text)) is None


def test_every_field_of_every_record_is_in_one_of_the_texts() -> None:
    """A field that no text has could be renamed unnoticed."""
    fields = {
        kind: {
            name for row in GOLDEN[kind] for name in (json.loads(row["text"]).get("intent") or json.loads(row["text"]))
        }
        for kind in ("sealed", *READ)
    }
    structs = {kind: type(READ[kind](GOLDEN[kind][0]["text"])) for kind in READ}
    structs["sealed"] = type(Sealer(KEY, OURS).open(CLAIM, GOLDEN["sealed"][0]["text"]))
    assert fields == {kind: set(struct.__struct_encode_fields__) for kind, struct in structs.items()}
