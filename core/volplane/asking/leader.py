"""How commands ask the process that leads.

The leader says on its Lease where it can be asked. On its own machine it is asked on the loopback address, with the
token in the file of its user; from elsewhere through the API server, by a port-forward to its pod, with the token of
the kubeconfig, which the leader has reviewed. Who has only a certificate requests a token of the leader's account that
is of use there alone. Only the holder of the Lease answers: the request names it.

Nothing on the Lease leads anywhere else: the pod is one of the namespace of the Lease, with the name of the holder, on
a port that it declares; and no token is sent to the loopback address but that in the file.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from volplane.asking import AUDIENCE
from volplane.controller.http_access import HOLDER, HttpAddress, is_loopback, read_token
from volplane.errors import ApiError, ApiForbidden, VolplaneError
from volplane.kube import names
from volplane.kube.client import Client
from volplane.kube.http.transport import HttpTransport
from volplane.kube.kinds import LEASES, WHOLE_PODS, Kind
from volplane.kube.leases import LEASE, Endpoint
from volplane.kube.objects import KubeObject, Lease, WholePod, timestamp
from volplane.kube.transport import Response

SECONDS = {"GET": 5.0, "POST": 60.0}
"""How long an answer may take. Before that to a POST the controller may call its backends."""
RENEWED_WITHIN = 5.0
"""Seconds; a leader renews its Lease every two."""
_TOKEN_SECONDS: Final = 600
"""The shortest time for which a token can be had."""
_BY: Final = HOLDER.lower()
_ACCOUNTS: Final = Kind("v1", "ServiceAccount", "serviceaccounts", True, KubeObject)
_Way = Callable[[str, str], Awaitable[Response]]
"""(method, path with its query) -> the answer. Raises LeaderSilent if the leader does not answer there."""


class LeaderSilent(VolplaneError):
    """Nobody who leads answers, or not to us. The text says why, and where it helps what to do."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        """status: of the refusal, if somebody has answered."""
        super().__init__(message)
        self.status = status


@dataclass(slots=True, eq=False)
class Leader:
    """The process that leads, as a command asks it. Where it is, is found once, and again when it does not answer."""

    namespace: str
    http: str = ""
    client: Client | None = None
    transport: HttpTransport | None = None
    by: str = ""
    """Who gave the last answer: the identity by which it holds the Lease."""
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    """When."""
    _way: _Way | None = None
    """That by which it has answered."""

    async def ask(
        self, path: str, query: Mapping[str, str] | None = None, *, method: str = "GET", text: bool = False
    ) -> Any:
        """Return the JSON answer of the leader. text: return the text of the page instead, whatever its status.

        Raises LeaderSilent if none answers, or it has no answer for us; VolplaneError with its reason if it cannot do
        what is asked.
        """
        response = await self._answered(method, f"{path}?{urlencode(query)}" if query else path)
        if text:
            return response.body.decode(errors="replace")
        try:
            content = json.loads(response.body)
        except ValueError as error:
            raise VolplaneError(f"what answers is no controller of volplane: {error}") from error
        if response.status != 200:
            raise VolplaneError(_reason(response))
        self.by, self.at = response.headers.get(_BY, ""), datetime.now(UTC)
        return content

    async def status(self, namespace: str = "") -> Any:
        """Return the answer to /status, about this namespace alone if we may not read more. Raises as `ask`."""
        try:
            return await self.ask("/status")
        except LeaderSilent as error:
            if error.status != 403 or not namespace:
                raise
        return await self.ask("/status", {"namespace": namespace})

    def said(self) -> tuple[str, ...]:
        """Return who gave the last answer, and when, as a note."""
        return (f"told by {self.by}, which leads, at {timestamp(self.at)}",) if self.by else ()

    async def _answered(self, method: str, target: str) -> Response:
        if self._way is not None:
            try:
                return await self._way(method, target)
            except LeaderSilent as error:  # Another one may lead now.
                if error.status == 403:
                    raise
        self._way, silent = None, LeaderSilent("nobody was asked")
        async for way in self._ways():
            try:
                response = await way(method, target)
            except LeaderSilent as error:
                silent = error
            else:
                self._way = way
                return response
        raise silent

    async def _ways(self) -> AsyncIterator[_Way]:
        """Yield how the leader may be asked, the shortest way first. Raises LeaderSilent if there is none more."""
        if self.http:
            yield partial(_at_address, HttpAddress.parse("--http", self.http))
            return
        if self.client is None or self.transport is None:
            raise LeaderSilent("no cluster was named in which a controller could be found")
        key = f"{self.namespace}/{LEASE}"
        try:
            lease = await held_lease(self.client, self.namespace)
        except ApiError as error:
            raise LeaderSilent(f"the lease {key}, which says who leads, cannot be read: {error}") from error
        if lease is None:
            raise LeaderSilent(
                f"no controller leads, by the lease {key}: start `volplane run`, or name its --system-namespace"
            )
        holder = lease.spec.holder_identity or ""
        if (endpoint := _endpoint_of(lease)) is None:
            raise LeaderSilent(f"{holder} leads, and its lease {key} does not say where it can be asked")
        with suppress(VolplaneError):  # It is not on this machine, or its token is not for us.
            token, host = read_token(endpoint.port)
            yield partial(_on_loopback, HttpAddress(host, endpoint.port), token, holder)
        if not endpoint.pod:
            where = f"on the machine {endpoint.host}, in no pod"
            raise LeaderSilent(f"{holder} leads {where}: run the command there, as the user that it runs as")
        pod = await _pod_of(self.client, endpoint, self.namespace)
        yield _InPod(self.client, self.transport, pod, endpoint.port, holder)


def _endpoint_of(lease: Lease) -> Endpoint | None:
    """Return where the holder of the Lease can be asked; None if it does not say so, or what it says cannot be."""
    try:
        found = msgspec.json.decode(lease.annotation(names.ENDPOINT) or "", type=Endpoint)
    except ValueError:
        return None
    known = found.holder == lease.spec.holder_identity and 0 < found.port < 65536
    # The kubelet calls the machine of a pod as the pod: another one is none of the holder.
    return found if known and (not found.pod or found.holder.startswith(f"{found.pod}_")) else None


async def _pod_of(client: Client, endpoint: Endpoint, namespace: str) -> WholePod:
    """Return the pod of the leader, in the namespace of its Lease. Raises LeaderSilent if it is none to ask."""
    place = f"{endpoint.namespace}/{endpoint.pod}"
    try:
        pod = await client.find(WHOLE_PODS, place) if endpoint.namespace == namespace else None
    except ApiError as error:
        raise LeaderSilent(f"pod {place} leads, which cannot be read: {error}") from error
    spec = pod.spec if pod is not None else {}
    ports = [port.get("containerPort") for each in spec.get("containers", ()) for port in each.get("ports") or ()]
    # In the network of its node another process could have the port.
    if pod is None or endpoint.port not in ports or spec.get("hostNetwork"):
        why = "which is no port of a controller: nothing is sent there"
        raise LeaderSilent(f"the lease of {namespace} names port {endpoint.port} of pod {place}, {why}")
    return pod


@dataclass(slots=True, eq=False)
class _InPod:
    """Asks through the API server."""

    client: Client
    transport: HttpTransport
    pod: WholePod
    port: int
    holder: str
    requested: str = ""
    """A token for the leader alone, and loop time until which it counts."""
    until: float = 0.0

    async def __call__(self, method: str, target: str) -> Response:
        from volplane.asking.forward import exchange  # noqa: PLC0415 - aiohttp, as in _on_loopback

        identity = self.transport.credentials.identity
        if identity.impersonation:
            raise LeaderSilent("you act as somebody else (`as`), and the leader would answer to your own rights")
        bearer = identity.authorization
        if not bearer.startswith("Bearer "):
            bearer = f"Bearer {await self._token()}"
        lines = [f"{method} {target} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", f"Authorization: {bearer}"]
        lines += [f"{HOLDER}: {self.holder}", "Content-Length: 0", "Connection: close", "", ""]
        sent, seconds = "\r\n".join(lines).encode(), SECONDS[method] + SECONDS["GET"]
        try:
            answer = await exchange(self.transport.route, identity, self.pod.key, self.port, sent, seconds=seconds)
        except ApiForbidden as error:
            raise LeaderSilent(
                f"{error}: it takes the rights to get and create pods/portforward", status=403
            ) from error
        except ApiError as error:
            raise LeaderSilent(str(error)) from error
        return _of(self.holder, answer)

    async def _token(self) -> str:
        """Return a token for somebody who has none."""
        if (now := asyncio.get_running_loop().time()) < self.until:
            return self.requested
        account = f"{self.pod.namespace}/{self.pod.spec.get('serviceAccountName') or 'default'}"
        spec = {"audiences": [AUDIENCE], "expirationSeconds": _TOKEN_SECONDS}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        try:
            made = json.loads(await self.client.post(_ACCOUNTS, account, "token", body))
            self.requested, self.until = str(made["status"]["token"]), now + _TOKEN_SECONDS / 2
        except (ApiError, ValueError, KeyError, TypeError) as error:
            right = f"the right to create serviceaccounts/token of {account}"
            raise LeaderSilent(
                f"the leader knows people by tokens, and you have a certificate; a token for it takes {right}: {error}"
            ) from error
        return self.requested


async def _at_address(place: HttpAddress, method: str, target: str) -> Response:
    """Ask the process at the address that a person names. Traffic is not encrypted: a token stays on this machine."""
    token, without = "", ""
    try:
        if is_loopback(place.host):
            token, host = read_token(place.port, place.host)
            place = HttpAddress(host, place.port)
    except VolplaneError as error:
        without = str(error)
    try:
        return await _on_loopback(place, token, "", method, target)
    except LeaderSilent as error:
        raise LeaderSilent(without if without and error.status else str(error), status=error.status) from error


async def _on_loopback(place: HttpAddress, token: str, holder: str, method: str, target: str) -> Response:
    import aiohttp  # noqa: PLC0415 - 170 ms, for which a page of help need not wait

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    headers |= {HOLDER: holder} if holder else {}
    address = f"{f'[{place.host}]' if ':' in place.host else place.host}:{place.port}"
    timeout = aiohttp.ClientTimeout(total=SECONDS[method])
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            session.request(method, f"http://{address}{target}", headers=headers) as response,
        ):
            told = {name.lower(): value for name, value in response.headers.items()}
            return _of(holder, Response(response.status, told, await response.read()))
    except (aiohttp.ClientConnectionError, TimeoutError):
        raise LeaderSilent(f"no controller answers at {address}") from None
    except aiohttp.ClientError as error:
        raise VolplaneError(f"what answers at {address} is no controller of volplane: {error}") from error


def _of(holder: str, response: Response) -> Response:
    """Return the answer of this holder of the Lease. Raises LeaderSilent if it is another's, or a refusal."""
    if response.status in (401, 403, 421):
        raise LeaderSilent(_reason(response), status=response.status)
    if response.status == 200 and response.headers.get(_BY, holder) != holder and holder:
        raise LeaderSilent(f"what answers is not {holder}, which leads")
    return response


def _reason(response: Response) -> str:
    with suppress(ValueError, TypeError, KeyError):
        return str(json.loads(response.body)["error"])
    return f"the controller answers {response.status}"


async def held_lease(client: Client, namespace: str) -> Lease | None:
    """Return the Lease of volplane in the namespace, if somebody renews it. Raises ApiError.

    A Lease that looks expired is read again after 5 s: the holder's clock may be wrong, but it changes the Lease.
    """
    key = f"{namespace}/{LEASE}"
    first = await client.find(LEASES, key)
    if first is None or not first.spec.holder_identity:
        return None
    with suppress(ValueError):
        age = datetime.now(UTC) - datetime.fromisoformat(first.spec.renew_time or "")
        if abs(age) < timedelta(seconds=first.spec.lease_duration_seconds or 0):
            return first
    await asyncio.sleep(RENEWED_WITHIN)
    second = await client.find(LEASES, key)
    return second if second is not None and second.version != first.version and second.spec.holder_identity else None
