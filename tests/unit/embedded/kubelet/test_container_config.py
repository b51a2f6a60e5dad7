"""From a container to its sandbox."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from volplane_embedded.kubelet.container_config import (
    DEFAULT_CAPABILITIES,
    ContainerConfigError,
    ContainerPaths,
    MountedVolume,
    config_error,
    sandbox_spec,
)
from volplane_embedded.objects import Pod
from volplane_embedded.sandbox.spec import Bind, Spec

PLACES = ContainerPaths(Path("/s/root"), Path("/s/0.log"), Path("/s/0.json"), Path("/s/0.message"))
SOURCES = {
    "data": MountedVolume("/disk"),
    "config": MountedVolume("/s/config", read_only=True, projection=True),
    "library": MountedVolume("/library", read_only=True),
    "raw": MountedVolume("/dev/sdb", block=True),
}


def pod(container: dict[str, Any] | None = None, **spec: Any) -> Pod:
    main = {"name": "main", "command": ["run"], **(container or {})}
    return msgspec.convert({"metadata": {"name": "web", "uid": "u"}, "spec": {"containers": [main], **spec}}, Pod)


def spec(one: Pod, env: dict[str, str] | None = None) -> Spec:
    return sandbox_spec(one, one.spec.containers[0], env=env or {}, sources=SOURCES, places=PLACES, hidden=[Path("/s")])


def test_command_and_arguments_have_their_variables_replaced() -> None:
    made = spec(pod({"command": ["$(TOOL)"], "args": ["$(WHAT)", "$$(WHAT)", "$(UNSET)"]}), {"TOOL": "ls", "WHAT": "x"})
    assert made.argv == ["ls", "x", "$(WHAT)", "$(UNSET)"]


def test_volumes_are_bound_where_they_are_mounted() -> None:
    mounts = [
        {"name": "data", "mountPath": "/data/", "subPath": "a/b"},
        {"name": "data", "mountPath": "/copy", "readOnly": True},
        {"name": "config", "mountPath": "etc/config"},
    ]
    made = spec(pod({"volumeMounts": mounts, "volumeDevices": [{"name": "raw", "devicePath": "/dev/xvda"}]}))
    assert made.binds == [
        Bind(source="/disk", target="/data", sub_path="a/b"),
        Bind(source="/disk", target="/copy", read_only=True),
        Bind(source="/s/config", target="/etc/config", read_only=True),
        Bind(source="/dev/sdb", target="/dev/xvda"),
        Bind(source="/s/0.message", target="/dev/termination-log"),
    ]
    assert made.hidden == ["/s"]


def test_a_sub_path_with_a_variable_without_value_mounts_nothing() -> None:
    """It would be another part of the volume, or all of it."""
    mounts = [{"name": "data", "mountPath": "/data", "subPathExpr": "$(EMPTY)/$(UNSET)/$(SET)"}]
    with pytest.raises(ContainerConfigError, match="missing value for EMPTY, UNSET") as refused:
        spec(pod({"volumeMounts": mounts}), {"EMPTY": "", "SET": "x"})
    assert refused.value.reason == "CreateContainerConfigError"


def test_a_sub_path_may_name_variables_and_is_not_made_on_a_volume_that_is_read_only() -> None:
    mounts = [
        {"name": "data", "mountPath": "/data", "subPathExpr": "$(A)/$$(B)"},
        {"name": "library", "mountPath": "/library", "subPath": "x"},
        {"name": "config", "mountPath": "/config", "subPath": "optional"},
    ]
    binds = spec(pod({"volumeMounts": mounts}), {"A": "a"}).binds[:3]
    assert [(bind.sub_path, bind.make_sub_path) for bind in binds] == [
        ("a/$(B)", True),
        ("x", False),
        ("optional", True),
    ]


@pytest.mark.parametrize(
    ("capabilities", "held"),
    [
        (None, DEFAULT_CAPABILITIES),
        ({"drop": ["ALL"], "add": ["DAC_OVERRIDE", "CAP_FOWNER"]}, {"DAC_OVERRIDE", "FOWNER"}),
        ({"drop": ["all"]}, frozenset()),
        ({"drop": ["KILL"]}, DEFAULT_CAPABILITIES - {"KILL"}),
        ({"add": ["IPC_LOCK"]}, DEFAULT_CAPABILITIES | {"IPC_LOCK"}),
    ],
)
def test_capabilities_are_the_usual_ones_less_dropped_and_with_added(
    capabilities: dict[str, Any] | None, held: frozenset[str]
) -> None:
    assert set(spec(pod({"securityContext": {"capabilities": capabilities}})).capabilities) == held


def test_the_containers_user_wins_over_the_pods() -> None:
    whole = {"runAsUser": 5, "runAsGroup": 6, "fsGroup": 7, "supplementalGroups": [8]}
    made = spec(pod({"securityContext": {"runAsUser": 9}}, securityContext=whole))
    assert (made.uid, made.gid, made.groups) == (9, 6, [8, 7])
    assert (spec(pod()).uid, spec(pod()).groups) == (0, [])


def test_a_read_only_root_leaves_nothing_to_write_to() -> None:
    assert spec(pod()).scratch
    assert not spec(pod({"securityContext": {"readOnlyRootFilesystem": True}})).scratch


@pytest.mark.parametrize(
    ("container", "reason", "part"),
    [
        ({"command": None}, "ImagesNotSupported", "images are not pulled"),
        ({"command": None, "args": ["x"]}, "ImagesNotSupported", "give it a command"),
        ({"securityContext": {"privileged": True}}, "Unsupported", "privileged"),
        ({"securityContext": {"capabilities": {"add": ["ALL"]}}}, "Unsupported", "ALL"),
        ({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}, "Unsupported", "SYS_ADMIN"),
        ({"volumeMounts": [{"name": "data", "mountPath": "/"}]}, "Unsupported", "mounted at /"),
        ({"volumeMounts": [{"name": "data", "mountPath": "/proc/x"}]}, "Unsupported", "/proc/x"),
        ({"volumeMounts": [{"name": "data", "mountPath": "/a/../proc"}]}, "Unsupported", "/a/../proc"),
        ({"volumeMounts": [{"name": "data", "mountPath": "/" + "x" * 256}]}, "Unsupported", "x…: the path is too long"),
        ({"volumeMounts": [{"name": "data", "mountPath": "/x" * 2048}]}, "Unsupported", "/x…: the path is too long"),
        (
            {"volumeMounts": [{"name": "data", "mountPath": "/x", "mountPropagation": "Bidirectional"}]},
            "Unsupported",
            "Bidirectional",
        ),
    ],
)
def test_what_cannot_be_given_is_refused_by_name(container: dict[str, Any], reason: str, part: str) -> None:
    refused = config_error(pod(container))
    assert refused is not None
    assert refused.reason == reason
    assert part in refused.message


@pytest.mark.parametrize(
    ("container", "env", "where"),
    [
        ({"command": ["a\0b"]}, {}, "command"),
        ({"args": ["$(WHAT)"]}, {"WHAT": "a\0b"}, "command"),
        ({}, {"WHAT": "a\0b"}, "environment"),
        ({"workingDir": "/a\0b"}, {}, "working directory"),
        ({"volumeMounts": [{"name": "data", "mountPath": "/a\0b"}]}, {}, "volume mounts"),
        ({"volumeMounts": [{"name": "data", "mountPath": "/a", "subPath": "a\0b"}]}, {}, "volume mounts"),
    ],
)
def test_a_nul_byte_which_no_program_can_be_given_is_said(
    container: dict[str, Any], env: dict[str, str], where: str
) -> None:
    with pytest.raises(ContainerConfigError, match=f"container main: a NUL byte is in its {where}"):
        spec(pod(container), env)


def test_run_as_non_root_needs_a_user() -> None:
    with pytest.raises(ContainerConfigError, match="runAsNonRoot"):
        spec(pod(securityContext={"runAsNonRoot": True}))
    assert spec(pod(securityContext={"runAsNonRoot": True, "runAsUser": 3})).uid == 3


def test_a_mount_of_an_unknown_volume_is_refused() -> None:
    with pytest.raises(ContainerConfigError, match="no volume other"):
        spec(pod({"volumeMounts": [{"name": "other", "mountPath": "/x"}]}))


@pytest.mark.parametrize(
    ("text", "size"), [("64Mi", 64 * 2**20), ("1500m", 2), ("1e3", 1000), ("9Ei", 4 * 2**30), ("1E300", 4 * 2**30)]
)
def test_a_memory_limit_is_kept(text: str, size: int) -> None:
    assert spec(pod({"resources": {"limits": {"memory": text}}})).memory_bytes == size


def test_the_machines_network_is_for_those_who_ask() -> None:
    assert not spec(pod()).host_network
    assert spec(pod(hostNetwork=True)).host_network
