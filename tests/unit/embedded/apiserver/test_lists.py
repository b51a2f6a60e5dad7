from __future__ import annotations

import json

import pytest

from unit.embedded.apiserver.calls import MAPS, VOLUMES, Calls, config_map, volume
from volplane_embedded.apiserver.store import Store


@pytest.fixture
def calls() -> Calls:
    found = Calls()
    for name in "abcdef":
        found.made(MAPS, {"metadata": {"name": name, "labels": {"half": "1" if name < "d" else "2"}}})
    return found


def test_a_list_tells_the_version_it_shows(calls: Calls) -> None:
    reply = calls.get(MAPS)
    assert (reply.body["kind"], reply.names) == ("ConfigMapList", list("abcdef"))
    assert reply.version == str(calls.server.store.version)
    assert "kind" not in reply.body["items"][0]


def test_pages_show_one_moment_whatever_is_written_between(calls: Calls) -> None:
    first = calls.get(MAPS, limit="2")
    assert (first.names, first.body["metadata"]["remainingItemCount"]) == (["a", "b"], 4)
    calls.delete(f"{MAPS}/c")
    calls.patch(f"{MAPS}/d", {"data": {"k": "new"}})
    calls.made(MAPS, config_map("cc"))
    second = calls.get(MAPS, **{"limit": "3", "continue": first.body["metadata"]["continue"]})
    assert (second.names, second.version) == (["c", "d", "e"], first.version)
    assert "data" not in second.body["items"][1]
    last = calls.get(MAPS, **{"limit": "3", "continue": second.body["metadata"]["continue"]})
    assert last.names == ["f"]
    assert "continue" not in last.body["metadata"]
    assert calls.get(MAPS).names == ["a", "b", "cc", "d", "e", "f"]


def test_every_object_is_on_exactly_one_page_whatever_the_size(calls: Calls) -> None:
    for limit in range(1, 8):
        token, found = "", []
        while True:
            reply = calls.get(MAPS, **{"limit": str(limit), "continue": token})
            found += reply.names
            token = reply.body["metadata"].get("continue", "")
            if not token:
                break
        assert found == list("abcdef")


def test_an_expired_page_is_410_with_a_token_to_go_on_from_what_is_there_now(calls: Calls) -> None:
    first = calls.get(MAPS, limit="2")
    calls.made(MAPS, config_map("cc"))
    calls.server.store.compact()
    expired = calls.get(MAPS, **{"limit": "2", "continue": first.body["metadata"]["continue"]})
    assert (expired.status, expired.reason) == (410, "Expired")
    onward = calls.get(MAPS, **{"limit": "2", "continue": expired.body["metadata"]["continue"]})
    assert onward.names == ["c", "cc"]


def test_selected_pages_do_not_count_what_remains(calls: Calls) -> None:
    reply = calls.get(MAPS, limit="2", labelSelector="half=2")
    assert reply.names == ["d", "e"]
    assert "remainingItemCount" not in reply.body["metadata"]
    assert calls.get(MAPS, **{"labelSelector": "half=2", "continue": reply.body["metadata"]["continue"]}).names == ["f"]


def test_version_0_is_answered_whole_whatever_the_limit(calls: Calls) -> None:
    assert calls.get(MAPS, resourceVersion="0", limit="2").names == list("abcdef")


def test_an_exact_version_shows_the_past(calls: Calls) -> None:
    version = calls.get(MAPS).version
    calls.delete(f"{MAPS}/a")
    assert calls.get(MAPS, resourceVersion=version, resourceVersionMatch="Exact").names == list("abcdef")
    assert calls.get(MAPS, resourceVersion=version, resourceVersionMatch="NotOlderThan").names == list("bcdef")
    assert calls.get(MAPS, resourceVersion=version).names == list("bcdef")
    calls.server.store.compact()
    assert calls.get(MAPS, resourceVersion=version, resourceVersionMatch="Exact").status == 410


def test_a_version_from_the_future_is_a_timeout_that_may_be_tried_again(calls: Calls) -> None:
    for path in (MAPS, f"{MAPS}/a"):
        reply = calls.get(path, resourceVersion="999999")
        assert (reply.status, reply.reason, reply.headers["Retry-After"]) == (504, "Timeout", "1")
        assert reply.body["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"resourceVersion": "x"}, 400),
        ({"resourceVersion": "-1"}, 400),
        ({"limit": "x"}, 400),
        ({"continue": "!"}, 400),
        ({"continue": "e30"}, 400),
        ({"labelSelector": "a=b=c"}, 400),
        ({"fieldSelector": "data.k=v"}, 400),
        ({"fieldSelector": "metadata.name"}, 400),
        ({"resourceVersionMatch": "Exact"}, 422),
        ({"resourceVersionMatch": "Exact", "resourceVersion": "0"}, 422),
        ({"resourceVersionMatch": "Roughly", "resourceVersion": "1"}, 422),
        ({"sendInitialEvents": "true"}, 422),
    ],
)
def test_options_that_make_no_sense_are_refused(calls: Calls, query: dict[str, str], status: int) -> None:
    assert calls.get(MAPS, **query).status == status


def test_a_token_excludes_a_version(calls: Calls) -> None:
    token = calls.get(MAPS, limit="1").body["metadata"]["continue"]
    assert calls.get(MAPS, **{"continue": token, "resourceVersion": "1"}).status == 400
    both = {"continue": token, "resourceVersion": "1", "resourceVersionMatch": "Exact"}
    assert calls.get(MAPS, **both).status == 422


def test_selecting_by_name_finds_one_object(calls: Calls) -> None:
    assert calls.get(MAPS, fieldSelector="metadata.name=b").names == ["b"]
    assert calls.get(MAPS, fieldSelector="metadata.name=b", labelSelector="half=2").names == []
    assert calls.get(MAPS, fieldSelector="metadata.name!=b").names == list("acdef")
    assert calls.get("/api/v1/configmaps", fieldSelector="metadata.name=b,metadata.namespace=default").names == ["b"]
    assert calls.get(MAPS, fieldSelector="metadata.name=z").names == []


def test_a_client_chooses_how_objects_are_shown() -> None:
    calls = Calls()
    calls.made(VOLUMES, volume("a"))

    def shown(path: str, accept: str, **query: str) -> dict[str, object]:
        answer = calls.server.handle("GET", path, query, {"Accept": accept}, b"")
        assert answer.status == 200, answer.body
        found: dict[str, object] = json.loads(answer.body)
        return found

    table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    assert shown(VOLUMES, table)["kind"] == "Table"
    assert shown(f"{VOLUMES}/a", table)["kind"] == "Table"
    assert shown(VOLUMES, partial)["kind"] == "PartialObjectMetadataList"
    one = shown(f"{VOLUMES}/a", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
    assert (one["kind"], sorted(one)) == ("PartialObjectMetadata", ["apiVersion", "kind", "metadata"])
    for accept in ("", "*/*", "application/vnd.kubernetes.protobuf, application/json", "application/json;as=Odd,*/*"):
        assert shown(f"{VOLUMES}/a", accept)["kind"] == "PersistentVolume"
    answer = calls.server.handle("GET", VOLUMES, {}, {"accept": "application/vnd.kubernetes.protobuf"}, b"")
    assert answer.status == 406


def test_rows_of_a_table_carry_what_was_asked_for() -> None:
    calls = Calls()
    calls.made(VOLUMES, volume("a"))
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}

    def row(include: str) -> dict[str, object]:
        answer = calls.server.handle("GET", VOLUMES, {"includeObject": include}, accept, b"")
        found: dict[str, object] = json.loads(answer.body)["rows"][0]
        return found

    assert "object" not in row("None")
    assert row("Object")["object"]["kind"] == "PersistentVolume"  # type: ignore[index]
    assert row("Metadata")["object"]["kind"] == "PartialObjectMetadata"  # type: ignore[index]


def test_a_small_history_is_enough_for_lists_without_pages() -> None:
    calls = Calls(store=Store(history=1))
    for name in "abc":
        calls.made(MAPS, config_map(name))
    assert calls.get(MAPS).names == list("abc")
