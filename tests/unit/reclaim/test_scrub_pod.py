"""The scrubber pod as it is made, and by what it is known again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from unit.binding.objects import volume
from volplane.controller.config import ScrubberSettings
from volplane.kube.objects import Pod, Volume
from volplane.reclaim.scrub_pod import (
    BLOCK_SCRIPT,
    DEVICE,
    SCRIPT,
    Unmountable,
    belongs,
    pod_body,
    pod_name,
    scrub_deadline,
    sealed_spec,
    source_digest,
)
from volplane.state.records import INTENT_VERSION, RecycleIntent, ScrubPlan, Sealer

OURS = "volplane-system"
SEALER = Sealer(b"k" * 32)
INTENT = RecycleIntent(v=INTENT_VERSION, claim="uid-c", attempt=2)
ITEM = volume("v", hostPath={"path": "/data/v"})
HASH = hashlib.sha256(b"uid-v").hexdigest()[:16]


def made(item: Volume = ITEM, plan: ScrubPlan | None = None, intent: RecycleIntent = INTENT) -> dict[str, Any]:
    """What is created to scrub it."""
    settings = ScrubberSettings()
    return pod_body(item, intent, plan or ScrubPlan(None), settings, namespace=OURS, sealer=SEALER)


def as_pod(body: dict[str, Any]) -> Pod:
    return msgspec.convert({**body, "metadata": {**body["metadata"], "uid": "u", "resourceVersion": "1"}}, Pod)


def test_the_pod_is_gated_powerless_and_says_what_it_is_for() -> None:
    body = made()
    assert (body["kind"], body["apiVersion"]) == ("Pod", "v1")
    meta, spec = body["metadata"], body["spec"]
    assert (meta["name"], meta["namespace"]) == (f"volplane-scrub-{HASH}", OURS)
    assert meta["labels"] == {"volplane.dev/scrub": HASH, "app.kubernetes.io/name": "volplane-scrub"}
    annotations = dict(meta["annotations"])
    assert len(annotations.pop("volplane.dev/scrub-seal")) > 20
    assert json.loads(annotations.pop("volplane.dev/scrub-spec")) == spec
    assert annotations == {
        "volplane.dev/scrub-volume": "v",
        "volplane.dev/scrub-volume-uid": "uid-v",
        "volplane.dev/scrub-claim-uid": "uid-c",
        "volplane.dev/scrub-source": source_digest(ITEM),
        "volplane.dev/scrub-attempt": "2",
    }
    assert spec == {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostNetwork": False,
        "activeDeadlineSeconds": scrub_deadline(ITEM, ScrubberSettings()),
        "schedulingGates": [{"name": "volplane.dev/scrub"}],
        "terminationGracePeriodSeconds": 5,
        "containers": [
            {
                "name": "scrub",
                "image": "registry.k8s.io/build-image/debian-base:bookworm-v1.0.6",
                "command": ["/bin/sh", "-c", SCRIPT],
                "volumeMounts": [{"name": "volume", "mountPath": "/scrub"}],
                "securityContext": {
                    "runAsUser": 0,
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE", "FOWNER"]},
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }
        ],
        "volumes": [{"name": "volume", "hostPath": {"path": "/data/v", "type": "Directory"}}],
    }


def test_a_plan_of_the_backend_says_what_is_mounted_and_which_part() -> None:
    body = made(plan=ScrubPlan({"nfs": {"server": "s", "path": "/"}}, "exports/v"))
    assert body["spec"]["volumes"] == [{"name": "volume", "nfs": {"server": "s", "path": "/"}}]
    [mount] = body["spec"]["containers"][0]["volumeMounts"]
    assert mount == {"name": "volume", "mountPath": "/scrub", "subPath": "exports/v"}


def test_the_pod_runs_where_the_volume_is() -> None:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
    near = volume("v", nodeAffinity={"required": terms}, hostPath=None, local={"path": "/data/v"})
    body = made(near)
    [term] = body["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"] == terms["nodeSelectorTerms"][0]["matchExpressions"]
    assert body["spec"]["volumes"] == [{"name": "volume", "hostPath": {"path": "/data/v", "type": "Directory"}}]
    assert "affinity" not in made(volume("v", nodeAffinity={}))["spec"]


def test_an_nfs_volume_is_mounted_from_its_server() -> None:
    body = made(volume("v", hostPath=None, nfs={"server": "filer", "path": "/exports/v"}))
    assert body["spec"]["volumes"] == [{"name": "volume", "nfs": {"server": "filer", "path": "/exports/v"}}]


def test_what_no_pod_can_name_is_mounted_by_the_claim_of_its_scrub() -> None:
    held = msgspec.structs.replace(INTENT, held_by="uid-of-its-claim")
    item = volume("v", hostPath=None, csi={"driver": "d", "volumeHandle": "h"})
    body = made(item, intent=held)
    claimed = [{"name": "volume", "persistentVolumeClaim": {"claimName": f"volplane-scrub-{HASH}"}}]
    assert body["spec"]["volumes"] == claimed
    [container] = body["spec"]["containers"]
    assert container["volumeMounts"] == [{"name": "volume", "mountPath": "/scrub"}]
    assert container["command"] == ["/bin/sh", "-c", SCRIPT]


def test_a_volume_of_mode_block_is_a_device_of_the_pod() -> None:
    item = volume("v", hostPath=None, csi={"driver": "d", "volumeHandle": "h"}, volumeMode="Block")
    body = made(item, intent=msgspec.structs.replace(INTENT, held_by="uid-of-its-claim"))
    assert body["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": f"volplane-scrub-{HASH}"}
    [container] = body["spec"]["containers"]
    assert container["volumeDevices"] == [{"name": "volume", "devicePath": DEVICE}]
    assert "volumeMounts" not in container
    assert container["command"] == ["/bin/sh", "-c", BLOCK_SCRIPT]
    with pytest.raises(Unmountable, match="a volume of mode Block cannot be mounted"):
        made(item)


def test_a_volume_without_a_source_is_said_to_have_an_unknown_one() -> None:
    with pytest.raises(Unmountable, match="a volume whose source is unknown cannot be mounted"):
        made(volume("v", hostPath=None))


def test_the_pod_of_a_volume_of_one_node_is_seen_by_the_process_of_that_node() -> None:
    item = volume("v", labels={"volplane.dev/node": "0123abcd"})
    assert made(item)["metadata"]["labels"]["volplane.dev/node"] == "0123abcd"


def test_the_order_in_which_a_source_is_written_makes_it_no_other() -> None:
    one = volume("v", hostPath=None, nfs={"server": "filer", "path": "/exports/v"})
    same = volume("v", hostPath=None, nfs={"path": "/exports/v", "server": "filer"})
    assert source_digest(one) == source_digest(same)


def test_the_deadline_grows_with_the_volume_up_to_what_the_server_takes() -> None:
    settings = ScrubberSettings(base_deadline=100, deadline_per_gib=10)
    assert scrub_deadline(volume(size="5Gi"), settings) == 150
    assert scrub_deadline(volume(size="1023Mi"), settings) == 100
    assert scrub_deadline(volume(size="8Ei"), settings) == 2**31 - 1


OTHERS = {
    "another volume": (volume("w", uid="uid-v", hostPath={"path": "/data/v"}), INTENT),
    "a volume made anew": (volume("v", uid="uid-next", hostPath={"path": "/data/v"}), INTENT),
    "another source": (volume("v", hostPath={"path": "/data/w"}), INTENT),
    "another kind of source": (volume("v", hostPath=None, local={"path": "/data/v"}), INTENT),
    "another release": (ITEM, msgspec.structs.replace(INTENT, claim="uid-d")),
    "another attempt": (ITEM, msgspec.structs.replace(INTENT, attempt=3)),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_pod_belongs_to_one_attempt_of_one_release_of_one_volume(other: str) -> None:
    pod = as_pod(made())
    assert belongs(pod, ITEM, INTENT)
    assert not belongs(pod, *OTHERS[other])


def test_a_pod_without_annotations_belongs_to_nothing_and_has_no_seal() -> None:
    body = made()
    body["metadata"].pop("annotations")
    assert not belongs(as_pod(body), ITEM, INTENT)
    assert sealed_spec(as_pod(body), SEALER) is None


def test_the_seal_gives_the_spec_back_that_was_made() -> None:
    assert sealed_spec(as_pod(made()), SEALER) == made()["spec"]


def _rename(body: dict[str, Any]) -> None:
    body["metadata"]["name"] = "volplane-scrub-0000000000000000"


def _annotate(key: str, value: str) -> Callable[[dict[str, Any]], None]:
    def change(body: dict[str, Any]) -> None:
        body["metadata"]["annotations"][f"volplane.dev/{key}"] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _rename,
        _annotate("scrub-volume", "w"),
        _annotate("scrub-volume-uid", "uid-w"),
        _annotate("scrub-claim-uid", "uid-d"),
        _annotate("scrub-source", "0"),
        _annotate("scrub-attempt", "3"),
        _annotate("scrub-spec", "{}"),
        _annotate("scrub-seal", ""),
    ],
)
def test_whatever_the_seal_covers_cannot_be_changed(change: Callable[[dict[str, Any]], None]) -> None:
    body = made()
    change(body)
    assert sealed_spec(as_pod(body), SEALER) is None


def test_the_seal_of_another_key_is_none() -> None:
    assert sealed_spec(as_pod(made()), Sealer(b"x" * 32)) is None


def test_the_name_comes_from_the_uid_alone() -> None:
    assert pod_name(volume("v", uid="one")) != pod_name(volume("v", uid="two"))
    assert pod_name(volume("v", uid="one")) == pod_name(volume("w", uid="one"))
