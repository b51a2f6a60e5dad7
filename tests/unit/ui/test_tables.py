"""Search, order and changes of the page's tables."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from unit.attach.objects import attachment, bound, node
from unit.binding.objects import claim, storage_class, volume
from unit.ui.seen import NOW, event, operation, seen, told
from volplane.kube.objects import Claim, CsiStorageCapacity
from volplane.ui.rows import COLUMNS
from volplane.ui.tables import MOST_ROWS, Tables, matches, words
from volplane.ui.told import Told
from volplane.ui.watched import Watched


def tables(*objects: object) -> tuple[Tables, Watched]:
    watched = seen()
    made = Tables(watched)
    seen(*objects, watched=watched)  # type: ignore[arg-type]
    return made, watched


def ids(made: Tables, view: str, search: str = "") -> list[str]:
    return [row["id"] for row in made.window(view, search, 0, 100)["rows"]]


CLAIMS = [claim("data", storageClassName="fast"), claim("logs", storageClassName="slow", status={"phase": "Bound"})]


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("", ["default/data", "default/logs"]),
        ("DATA", ["default/data"]),
        ("default bound", ["default/logs"]),
        ("-data", ["default/logs"]),
        ("class:fast", ["default/data"]),
        ("-phase:bound", ["default/data"]),
        ("name:fast", []),
        ('"default/logs"', ["default/logs"]),
        ('"default/lo', ["default/logs"]),
        ("nowhere:fast", []),
    ],
)
def test_a_search_finds(search: str, found: list[str]) -> None:
    made, _ = tables(*CLAIMS)
    assert ids(made, "claims", search) == found


def test_a_search_of_any_characters_is_one() -> None:
    assert words("a 'b" + "x" * 1000)[0] == "a"
    made, _ = tables(*CLAIMS)
    for search in ("'", '"', "\\", "-", ":", "::", "class:", "\x00"):
        assert isinstance(ids(made, "claims", search), list)


def test_a_window_tells_how_many_there_are() -> None:
    made, _ = tables(*(claim(f"c-{number:03}") for number in range(30)))
    window = made.window("claims", "", 10, 5)
    assert (window["total"], window["found"], [row["id"] for row in window["rows"]]) == (
        30,
        30,
        [f"default/c-{number:03}" for number in range(10, 15)],
    )
    assert made.window("claims", "c-01", -5, 10**9)["found"] == 10
    assert len(made.window("claims", "", 0, 10**9)["rows"]) <= MOST_ROWS


def test_what_changes_and_goes_is_seen() -> None:
    made, watched = tables(claim("a"), claim("b"))
    assert ids(made, "waiting") == ["claim/default/a", "claim/default/b"]
    before = made.changes
    watched.claims.observe(claim("a", resourceVersion="2", status={"phase": "Bound"}))
    watched.claims.observe_deleted("default/b", "uid-b", 3)
    assert made.changes > before
    assert ids(made, "waiting") == []
    assert ids(made, "claims") == ["default/a"]


def test_only_what_changed_is_made_again() -> None:
    made, watched = tables(*(claim(f"c-{number}") for number in range(100)))
    made.window("claims", "", 0, 10)
    asked: list[str] = []
    table = made._tables["claims"]
    make = table.make
    table.make = lambda kind, key: (asked.append(key), make(kind, key))[1]
    watched.claims.observe(claim("c-7", resourceVersion="2", status={"phase": "Bound"}))
    made.window("claims", "", 0, 10)
    assert asked == ["default/c-7"]


def test_a_new_reason_and_a_new_event_change_a_row() -> None:
    waiting = claim("a")
    made, watched = tables(waiting)
    watched.events.observe(event(waiting, "no such class"))
    assert "no such class" in str(made.window("waiting", "", 0, 10))
    made.tell(told(reasons={"claims": {"default/a": "the driver is away"}}))
    assert "the driver is away" in str(made.window("waiting", "", 0, 10))


def test_drivers_have_room_used_and_free() -> None:
    made, watched = tables(
        storage_class("fast", "d"),
        volume("v", annotations={"pv.kubernetes.io/provisioned-by": "d"}, size="2Gi"),
        volume("w", annotations={"pv.kubernetes.io/provisioned-by": "other"}),
    )
    metadata = {"name": "cap", "namespace": "x", "uid": "u", "resourceVersion": "1"}
    room = {"metadata": metadata, "storageClassName": "fast", "capacity": "8Gi"}
    watched.capacities.observe(msgspec.convert(room, CsiStorageCapacity))
    made.tell(
        told(drivers=[{"name": "d", "backend": "b", "state": "ready", "healthy": True, "hung": False, "error": ""}])
    )
    window = made.window("drivers", "", 0, 10)
    first, second = (dict(zip(COLUMNS["drivers"], row["cells"], strict=True)) for row in window["rows"])
    assert (first["state"], first["volumes"], first["used"], first["free"]) == ("ready", "1", "2Gi", "8Gi")
    assert (second["name"], second["state"]) == ("other", "not of this controller")
    assert ids(made, "segments") == ["x/cap"]


def test_a_node_counts_what_is_attached_to_it() -> None:
    _, its_volume = bound()
    made, watched = tables(node(), its_volume)
    watched.attachments.observe(attachment(attached=True))
    (row,) = made.window("nodes", "", 0, 10)["rows"]
    assert dict(zip(COLUMNS["nodes"], row["cells"], strict=True))["attached"] == "1"


def test_leaks_are_those_of_the_controller() -> None:
    finding = {
        "verdict": "orphan", "driver": "d", "handle": "h-9", "volume": "", "detail": "no volume names it",
        "capacity_bytes": 2**30, "created_at": None, "confirmed": False,
    }  # fmt: skip
    made, _ = tables()
    made.tell(told(leaks={"findings": [finding]}))
    assert ids(made, "leaks", "h-9") == ["d/h-9/"]
    assert made.counts()["leaks"] == 1


def test_every_view_of_nothing_is_empty() -> None:
    made, _ = tables()
    for view in COLUMNS:
        assert made.window(view, "", 0, 10)["rows"] == []
    with pytest.raises(KeyError):
        made.window("secrets", "", 0, 10)


def test_a_row_has_a_cell_for_every_column() -> None:
    its_claim, its_volume = bound()
    made, _ = tables(its_claim, its_volume, node(), attachment(error="x"), claim("w"))
    for view, columns in COLUMNS.items():
        for row in made.window(view, "", 0, 10)["rows"]:
            assert len(row["cells"]) == len(columns), view


def test_twenty_thousand_claims_are_searched() -> None:
    watched = seen()
    made = Tables(watched)
    for number in range(20_000):
        watched.claims.observe(
            Claim(metadata=msgspec.structs.replace(CLAIMS[0].metadata, name=f"c-{number}", uid=f"u-{number}"))
        )
    assert made.window("claims", "c-1999", 0, 100)["found"] == 11
    row = made._tables["claims"].rows()[0]
    assert matches(row, ["default"], COLUMNS["claims"])


def test_the_clock_of_the_controller_alone_changes_nothing() -> None:
    waiting = claim("a")
    made, _ = tables(waiting)
    status = {"reasons": {}, "drivers": [], "operations": [operation(waiting, next_try=107.0)], "leads": True}
    made.tell(Told.of({**status, "now": 100.0}, {}, now=NOW))
    before = made.changes
    made.tell(Told.of({**status, "now": 102.003}, {}, now=NOW + 2))
    assert made.changes == before


def test_a_node_has_the_most_room_of_those_that_it_reaches() -> None:
    its_node = node()
    its_node.metadata.labels = {"zone": "a"}
    made, watched = tables(its_node)
    for number, (zone, free) in enumerate((("a", "3Gi"), ("a", "5Gi"), ("b", "9Gi"), ("a", "much"))):
        metadata = {"name": f"cap-{number}", "namespace": "x", "uid": f"u-{number}", "resourceVersion": "1"}
        room = {"metadata": metadata, "nodeTopology": {"matchLabels": {"zone": zone}}, "capacity": free}
        watched.capacities.observe(msgspec.convert(room, CsiStorageCapacity))
    (row,) = made.window("nodes", "", 0, 10)["rows"]
    assert dict(zip(COLUMNS["nodes"], row["cells"], strict=True))["free"] == "5Gi"


@pytest.mark.parametrize(
    ("topology", "shown"),
    [
        (None, "no node"),
        ({}, "every node"),
        ({"matchLabels": {"b": "2", "a": "1"}}, "a=1; b=2"),
        ({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}, "zone In a, b"),
    ],
)
def test_a_segment_is_named_by_its_nodes(topology: object, shown: str) -> None:
    made, watched = tables()
    metadata = {"name": "cap", "namespace": "x", "uid": "u", "resourceVersion": "1"}
    body = {"metadata": metadata, "storageClassName": "fast", "nodeTopology": topology, "capacity": "1Gi"}
    watched.capacities.observe(msgspec.convert(body, CsiStorageCapacity))
    (row,) = made.window("segments", "", 0, 10)["rows"]
    assert dict(zip(COLUMNS["segments"], row["cells"], strict=True))["segment"] == shown


def test_a_volume_that_goes_is_counted_no_more() -> None:
    fields = {"annotations": {"pv.kubernetes.io/provisioned-by": "d"}}
    made, watched = tables(volume("v", **fields), volume("w", **fields))
    watched.volumes.observe(volume("v", size="5Gi", resourceVersion="2", **fields))
    watched.volumes.observe_deleted("w", "uid-w", 3)
    (row,) = made.window("drivers", "", 0, 10)["rows"]
    assert dict(zip(COLUMNS["drivers"], row["cells"], strict=True))["used"] == "5Gi"
    watched.volumes.observe_deleted("v", "uid-v", 4)
    assert made.window("drivers", "", 0, 10)["rows"] == []


def test_operations_that_fail_most_come_first() -> None:
    one, two = claim("a"), volume("v")
    made, _ = tables(one, two)
    failing = operation(two, verb="delete", failures=4, error="busy", next_try=110.0)
    made.tell(told(operations=[operation(one, phase="running"), failing]))
    first, second = (
        dict(zip(COLUMNS["operations"], each["cells"], strict=True))
        for each in made.window("operations", "", 0, 10)["rows"]
    )
    assert (first["verb"], first["problem"], first["next"]) == ("delete", "busy", {"due": NOW + 10})
    assert (first["name"]["to"], second["name"]["to"]) == (("volume", "v"), ("claim", "default/a"))
    assert made.counts()["operations"] == 2


def test_rows_are_made_a_few_at_a_time() -> None:
    made, _ = tables(*(claim(f"c-{number:04}") for number in range(1_000)))

    async def main() -> int:
        settling, turns = asyncio.create_task(made.settle()), 0
        while not settling.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(main()) >= 5
    assert made.window("claims", "", 0, 1)["total"] == 1_000


def test_a_view_is_known_when_its_kinds_are_read() -> None:
    made, watched = tables()
    assert not made.window("waiting", "", 0, 10)["known"]
    for cache in (watched.claims, watched.volumes, watched.attachments, watched.pods):
        assert not made.window("waiting", "", 0, 10)["known"]
        cache.listed.set()
    assert made.window("waiting", "", 0, 10)["known"]
    assert not made.window("snapshots", "", 0, 10)["known"]
