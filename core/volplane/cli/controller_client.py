"""How commands ask a running controller process: JSON over its `--http` address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import aiohttp
import typer

from volplane.errors import VolplaneError

__all__ = ["ControllerAddress", "act", "ask", "require_answer"]

ControllerAddress = Annotated[
    str,
    typer.Option(
        "--http", metavar="ADDRESS:PORT", help="Where the running controller serves its answers (its --http)."
    ),
]

SECONDS = 5.0
LONG_SECONDS = 60.0
"""For what makes the controller ask its backends before it answers."""


async def ask(address: str, path: str, query: Mapping[str, str] | None = None) -> Any | None:
    """The controller's answer, or None if nobody listens there. Raises VolplaneError with the controller's reason."""
    return await _exchange("GET", address, path, query or {}, SECONDS)


async def act(address: str, path: str, query: Mapping[str, str] | None = None) -> Any | None:
    """Have the controller do something; otherwise as `ask`."""
    return await _exchange("POST", address, path, query or {}, LONG_SECONDS)


def require_answer(answer: Any | None, address: str) -> Any:
    """The answer. Raises VolplaneError if there is none."""
    if answer is None:
        raise VolplaneError(
            f"no controller answers at {address}: start `volplane run` or `volplane dev`, or name its --http "
            "address; in a "
            "pod, ask there: kubectl -n NAMESPACE exec deploy/volplane -- volplane …"
        )
    return answer


async def _exchange(method: str, address: str, path: str, query: Mapping[str, str], seconds: float) -> Any | None:
    url = f"http://{address}{path}"
    timeout = aiohttp.ClientTimeout(total=seconds)
    headers = {"content-type": "application/json"}
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            session.request(method, url, params=dict(query), headers=headers) as response,
        ):
            content = await response.json(content_type=None)
    except (aiohttp.ClientConnectionError, TimeoutError):
        return None
    except (aiohttp.ClientError, ValueError) as error:
        raise VolplaneError(f"{url} is no controller of volplane: {error}") from error
    if response.status != 200:
        said = content.get("error") if isinstance(content, dict) else None
        raise VolplaneError(said or f"{url} answered {response.status}")
    return content
