from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unit.embedded.apiserver.objects import BY_KIND, objects
from volplane_embedded.apiserver.definitions import definition_of
from volplane_embedded.apiserver.kinds import RESOURCES
from volplane_embedded.apiserver.kinds.validation import canonical_resources
from volplane_embedded.apiserver.resources import Resource
from volplane_embedded.apiserver.schema import check
from volplane_embedded.apiserver.tables import table

calm = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def complete(resource: Resource, obj: dict[str, Any]) -> dict[str, Any]:
    """As the machinery hands an object to a strategy: decoded, with metadata that names it."""
    assert check(resource, obj).error == ""
    obj["metadata"] = {**(obj.get("metadata") or {}), "name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"}
    if resource.namespaced:
        obj["metadata"]["namespace"] = "default"
    return obj if resource.to_stored is None else resource.to_stored(obj)


TYPED = [resource for resource in RESOURCES if resource.schema is None]


@pytest.mark.parametrize("resource", TYPED, ids=lambda resource: f"{resource.plural}.{resource.group}")
def test_no_object_of_right_types_can_break_a_kind(resource: Resource) -> None:
    shape = definition_of(resource.group, resource.kind)
    strategy = resource.strategy

    @calm
    @given(st.tuples(objects(shape), objects(shape)))
    def run(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
        old, new = (complete(resource, obj) for obj in pair)
        strategy.default(old)
        once = copy.deepcopy(old)
        strategy.default(old)
        assert old == once, "defaults are filled in once"
        strategy.prepare_create(old)
        for cause in strategy.validate_create(old):
            assert cause.field is not None
            assert cause.message
        for subresource in ("", *("status" for name in resource.subresources if name == "status")):
            changed = copy.deepcopy(new)
            strategy.default(changed)
            kept = copy.deepcopy(old)
            strategy.prepare_update(changed, old, subresource)
            list(strategy.validate_update(changed, old, subresource))
            assert old == kept, "what is stored does not change"
            strategy.grace_seconds(changed, None)
            shown = changed if resource.from_stored is None else resource.from_stored(changed)
            table(resource, [shown], {}, "Metadata", now=datetime(2026, 1, 2, tzinfo=UTC))
            for read in resource.fields.values():
                assert isinstance(read(changed), str)

    run()


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: f"{resource.plural}.{resource.group}")
def test_a_kind_is_told_apart_by_its_names(resource: Resource) -> None:
    alike = [other for other in RESOURCES if other.group == resource.group]
    spoken = [name for other in alike for name in (other.plural, other.singular, *other.short_names)]
    assert len(spoken) == len(set(spoken))
    assert resource.columns[0].name in {"Name", "Last Seen"}


def test_unchanged_objects_are_valid_updates() -> None:
    for kind, obj in VALID.items():
        resource = BY_KIND[kind]
        stored = complete(resource, copy.deepcopy(obj))
        resource.strategy.default(stored)
        resource.strategy.prepare_create(stored)
        assert list(resource.strategy.validate_create(stored)) == [], kind
        again = copy.deepcopy(stored)
        resource.strategy.default(again)
        resource.strategy.prepare_update(again, stored, "")
        assert again == stored, kind
        assert list(resource.strategy.validate_update(again, stored, "")) == [], kind


VALID: dict[str, dict[str, Any]] = {
    "ConfigMap": {"data": {"a": "b"}, "binaryData": {"c": "dg=="}},
    "Event": {"involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}, "type": "Normal"},
    "Namespace": {},
    "Node": {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}, "status": {"capacity": {"cpu": "2"}}},
    "PersistentVolumeClaim": {
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1024Mi"}}}
    },
    "PersistentVolume": {
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "nfs": {"server": "s", "path": "/"}}
    },
    "Pod": {"spec": {"containers": [{"name": "c", "image": "busybox"}]}},
    "Secret": {"stringData": {"a": "b"}},
    "ServiceAccount": {},
    "Lease": {"spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}},
    "CSIDriver": {"spec": {}},
    "CSINode": {"spec": {"drivers": [{"name": "a.b", "nodeID": "n", "topologyKeys": ["a/b"]}]}},
    "CSIStorageCapacity": {"storageClassName": "std", "capacity": "1Gi"},
    "StorageClass": {"provisioner": "hostpath.volplane.dev"},
    "VolumeAttachment": {"spec": {"attacher": "a.b", "nodeName": "n", "source": {"persistentVolumeName": "v"}}},
    "VolumeAttributesClass": {"driverName": "a.b", "parameters": {"iops": "5"}},
}


def test_amounts_of_resources_are_rounded_away_from_zero_to_thousandths() -> None:
    owner = {"capacity": {"a": "1u", "b": "-1u", "c": "1.0001", "d": "1Gi"}}
    canonical_resources(owner, "capacity")
    assert owner == {"capacity": {"a": "1m", "b": "-1m", "c": "1001m", "d": "1Gi"}}
