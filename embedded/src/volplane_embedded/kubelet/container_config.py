"""Derives the specification of a sandbox from a container. Pure. Refuses fields that it cannot honour.

Source: pkg/kubelet/kuberuntime/kuberuntime_container.go (generateContainerConfig), security_context.go; the default
capabilities are those of containerd without SETFCAP: a file capability would hold on the host too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from volplane.kube.quantity import parse
from volplane_embedded.kubelet.environment import expand, references
from volplane_embedded.objects import Container, Pod, SecurityContext, VolumeMount
from volplane_embedded.sandbox.libc import CAPABILITIES
from volplane_embedded.sandbox.spec import Bind, Spec

DEFAULT_CAPABILITIES: Final = frozenset(
    (
        "CHOWN",
        "DAC_OVERRIDE",
        "FSETID",
        "FOWNER",
        "MKNOD",
        "NET_RAW",
        "SETGID",
        "SETUID",
        "SETPCAP",
        "NET_BIND_SERVICE",
        "SYS_CHROOT",
        "KILL",
        "AUDIT_WRITE",
    )
)
_LONGEST_PATH: Final = 4096
"""PATH_MAX of Linux: bytes, with the one that ends it."""
_LONGEST_NAME: Final = 255
"""NAME_MAX: bytes."""
GRANTABLE: Final = DEFAULT_CAPABILITIES | {"DAC_READ_SEARCH", "IPC_LOCK", "LEASE", "SYS_NICE", "SYS_RESOURCE"}
"""Capabilities that a container can add. SYS_ADMIN and the like would let it remount the host's tree writable."""


class ContainerConfigError(Exception):
    """The pod asks for something that this kubelet never gives. reason: one word for the pod's status."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class MountedVolume:
    """A mounted volume. path: its place on this machine. block: it is a device. gid: the group of its files, which
    containers get beside theirs. projection: the kubelet writes its files, from objects of the API.
    """

    path: str
    read_only: bool = False
    block: bool = False
    gid: int | None = None
    projection: bool = False


@dataclass(frozen=True, slots=True)
class ContainerPaths:
    """Files and directories of one start of a container."""

    base: Path
    log: Path
    result: Path
    termination_message: Path


def config_error(pod: Pod) -> ContainerConfigError | None:
    """Return the error that every start of one of the pod's containers would raise, None if there is none."""
    try:
        for container in [*(pod.spec.init_containers or ()), *pod.spec.containers]:
            _check(container)
    except ContainerConfigError as refused:
        return refused
    return None


def _check(container: Container) -> None:
    who = f"container {container.name}"
    if not container.command:
        raise ContainerConfigError(
            "ImagesNotSupported",
            f"{who} has no command: images are not pulled here, a container's command runs from the machine's own "
            "file system; give it a command",
        )
    if container.restart_policy == "Always":
        raise ContainerConfigError(
            "Unsupported", f"{who} is a sidecar (restartPolicy Always), which this node agent does not run"
        )
    context = container.security_context or SecurityContext()
    if context.privileged:
        raise ContainerConfigError("Unsupported", f"{who} asks for privileged, which no container gets here")
    _capabilities(container)
    for mount in container.volume_mounts or ():
        if mount.mount_propagation not in {None, "None"}:
            raise ContainerConfigError(
                "Unsupported", f"{who}: mount propagation {mount.mount_propagation} is not supported"
            )
        _target(mount.mount_path)
    for device in container.volume_devices or ():
        _target(device.device_path)


def _capabilities(container: Container) -> list[str]:
    context = container.security_context or SecurityContext()
    held = set(DEFAULT_CAPABILITIES)
    if context.capabilities is not None:
        dropped = {_plain(name) for name in context.capabilities.drop or ()}
        held = set() if "ALL" in dropped else held - dropped
        added = {_plain(name) for name in context.capabilities.add or ()}
        if refused := added - GRANTABLE:
            known = ", ".join(sorted(refused & {*CAPABILITIES, "ALL"}) or sorted(refused))
            raise ContainerConfigError(
                "Unsupported", f"container {container.name}: capabilities that no container gets here: {known}"
            )
        held |= added
    return sorted(held)


def _plain(name: str) -> str:
    return name.upper().removeprefix("CAP_")


def _target(path: str) -> str:
    target = PurePosixPath("/", path)
    if ".." in target.parts or len(target.parts) < 2 or target.parts[1] in {"proc", "sys"}:
        raise ContainerConfigError(
            "Unsupported", f"nothing can be mounted at {path}; use a path outside of /, /proc and /sys"
        )
    if len(path.encode()) >= _LONGEST_PATH or any(len(part.encode()) > _LONGEST_NAME for part in target.parts):
        raise ContainerConfigError("Unsupported", f"nothing can be mounted at {path[:64]}…: the path is too long")
    return str(target)


def _refuse_nul(who: str, spec: Spec) -> None:
    """Refuse a text with a NUL byte, which JSON can hold and no program can get."""
    paths = [text for bind in spec.binds for text in (bind.target, bind.sub_path)]
    texts = {"command": spec.argv, "environment": [*spec.env, *spec.env.values()], "working directory": [spec.cwd]}
    for what, found in {**texts, "volume mounts": paths}.items():
        if any("\0" in text for text in found):
            raise ContainerConfigError("CreateContainerConfigError", f"{who}: a NUL byte is in its {what}")


def sandbox_spec(
    pod: Pod,
    container: Container,
    *,
    env: Mapping[str, str],
    sources: Mapping[str, MountedVolume],
    places: ContainerPaths,
    hidden: Sequence[Path] = (),
    memory: int = 2 * 2**30,
) -> Spec:
    """Return the sandbox of a container.

    sources: its mounted volumes, by name. memory: bytes if it names no limit; it gets at most twice as much.

    Raises ContainerConfigError.
    """
    _check(container)
    context = container.security_context or SecurityContext()
    uid, gid = _user(pod, context)
    argv = [expand(word, env) for word in (*(container.command or ()), *(container.args or ()))]
    binds = [_bind(mount, _source(sources, mount.name), env) for mount in container.volume_mounts or ()]
    for device in container.volume_devices or ():
        source = _source(sources, device.name)
        binds.append(Bind(source=source.path, target=_target(device.device_path), read_only=source.read_only))
    message = Bind(source=str(places.termination_message), target=_target(container.termination_message_path))
    spec = Spec(
        argv=argv,
        env=dict(env),
        base=str(places.base),
        log=str(places.log),
        result=str(places.result),
        cwd=container.working_dir or "/",
        hostname=(pod.spec.hostname or pod.name)[:63],
        uid=uid,
        gid=gid,
        groups=_groups(pod, sources),
        capabilities=_capabilities(container),
        binds=[*binds, message],
        hidden=[str(path) for path in hidden],
        scratch=not context.read_only_root_filesystem,
        host_network=pod.spec.host_network,
        memory_bytes=min(_memory(container), 2 * memory) or memory,
    )
    _refuse_nul(f"container {container.name}", spec)
    return spec


def _memory(container: Container) -> int:
    """Return the limit in bytes; 0 if there is none."""
    text = ((container.resources.limits if container.resources is not None else None) or {}).get("memory")
    return 0 if text is None else parse(text).as_bytes()


def _user(pod: Pod, context: SecurityContext) -> tuple[int, int]:
    whole = pod.spec.security_context
    uid = whole.run_as_user if context.run_as_user is None else context.run_as_user
    gid = whole.run_as_group if context.run_as_group is None else context.run_as_group
    non_root = whole.run_as_non_root if context.run_as_non_root is None else context.run_as_non_root
    if non_root and not uid:
        raise ContainerConfigError(
            "CreateContainerConfigError", "container has runAsNonRoot and no runAsUser other than 0"
        )
    return uid or 0, gid or 0


def _groups(pod: Pod, sources: Mapping[str, MountedVolume]) -> list[int]:
    context = pod.spec.security_context
    own = [*(context.supplemental_groups or ()), *([] if context.fs_group is None else [context.fs_group])]
    return list(dict.fromkeys([*own, *(each.gid for each in sources.values() if each.gid is not None)]))


def _source(sources: Mapping[str, MountedVolume], name: str) -> MountedVolume:
    if name not in sources:
        raise ContainerConfigError("CreateContainerConfigError", f"the pod has no volume {name}")
    return sources[name]


def _bind(mount: VolumeMount, source: MountedVolume, env: Mapping[str, str]) -> Bind:
    return Bind(
        source=source.path,
        target=_target(mount.mount_path),
        read_only=mount.read_only or source.read_only,
        sub_path=mount.sub_path or _expanded(mount.sub_path_expr, env),
        make_sub_path=source.projection or not source.read_only,
    )


def _expanded(sub_path: str, env: Mapping[str, str]) -> str:
    """Return a `subPathExpr` with its variables. One without a value would mount another part of the volume.

    Raises ContainerConfigError. Source: pkg/kubelet/container/helpers.go (ExpandContainerVolumeMounts).
    """
    if missing := [name for name in references(sub_path) if not env.get(name)]:
        message = f"missing value for {', '.join(sorted(set(missing)))}"
        raise ContainerConfigError("CreateContainerConfigError", message)
    return expand(sub_path, env)
