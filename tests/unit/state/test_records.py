"""The records of what may have side effects: sealed on claims, plain on volumes, and never trusted when damaged."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volplane.drivers.contract import LONGEST_STATE
from volplane.state.records import (
    INTENT_VERSION,
    AttachmentIntent,
    ChangeIntent,
    ClaimIntent,
    DeleteIntent,
    Intent,
    RecycleIntent,
    Sealer,
    read_intent,
    write_intent,
)

SEALER = Sealer(b"k" * 32)
INTENT = ClaimIntent(v=INTENT_VERSION, driver="disk.example.com", generation=3, segment={"zone": "a"}, state={"job": 7})


def test_a_sealed_intent_opens_to_what_was_sealed() -> None:
    assert SEALER.open("uid", SEALER.seal("uid", INTENT)) == INTENT


def test_the_same_intent_is_written_the_same_way() -> None:
    """Else a patch that changes nothing would look like a change."""
    assert SEALER.seal("uid", INTENT) == SEALER.seal("uid", INTENT)


@pytest.mark.parametrize("text", [None, "", "{}", "[]", "null", "no json", '{"intent":{},"seal":""}', '"\ud800"'])
def test_what_is_no_intent_opens_to_nothing(text: str | None) -> None:
    assert SEALER.open("uid", text) is None


def test_an_intent_counts_for_its_own_claim_and_key_only() -> None:
    sealed = SEALER.seal("uid", INTENT)
    assert SEALER.open("another", sealed) is None
    assert Sealer(b"x" * 32).open("uid", sealed) is None


@pytest.mark.parametrize(("field", "value"), [("driver", "other"), ("generation", 4), ("state", {}), ("v", 99)])
def test_an_intent_changed_by_hand_is_worth_nothing(field: str, value: object) -> None:
    whole = json.loads(SEALER.seal("uid", INTENT))
    whole["intent"][field] = value
    assert SEALER.open("uid", json.dumps(whole)) is None


@pytest.mark.parametrize(("version", "readable"), [(INTENT_VERSION, True), (INTENT_VERSION - 1, True), (99, False)])
def test_intents_are_read_one_version_back_and_never_from_the_future(version: int, readable: bool) -> None:
    """A rolling upgrade mixes two versions; a downgrade must not guess."""
    sealed = SEALER.seal("uid", ClaimIntent(v=version, driver="disk.example.com"))
    assert (SEALER.open("uid", sealed) is not None) is readable


@pytest.mark.parametrize(("version", "readable"), [(INTENT_VERSION, True), (INTENT_VERSION - 1, True), (99, False)])
@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (RecycleIntent, {"claim": "uid", "erased": True}),
        (DeleteIntent, {"deleteState": {"job": 7}}),
        (ChangeIntent, {"target": "5", "state": {"job": 7}}),
        (
            AttachmentIntent,
            {"driver": "d", "asset": "a", "volume": "v", "uid": "u", "handle": "h", "source": "csi", "fields": {}}
            | {"capacity": 1},
        ),
    ],
)
def test_the_records_of_volumes_are_read_one_version_back_and_never_from_the_future(
    kind: type[Intent], content: dict[str, object], version: int, readable: bool
) -> None:
    """What "erased" means may change in a later version; after a downgrade the scrub starts anew."""
    assert (read_intent(kind, json.dumps({"v": version, **content})) is not None) is readable


def test_unknown_fields_of_a_later_release_do_not_break_the_seal_or_the_reading() -> None:
    later = Sealer(b"k" * 32)
    content = b'{"colour":"red","driver":"disk.example.com","v":%d}' % INTENT_VERSION
    text = json.dumps({"intent": json.loads(content), "seal": later.sign("uid", content)}, separators=(",", ":"))
    opened = SEALER.open("uid", text)
    assert opened is not None
    assert opened.driver == "disk.example.com"


def test_a_key_must_be_long_enough_to_be_one() -> None:
    with pytest.raises(ValueError, match="at least 16 bytes, this one 3"):
        Sealer(b"abc")


@given(st.text(max_size=200))
def test_no_text_on_a_claim_or_volume_does_harm(text: str) -> None:
    assert SEALER.open("uid", text) is None
    assert read_intent(RecycleIntent, text) is None or text.strip().startswith("{")
    assert read_intent(DeleteIntent, text) is None or text.strip().startswith("{")


def test_intents_of_volumes_are_read_back_and_keep_what_is_not_the_default() -> None:
    scrub = RecycleIntent(v=1, claim="uid", attempt=2, pod="p", failed="disk error", given_up=True)
    assert read_intent(RecycleIntent, write_intent(scrub)) == scrub
    assert json.loads(write_intent(RecycleIntent(v=1, claim="uid"))) == {"v": 1, "claim": "uid"}
    delete = DeleteIntent(v=1, delete_state={"job": 3})
    assert read_intent(DeleteIntent, write_intent(delete)) == delete


def test_the_intent_of_another_operation_is_not_taken_for_this_one() -> None:
    scrub = write_intent(RecycleIntent(v=1, claim="uid"))
    delete = write_intent(DeleteIntent(v=1, delete_state={}))
    assert read_intent(DeleteIntent, scrub) is None
    assert read_intent(RecycleIntent, delete) is None


# --- who has sealed it ---------------------------------------------------------------------------------------------

OURS, THEIRS = Sealer(b"k" * 32, "ours"), Sealer(b"x" * 32, "theirs")


def test_a_record_of_another_installation_names_it() -> None:
    assert OURS.other_author("uid", THEIRS.seal("uid", INTENT)) == "theirs"


@pytest.mark.parametrize(
    "text",
    [
        OURS.seal("uid", INTENT),
        Sealer(b"lost key of ours, 32 bytes long!", "ours").seal("uid", INTENT),
        SEALER.seal("uid", INTENT),
        "nonsense",
        '{"intent":{},"seal":"","by":7}',
        '{"intent":{},"seal":"","by":"a namespace\\nwith a newline"}',
        json.dumps({"intent": {}, "seal": "", "by": "n" * 64}),
    ],
)
def test_no_other_installation_is_seen_where_none_can_be(text: str) -> None:
    assert OURS.other_author("uid", text) == ""


def test_a_release_that_names_no_installation_reads_what_one_that_does_has_sealed() -> None:
    """In a rolling upgrade, in both directions."""
    assert SEALER.open("uid", OURS.seal("uid", INTENT)) == INTENT
    assert OURS.open("uid", SEALER.seal("uid", INTENT)) == INTENT


def test_texts_that_tenants_write_instead_of_a_record_are_not_kept() -> None:
    sealer = Sealer(b"0123456789abcdef")
    tracemalloc.start()
    try:
        for number in range(100):
            for size in (3_000, 60_000, 250_000):
                assert sealer.open("u", f"{number}\U0001f600" + "x" * size) is None
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2**20


def test_the_longest_record_that_is_written_can_be_opened() -> None:
    sealer = Sealer(b"0123456789abcdef")
    state = {"text": "x" * (LONGEST_STATE - 20)}
    segment = {f"example.com/key-{number}": "z" * 63 for number in range(20)}
    intent = ClaimIntent(v=1, driver="d", segment=segment, state=state, discard=state)
    assert sealer.open("u", sealer.seal("u", intent)) == intent
