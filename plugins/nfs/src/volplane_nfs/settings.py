"""The driver's options, as the operator writes them, and the parameters of classes."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Self
from urllib.parse import urlsplit

from volplane import InvalidArgument, Parameter, ParameterKind, ParameterSchema
from volplane_nfs.nfs4 import Address
from volplane_nfs.path_template import DEFAULT_TEMPLATE, PathTemplate

__all__ = ["OPTIONS", "PARAMETERS", "ClassParameters", "ExportSettings", "Settings", "ShareAddress"]

SUBDIRECTORY, EXPORT = "subdirectory", "export"
DELETE, RETAIN, ARCHIVE = "delete", "retain", "archive"
_SQUASHES = ("root_squash", "no_root_squash", "root_id_squash", "all_squash")
_DEFAULT_MODE = 0o770
_ID = 2**32 - 2
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_PATH_NAME = re.compile(r"[^\0/\x01-\x1f\x7f]{1,255}")

OPTIONS = ParameterSchema(
    version=1,
    parameters=(
        Parameter(
            name="shares",
            doc="Directories of NFSv4 servers that hold volumes, comma-separated: nfs://SERVER[:PORT]/PATH, as nodes "
            "reach them too. With several, each volume goes to the one with most free space.",
            kind=ParameterKind.STRINGS,
            pattern="nfs://[^/].*",
            required=True,
        ),
        Parameter(
            name="mode",
            doc="`subdirectory`: a volume is a directory of a share. `export`: on NFS-Ganesha on this machine, it is "
            "also an export of its own.",
            choices=(SUBDIRECTORY, EXPORT),
            default=SUBDIRECTORY,
        ),
        Parameter(
            name="uid",
            doc="User in the driver's calls (AUTH_SYS). Others than 0 can set `uid` and `gid` of classes to their own.",
            kind=ParameterKind.INTEGER,
            default=0,
            minimum=0,
            maximum=_ID,
        ),
        Parameter(
            name="gid",
            doc="Group in the driver's calls.",
            kind=ParameterKind.INTEGER,
            default=0,
            minimum=0,
            maximum=_ID,
        ),
        Parameter(
            name="timeout",
            doc="How long a server may take for an answer. Then it is let alone for a while, and its volumes wait.",
            kind=ParameterKind.DURATION,
            default=5.0,
            minimum=0.1,
            maximum=120.0,
        ),
        Parameter(
            name="connections",
            doc="TCP connections to a server, at most.",
            kind=ParameterKind.INTEGER,
            default=2,
            minimum=1,
            maximum=16,
        ),
        Parameter(
            name="mark_shares",
            doc="Mark a share at its first use. With false, only shares that are marked are used: a disk that is not "
            "mounted on the server is then never taken for a new share.",
            kind=ParameterKind.BOOLEAN,
            default=True,
        ),
        Parameter(
            name="check_free_space",
            doc="Refuse a volume that is larger than the free space of every share. Nothing is reserved.",
            kind=ParameterKind.BOOLEAN,
            default=True,
        ),
        Parameter(
            name="recycle",
            doc="Who empties recycled volumes: `server`, the driver through its own client; `pod`, a scrubber pod that "
            "mounts the volume.",
            choices=("server", "pod"),
            default="server",
        ),
        Parameter(
            name="client",
            doc="`volplane`: the client that is built in. `pynfs`: nfs4client of an importable checkout of pynfs "
            "(GPL-2.0, not part of volplane).",
            choices=("volplane", "pynfs"),
            default="volplane",
        ),
        Parameter(
            name="server_path",
            doc="Mode export: where the directory of the share is on the server's own file system.",
            pattern="(/.+)?",
            default="",
        ),
        Parameter(
            name="pseudo_path",
            doc="Mode export: exports are PSEUDO_PATH/VOLUME in the server's name space. No export may be above it.",
            pattern="/[A-Za-z0-9._-]+",
            default="/pv",
        ),
        Parameter(
            name="config_directory",
            doc="Mode export: a folder that the configuration of Ganesha includes by %dir; exports are written there.",
            pattern="(/.+)?",
            default="",
        ),
        Parameter(
            name="bus",
            doc="Mode export: address of the D-Bus of Ganesha, such as unix:path=/run/dbus/system_bus_socket; "
            "default: the system's.",
            default="",
        ),
        Parameter(
            name="bus_prefix",
            doc="Mode export: Dbus_Name_Prefix in the configuration of Ganesha, if it has one.",
            pattern="[A-Za-z0-9._-]*",
            default="",
        ),
        Parameter(
            name="first_export_id",
            doc="Mode export: the lowest Export_Id that the driver gives.",
            kind=ParameterKind.INTEGER,
            default=1000,
            minimum=1,
            maximum=65535,
        ),
        Parameter(
            name="last_export_id",
            doc="Mode export: the highest.",
            kind=ParameterKind.INTEGER,
            default=65535,
            minimum=1,
            maximum=65535,
        ),
        Parameter(
            name="export_id_quarantine",
            doc="Mode export: how long an Export_Id is not given again, so that no old handle of a node leads into "
            "another volume; longer than lease and grace period of the server.",
            kind=ParameterKind.DURATION,
            default=300.0,
            minimum=0.0,
            maximum=86400.0,
        ),
    ),
)

PARAMETERS = ParameterSchema(
    version=1,
    parameters=(
        Parameter(name="server", doc="Only shares of this server of the driver's option `shares`."),
        Parameter(name="share", doc="Only the share with this path.", pattern="/.*"),
        Parameter(
            name="mode",
            doc="Permissions of the volume's directory; the owner needs all of them.",
            kind=ParameterKind.OCTAL,
            default=_DEFAULT_MODE,
            minimum=0o700,
            maximum=0o7777,
        ),
        Parameter(
            name="uid",
            doc="Owner of the directory; default: the driver's user.",
            kind=ParameterKind.INTEGER,
            minimum=0,
            maximum=_ID,
        ),
        Parameter(
            name="gid",
            doc="Group of the directory, and supplemental group of the pods that use the volume; default: the driver's "
            "group, and none.",
            kind=ParameterKind.INTEGER,
            minimum=0,
            maximum=_ID,
        ),
        Parameter(
            name="pathTemplate",
            doc="Path of the volume below the share, with ${namespace}, ${claim}, ${volume}, ${uid}, ${label:KEY} and "
            "${annotation:KEY}.",
            default=DEFAULT_TEMPLATE,
        ),
        Parameter(
            name="onDelete",
            doc="What becomes of the directory when the volume is deleted: `delete`; `retain`, it stays where it is; "
            "`archive`, it is moved to .volplane/archive of the share.",
            choices=(DELETE, RETAIN, ARCHIVE),
            default=DELETE,
        ),
        Parameter(
            name="archiveRetention",
            doc="How long an archived directory is kept; default: until a person removes it.",
            kind=ParameterKind.DURATION,
            minimum=0.0,
        ),
        Parameter(
            name="clients",
            doc="Mode export: addresses, networks (10.0.0.0/8) and names of hosts that may mount the volume, "
            "comma-separated; default: all.",
            kind=ParameterKind.STRINGS,
        ),
        Parameter(
            name="squash",
            doc="Mode export: whose rights clients have. Default: root_squash.",
            choices=_SQUASHES,
        ),
        Parameter(
            name="protocols",
            doc="Mode export: versions of NFS, comma-separated. Default: 4.",
            kind=ParameterKind.STRINGS,
        ),
        Parameter(
            name="anonymousUid",
            doc="Mode export: user of clients that are squashed.",
            kind=ParameterKind.INTEGER,
            minimum=0,
            maximum=_ID,
        ),
        Parameter(
            name="anonymousGid",
            doc="Mode export: group of clients that are squashed.",
            kind=ParameterKind.INTEGER,
            minimum=0,
            maximum=_ID,
        ),
    ),
)
_OF_EXPORTS = ("clients", "squash", "protocols", "anonymousUid", "anonymousGid")


def _with_defaults(schema: ParameterSchema, given: Mapping[str, Any]) -> dict[str, Any]:
    return {each.name: given.get(each.name, each.default) for each in schema.parameters}


@dataclass(frozen=True, slots=True)
class ShareAddress:
    """A share: the server, and the names of the directories that lead to it."""

    server: Address
    path: tuple[bytes, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "nfs://SERVER[:PORT]/PATH"; raises `InvalidArgument`."""

        def wrong(why: str) -> InvalidArgument:
            return InvalidArgument(f"option shares: {text!r} {why}; write nfs://SERVER[:PORT]/PATH")

        try:
            url = urlsplit(text)
            host, port = url.hostname or "", url.port or 2049
        except ValueError as error:
            raise wrong(f"cannot be read ({error})") from None
        if url.scheme != "nfs" or url.query or url.fragment or url.username is not None:
            raise wrong("is no such address")
        if not _is_host(host):
            raise wrong(f"names no server ({host!r})")
        names = [name for name in url.path.split("/") if name]
        for name in names:
            if name in {".", ".."} or not _PATH_NAME.fullmatch(name):
                raise wrong(f"has {name!r} in its path")
        return cls(Address(host, port), tuple(name.encode() for name in names))

    @property
    def text(self) -> str:
        """The path, as in a volume's source."""
        return "/" + b"/".join(self.path).decode()

    def __str__(self) -> str:
        return f"{self.server}:{self.text}"


def _is_host(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return _HOST.fullmatch(host) is not None and ".." not in host
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings:
    """How exports are made."""

    server_path: str
    pseudo_path: str
    config_directory: str
    bus: str
    bus_prefix: str
    first_id: int
    last_id: int
    quarantine: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of the driver, checked. export: None in mode subdirectory."""

    shares: tuple[ShareAddress, ...]
    uid: int
    gid: int
    timeout: float
    connections: int
    mark_shares: bool
    check_free_space: bool
    recycle_by_pod: bool
    client: str
    export: ExportSettings | None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Settings:
        """Raises `InvalidArgument`."""
        values = _with_defaults(OPTIONS, options)
        shares = tuple(ShareAddress.parse(text) for text in values["shares"] or ())
        if not shares:
            raise InvalidArgument("option shares: at least one share is needed, such as nfs://filer.example.com/export")
        for number, share in enumerate(shares):
            for other in shares[:number]:
                shorter, longer = sorted((share.path, other.path), key=len)
                if share.server == other.server and longer[: len(shorter)] == shorter:
                    raise InvalidArgument(f"option shares: {share} and {other} overlap; name one of them")
        return cls(
            shares=shares,
            uid=int(values["uid"]),
            gid=int(values["gid"]),
            timeout=float(values["timeout"]),
            connections=int(values["connections"]),
            mark_shares=bool(values["mark_shares"]),
            check_free_space=bool(values["check_free_space"]),
            recycle_by_pod=values["recycle"] == "pod",
            client=str(values["client"]),
            export=_export_settings(values, shares) if values["mode"] == EXPORT else None,
        )


def _export_settings(values: Mapping[str, Any], shares: tuple[ShareAddress, ...]) -> ExportSettings:
    for key in ("server_path", "config_directory"):
        if not values[key]:
            raise InvalidArgument(f"option {key}: mode export needs it, an absolute path on the server")
        if any(character in values[key] for character in '"\n\\;{}'):
            raise InvalidArgument(
                f"option {key}: {values[key]!r} has a character that no configuration of Ganesha takes"
            )
    if len(shares) != 1:
        raise InvalidArgument(
            "option shares: mode export works on one share of one server; configure a driver for each"
        )
    if values["first_export_id"] > values["last_export_id"]:
        raise InvalidArgument(
            f"option last_export_id: {values['last_export_id']} is below first_export_id {values['first_export_id']}"
        )
    return ExportSettings(
        server_path=str(values["server_path"]).rstrip("/"),
        pseudo_path=str(values["pseudo_path"]),
        config_directory=str(values["config_directory"]),
        bus=str(values["bus"]),
        bus_prefix=str(values["bus_prefix"]),
        first_id=int(values["first_export_id"]),
        last_id=int(values["last_export_id"]),
        quarantine=float(values["export_id_quarantine"]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassParameters:
    """What a class asks of its volumes. shares: those that it allows. export: of the EXPORT block, by parameter."""

    mode: int
    uid: int | None
    gid: int | None
    path_template: str
    on_delete: str
    retention: float | None
    shares: tuple[ShareAddress, ...]
    export: Mapping[str, Any]

    @classmethod
    def of(cls, parameters: Mapping[str, Any], settings: Settings) -> ClassParameters:
        """Read class parameters that the schema has checked; raises `InvalidArgument` for what goes beyond it."""
        values = _with_defaults(PARAMETERS, parameters)
        mode = _DEFAULT_MODE if values["mode"] is None else int(values["mode"])
        if mode & 0o700 != 0o700 or mode > 0o7777:
            raise InvalidArgument(f"parameter mode: {mode:04o} must be 07xx: the owner needs all rights, as in 0770")
        PathTemplate.parse(str(values["pathTemplate"]))
        if values["archiveRetention"] is not None and values["onDelete"] != ARCHIVE:
            raise InvalidArgument("parameter archiveRetention: it says something only with onDelete archive")
        if settings.export is None:
            for name in _OF_EXPORTS:
                if values[name] is not None:
                    raise InvalidArgument(f"parameter {name}: it needs the driver option mode: export")
        return cls(
            mode=mode,
            uid=None if values["uid"] is None else int(values["uid"]),
            gid=None if values["gid"] is None else int(values["gid"]),
            path_template=str(values["pathTemplate"]),
            on_delete=str(values["onDelete"]),
            retention=None if values["archiveRetention"] is None else float(values["archiveRetention"]),
            shares=_allowed(values, settings.shares),
            export=_export_parameters(values) if settings.export is not None else {},
        )


def _allowed(values: Mapping[str, Any], shares: tuple[ShareAddress, ...]) -> tuple[ShareAddress, ...]:
    server, path = values["server"], values["share"]
    hosts = sorted({share.server.host for share in shares} | {str(share.server) for share in shares})
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
        near = get_close_matches(path, known, n=1) or known
        raise InvalidArgument(
            f"parameter share: {path!r} is in no entry of the driver's option shares; use {near[0]!r}"
        )
    return allowed


def _export_parameters(values: Mapping[str, Any]) -> dict[str, Any]:
    clients = tuple(values["clients"] or ())
    for client in clients:
        if not _is_client(client):
            raise InvalidArgument(
                f"parameter clients: {client!r} is no address, network or name of a host, such as 10.0.0.0/8"
            )
    protocols = tuple(values["protocols"] or ("4",))
    for protocol in protocols:
        if protocol not in {"3", "4"}:
            raise InvalidArgument(f"parameter protocols: {protocol!r} is neither 3 nor 4")
    return {
        "clients": list(clients),
        "squash": values["squash"] or _SQUASHES[0],
        "protocols": list(protocols),
        "anonymous_uid": values["anonymousUid"],
        "anonymous_gid": values["anonymousGid"],
    }


def _is_client(text: str) -> bool:
    if text == "*":
        return True
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return _is_host(text) or (text.startswith("*.") and _is_host(text[2:]))
    return True
