"""Every answer of every method of FakeCompute is a message of Google, with nothing lost and nothing added."""

from __future__ import annotations

import json
from typing import Any

import pytest

from volplane_gce_pd.api import ComputeClient, GceError, Method
from volplane_gce_pd.settings import Settings
from volplane_gce_pd.testing import FakeCompute, InProcess
from volplane_gce_pd.testing.methods import METHODS, parsed
from volplane_testing.cloud import HttpRequest, HttpResponse, SteppedClock

PROJECT, REGION, A = "test-project", "europe-test1", "europe-test1-a"


def plain(value: Any) -> Any:
    """Return the JSON as Google's classes write it: whole numbers of 64 bits are texts there."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def checked(answer: bytes, kind: str) -> None:
    """Raise unless the message class writes what it has read."""
    from google.cloud import compute_v1

    message = getattr(compute_v1, kind)
    again = message.to_json(
        message.from_json(answer, ignore_unknown_fields=False),
        always_print_fields_with_no_presence=False,
        use_integers_for_enums=False,
    )
    assert plain(json.loads(again)) == plain(json.loads(answer))


def live(call: Any, clock: SteppedClock, place: dict[str, str], disks: str) -> None:
    """Call every method of the disks of a place."""
    (kind, where), regional = next(iter(place.items())), disks == "regionDisks"
    path = f"projects/{PROJECT}/{kind}s/{where}"
    disk: dict[str, Any] = {"name": "d", "size_gb": 20, "labels": {"a": "b"}, "type_": f"{path}/diskTypes/"}
    disk["type_"] += "hyperdisk-balanced-high-availability" if regional else "hyperdisk-balanced"
    if regional:
        disk["replica_zones"] = [f"projects/{PROJECT}/zones/{REGION}-{letter}" for letter in "ab"]
    call(f"{disks}.insert", **place, disk_resource=disk)
    made = call(f"{disks}.get", **place, disk="d")
    call(f"{disks}.list", **place)
    wished = {"name": "d", "provisioned_iops": 4_000}
    call(f"{disks}.update", **place, disk="d", paths="provisionedIops", disk_resource=wished)
    prefix = "region_disks" if regional else "disks"
    clock.advance(14_400.0)
    call(f"{disks}.resize", **place, disk="d", **{f"{prefix}_resize_request_resource": {"size_gb": 30}})
    labels = {"labels": {"c": "d"}, "label_fingerprint": made.label_fingerprint}
    resource = "region_set_labels_request_resource" if regional else "zone_set_labels_request_resource"
    call(f"{disks}.setLabels", **place, resource="d", **{resource: labels})
    cut = {"source_disk": f"{path}/disks/d", "storage_locations": ["us"], "labels": {"a": "b"}, "description": "of d"}
    call("snapshots.insert", snapshot_resource={**cut, "name": f"snapshot-{kind}"})
    clock.advance(10.0)
    call("snapshots.get", snapshot=f"snapshot-{kind}")
    call("snapshots.list")
    deleted = call("snapshots.delete", snapshot=f"snapshot-{kind}")
    call("globalOperations.get", operation=deleted.name)
    if not regional:
        clock.advance(600.0)
        call("images.insert", image_resource={**cut, "name": "i", "family": "f"}, force_create=True)
        call("images.get", image="i")
        call("images.list")
        clock.advance(30.0)
        call("images.delete", image="i")
        there = {**place, "instance": "vm"}
        attached = {"source": f"{path}/disks/d", "device_name": "d"}
        call("instances.attachDisk", **there, attached_disk_resource=attached)
        call("instances.get", **there)
        call("instances.list", **place)
        call("instances.detachDisk", **there, device_name="d")
    call("disks.aggregatedList")
    operation = call(f"{disks}.delete", **place, disk="d")
    call(f"{kind}Operations.get", **place, operation=operation.name)
    call(f"{kind}Operations.list", **place)


def test_every_answer_of_every_method_is_a_message_of_google(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SteppedClock()
    fake = FakeCompute(clock=clock)
    fake.add_instance("vm", A)
    answer, called = fake.answer, set()

    def note(request: HttpRequest) -> HttpResponse:
        method, _params = parsed(request.method, request.target, request.body)
        given = answer(request)
        if given.status == 200:
            called.add(method.name)
            checked(given.body, method.answer)
        return given

    monkeypatch.setattr(fake, "answer", note)
    client = ComputeClient(Settings(project=PROJECT, region=REGION), InProcess(fake))

    def call(name: str, **fields: Any) -> Any:
        result = client.call(Method(name), **fields)
        clock.advance(3.0)
        return result

    call("zones.list")
    call("machineTypes.get", zone=A, machine_type="n1-standard-1")
    live(call, clock, {"zone": A}, "disks")
    live(call, clock, {"region": REGION}, "regionDisks")
    call("globalOperations.list")
    call("globalOperations.aggregatedList")
    call("instances.aggregatedList")
    with pytest.raises(GceError):
        call("disks.get", zone=A, disk="d")
    assert called == set(METHODS) == set(Method)
