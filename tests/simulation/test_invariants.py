"""Every invariant can fail: by a planted bug (`recorded.py`), or in a world that is wrong by hand."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from simulation.recorded import ALL_CAUGHT, CAUGHT_ON_NODES
from volplane.assets import Ownership
from volplane.attach.desired import attachment_name
from volplane.intents import record
from volplane.kube.objects import Volume
from volplane.requests import ClaimIdentity, Context, ProvisionRequest
from volplane_testing import simulation
from volplane_testing.simulation.actors import Actors
from volplane_testing.simulation.changes import Changes
from volplane_testing.simulation.liveness import MOST_WRITES, Liveness
from volplane_testing.simulation.loop import ScheduleLoop
from volplane_testing.simulation.nodes import Nodes, PodFaults
from volplane_testing.simulation.run import Trial, simulate
from volplane_testing.simulation.run_context import NAMESPACE, RunContext
from volplane_testing.simulation.schedule import generate

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
BOUND = {"pv.kubernetes.io/bind-completed": "yes"}
Build = Callable[["World"], None]


class World:
    """Objects and assets without controllers. `user` and `p1` write what they like."""

    def __init__(self) -> None:
        self.run_context = RunContext.create(1)
        self.send("user", "POST", "/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": NAMESPACE}})

    def send(self, who: str, method: str, path: str, body: Mapping[str, Any], kind: str = "") -> Any:
        media = "application/merge-patch+json" if method == "PATCH" else "application/json"
        full = {"apiVersion": "v1", **({"kind": kind} if kind else {}), **body}
        sent = body if method == "PATCH" else full
        answer = self.run_context.view.send(
            who, method, path, json.dumps(sent).encode(), headers={"content-type": media}
        )
        assert answer.status < 300, answer.body
        return json.loads(answer.body)

    def claim(self, name: str, volume: str = "", *, finalizer: str = "", **annotations: str) -> str:
        """Its uid."""
        metadata: dict[str, Any] = {"name": name, "annotations": annotations}
        if finalizer:
            metadata["finalizers"] = [finalizer]
        spec = {
            "storageClassName": "",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            **({"volumeName": volume} if volume else {}),
        }
        made = self.send("user", "POST", CLAIMS, {"metadata": metadata, "spec": spec}, "PersistentVolumeClaim")
        return str(made["metadata"]["uid"])

    def volume(
        self, name: str, reference: Mapping[str, str] | None = None, phase: str = "", **annotations: str
    ) -> None:
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": f"/alpha/{name}"},
            **(
                {"claimRef": {"kind": "PersistentVolumeClaim", "namespace": "default", **reference}}
                if reference
                else {}
            ),
        }
        metadata = {"name": name, "annotations": annotations}
        self.send("user", "POST", VOLUMES, {"metadata": metadata, "spec": spec}, "PersistentVolume")
        if phase:
            self.send("user", "PATCH", f"{VOLUMES}/{name}/status", {"status": {"phase": phase}})

    def pair(self) -> None:
        """Claim `a` and volume `v`, bound to each other."""
        uid = self.claim("a", "v", **BOUND)
        self.volume("v", {"name": "a", "uid": uid}, phase="Bound")
        self.send("user", "PATCH", f"{CLAIMS}/a/status", {"status": {"phase": "Bound"}})


class _Silent:
    def reasons(self) -> dict[str, str]:
        return {}


def broken_by(build: Build) -> str:
    """Name of the invariant that is broken once everything is quiet, "" if none is."""

    async def judge() -> str:
        world = World()
        Changes(world.run_context, {})
        build(world)
        cluster = Nodes(world.run_context, PodFaults(), {})
        Liveness(world.run_context, Actors(world.run_context, {}, {}), cluster, {}).check(_Silent())
        violation = world.run_context.violations.violation
        return violation.invariant if violation is not None else ""

    with asyncio.Runner(loop_factory=lambda: ScheduleLoop(seed=1, limit=60.0)) as runner:
        return runner.run(judge())


def a_pair_at_rest(world: World) -> None:
    world.pair()


def a_volume_taken_from_its_claim_and_given_to_another(world: World) -> None:
    world.pair()
    reference = {"name": "b", "uid": world.claim("b", "other")}
    world.send("p1", "PATCH", f"{VOLUMES}/v", {"spec": {"claimRef": reference}})


def a_claim_that_cannot_go(world: World) -> None:
    world.claim("a", finalizer="volplane.dev/provisioning")
    world.send("user", "DELETE", f"{CLAIMS}/a", {})


def a_free_volume_that_is_said_to_be_released(world: World) -> None:
    world.volume("v", phase="Released")


def a_bound_volume_without_an_asset(world: World) -> None:
    uid = world.claim("a", "v", **BOUND)
    made_by = {"pv.kubernetes.io/provisioned-by": "alpha.sim"}
    world.volume("v", {"name": "a", "uid": uid}, phase="Bound", **made_by)
    world.send("user", "PATCH", f"{CLAIMS}/a/status", {"status": {"phase": "Bound"}})


def a_scrubber_pod_that_is_left(world: World) -> None:
    spec = {"containers": [{"name": "scrub", "image": "busybox"}]}
    pod = {"metadata": {"name": "volplane-scrub-0123456789abcdef"}, "spec": spec}
    world.send("user", "POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod, "Pod")


def an_asset_of_nobody(world: World) -> None:
    world.run_context.safety.made("alpha.sim", "path:/alpha/lost", None)


def a_claim_that_is_written_again_and_again(world: World) -> None:
    world.pair()
    for number in range(MOST_WRITES + 1):
        world.send("p1", "PATCH", f"{CLAIMS}/a", {"metadata": {"annotations": {"number": str(number)}}})


def a_volume_detached_where_it_is_to_be_attached(world: World) -> None:
    csi = {"csi": {"driver": "alpha.sim", "volumeHandle": "v"}}
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], **csi}
    world.send("user", "POST", VOLUMES, {"metadata": {"name": "v"}, "spec": spec}, "PersistentVolume")
    attachment = {
        "apiVersion": "storage.k8s.io/v1",
        "metadata": {"name": attachment_name("alpha.sim", "v", "node-a")},
        "spec": {"attacher": "alpha.sim", "nodeName": "node-a", "source": {"persistentVolumeName": "v"}},
    }
    world.send("p1", "POST", ATTACHMENTS, attachment, "VolumeAttachment")
    world.run_context.safety.attachments.attached("csi:alpha.sim:v", "node-a")
    world.run_context.safety.attachments.detached("csi:alpha.sim:v", "node-a")


def a_volume_that_shrinks(world: World) -> None:
    world.pair()
    world.send("p1", "PATCH", f"{VOLUMES}/v", {"spec": {"capacity": {"storage": "512Mi"}}})


def an_asset_that_is_asked_for_in_another_place(world: World) -> None:
    owner = Ownership(cluster_id="c", claim_uid="u", volume_name="pvc-u", generation=1)
    for zone in ("a", "b"):
        request = ProvisionRequest(
            context=Context(driver="beta.sim", cluster_id="c"),
            name="pvc-u",
            capacity_bytes=1,
            owner=owner,
            claim=ClaimIdentity(namespace="default", name="c", uid="u"),
            segment={"zone": zone},
        )
        world.run_context.hook_rules.called(request)


BY_HAND: Mapping[Build, str] = {
    an_asset_that_is_asked_for_in_another_place: "place-is-kept",
    a_volume_taken_from_its_claim_and_given_to_another: "one-claim-per-volume",
    a_claim_that_cannot_go: "no-stuck-finalizer",
    a_free_volume_that_is_said_to_be_released: "phases-tell-the-truth",
    a_bound_volume_without_an_asset: "no-ghost",
    a_scrubber_pod_that_is_left: "nothing-left-over",
    an_asset_of_nobody: "no-leak",
    a_claim_that_is_written_again_and_again: "no-hot-loop",
    a_volume_detached_where_it_is_to_be_attached: "no-late-detach",
    a_volume_that_shrinks: "capacity-never-shrinks",
}


@pytest.mark.parametrize(("seen", "invariant"), [(True, "never-used"), (False, "")])
def test_a_promise_binds_only_a_process_that_has_seen_it_when_the_claim_goes(*, seen: bool, invariant: str) -> None:
    def erase_what_no_claim_had(world: World) -> None:
        uid = world.claim("a", finalizer="kubernetes.io/pvc-protection")
        reserved = {"name": "a", "uid": uid}
        world.volume("v", reserved, phase="Released")
        safety = world.run_context.safety
        safety.made("alpha.sim", "path:/alpha/v", None)
        spec = {"claimRef": reserved if seen else None}
        safety.promises.believed["p1"] = lambda name: msgspec.convert(
            {"metadata": {"name": name}, "spec": spec}, Volume
        )
        world.send("user", "DELETE", f"{CLAIMS}/a", {})
        world.send("p1", "PATCH", f"{CLAIMS}/a", {"metadata": {"finalizers": None}})
        safety.erased("path:/alpha/v")

    assert broken_by(erase_what_no_claim_had) == invariant


@pytest.mark.parametrize(("restored", "invariant"), [(False, "one-asset-per-generation"), (True, "")])
def test_a_restored_server_need_not_know_what_it_has_no_record_of(*, restored: bool, invariant: str) -> None:
    def make_twice(world: World) -> None:
        owner = Ownership(cluster_id="c", claim_uid=world.claim("a"), volume_name="v", generation=1)
        safety = world.run_context.safety
        safety.made("alpha.sim", "path:/alpha/a/v", owner)
        if restored:
            safety.forgotten.add((owner.claim_uid, owner.generation))
        second = safety.made("alpha.sim", "path:/alpha/b/v", owner)
        for disk in (second, *world.run_context.disks.by_key.values()):
            disk.kept = "this test looks at the moment alone"

    assert broken_by(make_twice) == invariant


def test_what_is_well_breaks_nothing() -> None:
    assert broken_by(a_pair_at_rest) == ""


@pytest.mark.parametrize(("build", "invariant"), BY_HAND.items(), ids=lambda each: getattr(each, "__name__", each))
def test_what_is_wrong_breaks_its_invariant(build: Build, invariant: str) -> None:
    assert broken_by(build) == invariant


def test_an_error_inside_a_controller_is_a_violation() -> None:
    with patch.object(record, "settle", side_effect=ValueError("a bug")):
        violation = simulate(Trial(generate(3))).violation
    assert violation is not None
    assert violation.invariant == "no-internal-error"


def test_every_invariant_is_shown_to_fail() -> None:
    """Here, or where only a backend under test can break it: `test_backends.py`, `unit/cli/test_sim.py`."""
    text = "".join(path.read_text("utf-8") for path in Path(simulation.__file__).parent.glob("*.py"))
    known = set(re.findall(r'(?:violations\.report\(|yield )\s*"([a-z]+(?:-[a-z]+)*)"', text))
    tables = [caught for caught in ALL_CAUGHT if caught is not CAUGHT_ON_NODES]
    planted = {invariant for caught in tables for _, invariant in caught.values()}
    of_backends = {"nothing-unseen", "an-outage-is-an-error"}
    assert known == {*BY_HAND.values(), *planted, *of_backends, "no-internal-error"}
