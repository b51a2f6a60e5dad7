"""What a listing has to do with claims and volumes: every verdict, and what is no finding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from sortedcontainers import SortedList

from volplane import ListedAsset, Ownership, VolumeSource
from volplane.kube import names
from volplane.kube.objects import Claim, ClaimSpec, Metadata, Volume, VolumeSpec
from volplane.leaks.comparison import MOST_NOTED, Comparison, Finding, Observations, Verdict

HERE = "here"
MIB = 2**20


def asset(uid: str = "u1", *, cluster: str | None = HERE, **fields: Any) -> ListedAsset:
    name = f"pvc-{uid}"
    owner = Ownership(cluster_id=cluster, claim_uid=uid, volume_name=name) if cluster else None
    given = {"handle": f"h/{name}", "name": name, "capacity_bytes": MIB, "owner": owner}
    return ListedAsset(**{**given, **fields})


def volume(
    name: str = "pvc-u1", *, handle: str | None = "", by: str | None = "d", going: bool = False, **spec: Any
) -> Volume:
    annotations = {names.PROVISIONED_BY: by} if by else {}
    if handle is not None:
        annotations[names.HANDLE] = handle or f"h/{name}"
    return Volume(
        metadata=Metadata(
            name=name,
            uid=f"uid-{name}",
            annotations=annotations,
            deletion_timestamp="2026-01-01T00:00:00Z" if going else None,
        ),
        spec=VolumeSpec(capacity={"storage": "1Mi"}, **spec),
    )


def claim(uid: str = "u1", *, volume_name: str = "", held: bool = False) -> Claim:
    finalizers = [names.PROVISIONING_FINALIZER] if held else []
    return Claim(
        metadata=Metadata(name="c", namespace="default", uid=uid, finalizers=finalizers),
        spec=ClaimSpec(volume_name=volume_name),
    )


def judged(
    assets: Iterable[ListedAsset] = (), claims: Iterable[Claim] = (), volumes: Iterable[Volume] = (), **options: Any
) -> list[tuple[str, str, str]]:
    comparison = Comparison("d", HERE, **options)
    for each in assets:
        comparison.add_listed(each)
    findings: list[Finding] = []
    for _ in range(2):  # the caches, then live objects
        comparison.forget_objects()
        for each_claim in claims:
            comparison.add_claim(each_claim)
        for each_volume in volumes:
            comparison.add_volume(each_volume)
        findings = [each for each in comparison.findings() if each is not None]
    return [(f.verdict.value, f.handle, f.volume) for f in findings]


PATH = VolumeSource(kind="local", fields={"path": "/srv/a"})

NOTHING: dict[str, dict[str, Any]] = {
    "an asset and its volume": {"assets": [asset()], "volumes": [volume()]},
    "an asset in the making": {"assets": [asset()], "claims": [claim(held=True)]},
    "an asset whose claim is not bound yet": {"assets": [asset()], "claims": [claim()]},
    "a larger asset": {"assets": [asset(capacity_bytes=2 * MIB)], "volumes": [volume()]},
    "an asset on its way out": {"assets": [asset(capacity_bytes=0)], "volumes": [volume(going=True)]},
    "a volume on its way out": {"volumes": [volume(going=True)]},
    "another driver's volume": {"volumes": [volume(by="e")]},
    "a volume made by hand": {"volumes": [volume(by=None)]},
    "an asset of a renamed driver": {"assets": [asset(capacity_bytes=0)], "volumes": [volume(by="e")]},
    "an asset that a person made a volume of": {
        "assets": [asset(source=PATH)],
        "volumes": [volume("mine", by=None, handle=None, host_path={"path": "/srv/a/"})],
    },
    "an asset into which a person's volume points": {
        "assets": [asset(source=PATH)],
        "volumes": [volume("mine", by=None, handle=None, nfs={"server": "s", "path": "/srv/a/b/c"})],
    },
    "an asset that a person made a csi volume of": {
        "assets": [asset(handle="vol-1")],
        "volumes": [volume("mine", by=None, handle=None, csi={"driver": "x", "volumeHandle": "vol-1"})],
    },
    "an asset that a person made an in-tree volume of": {
        "assets": [asset(handle="vol-1")],
        "volumes": [volume("mine", by=None, handle=None, aws_elastic_block_store={"volumeID": "aws://us-a/vol-1"})],
    },
    "an asset that a person made an in-tree volume without a project of": {
        "assets": [asset(handle="projects/p/zones/us-a/disks/d")],
        "volumes": [volume("mine", by=None, handle=None, gce_persistent_disk={"pdName": "d"})],
    },
    "an asset whose volume was restored under another name": {
        "assets": [asset()],
        "volumes": [volume("restored", handle="h/pvc-u1", by="e")],
    },
}


@pytest.mark.parametrize("case", NOTHING)
def test_it_is_no_finding(case: str) -> None:
    assert judged(**NOTHING[case]) == []


FINDINGS: dict[str, tuple[dict[str, Any], list[tuple[str, str, str]]]] = {
    "an asset to which nothing leads": ({"assets": [asset()]}, [("orphan", "h/pvc-u1", "")]),
    "an asset whose claim took another volume": (
        {"assets": [asset()], "claims": [claim(volume_name="v2")], "volumes": [volume("v2", by=None)]},
        [("orphan", "h/pvc-u1", "")],
    ),
    "an asset beneath the directory of a person's volume": (
        {"assets": [asset(source=PATH)], "volumes": [volume("all", by=None, handle=None, host_path={"path": "/srv"})]},
        [("orphan", "h/pvc-u1", "")],
    ),
    "an asset whose volume was lost": (
        {"assets": [asset()], "claims": [claim(volume_name="pvc-u1")]},
        [("drifted", "h/pvc-u1", "")],
    ),
    "a volume without asset": ({"volumes": [volume()]}, [("ghost", "h/pvc-u1", "pvc-u1")]),
    "a volume that never had a handle": ({"volumes": [volume(handle=None)]}, [("ghost", "", "pvc-u1")]),
    "a smaller asset": (
        {"assets": [asset(capacity_bytes=1)], "volumes": [volume()]},
        [("drifted", "h/pvc-u1", "pvc-u1")],
    ),
    "an asset under another handle": (
        {"assets": [asset()], "volumes": [volume(handle="h/other")]},
        [("drifted", "h/pvc-u1", "pvc-u1")],
    ),
    "an asset of another generation than the volume's": (
        {"assets": [asset(), asset(handle="h/pvc-u1@2")], "volumes": [volume()]},
        [("drifted", "h/pvc-u1@2", "pvc-u1")],
    ),
    "an asset of another generation than that of the volume which is gone": (
        {"assets": [asset(handle="h/pvc-u1@2")]},
        [("orphan", "h/pvc-u1@2", "")],
    ),
    "a volume that points at another's asset": (
        {"assets": [asset()], "volumes": [volume(), volume("copy", handle="h/pvc-u1")]},
        [("drifted", "h/pvc-u1", "copy")],
    ),
    "an asset without marks": ({"assets": [asset(cluster=None)]}, [("foreign", "h/pvc-u1", "")]),
    "another cluster's asset": ({"assets": [asset(cluster="there")]}, [("foreign", "h/pvc-u1", "")]),
    "another cluster's asset, restored here": (
        {"assets": [asset(cluster="there")], "volumes": [volume()]},
        [("foreign", "h/pvc-u1", "pvc-u1")],
    ),
    "another cluster's asset of the same name elsewhere": (
        {"assets": [asset(cluster="there")], "volumes": [volume(handle="h/mine")]},
        [("foreign", "h/pvc-u1", ""), ("ghost", "h/mine", "pvc-u1")],
    ),
}


@pytest.mark.parametrize("case", FINDINGS)
def test_it_is_a_finding(case: str) -> None:
    given, expected = FINDINGS[case]
    assert judged(**given) == expected


@pytest.mark.parametrize("case", [*NOTHING, *FINDINGS])
def test_what_the_cached_volumes_explain_while_assets_are_listed_changes_no_verdict(case: str) -> None:
    given, expected = (NOTHING[case], []) if case in NOTHING else FINDINGS[case]
    cached = {each.name: each for each in given.get("volumes", ())}
    known = SortedList(each.uid for each in cached.values())
    assert judged(**given, cached=cached.get, known=known) == expected


def test_nothing_is_kept_of_assets_that_their_volumes_explain() -> None:
    cached = {f"pvc-{number}": volume(f"pvc-{number}") for number in range(200)}
    comparison = Comparison("d", HERE, SortedList(each.uid for each in cached.values()), cached=cached.get)
    for number in range(200):
        comparison.add_listed(asset(str(number)))
    for each in cached.values():
        comparison.add_volume(each)
    assert list(comparison.findings()) == []
    kept = [getattr(comparison, name) for name in Comparison.__dataclass_fields__]
    assert not any(each for each in kept if isinstance(each, list | set | dict | SortedList))


def test_a_volume_that_points_at_the_asset_of_another_one_is_no_ghost_though_that_explains_it() -> None:
    cached = {each.name: each for each in (volume(), volume("pvc-u2", handle="h/pvc-u1"))}
    comparison = Comparison("d", HERE, SortedList(["uid-pvc-u1", "uid-pvc-u2"]), cached=cached.get)
    comparison.add_listed(asset())
    for _ in range(2):  # the caches, then live objects
        comparison.forget_objects()
        for each in cached.values():
            comparison.add_volume(each)
        (finding,) = comparison.findings()
    assert finding is not None
    assert (finding.verdict, finding.volume) == (Verdict.DRIFTED, "pvc-u2")
    assert "marks of volume pvc-u1" in finding.detail


def test_a_volume_that_came_after_the_listing_began_is_no_ghost() -> None:
    assert judged(volumes=[volume()], known=SortedList()) == []
    assert judged(volumes=[volume()], known=SortedList(["uid-pvc-u1"])) == [("ghost", "h/pvc-u1", "pvc-u1")]


def test_a_volume_out_of_reach_is_no_ghost() -> None:
    assert judged(volumes=[volume()], in_reach=lambda _volume: False) == []


def test_a_restored_asset_says_what_to_do() -> None:
    comparison = Comparison("d", HERE)
    comparison.add_listed(asset(cluster="there"))
    comparison.add_volume(volume())
    (finding, _) = comparison.findings()
    assert finding is not None
    assert "volplane adopt --from there" in finding.detail


# --- observations -----------------------------------------------------------------------------------------------


def orphan(handle: str = "h") -> Finding:
    return Finding(verdict=Verdict.ORPHAN, driver="d", handle=handle, volume="", detail="")


def test_an_observation_counts_from_the_end_of_the_first_listing_to_the_start_of_the_second() -> None:
    seen = Observations(grace=300)
    assert seen.add("d", [orphan()], began=0, ended=100) == [orphan()]
    assert not seen.confirmed(orphan())
    assert seen.add("d", [orphan()], began=399, ended=500) == []
    assert not seen.confirmed(orphan())
    seen.add("d", [orphan()], began=400, ended=500)
    assert seen.confirmed(orphan())
    assert seen.first_seen(orphan()) == 100


def test_time_alone_confirms_nothing() -> None:
    seen = Observations(grace=300)
    seen.add("d", [orphan()], began=0, ended=1)
    seen.add("other", [], began=1000, ended=1001)
    assert not seen.confirmed(orphan())


def test_a_gap_starts_anew_and_other_drivers_do_not_matter() -> None:
    seen = Observations(grace=300)
    seen.add("d", [orphan(), orphan("i")], began=0, ended=1)
    seen.add("e", [], began=100, ended=101)
    seen.add("d", [orphan("i")], began=200, ended=201)
    assert seen.add("d", [orphan(), orphan("i")], began=600, ended=601) == [orphan()]
    assert [seen.confirmed(finding) for finding in seen.findings()] == [False, True]
    assert seen.count("d", Verdict.ORPHAN) == 2


def test_what_was_repaired_is_forgotten() -> None:
    seen = Observations(grace=300)
    seen.add("d", [orphan()], began=0, ended=1)
    seen.settled(orphan())
    seen.settled(orphan())
    assert seen.findings() == []
    assert not seen.confirmed(orphan())


# --- when findings were first seen, for the next process -----------------------------------------------------------


def test_when_a_finding_was_first_seen_outlives_the_process_but_confirms_nothing() -> None:
    first, second = Observations(), Observations(grace=300)
    first.add("d", [orphan()], began=0, ended=100, epoch=1000)
    second.noted = dict(first.noted)
    second.add("d", [orphan(), orphan("new")], began=10, ended=11, epoch=5000)
    assert [second.first_seen(each, 5000) for each in (orphan(), orphan("new"))] == [1100, 5011]
    second.add("d", [orphan()], began=300, ended=301, epoch=5000)
    assert not second.confirmed(orphan())
    assert second.noted == first.noted


def test_what_the_first_check_of_a_process_does_not_find_starts_anew() -> None:
    first, second = Observations(), Observations()
    first.add("d", [orphan()], began=0, ended=1)
    second.noted = dict(first.noted)
    second.add("d", [], began=10, ended=11, epoch=5000)
    second.add("d", [orphan()], began=20, ended=21, epoch=5000)
    assert second.first_seen(orphan(), 5000) == 5021


def test_of_many_findings_some_are_noted_without_their_names_and_no_foreign_one() -> None:
    foreign = [replace(orphan(f"foreign-{number}"), verdict=Verdict.FOREIGN) for number in range(MOST_NOTED)]
    many = [*foreign, *(orphan(f"secret-{number}") for number in range(MOST_NOTED + 1))]
    seen = Observations()
    seen.add("d", many, began=0, ended=1, epoch=1000)
    assert len(seen.noted["d"]) == MOST_NOTED
    assert "secret" not in repr(seen.noted)
    assert {seen.first_seen(each, 1000) for each in many} == {1001}
    seen.add("d", many[-1:], began=500, ended=501, epoch=1000)
    assert list(seen.noted["d"].values()) == [1001]


def test_what_many_drivers_note_stays_far_below_what_annotations_may_hold() -> None:
    seen = Observations()
    for _ in range(2):
        for number in range(64):
            many = [orphan(f"{number}-{each}") for each in range(200)]
            seen.add(f"driver-{number:02}." + 50 * "x", many, began=0, ended=1, epoch=1.8e9)
        assert sum(map(len, seen.noted.values())) == MOST_NOTED
        assert len(msgspec.json.encode(seen.noted)) < 8 * 1024
    seen.add("driver-00." + 50 * "x", [], began=0, ended=1)
    seen.add("d", [orphan(str(each)) for each in range(200)], began=0, ended=1)
    assert len(seen.noted["d"]) == MOST_NOTED, "others use the room that is free again"
