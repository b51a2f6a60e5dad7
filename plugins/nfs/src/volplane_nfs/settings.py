"""The driver's options."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Self
from urllib.parse import urlsplit

from volplane import InvalidArgument, Param
from volplane_nfs.nfs4 import Address

SUBDIRECTORY, EXPORT = "subdirectory", "export"
LARGEST_ID = 2**32 - 2

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_PATH_NAME = re.compile(r"[^\0/\x01-\x1f\x7f]{1,255}")


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
        if not is_host(host):
            raise wrong(f"names no server ({host!r})")
        names = [name for name in url.path.split("/") if name]
        for name in names:
            if name in {".", ".."} or not _PATH_NAME.fullmatch(name):
                raise wrong(f"has {name!r} in its path")
        return cls(Address(host, port), tuple(name.encode() for name in names))

    @cached_property
    def text(self) -> str:
        """Return the path, as in a volume's source."""
        return "/" + b"/".join(self.path).decode()

    def __str__(self) -> str:
        return f"{self.server}:{self.text}"


def _address_in(text: str, part: str) -> Address:
    wrong = InvalidArgument(f"option failover: {part!r} in {text!r} is no ADDRESS[:PORT]; write IPv6 as [fd00::1]")
    try:
        url = urlsplit(f"nfs://{part.strip()}")
        address = Address(url.hostname or "", url.port or 2049)
    except ValueError:
        raise wrong from None
    if not is_host(address.host) or url.netloc != part.strip() or url.username is not None:
        raise wrong
    return address


def _same(address: Address) -> tuple[str, int]:
    """Return what is equal for addresses that are the same in other words."""
    try:
        ip = ipaddress.ip_address(address.host)
    except ValueError:
        return address.host.lower(), address.port
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped or ip), address.port


def is_host(host: str) -> bool:
    """Return whether this is an address or a name of a host."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return _HOST.fullmatch(host) is not None and ".." not in host
    return True


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of a driver."""

    shares: Annotated[
        tuple[str, ...],
        Param(
            "Directories of NFSv4 servers that hold volumes, comma-separated: nfs://SERVER[:PORT]/PATH, as nodes "
            "reach them too. With several, each volume goes to the one with most free space.",
            pattern="nfs://[^/].*",
        ),
    ]
    failover: Annotated[
        tuple[str, ...],
        Param(
            "Further addresses of servers for the driver, comma-separated: SERVER[:PORT]=ADDRESS[:PORT], with the "
            "server as in `shares`. One that does not take a connection within 1.5 s, or answers no call within 0.6 of "
            "`timeout`, is left for the next. Volumes name the server of `shares`: nodes need its own failover.",
        ),
    ] = ()
    tls: Annotated[
        bool,
        Param(
            "Connect by RPC over TLS (RFC 9289), and let nodes mount by it (`xprtsec=tls`, or `mtls` with "
            "`tls_certificate`), if the class has no `xprtsec` of its own."
        ),
    ] = False
    tls_authorities: Annotated[
        str,
        Param(
            "With `tls`: file of certificates (PEM) of which one signed the server's; default: those of the system. "
            "Files are read for each connection.",
            pattern="(/.+)?",
        ),
    ] = ""
    tls_certificate: Annotated[
        str,
        Param("With `tls`: file of the certificate (PEM) by which the driver proves itself.", pattern="(/.+)?"),
    ] = ""
    tls_key: Annotated[
        str, Param("With `tls_certificate`: file of its private key, if it is not in there.", pattern="(/.+)?")
    ] = ""
    tls_server_name: Annotated[
        str, Param("With `tls`: what the server's certificate names; default: the host in `shares`.")
    ] = ""
    mode: Annotated[
        str,
        Param(
            "`subdirectory`: a volume is a directory of a share. `export`: on NFS-Ganesha on this machine, it is "
            "also an export of its own.",
            choices=(SUBDIRECTORY, EXPORT),
        ),
    ] = SUBDIRECTORY
    uid: Annotated[
        int,
        Param(
            "User in the driver's calls (AUTH_SYS). Others than 0 can set `uid` and `gid` of classes to their own.",
            minimum=0,
            maximum=LARGEST_ID,
        ),
    ] = 0
    gid: Annotated[int, Param("Group in the driver's calls.", minimum=0, maximum=LARGEST_ID)] = 0
    timeout: Annotated[
        float,
        Param(
            "How long a server may take for an answer. Then it is let alone for a while, and its volumes wait.",
            minimum=0.1,
            maximum=120.0,
        ),
    ] = 5.0
    connections: Annotated[
        int,
        Param(
            "TCP connections to a server, at most: so many calls are under way without waiting for each other.",
            minimum=1,
            maximum=16,
        ),
    ] = 8
    volume_statistics: Annotated[
        bool,
        Param(
            "Show the bytes and inodes used in each volume as metrics, asked anew every minute, many in one call; of "
            "volumes whose limit the server counts, as with `quota: required`."
        ),
    ] = False
    mark_shares: Annotated[
        bool,
        Param(
            "Mark a share at its first use. With false, only shares that are marked are used: a disk that is not "
            "mounted on the server is then never taken for a new share."
        ),
    ] = True
    check_free_space: Annotated[
        bool, Param("Refuse a volume that is larger than the free space of every share. Nothing is reserved.")
    ] = True
    recycle: Annotated[
        str,
        Param(
            "Who empties recycled volumes: `server`, the driver through its own client; `pod`, a scrubber pod that "
            "mounts the volume.",
            choices=("server", "pod"),
        ),
    ] = "server"
    client: Annotated[
        str,
        Param(
            "`volplane`: the client that is built in. `pynfs`: nfs4client of an importable checkout of pynfs "
            "(GPL-2.0, not part of volplane).",
            choices=("volplane", "pynfs"),
        ),
    ] = "volplane"
    server_path: Annotated[
        str,
        Param("Mode export: where the directory of the share is on the server's own file system.", pattern="(/.+)?"),
    ] = ""
    pseudo_path: Annotated[
        str,
        Param(
            "Mode export: exports are PSEUDO_PATH/VOLUME in the server's name space. No export may be above it.",
            pattern="/[A-Za-z0-9._-]+",
        ),
    ] = "/pv"
    config_directory: Annotated[
        str,
        Param(
            "Mode export: a folder that the configuration of Ganesha includes by %dir; exports are written there.",
            pattern="(/.+)?",
        ),
    ] = ""
    bus: Annotated[
        str,
        Param(
            "Mode export: address of the D-Bus of Ganesha, such as unix:path=/run/dbus/system_bus_socket; "
            "default: the system's."
        ),
    ] = ""
    bus_prefix: Annotated[
        str,
        Param(
            "Mode export: Dbus_Name_Prefix in the configuration of Ganesha, if it has one.", pattern="[A-Za-z0-9._-]*"
        ),
    ] = ""
    first_export_id: Annotated[
        int, Param("Mode export: the lowest Export_Id that the driver gives.", minimum=1, maximum=65535)
    ] = 1000
    last_export_id: Annotated[int, Param("Mode export: the highest.", minimum=1, maximum=65535)] = 65535
    export_id_quarantine: Annotated[
        float,
        Param(
            "Mode export: how long an Export_Id is not given again, so that no old handle of a node leads into "
            "another volume; longer than lease and grace period of the server.",
            minimum=0.0,
            maximum=86400.0,
        ),
    ] = 300.0

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` naming the key, the value and what would be right."""
        if not self.shares:
            raise InvalidArgument("option shares: at least one share is needed, such as nfs://filer.example.com/export")
        for number, share in enumerate(self.addresses):
            for other in self.addresses[:number]:
                shorter, longer = sorted((share.path, other.path), key=len)
                if share.server == other.server and longer[: len(shorter)] == shorter:
                    raise InvalidArgument(f"option shares: {share} and {other} overlap; name one of them")
        servers = {share.server for share in self.addresses}
        for server in self.other_addresses:
            if server not in servers:
                known = ", ".join(sorted(map(str, servers)))
                raise InvalidArgument(f"option failover: {server} is none of the servers in shares ({known})")
        if self.failover and self.client != "volplane":
            raise InvalidArgument(f"option failover: client {self.client} uses one address only; take it out")
        self._check_tls()
        if self.mode == EXPORT:
            self._check_export()

    def _check_tls(self) -> None:
        for key in ("tls_authorities", "tls_certificate", "tls_key", "tls_server_name"):
            if getattr(self, key) and not self.tls:
                raise InvalidArgument(f"option {key}: {getattr(self, key)!r} needs `tls: true`")
        if self.tls_key and not self.tls_certificate:
            raise InvalidArgument(f"option tls_key: {self.tls_key!r} needs its certificate, tls_certificate")
        if self.tls and self.client != "volplane":
            raise InvalidArgument(f"option tls: client {self.client} has no TLS; use client volplane")

    def _check_export(self) -> None:
        for key, value in (("server_path", self.server_path), ("config_directory", self.config_directory)):
            if not value:
                raise InvalidArgument(f"option {key}: mode export needs it, an absolute path on the server")
            if any(character in value for character in '"\n\\;{}'):
                raise InvalidArgument(f"option {key}: {value!r} has a character that no configuration of Ganesha takes")
        if len(self.shares) != 1:
            raise InvalidArgument(
                "option shares: mode export works on one share of one server; configure a driver for each"
            )
        if self.first_export_id > self.last_export_id:
            raise InvalidArgument(
                f"option last_export_id: {self.last_export_id} is below first_export_id {self.first_export_id}"
            )

    @cached_property
    def addresses(self) -> tuple[ShareAddress, ...]:
        """Return the shares. Raises `InvalidArgument`."""
        return tuple(map(ShareAddress.parse, self.shares))

    @cached_property
    def other_addresses(self) -> Mapping[Address, tuple[Address, ...]]:
        """Return the further addresses of servers. Raises `InvalidArgument`."""
        found: dict[Address, tuple[Address, ...]] = {}
        for text in self.failover:
            server, *others = (_address_in(text, part) for part in text.split("="))
            if len(others) != 1:
                raise InvalidArgument(f"option failover: {text!r} is no SERVER[:PORT]=ADDRESS[:PORT]")
            known = [_same(each) for each in (server, *found.get(server, ()))]
            if _same(others[0]) in known:
                raise InvalidArgument(
                    f"option failover: in {text!r} {others[0]} is an address of the server that is named already; name "
                    "another one, or take it out"
                )
            found[server] = (*found.get(server, ()), *others)
        return found

    @property
    def export(self) -> Settings | None:
        """Return the settings in mode export, else None."""
        return self if self.mode == EXPORT else None
