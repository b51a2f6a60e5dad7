"""What we hold, and the writes that let it go."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from volplane.kube import names
from volplane.kube.objects import Claim, ClaimSpec, Metadata, Volume, VolumeAttachment, VolumeSpec, VolumeStatus
from volplane.reclaim.drain import held_of, released
from volplane.state.records import INTENT_VERSION, ClaimIntent, Sealer


def volume(
    *finalizers: str, policy: str = "Delete", by: str | None = "d", intent: str = "", going: bool = False
) -> Volume:
    annotations = {names.PROVISIONED_BY: by} if by else {}
    if intent:
        annotations[names.INTENT] = intent
    return Volume(
        metadata=Metadata(
            name="v",
            uid="u",
            finalizers=list(finalizers),
            annotations={**annotations, names.HANDLE: "h"},
            deletion_timestamp="2026-01-01T00:00:00Z" if going else None,
        ),
        spec=VolumeSpec(persistent_volume_reclaim_policy=policy),
        status=VolumeStatus(phase="Bound"),
    )


def claim(*finalizers: str, **annotations: str) -> Claim:
    return Claim(
        metadata=Metadata(name="c", namespace="default", uid="u", finalizers=list(finalizers), annotations=annotations),
        spec=ClaimSpec(),
    )


def sealed(driver: str) -> str:
    return Sealer(b"x" * 32).seal("u", ClaimIntent(v=INTENT_VERSION, driver=driver))


def shown(found: Any) -> list[tuple[str, str, str, str]]:
    return [(held.kind, held.key, held.driver, held.phase) for _, held in found]


def test_what_carries_our_finalizer_or_intent_is_held() -> None:
    ours = volume(names.RECLAIM_FINALIZER)
    assert shown(held_of([ours, volume(names.VOLUME_PROTECTION)])) == [("volume", "v", "d", "Bound")]
    assert shown(held_of([volume(names.RECLAIM_FINALIZER, going=True)])) == [("volume", "v", "d", "Terminating")]
    assert shown(held_of([volume(policy="Recycle", by=None, intent="{}")])) == [("volume", "v", "", "Bound")]
    assert shown(held_of([claim(names.PROVISIONING_FINALIZER), claim(names.CLAIM_PROTECTION)])) == [
        ("claim", "default/c", "", "Pending")
    ]
    assert shown(held_of([claim(**{names.INTENT: sealed("d")})])) == [("claim", "default/c", "d", "Pending")]


def test_one_driver_alone_can_be_chosen() -> None:
    volumes = [volume(names.RECLAIM_FINALIZER), volume(names.RECLAIM_FINALIZER, by="e")]
    assert [held.driver for _, held in held_of(volumes, "e")] == ["e"]
    claims = [claim(names.PROVISIONING_FINALIZER, **{names.INTENT: sealed(driver)}) for driver in ("d", "e")]
    assert [held.driver for _, held in held_of(claims, "e")] == ["e"]


def test_the_driver_of_a_claim_is_what_its_intent_says_else_what_the_binder_asked() -> None:
    asked = {names.STORAGE_PROVISIONER: "asked"}
    held = [
        claim(names.PROVISIONING_FINALIZER, **annotations)
        for annotations in (
            {**asked, names.INTENT: sealed("told")},
            {**asked, names.INTENT: "scribble"},
            {names.BETA_STORAGE_PROVISIONER: "beta"},
            {},
        )
    ]
    assert [found.driver for _, found in held_of(held)] == ["told", "asked", "beta", ""]


def test_a_volume_is_let_go_with_its_asset_kept() -> None:
    kept = released(volume(names.VOLUME_PROTECTION, names.RECLAIM_FINALIZER))
    assert kept.body == {
        "metadata": {"finalizers": [names.VOLUME_PROTECTION]},
        "spec": {"persistentVolumeReclaimPolicy": "Retain"},
    }
    scrubbed = released(volume(policy="Recycle", by=None, intent="{}"))
    assert scrubbed.body == {"metadata": {"finalizers": None, "annotations": {names.INTENT: None}}}


def test_a_claim_is_let_go_with_its_other_finalizers() -> None:
    held = claim(names.CLAIM_PROTECTION, names.PROVISIONING_FINALIZER, **{names.INTENT: sealed("d")})
    assert released(held).body == {
        "metadata": {"annotations": {names.INTENT: None}, "finalizers": [names.CLAIM_PROTECTION]}
    }


def attachment(*, driver: str = "d", attached: bool = True, going: bool = False) -> VolumeAttachment:
    record = {"v": 1, "driver": driver, "asset": "a", "volume": "v", "uid": "u", "handle": "vol-1", "source": "csi"}
    record |= {"fields": {}, "capacity": 1}
    metadata: dict[str, Any] = {"name": "csi-1", "finalizers": ["external-attacher/x"]}
    metadata["annotations"] = {names.INTENT: json.dumps(record)} if driver else {}
    if going:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    body = {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"attached": attached}}
    return msgspec.convert(body, VolumeAttachment)


def test_what_we_attached_is_held_until_it_is_detached() -> None:
    found = [attachment(), attachment(attached=False), attachment(going=True), attachment(driver="")]
    assert [held.phase for _, held in held_of(found)] == ["Attached", "Attaching", "Detaching"]
    [(_, held)] = held_of([attachment()], "d")
    assert (held.key, held.asset, held.driver) == ("csi-1", "vol-1", "d")
    assert list(held_of([attachment()], "other")) == []


def test_an_attachment_is_let_go_for_the_attacher_that_serves_it_next() -> None:
    assert released(attachment()).body == {"metadata": {"annotations": {names.INTENT: None}}}
