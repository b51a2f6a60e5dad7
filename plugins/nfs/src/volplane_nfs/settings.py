"""The driver's options and the parameters of classes, read and checked beyond their schemas."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Self
from urllib.parse import urlsplit

from volplane import InvalidArgument, ParameterSchema
from volplane.path_template import PathTemplate
from volplane_nfs.nfs4 import Address
from volplane_nfs.options import ARCHIVE, DEFAULT_MODE, EXPORT, OPTIONS, PARAMETERS, SQUASHES

__all__ = ["ClassParameters", "ExportSettings", "Settings", "ShareAddress"]

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_PATH_NAME = re.compile(r"[^\0/\x01-\x1f\x7f]{1,255}")
_OF_EXPORTS = ("clients", "squash", "protocols", "anonymousUid", "anonymousGid")


def _with_defaults(schema: ParameterSchema, given: Mapping[str, Any]) -> dict[str, Any]:
    return {each.name: given.get(each.name, each.default) for each in schema.parameters}


@dataclass(frozen=True)
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

    @cached_property
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
    quota: str
    shares: tuple[ShareAddress, ...]
    export: Mapping[str, Any]

    @classmethod
    def of(cls, parameters: Mapping[str, Any], settings: Settings) -> ClassParameters:
        """Read class parameters that the schema has checked; raises `InvalidArgument` for what goes beyond it."""
        values = _with_defaults(PARAMETERS, parameters)
        mode = DEFAULT_MODE if values["mode"] is None else int(values["mode"])
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
            quota=str(values["quota"]),
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
        "squash": values["squash"] or SQUASHES[0],
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
