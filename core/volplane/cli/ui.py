"""`volplane ui`: a live page about a cluster's volumes, for a browser on this machine."""

from __future__ import annotations

import asyncio
import logging
import webbrowser
from functools import partial
from typing import Annotated

from typer import Option

from volplane.cli.controller_client import ControllerAddress, ask, cluster_client
from volplane.cli.framework import eventloop
from volplane.cli.framework.console import Console
from volplane.cli.framework.options import DEFAULT_NAMESPACE, Kubeconfig
from volplane.controller import logs
from volplane.controller.http import HttpAddress
from volplane.ui.server import serve_page


def ui(
    *,
    kubeconfig: Kubeconfig = None,
    context: Annotated[str, Option(metavar="NAME", help="Context of the kubeconfig; else its current one.")] = "",
    of: Annotated[str, Option("-n", metavar="NAMESPACE", help="Show its objects alone; needs fewer rights.")] = "",
    port: Annotated[int, Option(metavar="N", min=0, max=65535, help="Port of 127.0.0.1; 0 = a free one.")] = 0,
    browser: Annotated[bool, Option("--open", help="Open the page in a browser.")] = False,
    http: ControllerAddress = "127.0.0.1:9809",
    system_namespace: Annotated[str, Option(metavar="NAME", help="Namespace of the controllers.")] = DEFAULT_NAMESPACE,
) -> None:
    """Serve a page that shows what waits and why, claims with all that belongs to them, drivers, nodes, and the trash.

    It reads with the rights of the kubeconfig, and writes nothing. The address has a token: whoever has it sees what
    you see, until Ctrl-C. Reasons and operations come from the controller, where one answers at --http.
    """
    HttpAddress.parse("--http", http)
    logs.configure()

    async def serve(stop: asyncio.Event) -> None:
        async with cluster_client(kubeconfig, context) as client:
            await client.raw("/version")  # A wrong address or credential is said here, not on the page.
            async with serve_page(client, partial(ask, http), port=port, namespace=of, home=system_namespace) as url:
                console = Console()
                console.line(f"page {url}")
                console.note("Ctrl-C stops it.")
                if browser:
                    await asyncio.to_thread(webbrowser.open, url)
                await stop.wait()

    # The page says what cannot be read.
    log = logging.getLogger("volplane.kube")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        eventloop.run(serve)
    finally:
        log.setLevel(level)
