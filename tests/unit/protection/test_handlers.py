"""Which protection a change wakes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from unit.binding.objects import claim, volume
from unit.deciding import state_with
from volplane.kube.names import CLAIM_PROTECTION, VOLUME_PROTECTION
from volplane.kube.objects import Claim, Pod, Volume
from volplane.protection.finalizers import LiveList, Protection

DYING = "2026-01-01T00:00:00Z"


class Woken:
    """A queue that remembers."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def enqueue(self, key: str, after: float = 0.0) -> None:
        self.keys.append(key)


class Bench:
    def __init__(self, *claims: Claim) -> None:
        self.claims, self.volumes = Woken(), Woken()
        cluster = state_with(*claims)
        cluster.monotonic = lambda: 100.0
        self.handlers = Protection(cluster=cluster, claims=self.claims, volumes=self.volumes)


def held(**fields: Any) -> Claim:
    return claim(finalizers=[CLAIM_PROTECTION], **fields)


def guarded(**fields: Any) -> Volume:
    return volume(finalizers=[VOLUME_PROTECTION], **fields)


def pod(name: str = "p", uses: str = "c", namespace: str = "default") -> Pod:
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "5"}
    spec = {"nodeName": "n", "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": uses}}]}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}, Pod)


@pytest.mark.parametrize(
    ("old", "new", "woken"),
    [
        (None, claim(), ["default/c"]),
        (None, held(), []),
        (None, claim(deletionTimestamp=DYING), []),
        (held(), held(deletionTimestamp=DYING), ["default/c"]),
        (held(deletionTimestamp=DYING), None, ["default/c"]),
        (held(), None, []),
        (claim(), held(), ["default/c"]),
        (held(deletionTimestamp=DYING), held(uid="uid-next"), ["default/c"]),
    ],
    ids=[
        "unprotected",
        "protected",
        "dying and let go",
        "deleted",
        "gone while it was held",
        "gone",
        "protected just now",
        "replaced",
    ],
)
def test_a_claim_is_looked_at_when_its_finalizer_is_to_come_or_go(
    old: Claim | None, new: Claim | None, woken: list[str]
) -> None:
    bench = Bench()
    bench.handlers.claim_changed(old, new)
    assert bench.claims.keys == woken
    assert bench.volumes.keys == []


def test_when_a_claim_was_seen_to_be_deleted_is_noted_once() -> None:
    bench = Bench()
    bench.handlers.claim_changed(held(), held(deletionTimestamp=DYING))
    assert bench.handlers.terminating_since == {"default": {"uid-c": 100.0}}
    bench.handlers.claim_changed(held(deletionTimestamp=DYING), held(uid="uid-next"))
    assert bench.handlers.terminating_since == {}


@pytest.mark.parametrize(
    ("old", "new", "woken"),
    [
        (None, volume(), ["v"]),
        (None, guarded(), []),
        (None, volume(deletionTimestamp=DYING), []),
        (guarded(), guarded(deletionTimestamp=DYING), ["v"]),
        (guarded(deletionTimestamp=DYING), None, ["v"]),
        (guarded(), None, []),
    ],
)
def test_a_volume_is_looked_at_when_its_finalizer_is_to_come_or_go(
    old: Volume | None, new: Volume | None, woken: list[str]
) -> None:
    bench = Bench()
    bench.handlers.volume_changed(old, new)
    assert bench.volumes.keys == woken
    assert bench.claims.keys == []


def test_a_dying_claim_is_looked_at_when_the_volume_that_was_chosen_for_it_changes() -> None:
    dying, living = held(deletionTimestamp=DYING), held(name="living")
    bench = Bench(dying, living)
    bench.handlers.volume_changed(guarded(claim=dying), guarded())
    assert bench.claims.keys == ["default/c"]
    bench.handlers.volume_changed(guarded(claim=living), guarded())
    bench.handlers.volume_changed(guarded(reserved="c"), guarded())
    bench.handlers.volume_changed(guarded(claim=claim("unknown")), guarded())
    bench.handlers.volume_changed(None, guarded(claim=dying))
    assert bench.claims.keys == ["default/c"]


@pytest.mark.parametrize(
    ("old", "new"), [(None, pod()), (pod(), None), (pod(), pod(uses="another"))], ids=["comes", "goes", "changes"]
)
def test_what_happens_to_a_pod_of_a_dying_claim_puts_the_last_list_in_doubt(old: Pod | None, new: Pod | None) -> None:
    bench = Bench(held(deletionTimestamp=DYING))
    bench.handlers.lists["default"] = LiveList(1.0, [pod()], [])
    bench.handlers.pod_changed(old, new)
    assert bench.claims.keys == ["default/c"]
    assert bench.handlers.lists == {}


def test_pods_of_living_claims_and_of_other_namespaces_wake_nobody() -> None:
    bench = Bench(held(name="living"), held(deletionTimestamp=DYING))
    bench.handlers.lists["default"] = LiveList(1.0, [pod()], [])
    bench.handlers.pod_changed(None, pod(uses="living"))
    bench.handlers.pod_changed(None, pod(namespace="elsewhere"))
    assert bench.claims.keys == []
    assert list(bench.handlers.lists) == ["default"]
