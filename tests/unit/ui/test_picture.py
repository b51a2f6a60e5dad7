"""A claim's picture: what is there, missing, or in between, and what happened."""

from __future__ import annotations

import msgspec
import pytest

from unit.attach.objects import attachment, bound, node, pod
from unit.binding.objects import claim, volume
from unit.ui.seen import NOW, event, operation, seen, told
from volplane.kube import names
from volplane.kube.objects import CsiDriver, KubeObject
from volplane.ui.picture import Picture, picture_of
from volplane.ui.told import Told

CLAIM, VOLUME = bound()


def drawn(*objects: KubeObject, key: str = "default/c", kind: str = "claim", said: Told | None = None) -> Picture:
    watched = seen(*objects)
    for cache in watched.caches:
        cache.listed.set()
    return picture_of(kind, key, watched, said or Told())


def states(picture: Picture) -> dict[str, str]:
    return {part.role: part.state for part in picture.parts}


def test_a_claim_in_use_has_everything() -> None:
    picture = drawn(CLAIM, VOLUME, pod(), attachment(attached=True), node())
    roles = ("pod", "claim", "volume", "asset", "attachment", "node")
    assert states(picture) == dict.fromkeys(roles, "there")
    assert [part.name for part in picture.parts] == [
        "default/p", "default/c", "v", "h-1", attachment().name, "node-a",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["claim", "volume"])
def test_a_volume_has_the_picture_of_its_claim(kind: str) -> None:
    key = {"claim": "default/c", "volume": "v"}[kind]
    assert states(drawn(CLAIM, VOLUME, kind=kind, key=key))["claim"] == "there"


def test_a_claim_that_waits_has_nothing_yet() -> None:
    picture = drawn(claim("c"))
    assert states(picture) == {"pod": "none", "claim": "between", "volume": "none", "asset": "none", "node": "none"}


def test_an_asset_may_be_in_the_making() -> None:
    assert states(drawn(claim("c", finalizers=[names.PROVISIONING_FINALIZER])))["asset"] == "between"


def test_an_operation_shows_its_next_try() -> None:
    waiting = claim("c")
    picture = drawn(waiting, said=told(operations=[operation(waiting, next_try=130.0, failures=1, error="full")]))
    assert states(picture)["asset"] == "between"
    assert picture.next == NOW + 30
    assert any("full" in entry.text and entry.tone == "bad" for entry in picture.timeline)


def test_a_lost_volume_is_missing() -> None:
    assert states(drawn(claim("c", volumeName="v", status={"phase": "Lost"})))["volume"] == "missing"


def test_an_asset_that_the_backend_does_not_list_is_missing() -> None:
    ghost = {"verdict": "ghost", "volume": "v", "detail": "not listed"}
    picture = drawn(CLAIM, VOLUME, said=told(leaks={"findings": [ghost]}))
    assert states(picture)["asset"] == "missing"


def test_a_pod_on_a_node_without_attachment_waits_for_it() -> None:
    picture = drawn(CLAIM, VOLUME, pod(phase="Pending"), node(ready="Unknown"))
    assert states(picture)["attachment"] == "between"
    assert states(picture)["node"] == "missing"


def test_a_failed_attachment_says_why() -> None:
    (part,) = (each for each in drawn(CLAIM, VOLUME, attachment(error="no slot")).parts if each.role == "attachment")
    assert (part.state, part.text) == ("between", "waits for node-a; the last try failed: no slot")


def test_a_directory_needs_no_attaching() -> None:
    used = claim("c", volumeName="v", status={"phase": "Bound"})
    picture = drawn(used, volume("v", claim=used, status={"phase": "Bound"}), pod(), node())
    assert states(picture)["attachment"] == "none"


def test_a_released_volume_has_a_former_claim() -> None:
    released = volume("v", claim=CLAIM, status={"phase": "Released"})
    picture = drawn(released, kind="volume", key="v")
    (part,) = (each for each in picture.parts if each.role == "claim")
    assert (part.name, part.state, part.text) == ("default/c", "none", "it was released")


def test_the_timeline_has_events_of_everything_the_newest_first() -> None:
    used = pod()
    events = [
        event(CLAIM, "made", reason="ProvisioningSucceeded", type="Normal", time="2027-01-01T00:00:00Z"),
        event(used, "slow", kind="Pod", reason="FailedMount", time="2027-01-02T00:00:00Z", count=7),
    ]
    picture = drawn(CLAIM, VOLUME, used, *events)
    assert [(entry.about, entry.text) for entry in picture.timeline][:2] == [
        ("pod default/p", "FailedMount: slow (7 times)"),
        ("claim default/c", "ProvisioningSucceeded: made"),
    ]


def test_what_may_not_be_read_is_not_called_missing() -> None:
    used = claim("c", volumeName="v", status={"phase": "Bound"})
    picture = picture_of("claim", "default/c", seen(used), Told())
    assert states(picture) == {
        "pod": "unknown",
        "claim": "there",
        "volume": "unknown",
        "asset": "unknown",
        "node": "none",
    }


def test_what_is_not_there_is_not_found() -> None:
    for kind in ("claim", "volume", "secret"):
        assert not drawn(kind=kind, key="default/\u202ex").found


def test_the_timeline_has_conditions_and_changes_of_phase() -> None:
    resizing = {"type": "Resizing", "status": "True", "lastTransitionTime": "2027-01-01T00:00:00Z", "message": "to 2Gi"}
    grown = claim("c", volumeName="v", status={"phase": "Bound", "conditions": [resizing]})
    its_volume = volume("v", claim=grown, status={"phase": "Bound", "lastPhaseTransitionTime": "2026-01-01T00:00:00Z"})
    said = [(entry.about, entry.text) for entry in drawn(grown, its_volume).timeline]
    assert ("claim default/c", "Resizing is True, to 2Gi") in said
    assert ("volume v", "became Bound") in said


def test_a_driver_that_attaches_nothing_needs_no_attachment() -> None:
    metadata = {"name": "disk.example.com", "uid": "d", "resourceVersion": "1"}
    driver = msgspec.convert({"metadata": metadata, "spec": {"attachRequired": False}}, CsiDriver)
    assert states(drawn(CLAIM, VOLUME, pod(), node(), driver))["attachment"] == "none"
