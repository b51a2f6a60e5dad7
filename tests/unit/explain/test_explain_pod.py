"""What `volplane explain pod` says of the pod itself: where its volumes are, and what keeps them from it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from unit.attach.objects import CSI, UNIQUE, attachment, bound, node, pod
from unit.attach.test_machines import attached_to, machine
from unit.binding.objects import claim
from unit.deciding import state_with
from volplane.explain.explain import Explanation
from volplane.explain.explain_pod import explain_pod
from volplane.kube.objects import Claim, CsiDriver, KubeObject, Pod

CLAIM, VOLUME = bound()
WAITING = pod(phase="Pending")


def explained(one: Pod, *objects: KubeObject, **more: Any) -> Explanation:
    return explain_pod(one, state_with(one, *objects, attacher=False), **more)


def ephemeral(owner: str) -> tuple[Pod, Claim]:
    """A pod with an ephemeral volume, and the claim of its name, which this uid owns."""
    body = msgspec.to_builtins(WAITING)
    body["spec"]["volumes"] = [{"name": "v", "ephemeral": {}}]
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": True}]
    return msgspec.convert(body, Pod), claim("p-v", ownerReferences=owners, status={"phase": "Pending"})


def test_a_pod_without_a_node_waits_for_the_scheduler() -> None:
    told = explained(pod(node="", phase="Pending"), CLAIM, VOLUME)
    assert told.situation == ("pod default/p is Pending on no node",)
    assert told.next == ("volume v is attached and mounted once the scheduler has given the pod a node",)


def test_a_pod_that_has_ended_waits_for_nothing() -> None:
    told = explained(pod(phase="Succeeded"), CLAIM, VOLUME, node())
    assert told.next == ("nothing: it has ended, and keeps no volume attached",)


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ((), "node node-a does not exist: nothing can be attached or mounted there"),
        ((node(ready="Unknown"),), "node node-a is not Ready: its kubelet does not say that it works"),
        ((node(taints=("node.kubernetes.io/out-of-service",)),), "node node-a is declared to be out of service"),
    ],
)
def test_a_node_that_cannot_have_the_volume_is_said(there: tuple[KubeObject, ...], said: str) -> None:
    assert any(each.startswith(said) for each in explained(WAITING, CLAIM, VOLUME, *there).situation)


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        ((), "claim default/c, its volume v, does not exist"),
        ((claim("c", status={"phase": "Pending"}),), "claim default/c, its volume v, is Pending"),
        ((CLAIM,), "claim default/c is bound to volume v, which does not exist"),
        (
            (CLAIM, msgspec.structs.replace(VOLUME, spec=msgspec.structs.replace(VOLUME.spec, claim_ref=None))),
            "claim default/c is bound to volume v, which refers to another claim",
        ),
    ],
)
def test_a_claim_that_cannot_be_used_is_said(objects: tuple[KubeObject, ...], said: str) -> None:
    told = explained(WAITING, node(), *objects)
    assert told.situation[-1] == said
    assert told.next == ("volume v waits for claim default/c",)


def test_a_claim_that_was_not_made_for_the_ephemeral_volume_of_its_name_is_said() -> None:
    one, theirs = ephemeral("uid-of-another")
    [said] = explained(one, theirs, node()).situation[1:]
    assert said == "claim default/p-v has the name of its ephemeral volume v and was not made for this pod"
    one, own = ephemeral(WAITING.uid)
    assert explained(one, own, node()).situation[1:] == ("claim default/p-v, its volume v, is Pending",)


def test_a_claim_that_is_being_deleted_is_said() -> None:
    going = claim(
        "c", volumeName="v", status={"phase": "Bound"}, finalizers=["x"], deletionTimestamp="2026-01-01T00:00:00Z"
    )
    told = explained(WAITING, going, VOLUME, node())
    assert "claim default/c is being deleted: a kubelet starts no pod on it that does not run yet" in told.situation


def test_the_pods_and_the_node_that_have_the_volume_are_named() -> None:
    there = (node("node-b", in_use=(UNIQUE,)), pod("q", "node-b"), attachment("node-b", attached=True))
    told = explained(WAITING, CLAIM, VOLUME, node(), *there)
    assert told.situation[1:] == (
        "volume v is not attached to node node-a: it is attached to node-b, and may be on one node at a time",
        'Multi-Attach error for volume "v" Volume is already used by pod(s) q',
    )
    assert told.next == ("volume v is attached to node node-a when it can be",)


@pytest.mark.parametrize(
    ("objects", "after"),
    [
        ((), "the attach-detach controller makes a VolumeAttachment of volume v for node node-a"),
        ((attachment(error="the disk is broken"),), f"attacher {CSI} attaches volume v to node node-a"),
        ((attachment(attached=True, deleted=True),), f"volume v is attached anew when attacher {CSI} has detached it"),
        ((attachment(attached=True),), "the attach-detach controller tells node node-a that volume v is attached"),
    ],
)
def test_who_has_the_next_turn_until_it_is_attached(objects: tuple[KubeObject, ...], after: str) -> None:
    assert explained(WAITING, CLAIM, VOLUME, node(), *objects).next == (after,)


def test_an_attachment_of_a_former_node_is_said_to_go() -> None:
    old = attached_to(machine("uid-former"))
    assert explained(WAITING, CLAIM, VOLUME, machine(provider_id="gce://project/zone/other"), old).next == (
        "the VolumeAttachment of volume v is deleted: it is of a former node",
    )


def test_an_attach_that_fails_is_told_with_its_error() -> None:
    told = explained(WAITING, CLAIM, VOLUME, node(), attachment(error="the disk is broken"))
    assert any(each.endswith("the disk is broken") for each in told.situation)


@pytest.mark.parametrize(
    ("used", "after"),
    [
        ((), "the kubelet of node node-a says that it uses volume v, then mounts it"),
        ((UNIQUE,), "the kubelet of node node-a mounts volume v"),
    ],
)
def test_once_it_is_attached_the_kubelet_has_the_next_turn(used: tuple[str, ...], after: str) -> None:
    here = node(attached=(UNIQUE,), in_use=used)
    assert explained(WAITING, CLAIM, VOLUME, here, attachment(attached=True)).next == (after,)
    assert explained(pod(), CLAIM, VOLUME, here, attachment(attached=True)).next == ()


def test_a_volume_that_needs_no_attaching_is_only_mounted() -> None:
    driver = msgspec.convert({"metadata": {"name": CSI, "uid": "u"}, "spec": {"attachRequired": False}}, CsiDriver)
    told = explained(WAITING, CLAIM, VOLUME, node(), driver)
    assert told.situation[-1] == "volume v needs no attaching"
    assert told.next == ("the kubelet of node node-a mounts volume v",)


def test_what_others_warned_of_is_told() -> None:
    told = explained(WAITING, CLAIM, VOLUME, node(), warnings=("warning FailedMount at noon: no such device",))
    assert told.situation[-1] == "warning FailedMount at noon: no such device"
