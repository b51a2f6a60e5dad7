"""How commands reach the cluster and the running controller: by its Lease, and as JSON over its `--http` address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import aiohttp
from typer import Option

from volplane._messages import nearest
from volplane.controller.http import HttpAddress, is_loopback, read_token
from volplane.errors import ApiError, ConfigurationError, VolplaneError
from volplane.kube.client import Client
from volplane.kube.http.route import refused
from volplane.kube.http.transport import HttpTransport
from volplane.kube.kinds import LEASES
from volplane.process.process import LEASE

ControllerAddress = Annotated[
    str, Option("--http", metavar="ADDRESS:PORT", help="Where the running controller serves its answers (its --http).")
]

SECONDS = {"GET": 5.0, "POST": 60.0}
"""How long an answer may take. Before that to a POST the controller may call its backends."""
RENEWED_WITHIN = 5.0
"""Seconds; a leader renews its Lease every two."""


async def ask(
    address: str, path: str, query: Mapping[str, str] | None = None, *, method: str = "GET", text: bool = False
) -> Any | None:
    """Return the JSON answer of the controller at the address, or None if nothing listens there.

    Takes the controller's token along. Raises VolplaneError with the controller's reason if it answers with an error.
    text: return the text of the page instead, whatever its status.
    """
    place = HttpAddress.parse("--http", address)
    timeout = aiohttp.ClientTimeout(total=SECONDS[method])
    headers: dict[str, str] = {}
    without = ""  # why there is no token
    try:
        # Traffic is not encrypted, and a controller takes the token on this machine alone.
        if is_loopback(place.host):
            token, host = read_token(place.port, place.host)
            headers = {"Authorization": f"Bearer {token}"}
            address = f"[{host}]:{place.port}" if ":" in host else f"{host}:{place.port}"
    except VolplaneError as error:
        without = str(error)
    url = f"http://{address}{path}"
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            session.request(method, url, params=dict(query or {}), headers=headers) as response,
        ):
            content = await (response.text() if text else response.json(content_type=None))
    except (aiohttp.ClientConnectionError, TimeoutError):
        return None
    except (aiohttp.ClientError, ValueError) as error:
        raise VolplaneError(f"{url} is no controller of volplane: {error}") from error
    if response.status != 200 and not text:
        reason = content.get("error") if isinstance(content, dict) else None
        raise VolplaneError(without or reason or f"{url} answered {response.status}")
    return content


async def require_answer(
    address: str, path: str, query: Mapping[str, str] | None = None, *, method: str = "GET"
) -> Any:
    """Return what `ask` does. Raises VolplaneError also if nothing listens at the address."""
    answer = await ask(address, path, query, method=method)
    if answer is None:
        raise VolplaneError(
            f"no controller answers at {address}: start `volplane run` or `volplane dev`, or name its --http address; "
            "in a pod, ask there: kubectl -n NAMESPACE exec deploy/volplane -- volplane …"
        )
    return answer


def require_driver(name: str, known: Iterable[str]) -> None:
    """Raise ConfigurationError if the value of --driver is no known driver."""
    names = set(known)
    if name and name not in names:
        raise ConfigurationError(f"--driver: the controller has no driver {name!r}{nearest(name, names)}")


async def lease_holder(client: Client, namespace: str) -> str:
    """Return the holder of the Lease of volplane in the namespace, if it renews it, else "". Raises ApiError.

    A Lease that looks expired is read again after 5 s: the holder's clock may be wrong, but it changes the Lease.
    """
    key = f"{namespace}/{LEASE}"
    first = await client.find(LEASES, key)
    holder = "" if first is None else first.spec.holder_identity or ""
    if first is None or not holder:
        return ""
    with suppress(ValueError):
        age = datetime.now(UTC) - datetime.fromisoformat(first.spec.renew_time or "")
        if abs(age) < timedelta(seconds=first.spec.lease_duration_seconds or 0):
            return holder
    await asyncio.sleep(RENEWED_WITHIN)
    second = await client.get(LEASES, key)
    return (second.spec.holder_identity or "") if second.version != first.version else ""


@asynccontextmanager
async def cluster_client(kubeconfig: Path | None, context: str = "") -> AsyncIterator[Client]:
    """Yield a client. Raises ConfigurationError, and ApiError with the server's address and what to check."""
    transport = await HttpTransport.connect(kubeconfig, context)
    try:
        yield Client(transport)
    except ApiError as error:
        if (advised := refused(transport.server, error)) is error:
            raise
        raise advised from error
    finally:
        await transport.close()
