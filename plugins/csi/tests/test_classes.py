"""What classes may say to sidecars."""

from __future__ import annotations

from typing import Any

import pytest

from volplane import InvalidArgument

PREFIX = "csi.storage.k8s.io/"


def refs(world: Any, **parameters: str) -> dict[str, Any]:
    given = {key.replace("_", "-"): value for key, value in parameters.items()}
    fields = world.provision(parameters={f"{PREFIX}{key}": value for key, value in given.items()}).source.fields
    return {key: f"{value['namespace']}/{value['name']}" for key, value in fields.items() if key.endswith("Ref")}


def test_templates_name_secrets_of_claims(world: Any) -> None:
    found = refs(
        world,
        node_stage_secret_name="${pvc.annotations['team.example.com/user']}-${pvc.name}",
        node_stage_secret_namespace="${pvc.namespace}",
        node_expand_secret_name="of-${pv.name}",
        node_expand_secret_namespace="storage",
    )
    assert found == {"nodeStageSecretRef": "team/ann-data-u1", "nodeExpandSecretRef": "storage/of-pvc-u1"}


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"node-stage-secret-name": "x"}, "must be given together"),
        ({"node-stage-secret-name": "x", "node-stage-secret-namespace": ""}, "not be empty"),
        ({"node-stage-secret-name": "x", "node-stage-secret-namespace": "${pvc.name}"}, "unknown token 'pvc.name'"),
        ({"node-stage-secret-name": "${no.such}", "node-stage-secret-namespace": "x"}, "unknown token 'no.such'"),
        ({"node-stage-secret-name": "A_b", "node-stage-secret-namespace": "x"}, "no name of a Secret"),
        ({"node-stage-secret-name": "a", "node-stage-secret-namespace": "a/b"}, "no namespace"),
        ({"no-such-key": "x"}, "no such key begins with"),
    ],
)
def test_what_names_no_secret_is_refused(world: Any, parameters: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why) as error:
        world.provision(parameters={f"{PREFIX}{key}": value for key, value in parameters.items()})
    assert error.value.nothing_left


def test_a_tenant_chooses_no_namespace(world: Any) -> None:
    with pytest.raises(InvalidArgument, match="unknown token"):
        refs(
            world,
            node_stage_secret_name="x",
            node_stage_secret_namespace="${pvc.annotations['team.example.com/user']}",
        )


def test_the_file_system_is_told_once_and_old_classes_are_read(world: Any, new_world: Any) -> None:
    assert world.provision("a", parameters={"fsType": "xfs"}).source.fields["fsType"] == "xfs"
    assert dict(world.sent("CreateVolume")[0].parameters) == {"fsType": "xfs"}
    with pytest.raises(InvalidArgument, match="given twice"):
        world.provision("b", parameters={"fstype": "xfs", f"{PREFIX}fstype": "xfs"})
    old = {"csiNodeStageSecretName": "x", "csiNodeStageSecretNamespace": "y"}
    fields = world.provision("c", parameters=old).source.fields
    assert fields["nodeStageSecretRef"] == {"name": "x", "namespace": "y"}
    assert new_world(default_fstype="ext4").provision().source.fields["fsType"] == "ext4"
