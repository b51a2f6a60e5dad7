"""Which claims the node agent mounts."""

from typing import Any

import msgspec
import pytest

from volplane.kube.objects import Claim, Volume
from volplane_embedded.kubelet.mounts import MountError
from volplane_embedded.kubelet.populator import ClaimUse, claim_error

GOING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
GUARDED = {**GOING, "finalizers": ["kubernetes.io/pvc-protection"]}


def claim(*, phase: str = "Bound", name: str = "data", modes: tuple[str, ...] = (), **metadata: Any) -> Claim:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", **metadata}
    spec = {"volumeName": "disk", "accessModes": list(modes)}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"phase": phase}}, Claim)


def volume(uid: str | None = "uid-data", **metadata: Any) -> Volume:
    reference = {"namespace": "default", "name": "data", "uid": uid} if uid is not None else None
    return msgspec.convert({"metadata": {"name": "disk", **metadata}, "spec": {"claimRef": reference}}, Volume)


@pytest.mark.parametrize(
    ("one", "found", "ran", "reason"),
    [
        (claim(), volume(), False, ""),
        (claim(phase="Pending"), volume(), False, "PVC is not bound"),
        (claim(phase="Lost"), volume(), False, "PVC is not bound"),
        (claim(), None, False, 'persistentvolume "disk" not found'),
        (claim(), volume(None), False, "PV disk is not bound to any claim"),
        (claim(), volume("other"), False, "PV disk is bound to another claim (other, not uid-data)"),
        (claim(**GUARDED), volume(), False, "PVC is being deleted"),
        (claim(**GUARDED), volume(), True, ""),
        (claim(**GOING), volume(), True, "PVC is being deleted"),
        (claim(), volume(**GOING), False, "PV disk is being deleted"),
        (claim(), volume(**GOING), True, ""),
    ],
)
def test_a_claim_and_its_volume_must_agree_and_stay(one: Claim, found: Volume | None, ran: bool, reason: str) -> None:
    assert claim_error(one, found, ran=ran) == reason


def test_only_one_pod_may_have_a_claim_that_says_so() -> None:
    use = ClaimUse()
    single, shared = claim(modes=("ReadWriteOncePod",)), claim(name="shared", modes=("ReadWriteOnce",))
    for pod in ("a", "a"):
        use.take(single, pod)
    for pod in ("a", "b"):
        use.take(shared, pod)
    with pytest.raises(MountError, match="ReadWriteOncePod"):
        use.take(single, "b")
    use.release("a")
    use.take(single, "b")
