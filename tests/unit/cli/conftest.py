"""A cluster that commands read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from volplane_embedded.apiserver.certificates import make_certificate, server_context
from volplane_embedded.apiserver.http import serve
from volplane_embedded.apiserver.kubeconfig import write_kubeconfig
from volplane_embedded.apiserver.requests import Answer
from volplane_embedded.apiserver.server import ApiServer

CLAIM = b"""{"metadata":{"name":"data","finalizers":["volplane.dev/provisioning"]},"spec":{
    "accessModes":["ReadWriteOnce"],"storageClassName":"","resources":{"requests":{"storage":"1Gi"}}}}"""


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[str]:
    """Serve a cluster with one claim that volplane holds."""
    ready, address, stop = threading.Event(), [""], asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    certificate = make_certificate(["127.0.0.1"], datetime.now(UTC))

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        server = ApiServer(now=lambda: datetime.now(UTC))
        made: Answer = server.handle("POST", "/api/v1/namespaces/default/persistentvolumeclaims", {}, {}, CLAIM)
        assert made.status == 201
        listener = await serve(server, port=0, token="secret", tls=server_context(certificate, tmp_path))
        address[0] = listener.url
        ready.set()
        await stop.wait()
        await listener.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(10)
    file = tmp_path / "kubeconfig"
    write_kubeconfig(file, address[0], "secret", certificate.certificate)
    yield str(file)
    loops[0].call_soon_threadsafe(stop.set)
    thread.join()
