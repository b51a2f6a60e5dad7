"""The driver's shares: which one holds a volume, and which one takes a new volume."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from volplane import (
    BackendError,
    NotFound,
    ProvisionRequest,
    ResourceExhausted,
    Unavailable,
    VolumeIdentity,
)
from volplane.directory import Handle
from volplane_nfs.nfs4 import Address, Client, Compounds, Credentials, Dial, TlsDial
from volplane_nfs.parameters import ClassParameters
from volplane_nfs.settings import Settings
from volplane_nfs.share import Share
from volplane_nfs.sources import below_pseudo_path, path_below_share
from volplane_nfs.space import free_bytes
from volplane_nfs.volumes import read_marker


class Shares:
    """All shares of a driver, in the order of its option. Shares of one server have one client."""

    def __init__(self, settings: Settings, dial: Dial, now: Callable[[], float]) -> None:
        """dial: how servers are connected to. now: monotonic seconds."""
        self._settings = settings
        self._clients: dict[Address, Compounds] = {}
        security = ("xprtsec=mtls" if settings.tls_certificate else "xprtsec=tls") if settings.tls else ""
        for server in dict.fromkeys(address.server for address in settings.addresses):
            self._clients[server] = _client(server, settings, dial, now)
        self.all: Sequence[Share] = [
            Share(address, self._clients[address.server], mark=settings.mark_shares, security=security)
            for address in settings.addresses
        ]

    def close(self) -> None:
        """End the sessions."""
        for client in self._clients.values():
            client.close()

    # --- for a new volume -----------------------------------------------------------------------------------------

    def allowed(self, parameters: ClassParameters) -> list[Share]:
        """Return the shares that a class allows."""
        allowed = parameters.allowed(self._settings.addresses)
        return [share for share in self.all if share.address in allowed]

    def chosen(self, request: ProvisionRequest, candidates: Sequence[Share]) -> Share | None:
        """Return the share on which the volume is, or has to be; None = that is still to be decided."""
        if len(candidates) == 1:
            return candidates[0]
        wanted = request.context.state.get("share")
        for share in candidates:
            if wanted == str(share):
                return share
        for share in candidates:
            try:
                marker = share.work(
                    f"look for {request.name}",
                    lambda handles, share=share: read_marker(share, handles.volumes, request.name.encode()),  # type: ignore[misc]
                )
            except Unavailable:
                continue
            if marker is not None:
                return share
        return None

    def choose(self, request: ProvisionRequest, candidates: Sequence[Share]) -> dict[str, str]:
        """Choose the share with most free space. The state to save with the claim before anything is made: `chosen`
        finds the share in it. Raises `ResourceExhausted` if none has enough, or the error of a share.
        """
        spaces, errors = self.free_spaces(candidates)
        enough = [
            (free or 0, str(share))
            for free, share in spaces
            if free is None or free >= request.capacity_bytes or not self._settings.check_free_space
        ]
        if not enough:
            if errors:
                raise errors[0]
            raise ResourceExhausted(
                f"none of {', '.join(map(str, candidates))} has {request.capacity_bytes} bytes left for {request.name}",
                nothing_done=True,
            )
        return {"share": max(enough)[1]}

    def free_spaces(self, shares: Sequence[Share]) -> tuple[list[tuple[int | None, Share]], list[BackendError]]:
        """Free bytes of each of these shares that answers (None = its server does not tell), and errors of others."""
        spaces: list[tuple[int | None, Share]] = []
        errors: list[BackendError] = []
        for share in shares:
            try:
                free = share.work("ask for free space", lambda handles, share=share: free_bytes(share, handles))  # type: ignore[misc]
            except BackendError as error:
                errors.append(error)
            else:
                spaces.append((free, share))
        return spaces, errors

    # --- of a volume ----------------------------------------------------------------------------------------------

    def holding(self, volume: VolumeIdentity) -> Share:
        """Return what `of` returns, but raise `NotFound` if the volume is on no share."""
        share = self.of(volume)
        if share is None:
            raise NotFound(f"volume {volume.name} is on no share of this driver")
        return share

    def of(self, volume: VolumeIdentity) -> Share | None:
        """Return the share that holds a volume; None if it is on none.

        Raises `Unavailable` if that cannot be known now.
        """
        handle = Handle.parse(volume.handle) if volume.owner is not None else None
        if handle is not None:
            fields = volume.source.fields
            return self.with_id(handle.storage_id, f"{fields.get('path')} of {fields.get('server')}")
        if volume.owner is None and below_pseudo_path(volume.source, self._settings):
            return self.all[0]
        for share in self.all:
            if path_below_share(volume.source, share.address) is not None:
                return share
        return None

    def with_id(self, share_id: str, what: str) -> Share:
        """Return the share with this id. what: is on it, for messages. Raises `Unavailable` if it is away."""
        for share in self.all:
            if share.known_id == share_id:
                return share
        unknown: BackendError | None = None
        for share in self.all:
            if share.known_id:
                continue
            try:
                if share.work("look at its mark", lambda handles: handles.share_id) == share_id:
                    return share
            except BackendError as error:
                unknown = error
        if unknown is not None:
            raise unknown
        raise Unavailable(
            f"no share of this driver has the id {share_id}, where {what} is: its disk is not mounted on the server, "
            "or the share was taken out of the option shares"
        )


def _client(server: Address, settings: Settings, dial: Dial, now: Callable[[], float]) -> Compounds:
    credentials = Credentials(uid=settings.uid, gid=settings.gid)
    if settings.client == "pynfs":
        from volplane_nfs.pynfs_client import PynfsClient  # noqa: PLC0415 - only who has it imports it

        return PynfsClient(server, credentials=credentials, timeout=settings.timeout)
    if settings.tls:
        dial = TlsDial(
            authorities=settings.tls_authorities,
            certificate=settings.tls_certificate,
            key=settings.tls_key,
            server_name=settings.tls_server_name,
            dial=dial,
        )
    return Client(
        server,
        credentials=credentials,
        timeout=settings.timeout,
        connections=settings.connections,
        dial=dial,
        now=now,
        others=settings.other_addresses.get(server, ()),
    )
