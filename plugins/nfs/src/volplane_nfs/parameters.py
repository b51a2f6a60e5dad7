"""The parameters of classes, and their mount options."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any

from volplane import InvalidArgument, Param, ParameterKind, ParameterSchema, ProvisionRequest, read_parameters
from volplane.directory import USE, CopyParameters, KeptDirectoryParameters
from volplane_nfs.settings import LARGEST_ID, Settings, ShareAddress, is_host

NONE, REQUIRED = "none", "required"
_VERSIONS = frozenset({"nfsvers", "vers"})
_WRITE = 0o003
"""Bits of a mode with which everybody may make files in a directory."""
SQUASHES = ("root_squash", "no_root_squash", "root_id_squash", "all_squash")


@dataclass(frozen=True, kw_only=True)
class ClassParameters(KeptDirectoryParameters, CopyParameters):
    """What a class asks of its volumes."""

    mode: Annotated[
        int | None,
        Param(
            "Permissions of the volume's directory; the owner needs all of them. Default: 0770 with `uid` or `gid`, "
            "else 0777: a pod may be any user, and the kubelet gives no directory on NFS to the pod's group.",
            kind=ParameterKind.OCTAL,
            minimum=0o700,
            maximum=0o7777,
        ),
    ] = None
    backing_snapshot: Annotated[
        bool,
        Param(
            "A claim that is made of a VolumeSnapshot, with the access mode ReadOnlyMany alone, gets the snapshot "
            "itself, read only, and no copy. It cannot be deleted before its volumes. Mode export: the server keeps "
            "writers out; else nodes mount with `ro`, and whoever is root on one can write.",
            name="backingSnapshot",
        ),
    ] = False
    server: Annotated[str | None, Param("Only shares of this server of the driver's option `shares`.")] = None
    share: Annotated[str | None, Param("Only the share with this path.", pattern="/.*")] = None
    quota: Annotated[
        str,
        Param(
            "`none`: the size is a promise. `required`: a volume is handed out, and grown, only once its server "
            "shows a limit of at least its size for the directory; the quota is set on the server.",
            choices=(NONE, REQUIRED),
        ),
    ] = NONE
    clients: Annotated[
        tuple[str, ...] | None,
        Param(
            "Mode export: addresses, networks (10.0.0.0/8) and names of hosts that may mount the volume, "
            "comma-separated; default: all."
        ),
    ] = None
    squash: Annotated[
        str | None, Param("Mode export: whose rights clients have. Default: root_squash.", choices=SQUASHES)
    ] = None
    protocols: Annotated[
        tuple[str, ...] | None, Param("Mode export: versions of NFS, comma-separated. Default: 4.")
    ] = None
    anonymous_uid: Annotated[
        int | None,
        Param("Mode export: user of clients that are squashed.", name="anonymousUid", minimum=0, maximum=LARGEST_ID),
    ] = None
    anonymous_gid: Annotated[
        int | None,
        Param("Mode export: group of clients that are squashed.", name="anonymousGid", minimum=0, maximum=LARGEST_ID),
    ] = None

    @classmethod
    def of(cls, values: Mapping[str, Any], settings: Settings) -> ClassParameters:
        """Return the parameters that the schema has checked; raises `InvalidArgument` for what goes beyond it."""
        parameters = read_parameters(_ExportParameters if settings.export else cls, values)
        if settings.export is None:
            for name in ("clients", "squash", "protocols", "anonymousUid", "anonymousGid"):
                if (value := values.get(name)) is not None:
                    text = ",".join(value) if isinstance(value, tuple) else value
                    raise InvalidArgument(f"parameter {name} is {text}: it needs the driver option mode: export")
        allowed = parameters.allowed(settings.addresses)
        if parameters.on_existing == USE and len(allowed) > 1:
            raise InvalidArgument(
                f"parameter onExisting is 'use': name the share of the data by `share` or `server`, of {len(allowed)}"
            )
        return parameters

    @property
    def permissions(self) -> int:
        """Return the permissions of the directory."""
        if self.mode is not None:
            return self.mode
        return 0o777 if self.uid is None and self.gid is None else 0o770

    def demand(self, request: ProvisionRequest) -> dict[str, Any]:
        """Return what is asked for, as JSON values."""
        backing = {"backing_snapshot": True} if self.backing_snapshot else {}
        return {**super().demand(request), "quota": self.quota, **backing}

    def allowed(self, shares: tuple[ShareAddress, ...]) -> tuple[ShareAddress, ...]:
        """Return those of the driver's shares that the class allows. Raises `InvalidArgument` if there is none."""
        hosts = sorted({share.server.host for share in shares} | {str(share.server) for share in shares})
        server, path = self.server, self.share
        if server is not None and server.lower() not in {host.lower() for host in hosts}:
            near = get_close_matches(server, hosts, n=1) or hosts
            raise InvalidArgument(
                f"parameter server: {server!r} is in no entry of the driver's option shares; use {near[0]!r}"
            )
        allowed = tuple(
            share
            for share in shares
            if (server is None or server.lower() in {share.server.host.lower(), str(share.server).lower()})
            and (path is None or path.rstrip("/") == share.text.rstrip("/"))
        )
        if not allowed:
            known = [share.text for share in shares]
            near = get_close_matches(path or "", known, n=1) or known
            raise InvalidArgument(
                f"parameter share: {path!r} is in no entry of the driver's option shares; use {near[0]!r}"
            )
        return allowed


class _ExportParameters(ClassParameters):
    """The same in mode export, in which the demand has the fields of the EXPORT block."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_export(self.clients or (), self.protocols or ())
        self._refuse_what_no_pod_can_write()

    def _refuse_what_no_pod_can_write(self) -> None:
        """Raise `InvalidArgument` if whoever a pod is, its user after the squash has no right to write."""
        squash = self.squash or SQUASHES[0]
        if self.permissions & _WRITE == _WRITE or squash in SQUASHES[1:3]:
            return
        remedy = "mode 0777, or a gid, which pods then get"
        if squash == SQUASHES[3]:
            anonymous = [(self.uid, self.anonymous_uid), (self.gid, self.anonymous_gid)]
            writable = any(own is not None and own == (LARGEST_ID if who is None else who) for own, who in anonymous)
            remedy = "mode 0777, or uid and anonymousUid to the same user"
        else:
            writable = self.uid is not None or self.gid is not None
        if not writable:
            raise InvalidArgument(
                f"parameter mode: with {self.permissions:04o} and squash {squash} no pod could write into its volume; "
                f"set {remedy}, or another squash"
            )

    def demand(self, request: ProvisionRequest) -> dict[str, Any]:
        return {
            **super().demand(request),
            "clients": list(self.clients or ()),
            "squash": self.squash or SQUASHES[0],
            "protocols": list(self.protocols or ("4",)),
            "anonymous_uid": self.anonymous_uid,
            "anonymous_gid": self.anonymous_gid,
        }


PARAMETERS = ParameterSchema.of(ClassParameters)


def check_export(clients: Iterable[Any], protocols: Iterable[Any], squash: Any = SQUASHES[0]) -> None:
    """Raise `InvalidArgument` for what must not stand in an EXPORT block."""
    for client in clients:
        if not _is_client(client):
            raise InvalidArgument(
                f"parameter clients: {client!r} is no address, network or name of a host, such as 10.0.0.0/8"
            )
    for protocol in protocols:
        if protocol not in ("3", "4"):
            raise InvalidArgument(f"parameter protocols: {protocol!r} is neither 3 nor 4")
    if squash not in SQUASHES:
        raise InvalidArgument(f"parameter squash: {squash!r} is none of {', '.join(SQUASHES)}")


def _is_client(text: object) -> bool:
    if not isinstance(text, str):
        return False
    if text == "*":
        return True
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return is_host(text) or (text.startswith("*.") and is_host(text[2:]))
    return True


def refuse_mount_options(options: Sequence[str]) -> None:
    """Raise `InvalidArgument` for a version of NFS below 4, and for a port, which follows from the share."""
    for option in options:
        key, _, value = option.partition("=")
        if (key in _VERSIONS and not value.startswith("4")) or option in {"v2", "v3", "nfsvers", "vers"}:
            raise InvalidArgument(
                f"mountOptions {option!r}: the paths of volumes are those of NFSv4; use nfsvers=4.1 or nfsvers=4"
            )
        if key == "port":
            raise InvalidArgument(f"mountOptions {option!r}: the port follows from the driver's option shares")
