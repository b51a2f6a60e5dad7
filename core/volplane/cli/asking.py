"""How commands ask a running controller process: JSON over its `--http` address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import aiohttp
import typer

from volplane.errors import VolplaneError

__all__ = ["ControllerAddress", "ask"]

ControllerAddress = Annotated[
    str,
    typer.Option(
        "--http", metavar="ADDRESS:PORT", help="Where the running controller serves its answers (its --http)."
    ),
]

SECONDS = 5.0


async def ask(address: str, path: str, query: Mapping[str, str] | None = None) -> Any | None:
    """The controller's answer, or None if nobody listens there. Raises VolplaneError with the controller's reason."""
    url = f"http://{address}{path}"
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            session.get(url, params=dict(query or {})) as response,
        ):
            content = await response.json(content_type=None)
    except (aiohttp.ClientConnectionError, TimeoutError):
        return None
    except (aiohttp.ClientError, ValueError) as error:
        raise VolplaneError(f"{url} is no controller of volplane: {error}") from error
    if response.status != 200:
        raise VolplaneError(content.get("error", f"{url} answered {response.status}"))
    return content
