from __future__ import annotations

import json

import pytest

from volplane_embedded.apiserver.store import Change, Compacted, Store, key_of


def put(store: Store, name: str, namespace: str = "", **fields: object) -> int:
    obj = {"metadata": {"name": name, **({"namespace": namespace} if namespace else {})}, **fields}
    return store.put("things", key_of(namespace, name), obj).version


def names(rows: list[bytes]) -> list[str]:
    return [json.loads(row)["metadata"]["name"] for row in rows]


def test_every_write_gets_the_next_version_whatever_it_writes() -> None:
    store = Store()
    assert [put(store, "a"), put(store, "b"), put(store, "a")] == [1, 2, 3]
    assert store.delete("things", "b").version == 4
    assert store.put("others", "a", {"metadata": {"name": "a"}}).version == 5
    assert store.version == 5


def test_a_stored_object_carries_its_version_and_a_deleted_one_that_of_its_end() -> None:
    store = Store()
    put(store, "a")
    stored = store.get("things", "a")
    assert stored is not None
    assert stored.decode() == {"metadata": {"name": "a", "resourceVersion": "1"}}
    assert store.delete("things", "a").decode()["metadata"]["resourceVersion"] == "2"
    assert store.get("things", "a") is None


def test_objects_of_a_namespace_are_listed_in_order_and_not_those_of_its_neighbours() -> None:
    store = Store()
    for namespace, name in (("ab", "x"), ("a", "z"), ("a-b", "y"), ("a", "b"), ("a0", "q")):
        put(store, name, namespace)
    assert names(store.page("things", "a").rows) == ["b", "z"]
    assert names(store.page("things").rows) == ["y", "b", "z", "q", "x"]
    assert store.count("things", "a") == 2
    assert store.count("things") == 5


def test_pages_of_one_snapshot_do_not_see_later_writes() -> None:
    store = Store()
    for name in "abcdef":
        put(store, name, mark=1)
    version = store.version
    first = store.page("things", limit=2)
    assert (names(first.rows), first.last, first.remaining) == (["a", "b"], "b", 4)
    store.delete("things", "c")
    put(store, "d", mark=2)
    put(store, "cc")
    second = store.page("things", limit=2, version=version, after=first.last)
    assert (names(second.rows), second.remaining) == (["c", "d"], 2)
    assert json.loads(second.rows[1])["mark"] == 1
    third = store.page("things", limit=2, version=version, after=second.last)
    assert (names(third.rows), third.last, third.remaining) == (["e", "f"], "", 0)


def test_an_old_snapshot_of_one_namespace_leaves_the_others_out() -> None:
    store = Store()
    put(store, "x", "a")
    put(store, "y", "b")
    version = store.version
    store.delete("things", "a/x")
    store.delete("things", "b/y")
    assert names(store.page("things", "a", version=version).rows) == ["x"]


def test_what_a_filter_refuses_does_not_fill_a_page() -> None:
    store = Store()
    for name in "abcdef":
        put(store, name)
    page = store.page("things", limit=2, keep=lambda row: names([row])[0] in "bdf")
    assert (names(page.rows), page.last, page.remaining) == (["b", "d"], "d", 0)
    page = store.page("things", limit=2, after=page.last, keep=lambda row: names([row])[0] in "bdf")
    assert (names(page.rows), page.last) == (["f"], "")


def test_changes_are_replayed_from_a_version_with_what_was_there_before() -> None:
    store = Store()
    put(store, "a", mark=1)
    put(store, "a", mark=2)
    store.delete("things", "a")
    seen = [
        (c.version, c.type, c.new().get("mark"), (c.old() or {}).get("mark")) for c in store.changes_since("things", 0)
    ]
    assert seen == [(1, "ADDED", 1, None), (2, "MODIFIED", 2, 1), (3, "DELETED", 2, 2)]
    assert [change.version for change in store.changes_since("things", 2)] == [3]


def test_a_full_log_forgets_its_oldest_changes_and_says_so() -> None:
    store = Store(history=3)
    for name in "abcde":
        put(store, name)
    assert [change.version for change in store.changes_since("things", 2)] == [3, 4, 5]
    with pytest.raises(Compacted, match=r"too old resource version: 1 \(2\)"):
        store.changes_since("things", 1)
    with pytest.raises(Compacted):
        store.page("things", version=1)


def test_compaction_forgets_the_log_but_not_the_objects() -> None:
    store = Store()
    put(store, "a")
    put(store, "b")
    store.compact()
    assert names(store.page("things").rows) == ["a", "b"]
    assert store.changes_since("things", 2) == []
    with pytest.raises(Compacted):
        store.changes_since("things", 1)


def test_a_subscriber_sees_the_writes_of_its_storage_until_it_leaves() -> None:
    store = Store()
    seen: list[Change] = []
    leave = store.subscribe("things", seen.append)
    put(store, "a")
    store.put("others", "x", {"metadata": {"name": "x"}})
    leave()
    leave()
    put(store, "b")
    assert [(change.type, change.key) for change in seen] == [("ADDED", "a")]


class FullDisk:
    def load(self) -> tuple[int, list[object]]:
        return 7, []

    def record(self, storage: str, key: str, version: int, data: bytes | None) -> None:
        raise OSError("no space left")

    def close(self) -> None:
        pass


def test_a_write_that_the_disk_refuses_did_not_happen() -> None:
    store = Store(FullDisk())
    seen: list[Change] = []
    store.subscribe("things", seen.append)
    with pytest.raises(OSError, match="no space left"):
        put(store, "a")
    assert (store.version, store.get("things", "a"), seen) == (7, None, [])
