"""The trash in virtual time: what is kept, for how long, who gets it, and who does not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from volplane.kube.names import TRASH, TRASH_CHOICE, TRASH_EARLY, TRASHED, UNDELETE
from volplane_testing import Cluster, clock

CLAIMS, VOLUMES = "persistentvolumeclaims", "persistentvolumes"
HOUR = 3600.0
Json = dict[str, Any]


class Site:
    """A cluster with the class `kept`, whose parameter has deleted volumes kept for a week."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.api = cluster, cluster.api

    def claim(self, name: str = "data", *, namespace: str = "default", says: str | None = None, **spec: Any) -> Json:
        annotations = {TRASH: says} if says is not None else {}
        annotations |= spec.pop("annotations", {})
        base = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        body = {"metadata": {"name": name, "annotations": annotations}, "spec": {**base, "storageClassName": "kept"}}
        return self.api.create(CLAIMS, {**body, "spec": {**body["spec"], **spec}}, namespace)

    async def bound(self, name: str = "data", *, says: str | None = None, namespace: str = "default") -> Json:
        """The volume of a new claim."""
        return await self.cluster.wait_bound(self.claim(name, says=says, namespace=namespace))

    async def deleted(self, name: str = "data", *, says: str | None = None, namespace: str = "default") -> Json:
        """The volume of a claim that was deleted."""
        volume = await self.bound(name, says=says, namespace=namespace)
        self.api.delete(CLAIMS, name, namespace)
        await self.cluster.settle()
        return volume

    def volume(self, of: Json) -> Json:
        found = self.api.get(VOLUMES, of["metadata"]["name"])
        assert found is not None
        return found

    def record(self, of: Json) -> Json | None:
        text = self.volume(of)["metadata"].get("annotations", {}).get(TRASHED)
        return None if text is None else dict(json.loads(text))

    def asking(self, name: str, volume: Json, *, proof: str = "", namespace: str = "default", **spec: Any) -> Json:
        """A claim that names the volume and shows this uid, or that of the former claim."""
        uid = proof or self.volume(volume)["spec"]["claimRef"]["uid"]
        named = {"volumeName": volume["metadata"]["name"], **spec}
        return self.claim(name, namespace=namespace, annotations={UNDELETE: uid}, **named)

    def phase(self, name: str, namespace: str = "default") -> str:
        found = self.api.get(CLAIMS, name, namespace)
        assert found is not None
        return str(found["status"]["phase"])

    def claim_of(self, volume: Json) -> str:
        reference = self.volume(volume)["spec"]["claimRef"]
        return f"{reference['namespace']}/{reference['name']}"

    def reasons(self, about: Json) -> set[str]:
        return {event["reason"] for event in self.api.events(about)}

    def messages(self, about: Json, reason: str) -> str:
        return "\n".join(event["message"] for event in self.api.events(about) if event["reason"] == reason)

    @property
    def assets(self) -> int:
        return len(self.cluster.backend.storage.assets)


@asynccontextmanager
async def a_site(keeps: str = "7d", *, annotated: bool = False, **of_class: Any) -> AsyncIterator[Site]:
    async with Cluster() as cluster:
        if annotated:
            created = await cluster.create_class("kept", **of_class)
            body = {"metadata": {"annotations": {TRASH: keeps}}}
            cluster.api.patch("storageclasses", created["metadata"]["name"], body)
        else:
            given = of_class.pop("parameters", {})
            await cluster.create_class("kept", parameters={TRASH: keeps, **given}, **of_class)
        yield Site(cluster)


def until(record: Json | None) -> datetime:
    assert record is not None
    return datetime.fromisoformat(record["until"])


# --- how long ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("annotated", [False, True], ids=["parameter", "annotation"])
async def test_the_volume_of_a_deleted_claim_is_kept_for_the_time_of_its_class_and_then_destroyed(
    annotated: bool,
) -> None:
    async with a_site("1h", annotated=annotated) as site:
        volume = await site.deleted()
        record, now = site.record(volume), site.volume(volume)
        assert record is not None
        assert timedelta(hours=1) <= until(record) - clock.now() <= timedelta(hours=1, seconds=3)
        assert (record["claim"], record["released"]) == (volume["spec"]["claimRef"]["uid"], "default/data")
        assert now["status"]["phase"] == "Released"
        assert "volplane.dev/reclaim" in now["metadata"]["finalizers"]
        assert "deletionTimestamp" not in now["metadata"]
        await site.cluster.advance(HOUR - 10)
        assert (site.assets, volume in site.api) == (1, True)
        await site.cluster.advance(20)
        assert (site.assets, volume in site.api) == (0, False)


@pytest.mark.parametrize(("says", "days"), [("1d", 1), ("7d", 7), ("24h", 1), (None, 7)])
async def test_a_claim_chooses_within_the_time_of_its_class(says: str | None, days: int) -> None:
    async with a_site() as site:
        volume = await site.deleted(says=says)
        assert timedelta(days=days) <= until(site.record(volume)) - clock.now() < timedelta(days=days, minutes=1)


async def test_a_claim_that_skips_the_trash_is_destroyed_at_once() -> None:
    async with a_site() as site:
        volume = await site.deleted(says="skip")
        assert (site.assets, volume in site.api) == (0, False)


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ("999999d", "duration"),
        ("8d", "the longest time here is 7d"),
        ("-1d", "duration"),
        ("", "duration"),
        ("0", "at least 1s"),
        ("\uff17d", "duration"),
        ("\u202e7d", "\\u202e7d"),
        ("1d" * 100_000, "1d1d..."),
    ],
    ids=["huge", "longer", "negative", "empty", "zero", "wide digits", "direction", "long"],
)
async def test_what_a_claim_cannot_have_is_said_and_nothing_is_made(says: str, words: str) -> None:
    async with a_site() as site:
        claim = site.claim(says=says)
        await site.cluster.advance(60)
        told = site.messages(claim, "ProvisioningFailed")
        assert words in told
        assert TRASH in told
        assert "skip" in told
        assert len(told) < 400
        assert (site.phase("data"), site.assets) == ("Pending", 0)


@pytest.mark.parametrize(
    ("of_class", "words"),
    [
        ({"keeps": "soon"}, 'class "kept": volplane.dev/trash is "soon": expected a duration'),
        ({"reclaim_policy": "Retain"}, "reclaimPolicy Delete"),
        ({"parameters": {"volplane.dev/trash-early": "yes"}}, 'volplane.dev/trash-early is "yes"; the only value is'),
        ({"parameters": {"volplane.dev/on-release": "recycle"}}, "volplane.dev/on-release"),
        (
            {"parameters": {"csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}"}},
            "csi.storage.k8s.io/provisioner-secret-namespace",
        ),
    ],
    ids=["text", "policy", "early", "recycle", "secrets"],
)
async def test_a_class_that_cannot_keep_is_refused(of_class: dict[str, Any], words: str) -> None:
    async with a_site(**of_class) as site:
        claim = site.claim()
        await site.cluster.advance(60)
        assert words in site.messages(claim, "ProvisioningFailed")
        assert site.assets == 0


async def test_a_claim_that_asks_to_be_kept_by_a_class_that_keeps_nothing_is_told() -> None:
    async with a_site() as site:
        await site.cluster.create_class("plain")
        claim, skips = (
            site.claim(says="1d", storageClassName="plain"),
            site.claim("b", says="skip", storageClassName="plain"),
        )
        await site.cluster.wait_bound(skips)
        await site.cluster.advance(60)
        assert 'class "plain" keeps no deleted volumes' in site.messages(claim, "ProvisioningFailed")
        assert site.phase("data") == "Pending"


async def test_what_a_bound_claim_chooses_later_counts_once_its_volume_shows_it() -> None:
    async with a_site() as site:
        volume = await site.bound()
        for says, shown in (
            ("2d", "2d"),
            (" 1d\n", "1d"),
            ("2d", "2d"),
            ("99999d", "2d"),
            ("skip", "skip"),
            (None, None),
            ("3d", "3d"),
        ):
            site.api.patch(CLAIMS, "data", {"metadata": {"annotations": {TRASH: says}}})
            await site.cluster.settle()
            assert site.volume(volume)["metadata"]["annotations"].get(TRASH_CHOICE) == shown
        claim = site.api.get(CLAIMS, "data")
        assert claim is not None
        assert "expected a duration" in site.messages(claim, "TrashRefused")
        site.api.delete(CLAIMS, "data")
        await site.cluster.settle()
        assert until(site.record(volume)) - clock.now() < timedelta(days=3, minutes=1)


async def test_a_volume_without_the_trash_costs_no_request_more() -> None:
    async def life(parameters: dict[str, str]) -> list[tuple[str, str]]:
        async with Cluster() as cluster:
            await cluster.create_class("kept", parameters=parameters)
            site = Site(cluster)
            await site.bound()
            site.api.delete(CLAIMS, "data")
            await cluster.advance(60)
            return [(call.verb, call.resource) for call in cluster.requests if call.resource != "events"]

    without, kept = await life({}), await life({TRASH: "1s"})
    assert sorted(kept) == sorted([*without, ("patch", VOLUMES)])


async def test_a_static_volume_is_kept_if_an_administrator_says_so() -> None:
    async with a_site() as site:
        asset = await site.bound()
        site.api.patch(VOLUMES, asset["metadata"]["name"], {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})
        site.api.delete(CLAIMS, "data")
        await site.cluster.settle()
        body = {"metadata": {"annotations": {TRASH: "1d"}}, "spec": {"persistentVolumeReclaimPolicy": "Delete"}}
        site.api.patch(VOLUMES, asset["metadata"]["name"], body)
        await site.cluster.settle()
        assert until(site.record(asset)) - clock.now() < timedelta(days=1, minutes=1)


async def test_nothing_is_destroyed_while_the_time_on_a_volume_cannot_be_read() -> None:
    async with a_site() as site:
        volume = await site.bound()
        name = volume["metadata"]["name"]
        site.api.patch(VOLUMES, name, {"metadata": {"annotations": {TRASH: "7dd"}}})
        site.api.delete(CLAIMS, "data")
        await site.cluster.advance(60)
        assert (site.assets, site.record(volume)) == (1, None)
        assert 'on it is "7dd": expected a duration' in site.messages(volume, "TrashRefused")
        site.api.patch(VOLUMES, name, {"metadata": {"annotations": {TRASH: "skip"}}})
        await site.cluster.advance(60)
        assert site.assets == 0


# --- crashes, leaders, absence ----------------------------------------------------------------------------------------


async def test_a_claim_that_is_deleted_while_no_controller_runs_is_kept_as_it_chose() -> None:
    async with a_site() as site:
        volume = await site.bound(says="2d")
        await site.cluster.controllers.kill()
        site.api.patch(CLAIMS, "data", {"metadata": {"annotations": {TRASH: "skip"}, "finalizers": None}})
        site.api.delete(CLAIMS, "data")
        await site.cluster.restart()
        await site.cluster.settle()
        # Nobody has seen the later wish: what is kept for too long can still be destroyed.
        assert until(site.record(volume)) - clock.now() > timedelta(days=1, hours=23)
        assert site.assets == 1


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_crash_at_any_write_keeps_the_volume_and_its_time(after: bool) -> None:
    for resource in (VOLUMES, f"{VOLUMES}/status"):
        async with a_site("1h") as site:
            volume = await site.bound()
            site.cluster.fail("patch", resource, status=0, after=after)
            site.api.delete(CLAIMS, "data")
            for _ in range(3):
                await site.cluster.restart()
                await site.cluster.advance(3)
            first = site.record(volume)
            await site.cluster.restart()
            await site.cluster.settle()
            assert first == site.record(volume) is not None
            await site.cluster.advance(HOUR + 10)
            assert site.assets == 0


async def test_a_volume_is_not_destroyed_while_the_clock_of_the_server_is_behind_ours() -> None:
    async with a_site("1h") as site:
        site.cluster.controllers.plane.state.server_time = lambda: clock.now() - timedelta(hours=2)
        volume = await site.deleted()
        await site.cluster.advance(HOUR + 10)
        assert (site.assets, volume in site.api) == (1, True)
        await site.cluster.advance(2 * HOUR)
        assert site.assets == 0


async def test_a_volume_is_kept_for_its_time_by_the_server_if_our_clock_is_behind() -> None:
    async with a_site() as site:
        state = site.cluster.controllers.plane.state
        state.now = lambda: clock.now() - timedelta(days=30)
        state.server_time = clock.now
        volume = await site.deleted()
        assert until(site.record(volume)) - clock.now() >= timedelta(days=7)


async def test_a_volume_that_is_due_is_not_destroyed_while_another_one_shares_its_asset() -> None:
    async with a_site("1h") as site:
        volume = await site.deleted()
        twin = await site.cluster.create_volume("twin", {"csi": volume["spec"]["csi"]})
        await site.cluster.advance(2 * HOUR)
        assert (site.assets, volume in site.api) == (1, True)
        site.api.delete(VOLUMES, twin["metadata"]["name"])
        await site.cluster.advance(700)
        assert site.assets == 0


async def test_if_room_is_short_the_oldest_goes_first_where_the_class_allows_that() -> None:
    async with a_site(parameters={TRASH_EARLY: "oldest-first"}) as site:
        site.cluster.backend.storage.capacity_bytes = 3 << 30
        kept = []
        for name in ("first", "second", "third"):
            kept.append(await site.deleted(name))
            await site.cluster.advance(5)
        huge = site.claim("huge", resources={"requests": {"storage": "4Gi"}})
        await site.cluster.advance(600)
        assert [volume in site.api for volume in kept] == [True, True, True]
        site.api.delete(CLAIMS, huge["metadata"]["name"])
        large = site.claim("large", resources={"requests": {"storage": "2Gi"}})
        await site.cluster.wait_bound(large, 3600)
        assert [volume in site.api for volume in kept] == [False, False, True]
        assert "no room for claim default/large" in site.messages(kept[0], "VolumePurgedEarly")


async def test_if_room_is_short_nothing_leaves_the_trash_of_a_class_that_does_not_say_so() -> None:
    async with a_site() as site:
        site.cluster.backend.storage.capacity_bytes = 1 << 30
        volume = await site.deleted()
        claim = site.claim("next")
        await site.cluster.advance(600)
        assert (site.phase("next"), volume in site.api) == ("Pending", True)
        assert site.messages(claim, "ProvisioningFailed")


# --- bound to nobody --------------------------------------------------------------------------------------------------


async def test_a_claim_that_is_applied_again_gets_an_empty_volume() -> None:
    async with a_site() as site:
        volume = await site.deleted()
        other = await site.bound()
        assert other["metadata"]["name"] != volume["metadata"]["name"]
        assert site.record(volume) is not None
        assert site.assets == 2


async def test_nobody_gets_a_volume_whose_reference_was_removed_in_the_trash() -> None:
    async with a_site("1h") as site:
        volume = await site.deleted()
        site.api.patch(VOLUMES, volume["metadata"]["name"], {"spec": {"claimRef": None}})
        await site.cluster.settle()
        stranger = site.claim("stranger", namespace="other", volumeName=volume["metadata"]["name"])
        lost = {"pv.kubernetes.io/bind-completed": "yes"}
        site.claim("lost", namespace="other", volumeName=volume["metadata"]["name"], annotations=lost)
        await site.bound("free", namespace="other")
        await site.cluster.advance(60)
        assert "claimRef" not in site.volume(volume)["spec"]
        assert site.phase("stranger", "other") == "Pending"
        assert site.phase("lost", "other") != "Bound"
        assert "is in the trash" in site.messages(stranger, "FailedBinding")
        await site.cluster.advance(HOUR)
        assert volume not in site.api


async def test_a_record_of_an_earlier_release_does_not_count() -> None:
    async with a_site("1h") as site:
        volume = await site.deleted()
        await site.cluster.controllers.kill()
        uid = site.claim("later", volumeName=volume["metadata"]["name"])["metadata"]["uid"]
        reference = {"namespace": "default", "name": "later", "uid": uid}
        site.api.patch(VOLUMES, volume["metadata"]["name"], {"spec": {"claimRef": reference}})
        site.api.patch(CLAIMS, "later", {"metadata": {"finalizers": None}})
        site.api.delete(CLAIMS, "later")
        clock_before = clock.now()
        await site.cluster.restart()
        await site.cluster.settle()
        record = site.record(volume)
        assert record is not None
        assert record["claim"] == uid
        assert until(record) - clock_before >= timedelta(hours=1)


@pytest.mark.parametrize(
    ("namespace", "proof"),
    [("other", ""), ("default", "00000000-0000-0000-0000-000000000000"), ("default", "\u202e" * 1000)],
    ids=["namespace", "uid", "text"],
)
async def test_a_claim_without_proof_gets_nothing_but_a_reason(namespace: str, proof: str) -> None:
    async with a_site() as site:
        volume = await site.deleted()
        claim = site.asking("thief", volume, proof=proof, namespace=namespace)
        await site.cluster.advance(60)
        assert site.claim_of(volume) == "default/data"
        assert "is not the uid of the claim" in site.messages(claim, "UndeleteRefused")
        assert site.phase("thief", namespace) == "Pending"
        assert site.assets == 1


async def test_a_namespace_that_was_made_again_is_not_its_owners() -> None:
    async with a_site() as site:
        volume = await site.deleted(namespace="team")
        site.api.delete("namespaces", "team")
        await site.cluster.advance(5)
        site.api.create("namespaces", {"metadata": {"name": "team"}})
        claim = site.asking("data", volume, namespace="team")
        await site.cluster.advance(60)
        assert "was made after volume" in site.messages(claim, "UndeleteRefused")
        assert site.record(volume) is not None
        site.api.patch(VOLUMES, volume["metadata"]["name"], {"metadata": {"annotations": {UNDELETE: "team/data"}}})
        bound = await site.cluster.wait_bound(claim)
        assert bound["metadata"]["name"] == volume["metadata"]["name"]


# --- out of the trash -------------------------------------------------------------------------------------------------


async def test_its_owner_gets_the_volume_back_by_a_claim_that_names_it() -> None:
    async with a_site("1h") as site:
        volume = await site.deleted(says="50m")
        again = await site.cluster.wait_bound(site.asking("back", volume))
        assert again["metadata"]["uid"] == volume["metadata"]["uid"]
        assert site.record(volume) is None
        assert "VolumeUndeleted" in site.reasons(volume)
        await site.cluster.advance(2 * HOUR)
        assert TRASH_CHOICE not in site.volume(volume)["metadata"]["annotations"]
        assert (site.assets, site.phase("back")) == (1, "Bound")
        # Its next release has a time of its own.
        site.api.delete(CLAIMS, "back")
        await site.cluster.settle()
        assert until(site.record(volume)) - clock.now() > timedelta(minutes=59)


async def test_a_volume_of_a_deleted_namespace_is_kept() -> None:
    async with a_site() as site:
        volume = await site.bound(namespace="team")
        site.api.delete(CLAIMS, "data", "team")
        site.api.delete("namespaces", "team")
        await site.cluster.settle()
        assert site.record(volume) is not None


@pytest.mark.parametrize("first", ["claim", "annotation"])
async def test_an_administrator_gives_the_volume_to_a_claim_of_any_namespace(first: str) -> None:
    async with a_site() as site:
        volume = await site.deleted()
        name = volume["metadata"]["name"]
        steps = {
            "claim": lambda: site.claim("theirs", namespace="other", volumeName=name),
            "annotation": lambda: site.api.patch(
                VOLUMES, name, {"metadata": {"annotations": {UNDELETE: "other/theirs"}}}
            ),
        }
        for step in (first, *steps.keys() - {first}):
            steps[step]()
            await site.cluster.settle()
        claim = site.api.get(CLAIMS, "theirs", "other")
        assert claim is not None
        assert (await site.cluster.wait_bound(claim))["metadata"]["uid"] == volume["metadata"]["uid"]
        await site.cluster.settle()
        assert {TRASHED, UNDELETE}.isdisjoint(site.volume(volume)["metadata"]["annotations"])


async def test_a_volume_that_is_given_to_a_claim_that_gets_another_one_goes_back_into_the_trash() -> None:
    async with a_site("1h") as site:
        volume = await site.deleted()
        other = await site.bound("taker")
        # As if its bind had come between the look at the claim and the write.
        site.api.patch(VOLUMES, volume["metadata"]["name"], {"spec": {"claimRef": other["spec"]["claimRef"]}})
        await site.cluster.advance(60)
        record = site.record(volume)
        assert record is not None
        assert record["released"] == "default/taker"
        assert site.assets == 2
        await site.cluster.advance(HOUR)
        assert (site.assets, site.phase("taker")) == (1, "Bound")


async def test_a_claim_that_asks_for_a_volume_without_naming_it_gets_no_empty_one() -> None:
    async with a_site() as site:
        claim = site.claim(annotations={UNDELETE: "some"})
        await site.cluster.advance(60)
        assert "name it in spec.volumeName" in site.messages(claim, "ProvisioningFailed")
        assert site.assets == 0


@pytest.mark.parametrize("wanted", ["data", "a/b/c", "/", "", "Ä/\u202e"])
async def test_an_annotation_that_names_no_claim_destroys_and_gives_nothing(wanted: str) -> None:
    async with a_site("1h") as site:
        volume = await site.deleted()
        body = {"metadata": {"annotations": {UNDELETE: wanted}}}
        site.api.patch(VOLUMES, volume["metadata"]["name"], body)
        await site.cluster.advance(2 * HOUR)
        assert (site.assets, site.claim_of(volume)) == (1, "default/data")


async def test_a_name_that_is_taken_is_refused_with_the_commands_to_run() -> None:
    async with a_site() as site:
        volume = await site.deleted()
        other, name = await site.bound(), volume["metadata"]["name"]
        site.api.patch(VOLUMES, name, {"metadata": {"annotations": {UNDELETE: "default/data"}}})
        await site.cluster.settle()
        told = site.messages(volume, "UndeleteRefused")
        assert f'is bound to volume "{other["metadata"]["name"]}": its name is taken' in told
        assert "`kubectl -n default delete pvc data`" in told
        assert f"`volplane undelete {name} --claim default/data`" in told
        # A person does what it says.
        site.api.delete(CLAIMS, "data")
        await site.cluster.advance(15)
        claim = site.claim(volumeName=name)
        assert (await site.cluster.wait_bound(claim))["metadata"]["uid"] == volume["metadata"]["uid"]
        assert site.record(other) is not None


@pytest.mark.parametrize(
    "spec",
    [{"resources": {"requests": {"storage": "2Gi"}}}, {"volumeMode": "Block"}, {"accessModes": ["ReadWriteMany"]}],
    ids=["size", "mode", "access"],
)
async def test_a_claim_that_the_volume_does_not_suit_is_told(spec: Json) -> None:
    async with a_site() as site:
        volume = await site.deleted()
        claim = site.asking("back", volume, **spec)
        await site.cluster.advance(60)
        assert "cannot be given to claim default/back" in site.messages(claim, "UndeleteRefused")
        assert site.record(volume) is not None


async def test_deleting_the_volume_object_purges_at_once() -> None:
    async with a_site() as site:
        volume = await site.deleted()
        site.api.delete(VOLUMES, volume["metadata"]["name"])
        await site.cluster.settle()
        assert (site.assets, volume in site.api) == (0, False)


async def test_under_policy_retain_nothing_is_in_the_trash() -> None:
    async with a_site("1h") as site:
        volume = await site.deleted()
        name = volume["metadata"]["name"]
        site.api.patch(VOLUMES, name, {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})
        await site.cluster.advance(2 * HOUR)
        assert (site.assets, volume in site.api) == (1, True)
        site.api.patch(VOLUMES, name, {"spec": {"claimRef": None}})
        claim = site.claim("next", storageClassName="kept")
        assert (await site.cluster.wait_bound(claim))["metadata"]["name"] == name
        assert site.record(volume) is None
