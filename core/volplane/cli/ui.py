"""`volplane ui`: a live page about a cluster's volumes, for a browser on this machine."""

from __future__ import annotations

import asyncio
import logging
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from typer import Option

from volplane.asking.leader import LeaderSilent
from volplane.cli.controller_client import Access
from volplane.cli.framework import eventloop
from volplane.cli.framework.console import Console
from volplane.cli.framework.options import with_options
from volplane.controller import logs
from volplane.controller.http_access import HttpAddress
from volplane.ui.server import serve_page


@with_options
def ui(
    access: Access,
    *,
    namespace: Annotated[
        str, Option("--namespace", "-n", metavar="NAME", help="Show its objects alone, which needs fewer rights.")
    ] = "",
    port: Annotated[int, Option(metavar="N", min=0, max=65535, help="Port of 127.0.0.1; 0 = a free one.")] = 0,
    browser: Annotated[bool, Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve a page that shows what waits and why, claims with all that belongs to them, drivers, nodes, and the trash.

    It reads with the rights of the kubeconfig, and writes nothing. The address has a token: whoever has it sees what
    you see, until Ctrl-C. Reasons and operations come from the controller that leads.
    """
    if access.http:
        HttpAddress.parse("--http", access.http)
    logs.configure()

    async def serve(stop: asyncio.Event) -> None:
        async with access.cluster() as (client, leader):
            await client.raw("/version")  # A wrong address or credential is said here, not on the page.

            async def ask(path: str, query: Mapping[str, str]) -> Any:
                try:
                    return await (leader.status(namespace) if path == "/status" else leader.ask(path, query))
                except LeaderSilent as silent:  # What is left on the storage is not for everybody.
                    if path != "/leaks" or silent.status != 403:
                        raise
                    return {}

            async with serve_page(client, ask, port=port, namespace=namespace, home=access.system_namespace) as url:
                console = Console()
                console.line(f"page {url}")
                console.note("Ctrl-C stops it.")
                with TemporaryDirectory(prefix="volplane-ui-") as private:
                    if browser:
                        await asyncio.to_thread(webbrowser.open, _leading_to(url, Path(private)))
                    await stop.wait()

    # The page says what cannot be read.
    log = logging.getLogger("volplane.kube")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        eventloop.run(serve)
    finally:
        log.setLevel(level)


def _leading_to(url: str, directory: Path) -> str:
    """Return the address of a file there that leads to the page.

    A browser is started with its address, which every user of the machine can read, and that of the page has the token.
    """
    file = directory / "page.html"
    file.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={url}">\n', "utf-8")
    return file.as_uri()
