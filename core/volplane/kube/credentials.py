"""Who we are to the API server, kept fresh while tokens, keys and certificates rotate.

`Credentials` decides when to look again: every minute, before what an exec plugin gave expires, and when the server
does not accept what we have. A `Source` reads them; `volplane.kube.kubeconfig` has the sources for kubeconfig files and
pods.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from volplane.errors import ConfigurationError
from volplane.kube.transport import Response

__all__ = ["Credentials", "Identity", "Source"]

_LOG = logging.getLogger(__name__)

_REFRESH_SECONDS = 60.0
"""Between two looks at the files."""
_RENEW_SECONDS = 10.0
"""After a look that did not help, the shortest time until a refused request leads to another."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a connection and its requests carry.

    authorization: of the header; "" = none. tls: the context with our certificate, if any; True: plain HTTP.
    certificate: whether it has one. mark: equal for equal credentials. expires_in: seconds after which it has to be
    read again; None: not known.
    """

    authorization: str = ""
    tls: ssl.SSLContext | bool = True
    certificate: bool = False
    mark: object = None
    expires_in: float | None = None


class Source(Protocol):
    """Where an identity comes from."""

    async def read(self, *, refused: bool) -> Identity:
        """Return the identity as it is now; the former one itself if nothing changed.

        refused: the server did not accept it: whatever is kept for later is to be asked for again. Raises
        ConfigurationError, which says what to do.
        """
        ...


class Credentials:
    """The identity to use now. Its owner awaits `keep` in a task. Belongs to one event loop."""

    def __init__(self, source: Source, identity: Identity) -> None:
        """identity: what `source` has just given."""
        self.identity = identity
        self._source = source
        self._looked = float("-inf")
        self._expires = self._expiry(identity)
        self._renewal: asyncio.Task[None] | None = None
        self._complained = ""

    async def authorized(self, exchange: Callable[[Identity], Awaitable[Response]], *, seconds: float) -> Response:
        """Make an exchange; once more if it is refused and other credentials are found, within so many seconds."""
        used = self.identity
        answer = await exchange(used)
        if answer.status == 401 and await self.renewed(used, seconds=seconds):
            answer = await exchange(self.identity)
        return answer

    async def renewed(self, refused: Identity, *, seconds: float) -> bool:
        """Look for other credentials than those that the server refused; whether there are any within so many seconds.

        Many callers share one look, which goes on if they do not wait for it.
        """
        if self.identity is not refused:
            return True
        if self._renewal is None or self._renewal.done():
            if asyncio.get_running_loop().time() < self._looked + _RENEW_SECONDS:
                return False
            self._renewal = asyncio.create_task(self._look(refused=True), name="credentials")
        await asyncio.wait({self._renewal}, timeout=seconds)
        return self.identity is not refused

    async def keep(self) -> None:
        """Look again from time to time, until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            left = self._expires - clock()
            await asyncio.sleep(min(_REFRESH_SECONDS, max(_RENEW_SECONDS, left)))
            await self._look(refused=clock() >= self._expires)

    def close(self) -> None:
        """Give up a look that is under way."""
        if self._renewal is not None:
            self._renewal.cancel()

    async def _look(self, *, refused: bool) -> None:
        """Take over what the source gives; the old identity may still do if it cannot be read."""
        try:
            found = await self._source.read(refused=refused)
        except ConfigurationError as error:
            level = logging.DEBUG if str(error) == self._complained else logging.WARNING
            self._complained = str(error)
            _LOG.log(level, "the credentials could not be read again, trying on with the old ones: %s", error)
            self._expires = asyncio.get_running_loop().time() + _RENEW_SECONDS
        else:
            self._complained = ""
            if found is not self.identity:
                _LOG.info("new credentials for the API server are used from now on")
                self.identity = found
                self._expires = self._expiry(found)
            elif refused:
                self._expires = max(self._expires, asyncio.get_running_loop().time() + _REFRESH_SECONDS)
        finally:
            self._looked = asyncio.get_running_loop().time()

    def _expiry(self, identity: Identity) -> float:
        """Return the loop time before which to read again."""
        if identity.expires_in is None:
            return float("inf")
        return asyncio.get_running_loop().time() + 0.8 * max(0.0, identity.expires_in)
