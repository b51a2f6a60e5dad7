from __future__ import annotations

from typing import Any

import pytest

from volplane_embedded.apiserver.definitions import definition, definition_of, names
from volplane_embedded.apiserver.kinds import RESOURCES
from volplane_embedded.apiserver.resources import Resource
from volplane_embedded.apiserver.schema import check


def resource(kind: str, group: str = "") -> Resource:
    return next(found for found in RESOURCES if (found.kind, found.group) == (kind, group))


PV, POD, LEASE = resource("PersistentVolume"), resource("Pod"), resource("Lease", "coordination.k8s.io")


@pytest.mark.parametrize(
    ("obj", "path"),
    [
        ({"bogus": 1}, "bogus"),
        ({"spec": {"bogus": None}}, "spec.bogus"),
        ({"metadata": {"bogus": 1}}, "metadata.bogus"),
        ({"spec": {"csi": {"bogus": {"a": 1}}}}, "spec.csi.bogus"),
        (
            {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{}, {"matchExpressions": [{"x": 1}]}]}}}},
            "spec.nodeAffinity.required.nodeSelectorTerms[1].matchExpressions[0].x",
        ),
    ],
)
def test_an_unknown_field_is_named_by_its_path_and_dropped(obj: dict[str, Any], path: str) -> None:
    assert check(PV, obj).problems == (f'unknown field "{path}"',)
    assert check(PV, obj).problems == (), "it is gone"


def test_every_unknown_field_of_a_pod_is_named() -> None:
    containers = [{"name": "a", "port": 1}, {"name": "b", "env": [{"name": "x", "values": ""}]}]
    report = check(POD, {"spec": {"containers": containers, "volumes": [{"name": "v", "pvc": {}}]}})
    assert report.problems == (
        'unknown field "spec.containers[0].port"',
        'unknown field "spec.containers[1].env[0].values"',
        'unknown field "spec.volumes[0].pvc"',
    )
    assert report.refusal(POD).startswith('Pod in version "v1" cannot be handled as a Pod: strict decoding error: unkn')


@pytest.mark.parametrize(
    ("obj", "why"),
    [
        (
            {"spec": {"accessModes": "ReadWriteOnce"}},
            "json: cannot unmarshal string into Go struct field PersistentVolumeSpec.spec.accessModes of type []string",
        ),
        (
            {"spec": []},
            "json: cannot unmarshal array into Go struct field PersistentVolume.spec of type v1.PersistentVolumeSpec",
        ),
        (
            {"metadata": {"labels": {"a": 1}}},
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (
            {"spec": {"nfs": {"readOnly": "yes"}}},
            "json: cannot unmarshal string into Go struct field NFSVolumeSource.spec.nfs.readOnly of type bool",
        ),
        (
            {"spec": {"nfs": {"path": 3}}},
            "json: cannot unmarshal number into Go struct field NFSVolumeSource.spec.nfs.path of type string",
        ),
        (
            {"spec": {"iscsi": {"lun": True}}},
            "json: cannot unmarshal bool into Go struct field ISCSIPersistentVolumeSource.spec.iscsi.lun of type int32",
        ),
        (
            {"spec": {"capacity": {"storage": "lots"}}},
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            {"metadata": {"creationTimestamp": "yesterday"}},
            'parsing time "yesterday" as "2006-01-02T15:04:05Z07:00": cannot parse "yesterday" as "2006"',
        ),
    ],
)
def test_a_wrong_type_is_an_error_in_the_words_of_the_server(obj: dict[str, Any], why: str) -> None:
    assert check(PV, obj).error == why
    message = check(PV, obj).refusal(PV)
    assert message == f'PersistentVolume in version "v1" cannot be handled as a PersistentVolume: {why}'


def test_a_number_must_fit_its_field() -> None:
    why = check(PV, {"spec": {"iscsi": {"lun": 2**31}}}).error
    field = "ISCSIPersistentVolumeSource.spec.iscsi.lun"
    assert why == f"json: cannot unmarshal number 2147483648 into Go struct field {field} of type int32"


def test_a_wrong_type_outweighs_unknown_fields() -> None:
    report = check(PV, {"bogus": 1, "spec": 1})
    assert "cannot unmarshal number" in report.refusal(PV)
    assert report.problems == ('unknown field "bogus"',)


def test_duplicate_fields_are_found_in_the_text() -> None:
    body = b'{"spec":{"nfs":{"path":"/a","path":"/b","server":"s"}},"metadata":{"name":"x"}}'
    report = check(PV, {"spec": {"nfs": {"path": "/b", "server": "s"}}, "metadata": {"name": "x"}}, body)
    assert report.problems == ('duplicate field "spec.nfs.path"',)
    assert 'strict decoding error: duplicate field "spec.nfs.path"' in report.refusal(PV)


def test_what_means_absence_is_dropped_and_what_does_not_is_kept() -> None:
    volume = {
        "metadata": {"name": "a", "labels": {}, "annotations": None, "finalizers": [], "creationTimestamp": None},
        "spec": {
            "storageClassName": "",
            "mountOptions": [],
            "claimRef": None,
            "hostPath": {"path": "/x", "type": ""},
            "csi": {"readOnly": False, "driver": "", "volumeHandle": "h"},
        },
    }
    assert check(PV, volume).problems == ()
    assert volume == {
        "metadata": {"name": "a"},
        "spec": {"hostPath": {"path": "/x", "type": ""}, "csi": {"driver": "", "volumeHandle": "h"}},
    }
    claim = {"spec": {"storageClassName": "", "volumeName": "", "accessModes": []}}
    check(resource("PersistentVolumeClaim"), claim)
    assert claim == {"spec": {"storageClassName": ""}}, "a claim without class is not one whose class is unset"


def test_null_inside_a_map_or_list_is_the_zero_value() -> None:
    volume = {"metadata": {"labels": {"a": None}}, "spec": {"accessModes": [None]}}
    check(PV, volume)
    assert volume == {"metadata": {"labels": {"a": ""}}, "spec": {"accessModes": [""]}}


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("2026-01-01T02:00:00+02:00", "2026-01-01T00:00:00Z"),
        ("2026-01-01T00:00:00.75Z", "2026-01-01T00:00:00Z"),
    ],
)
def test_times_are_stored_in_utc_and_whole_seconds(given: str, stored: str) -> None:
    volume: dict[str, Any] = {"status": {"lastPhaseTransitionTime": given}}
    check(PV, volume)
    assert volume["status"]["lastPhaseTransitionTime"] == stored


def test_times_of_leases_have_six_decimals() -> None:
    lease: dict[str, Any] = {"spec": {"renewTime": "2026-01-01T02:00:00.000001+02:00"}}
    assert check(LEASE, lease).error == ""
    assert lease["spec"]["renewTime"] == "2026-01-01T00:00:00.000001Z"
    assert (
        'cannot parse "2026-01-01T00:00:00Z" as ".000000"'
        in check(LEASE, {"spec": {"renewTime": "2026-01-01T00:00:00Z"}}).error
    )
    assert "out of range" in check(LEASE, {"spec": {"renewTime": "2026-13-01T00:00:00.000000Z"}}).error


def test_quantities_may_be_numbers_and_are_stored_as_text() -> None:
    volume: dict[str, Any] = {"spec": {"capacity": {"storage": 5}}}
    check(PV, volume)
    assert volume["spec"]["capacity"] == {"storage": "5"}


def test_secrets_hold_base64() -> None:
    secret = resource("Secret")
    assert check(secret, {"data": {"k": "dg=="}}).error == ""
    assert check(secret, {"data": {"k": "d*=="}}).error == "illegal base64 data at input byte 1"


def test_ports_of_probes_are_numbers_or_names() -> None:
    for port in (80, "http"):
        probe = {"livenessProbe": {"httpGet": {"port": port}}}
        assert check(POD, {"spec": {"containers": [{"name": "c", **probe}]}}).error == ""
    probe = {"livenessProbe": {"httpGet": {"port": True}}}
    assert "of type intstr.IntOrString" in check(POD, {"spec": {"containers": [{"name": "c", **probe}]}}).error


def test_kind_and_version_are_fields_like_others() -> None:
    assert check(PV, {"kind": "PersistentVolume", "apiVersion": "v1"}).problems == ()


def test_every_reference_between_definitions_resolves() -> None:
    for name in names():
        for field in definition(name).fields.values():
            kind = field.type
            while kind.element is not None:
                kind = kind.element
            assert kind.shape == "scalar" or definition(kind.refers)
    for served in RESOURCES:
        assert served.schema is not None or "metadata" in definition_of(served.group, served.kind).fields
