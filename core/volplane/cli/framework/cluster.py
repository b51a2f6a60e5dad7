"""The cluster that a command reads: a client that lives as long as a block."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from volplane.errors import ApiError
from volplane.kube.client import Client
from volplane.kube.http.transport import HttpTransport
from volplane.kube.http.unreachable import refused

__all__ = ["cluster_client"]


@asynccontextmanager
async def cluster_client(kubeconfig: Path | None) -> AsyncIterator[Client]:
    """A client for the cluster of `HttpTransport.connect`, until the block ends.

    Raises ConfigurationError, and ApiError with the server's address and what to check.
    """
    transport = await HttpTransport.connect(kubeconfig)
    try:
        yield Client(transport)
    except ApiError as error:
        if (told := refused(transport.server, error)) is error:
            raise
        raise told from error
    finally:
        await transport.close()
