"""The versioned cache."""

import asyncio
from operator import attrgetter
from typing import Any

import msgspec
import pytest

from volplane.kube.cache import Cache
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, ClaimSpec, Metadata, Volume, VolumeSpec


def volume(name: str, version: int, *, uid: str = "", class_name: str = "") -> Volume:
    meta = Metadata(name=name, uid=uid or f"uid-{name}", resource_version=str(version))
    return Volume(metadata=meta, spec=VolumeSpec(storage_class_name=class_name))


def claim(name: str, version: int, volume_name: str = "") -> Claim:
    meta = Metadata(name=name, namespace="default", uid=f"uid-{name}", resource_version=str(version))
    return Claim(metadata=meta, spec=ClaimSpec(volume_name=volume_name))


def takes_in(cache: Cache[Volume], obj: Volume) -> bool:
    cache.observe(obj)
    return cache.get(obj.key) is obj


def removes(cache: Cache[Volume], key: str, uid: str, version: int) -> bool:
    held = key in cache
    cache.observe_deleted(key, uid, version)
    return held and key not in cache


@pytest.fixture
def cache() -> Cache[Volume]:
    return Cache(VOLUMES)


def heard(cache: Cache[Volume]) -> list[tuple[str | None, str | None]]:
    seen: list[tuple[str | None, str | None]] = []

    def name(obj: Volume | None) -> str | None:
        return None if obj is None else f"{obj.uid}@{obj.metadata.resource_version}"

    cache.subscribe(lambda old, new: seen.append((name(old), name(new))))
    return seen


def test_the_newest_version_wins_and_older_ones_are_ignored(cache: Cache[Volume]) -> None:
    assert takes_in(cache, volume("a", 9))
    assert takes_in(cache, volume("a", 10))
    assert not takes_in(cache, volume("a", 9))
    assert not takes_in(cache, volume("a", 10))
    found = cache.get("a")
    assert found is not None
    assert found.version == 10


def test_a_deletion_is_told_with_the_object_as_it_last_was(cache: Cache[Volume]) -> None:
    cache.observe(volume("a", 9))
    seen = heard(cache)
    assert removes(cache, "a", "uid-a", 12)
    assert cache.get("a") is None
    assert seen == [("uid-a@9", None)]


def test_a_late_answer_does_not_resurrect_a_deleted_object(cache: Cache[Volume]) -> None:
    cache.observe(volume("a", 9))
    cache.observe_deleted("a", "uid-a", 12)
    assert not takes_in(cache, volume("a", 11))
    assert cache.get("a") is None


def test_an_object_deleted_before_it_was_ever_seen_stays_away(cache: Cache[Volume]) -> None:
    cache.observe_deleted("a", "uid-a", 12)
    assert not takes_in(cache, volume("a", 9))
    assert len(cache) == 0


def test_what_is_gone_for_good_never_comes_back_whatever_its_version(cache: Cache[Volume]) -> None:
    cache.observe(volume("a", 9))
    cache.observe_deleted("a", "uid-a")
    assert not takes_in(cache, volume("a", 99))


def test_an_object_that_only_left_the_selection_may_return(cache: Cache[Volume]) -> None:
    cache.observe(volume("a", 9))
    cache.observe_deleted("a", "uid-a", 12, may_return=True)
    assert not cache.gone("uid-a")
    assert takes_in(cache, volume("a", 15))


def test_what_a_watch_without_selector_told_gone_is_gone_for_good(cache: Cache[Volume]) -> None:
    cache.observe(volume("a", 9))
    cache.observe_deleted("a", "uid-a", 12)
    assert cache.gone("uid-a")
    assert not takes_in(cache, volume("a", 15))


def test_a_deletion_that_the_cache_contradicts_proves_nothing(cache: Cache[Volume]) -> None:
    cache.observe(volume("a", 20))
    cache.observe_deleted("a", "uid-a", 12)
    assert not cache.gone("uid-a")


def test_a_deletion_of_the_past_does_not_touch_what_is_newer(cache: Cache[Volume]) -> None:
    cache.observe(volume("a", 20))
    assert not removes(cache, "a", "uid-a", 12)
    assert "a" in cache


def test_another_uid_under_the_same_name_is_a_deletion_and_a_new_object(cache: Cache[Volume]) -> None:
    cache.observe(volume("a", 9, uid="first"))
    seen = heard(cache)
    assert takes_in(cache, volume("a", 15, uid="second"))
    assert seen == [("first@9", None), (None, "second@15")]
    assert not takes_in(cache, volume("a", 14, uid="first"))
    assert not takes_in(cache, volume("a", 16, uid="first"))
    assert not removes(cache, "a", "first", 14)
    assert "a" in cache


async def test_a_tombstone_ends_with_its_time_though_nothing_else_is_deleted() -> None:
    cache = Cache(VOLUMES, remember=300)
    cache.observe(volume("a", 9))
    cache.observe_deleted("a", "uid-a")
    await asyncio.sleep(299)
    assert cache.gone("uid-a")
    assert not takes_in(cache, volume("a", 15))
    await asyncio.sleep(1)
    assert not cache.gone("uid-a")
    assert takes_in(cache, volume("a", 15))


async def test_while_the_server_may_be_a_restored_one_nothing_counts_as_gone() -> None:
    cache = Cache(VOLUMES, remember=300)
    cache.observe_deleted("a", "uid-a", 12)
    cache.doubt()
    assert not cache.gone("uid-a")
    await asyncio.sleep(60)
    assert cache.gone("uid-a")


async def test_a_tombstone_outlives_the_longest_call_and_then_goes() -> None:
    cache = Cache(VOLUMES, remember=60)
    cache.observe_deleted("a", "uid-a", 12)
    await asyncio.sleep(59)
    cache.observe_deleted("x", "uid-x", 12)
    assert not takes_in(cache, volume("a", 11))
    await asyncio.sleep(2)
    cache.observe_deleted("y", "uid-y", 13)
    assert cache._tombstones.keys() == {"uid-x", "uid-y"}


async def test_a_tombstone_that_is_renewed_is_kept_for_its_new_time() -> None:
    cache = Cache(VOLUMES, remember=60)
    cache.observe_deleted("a", "uid-a", 12)
    await asyncio.sleep(50)
    cache.observe_deleted("a", "uid-a", 20)
    await asyncio.sleep(50)
    cache.observe_deleted("b", "uid-b", 21)
    assert not takes_in(cache, volume("a", 19))


def test_a_relist_removes_only_what_is_not_newer_than_the_list(cache: Cache[Volume]) -> None:
    cache.observe(volume("gone", 5))
    cache.observe(volume("kept", 6))
    cache.observe(volume("ours", 30))
    cache.observe(volume("unreadable", 7))
    seen = heard(cache)
    cache.observe(volume("kept", 6))
    cache.observe(volume("new", 11))
    cache.prune({"kept", "new", "unreadable"}, 20)
    assert cache.keys() == ["kept", "new", "ours", "unreadable"]
    assert seen == [(None, "uid-new@11"), ("uid-gone@5", None)]
    assert cache.reached == 20
    assert not takes_in(cache, volume("gone", 19))


def test_a_relist_does_not_bring_back_what_was_deleted_after_it(cache: Cache[Volume]) -> None:
    cache.observe(volume("a", 9))
    cache.observe_deleted("a", "uid-a", 25)
    cache.observe(volume("a", 9))
    cache.prune({"a"}, 20)
    assert "a" not in cache


def test_an_index_follows_changes_and_is_ordered_by_key() -> None:
    cache = Cache(VOLUMES, {"class": lambda v: [v.spec.storage_class_name] if v.spec.storage_class_name else []})
    for name in ("c", "a", "b"):
        cache.observe(volume(name, 1, class_name="fast"))
    cache.observe(volume("d", 1))
    assert [v.name for v in cache.by_index("class", "fast")] == ["a", "b", "c"]
    cache.observe(volume("b", 2, class_name="slow"))
    assert [v.name for v in cache.by_index("class", "fast")] == ["a", "c"]
    assert [v.name for v in cache.by_index("class", "slow")] == ["b"]
    for name in ("a", "c"):
        cache.observe_deleted(name, f"uid-{name}", 3)
    assert cache.by_index("class", "fast") == []
    assert cache.by_index("class", "nowhere") == []


def test_an_index_may_file_an_object_several_times() -> None:
    cache = Cache(VOLUMES, {"letters": lambda v: list(v.name)})
    cache.observe(volume("abba", 1))
    cache.observe(volume("ac", 1))
    assert [v.name for v in cache.by_index("letters", "a")] == ["abba", "ac"]
    cache.observe_deleted("abba", "uid-abba", 2)
    assert [v.name for v in cache.by_index("letters", "a")] == ["ac"]
    assert cache.by_index("letters", "b") == []
    cache.observe(volume("ba", 3))
    cache.observe_deleted("ba", "uid-ba", 4)
    assert [v.name for v in cache.by_index("letters", "a")] == ["ac"]


def test_listeners_see_the_cache_after_the_change_and_can_leave() -> None:
    cache = Cache(CLAIMS, {"volume": lambda c: [c.spec.volume_name]})
    seen: list[list[str]] = []
    leave = cache.subscribe(lambda _old, _new: seen.append([c.name for c in cache.by_index("volume", "v")]))
    cache.observe(claim("a", 1, "v"))
    cache.observe(claim("a", 2))
    leave()
    cache.observe(claim("a", 3, "v"))
    assert seen == [["a"], []]


def test_a_listener_that_fails_does_not_cost_the_others_their_news(
    cache: Cache[Volume], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_old: object, _new: object) -> None:
        raise RuntimeError("mine")

    cache.subscribe(fail)
    seen = heard(cache)
    cache.observe(volume("a", 1))
    assert seen == [(None, "uid-a@1")]
    assert "a listener of persistentvolumes failed on a" in caplog.text


VOLUME = b"""{
    "metadata": {
        "name": "%s", "uid": "%s", "resourceVersion": "1", "finalizers": ["one", "two"], "labels": {"zone": "a"},
        "annotations": {"pv.kubernetes.io/provisioned-by": "x"}
    },
    "spec": {
        "storageClassName": "fast", "volumeMode": "Block", "persistentVolumeReclaimPolicy": "Delete",
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "mountOptions": ["ro"],
        "claimRef": {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": "default", "name": "c"}
    },
    "status": {"phase": "Bound"}
}"""
CLAIM = b"""{
    "metadata": {"namespace": "tenant", "name": "%s", "uid": "%s", "resourceVersion": "1"},
    "spec": {
        "storageClassName": "fast", "volumeMode": "Block", "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}
    },
    "status": {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
}"""


@pytest.mark.parametrize(
    ("kind", "text", "shared"),
    [
        (
            VOLUMES,
            VOLUME,
            (
                "metadata.finalizers metadata.labels=zone spec.storage_class_name spec.volume_mode spec.capacity "
                "spec.persistent_volume_reclaim_policy spec.access_modes spec.mount_options spec.claim_ref.kind "
                "spec.claim_ref.api_version spec.claim_ref.namespace status.phase"
            ),
        ),
        (
            CLAIMS,
            CLAIM,
            (
                "metadata.namespace spec.storage_class_name spec.volume_mode spec.access_modes status.phase "
                "spec.resources.requests status.access_modes status.capacity"
            ),
        ),
    ],
)
def test_equal_parts_of_objects_are_kept_once(kind: Any, text: bytes, shared: str) -> None:
    cache = Cache(kind)
    one, other = (msgspec.json.decode(text % (name, name), type=kind.struct) for name in (b"a", b"b"))
    for item in (one, other):
        cache.observe(item)
    assert one == msgspec.json.decode(text % (b"a", b"a"), type=kind.struct)
    for path in shared.split():
        name, _, key = path.partition("=")
        first, second = attrgetter(name)(one), attrgetter(name)(other)
        assert (first[key] is second[key]) if key else (first is second), path


def test_fields_that_an_object_lacks_stay_away(cache: Cache[Volume]) -> None:
    bare = b'{"metadata": {"name": "c", "uid": "u", "resourceVersion": "1"}}'
    for kind in (CLAIMS, VOLUMES):
        item: Any = msgspec.json.decode(bare, type=kind.struct)
        Cache(kind).observe(item)
        assert item == msgspec.json.decode(bare, type=kind.struct)


def test_long_texts_are_not_kept_beyond_their_object(cache: Cache[Volume]) -> None:
    texts = []
    for name in "ab":
        cache.observe(volume(name, 1))
        item = volume(name, 2)
        item.status.phase = "Available"
        item.metadata.annotations = {"note": "".join(["x" * 64, "y"]), "short": "".join(["z" * 32, "z" * 32])}
        cache.observe(item)
        assert item.metadata.annotations is not None
        texts.append(item.metadata.annotations)
    assert texts[0]["note"] is not texts[1]["note"]
    assert texts[0]["short"] is texts[1]["short"]


def test_what_was_not_seen_for_long_is_not_kept_to_be_shared(cache: Cache[Volume]) -> None:
    def capacity_of(name: str, size: str) -> dict[str, str] | None:
        item = volume(name, 1)
        item.spec.capacity, item.status.phase = {"storage": size}, "Available"
        cache.observe(item)
        return item.spec.capacity

    first = capacity_of("a", "1Gi")
    assert capacity_of("b", "1Gi") is first
    for number in range(5000):
        capacity_of(f"c-{number}", f"{number}Mi")
    assert capacity_of("d", "1Gi") is not first


def test_what_is_pending_is_left_as_it_is(cache: Cache[Volume]) -> None:
    for phase in ("", "Pending"):
        parts = []
        for name in "ab":
            item = volume(name + phase, 1)
            item.spec.capacity, item.status.phase = {"storage": "1Gi"}, phase
            cache.observe(item)
            parts.append(item.spec.capacity)
        assert parts[0] is not parts[1]


# --- what contradicts a list -----------------------------------------------------------------------------------------


def test_a_list_is_wrong_that_has_less_of_an_object_than_was_seen_before_it(cache: Cache[Volume]) -> None:
    cache.observe(volume("a", 10))
    assert cache.contradicts(volume("a", 9), 10, begun=0)
    assert cache.contradicts(volume("a", 9), 11, begun=0)
    assert not cache.contradicts(volume("a", 9), 9, begun=0), "it is older than what was seen"
    assert not cache.contradicts(volume("a", 10), 20, begun=0)
    assert not cache.contradicts(volume("b", 9), 20, begun=0)


async def test_a_list_is_wrong_that_has_what_was_deleted_before_it() -> None:
    cache = Cache(VOLUMES)
    await asyncio.sleep(10)
    cache.observe_deleted("a", "uid-a", 12)
    for listed in (9, 12):
        assert cache.contradicts(volume("a", listed), 12, begun=10)
        assert not cache.contradicts(volume("a", listed), 11, begun=10)
    assert not cache.contradicts(volume("a", 13), 20, begun=10), "it was asked for before that was known"
    assert cache.contradicts(volume("a", 13), 20, begun=10.5)
    cache.observe_deleted("b", "uid-b", 12, may_return=True)
    assert cache.contradicts(volume("b", 12), 12, begun=10)
    assert not cache.contradicts(volume("b", 13), 20, begun=11)


async def test_an_object_that_is_gone_for_good_stays_so_whatever_is_told_later() -> None:
    cache = Cache(VOLUMES, remember=60)
    cache.observe_deleted("a", "uid-a")
    cache.observe_deleted("a", "uid-a", 12, may_return=True)
    assert cache.gone("uid-a")
    cache.observe_deleted("a", "uid-a", 7, may_return=True)
    assert cache.contradicts(volume("a", 12), 12, begun=0)
    cache.observe_deleted("a", "uid-a", 13)
    cache.observe_deleted("a", "uid-a", 14)
    await asyncio.sleep(60)
    cache.observe_deleted("b", "uid-b")
    assert cache._tombstones.keys() == {"uid-b"}


def test_an_object_of_the_very_version_of_a_list_that_lacks_it_is_gone(cache: Cache[Volume]) -> None:
    cache.observe(volume("a", 5))
    cache.prune(set(), 5)
    assert "a" not in cache
    assert not cache.gone("uid-a"), "it may only have left the selection"
    cache.prune(set(), 3)
    assert cache.reached == 5


def test_the_end_of_a_former_object_leaves_the_present_one(cache: Cache[Volume]) -> None:
    cache.observe(volume("a", 15, uid="second"))
    cache.observe_deleted("a", "first")
    assert "a" in cache
    assert cache.gone("first")


def test_a_cache_that_is_cleared_knows_nothing_any_more(cache: Cache[Volume]) -> None:
    cache.add_indexes({"class": lambda item: [item.spec.storage_class_name]})
    cache.observe(volume("a", 9, class_name="fast"))
    cache.observe_deleted("b", "uid-b")
    cache.prune({"a"}, 9)
    seen = heard(cache)
    cache.clear()
    assert seen == [("uid-a@9", None)]
    assert (len(cache), cache.reached, cache.by_index("class", "fast")) == (0, 0, [])
    assert takes_in(cache, volume("b", 1))


async def test_waiting_for_the_first_list() -> None:
    cache = Cache(VOLUMES)
    assert not cache.listed.is_set()
    asyncio.get_running_loop().call_later(5, cache.listed.set)
    await cache.listed.wait()
    assert cache.listed.is_set()


def test_an_index_that_is_added_lists_what_comes_after(cache: Cache[Volume]) -> None:
    cache.add_indexes({"class": lambda item: [item.spec.storage_class_name]})
    cache.observe(volume("a", 9, class_name="fast"))
    assert [found.name for found in cache.by_index("class", "fast")] == ["a"]


def test_a_value_under_which_one_object_is_left_costs_no_list() -> None:
    cache = Cache(VOLUMES, {"class": lambda v: [v.spec.storage_class_name]})
    for name in "abc":
        cache.observe(volume(name, 1, class_name="fast"))
    for name in "ac":
        cache.observe_deleted(name, f"uid-{name}", 2)
    assert cache._indexes["class"].by_value == {"fast": "b"}
