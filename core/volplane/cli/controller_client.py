"""How commands reach the cluster, and in it the process that leads: by the options of `Access`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

from typer import Option

from volplane._messages import nearest
from volplane.asking.leader import Leader
from volplane.cli.framework.options import DEFAULT_NAMESPACE, Kubeconfig, completed
from volplane.errors import ApiError, ConfigurationError
from volplane.kube.client import Client
from volplane.kube.http.route import refused
from volplane.kube.http.transport import HttpTransport

_AGAIN_SECONDS: Final = 2.0
_SHARE: Final = 0.1
"""Part of the time in which others may be busy with what is shown again and again."""
_COUNTS: Final = re.compile(r"\b(in|for|since) [0-9.]+ ")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a command reaches a cluster: its options."""

    kubeconfig: Kubeconfig = None
    context: Annotated[
        str, Option(metavar="NAME", help="Else the current one.", autocompletion=completed("context"))
    ] = ""
    http: Annotated[str, Option(metavar="ADDRESS:PORT", help="The controller to ask; else the one that leads.")] = ""
    system_namespace: Annotated[str, Option(metavar="NAME", help="Namespace of the controllers.")] = DEFAULT_NAMESPACE

    def namespace(self, given: str, *, everywhere: bool = False) -> str:
        """Return which namespace is meant, as kubectl does: that which is given, else that of the context; "" = all."""
        from volplane.kube.kubeconfig import context_namespaces  # noqa: PLC0415 -- 0.8 s, only where it is needed

        return "" if everywhere else given or context_namespaces(self.kubeconfig).get(self.context, "default")

    @asynccontextmanager
    async def cluster(self) -> AsyncIterator[tuple[Client, Leader]]:
        """Yield both. Raises ConfigurationError, and ApiError with the server's address and what to check."""
        transport = await HttpTransport.connect(self.kubeconfig, self.context)
        try:
            client = Client(transport)
            yield client, Leader(self.system_namespace, self.http, client, transport)
        except ApiError as error:
            if (advised := refused(transport.server, error)) is error:
                raise
            raise advised from error
        finally:
            await transport.close()

    @asynccontextmanager
    async def leader(self) -> AsyncIterator[Leader]:
        """Yield it. With an address of its own no cluster is needed."""
        if self.http:
            yield Leader(self.system_namespace, self.http)
            return
        async with self.cluster() as (_, leader):
            yield leader


def require_driver(name: str, known: Iterable[str]) -> None:
    """Raise ConfigurationError if the value of --driver is no known driver."""
    names = set(known)
    if name and name not in names:
        raise ConfigurationError(f"--driver: the controller has no driver {name!r}{nearest(name, names)}")


async def shown_again(
    read: Callable[[], Awaitable[T]], show: Callable[[T], None], *, part: Callable[[T], object], again: bool
) -> T:
    """Read and show something once; with `again` whenever this part of it has changed, until cancelled.

    What only counts the seconds is no change.
    """
    clock, before = asyncio.get_running_loop().time, ""
    while True:
        began = clock()
        found = await read()
        now = _COUNTS.sub("", repr(part(found)))
        if now != before:
            show(found)
        if not again:
            return found
        before = now
        await asyncio.sleep(max(_AGAIN_SECONDS, (clock() - began) / _SHARE))
