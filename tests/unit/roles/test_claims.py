"""The next step for a claim: what follows when no volume fits, or another makes it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from unit.binding.objects import claim, storage_class, volume
from unit.deciding import DRIVER, decide_claim, decided, disk, fast, state_with, told
from volplane.controller.actions import LiveReads, Patch, Settled, Wait
from volplane.kube.kinds import VOLUMES
from volplane.kube.objects import Claim, Pod
from volplane.roles.beside import has_or_had_volume

DEFAULT = {"storageclass.kubernetes.io/is-default-class": "true"}
BETA_DEFAULT = {"storageclass.beta.kubernetes.io/is-default-class": "true"}


# --- nothing fits ------------------------------------------------------------------------------------------------


def test_a_claim_that_does_not_exist_needs_nothing() -> None:
    assert decide_claim("default/c", state_with(), LiveReads()) == Settled()


@pytest.mark.parametrize("marks", [DEFAULT, BETA_DEFAULT])
def test_a_claim_without_a_class_is_given_the_default_one(marks: dict[str, str]) -> None:
    step = decided(claim(storageClassName=None), storage_class(annotations=marks))
    assert step.body == {"spec": {"storageClassName": "fast"}}


@pytest.mark.parametrize(
    "item",
    [
        claim(storageClassName=""),
        claim(storageClassName=None, annotations={"volume.beta.kubernetes.io/storage-class": ""}),
        claim(storageClassName=None, volumeName="v"),
    ],
    ids=["explicitly none", "none by the old annotation", "naming a volume"],
)
def test_a_claim_that_says_something_about_its_class_or_volume_is_not_given_one(item: Claim) -> None:
    action = decided(item, storage_class(annotations=DEFAULT))
    assert not (isinstance(action, Patch) and "spec" in action.body)


def test_the_newest_default_class_is_given_and_of_equally_new_ones_the_first_by_name() -> None:
    """Item 21.18."""
    classes = [
        storage_class(name, annotations=DEFAULT, creationTimestamp=f"2026-01-0{day}T00:00:00Z")
        for name, day in (("a", 1), ("c", 2), ("b", 2))
    ]
    assert decided(claim(storageClassName=None), *classes).body == {"spec": {"storageClassName": "b"}}


def test_a_fitting_volume_without_a_class_comes_before_the_default_class() -> None:
    """Item 21.19: also one that is not available yet."""
    without = claim(storageClassName=None)
    assert decided(without, storage_class(annotations=DEFAULT), volume()).kind is VOLUMES
    coming = decided(without, storage_class(annotations=DEFAULT), volume(status={"phase": "Pending"}))
    assert isinstance(coming, Wait)
    assert coming.seconds is not None


def test_without_a_class_and_a_volume_it_waits_and_says_so() -> None:
    assert told(decided(claim())) == (
        "Normal",
        "FailedBinding",
        "no persistent volumes available for this claim and no storage class is set",
    )


def test_a_stale_status_is_put_right_before_the_claim_waits() -> None:
    step = decided(claim(status={"phase": "Bound", "capacity": {"storage": "1Gi"}}))
    assert step.body == {"status": {"phase": "Pending", "capacity": None}}


def test_a_class_that_does_not_exist_is_named() -> None:
    assert told(decided(fast())) == (
        "Warning",
        "ProvisioningFailed",
        'storageclass.storage.k8s.io "fast" not found',
    )


def _pod(name: str, **spec: Any) -> Pod:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    body = {
        "metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"},
        "spec": {"volumes": volumes, **{k: v for k, v in spec.items() if k != "phase"}},
        "status": {"phase": spec.get("phase", "Pending")},
    }
    return msgspec.convert(body, Pod)


@pytest.mark.parametrize(
    ("pods", "reason", "message"),
    [
        ((), "WaitForFirstConsumer", "waiting for first consumer to be created before binding"),
        ((_pod("p"),), "WaitForPodScheduled", "waiting for pod p to be scheduled"),
        ((_pod("q"), _pod("p")), "WaitForPodScheduled", "waiting for pods p,q to be scheduled"),
        ((_pod("p", nodeName="n"),), "WaitForFirstConsumer", "waiting for first consumer to be created before binding"),
        (
            (_pod("p", phase="Failed"),),
            "WaitForFirstConsumer",
            "waiting for first consumer to be created before binding",
        ),
    ],
)
def test_a_delayed_claim_says_for_whom_it_waits(pods: tuple[Pod, ...], reason: str, message: str) -> None:
    """Item 22.2."""
    late = storage_class(volumeBindingMode="WaitForFirstConsumer")
    free = volume(storageClassName="fast")
    assert told(decided(fast(), late, free, *pods, drivers=(disk(),))) == ("Normal", reason, message)


# --- somebody else's class ---------------------------------------------------------------------------------------


def test_an_external_provisioner_is_asked_by_both_annotations_and_then_waited_for() -> None:
    other = storage_class(provisioner="vendor.example.com")
    step = decided(fast(), other)
    assert set(step.body["metadata"]["annotations"].values()) == {"vendor.example.com"}
    asked = fast(annotations={"volume.kubernetes.io/storage-provisioner": "vendor.example.com"})
    kind, reason, message = told(decided(asked, other))
    assert (kind, reason) == ("Normal", "ExternalProvisioning")
    assert "external provisioner 'vendor.example.com'" in message


def test_a_class_of_a_migrated_plugin_asks_its_csi_driver() -> None:
    step = decided(fast(), storage_class(provisioner="kubernetes.io/gce-pd"))
    assert set(step.body["metadata"]["annotations"].values()) == {"pd.csi.storage.gke.io"}


def test_an_in_tree_plugin_that_is_not_there_is_an_error_and_nobody_is_asked() -> None:
    assert told(decided(fast(), storage_class(provisioner="kubernetes.io/mock"))) == (
        "Warning",
        "ProvisioningFailed",
        "no volume plugin matched name: kubernetes.io/mock",
    )


def test_a_class_without_provisioner_needs_a_person() -> None:
    """Item 22.3."""
    waits = decided(fast(), storage_class(provisioner="kubernetes.io/no-provisioner"))
    assert told(waits)[2] == "no volume plugin matched name: kubernetes.io/no-provisioner"
    assert "an administrator must add one" in waits.reason


def test_a_broken_driver_is_named_with_its_reason() -> None:
    _, _, message = told(decided(fast(), storage_class(), broken={DRIVER: "its root is not mounted"}))
    assert message == f'driver "{DRIVER}" of class "fast" cannot work: its root is not mounted'


def test_with_provisioning_switched_off_a_claim_is_left_without_a_word() -> None:
    waits = decided(fast(), storage_class(), drivers=(disk(),), provisioner=False)
    assert isinstance(waits, Wait)
    assert waits.events == ()


def test_a_claim_whose_volume_was_deleted_before_the_bind_asks_for_another_generation() -> None:
    made = {"pv.kubernetes.io/provisioned-by": DRIVER}
    going: Any = {"deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": made, "status": {"phase": "Available"}}
    item = claim()
    action = decided(item, volume(f"pvc-{item.uid}", claim=item, **going), storage_class(), drivers=(disk(DRIVER),))
    assert isinstance(action, Patch)
    assert '"generation":2' in action.body["metadata"]["annotations"]["volplane.dev/intent"].replace("\\", "")


def test_for_a_claim_that_was_bound_once_nothing_is_provisioned_beside_a_stock_binder() -> None:
    assert has_or_had_volume(claim(annotations={"pv.kubernetes.io/bind-completed": "yes"}))
    assert not has_or_had_volume(claim())
