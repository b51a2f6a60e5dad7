"""`volplane apiserver --memory` that starts with many objects, or whose writes cost extra CPU.

python -m bench.server KUBECONFIG [--pairs N] [--volumes N] [--pods N] [--write-ms MS]

pairs: bound volumes with their claims, as in a real cluster. pods: of the first of these claims. volumes: free static
ones of 1 GiB and no class. write-ms: extra CPU per write, spent in threads, as in a server that uses all cores.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.objects import bound_claim, bound_volume, free_volume, pod

from volplane.cli.framework import eventloop
from volplane_embedded.apiserver.requests import Answer
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.apiserver.store import Store, key_of
from volplane_embedded.cli.embedded_server import ServerSettings, embedded_server

__all__: list[str] = []

HISTORY = 50_000


def _fill(store: Store, pairs: int, volumes: int, pods: int) -> None:
    for number in range(pairs):
        bound, claim = bound_volume(number), bound_claim(number)
        store.put("persistentvolumes", bound["metadata"]["name"], bound)
        store.put("persistentvolumeclaims", key_of(claim["metadata"]["namespace"], claim["metadata"]["name"]), claim)
    for number in range(volumes):
        free = free_volume(number)
        store.put("persistentvolumes", free["metadata"]["name"], free)
    for number in range(pods):
        running = pod(number)
        store.put("pods", key_of(running["metadata"]["namespace"], running["metadata"]["name"]), running)
    store.compact()


def _burn(rounds: int) -> None:
    """Use CPU while the interpreter's lock is released."""
    hashlib.pbkdf2_hmac("sha256", b"bench", b"volplane", rounds)


def _rounds(seconds: float) -> int:
    """Number of hash rounds that take this many CPU seconds on this machine."""
    sample = 100_000
    begun = time.thread_time()
    _burn(sample)
    return max(1, round(sample * seconds / (time.thread_time() - begun)))


def _add_cost(server: ApiServer, seconds: float) -> None:
    plain, rounds, threads = server.answer, _rounds(seconds), ThreadPoolExecutor(8)

    async def answer(method: str, path: str, query: Any, headers: Mapping[str, str], body: bytes) -> Answer:
        if method != "GET":
            await asyncio.get_running_loop().run_in_executor(threads, _burn, rounds)
        return await plain(method, path, query, headers, body)

    server.answer = answer  # type: ignore[method-assign]


async def _serve(chosen: argparse.Namespace, stop: asyncio.Event) -> None:
    kubeconfig: Path = chosen.kubeconfig
    ready = kubeconfig.with_suffix(".begun")
    settings = ServerSettings(data=None, host="127.0.0.1", port=0, kubeconfig=ready)
    async with embedded_server(settings, history=HISTORY) as embedded:
        _fill(embedded.server.store, chosen.pairs, chosen.volumes, chosen.pods)
        if chosen.write_ms:
            _add_cost(embedded.server, chosen.write_ms / 1000)
        ready.rename(kubeconfig)
        await stop.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--volumes", type=int, default=0)
    parser.add_argument("--pods", type=int, default=0)
    parser.add_argument("--write-ms", type=float, default=0.0)
    chosen = parser.parse_args()
    eventloop.run(lambda stop: _serve(chosen, stop))
