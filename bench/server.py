"""`volplane apiserver --memory` that holds many objects from its first moment.

python -m bench.server KUBECONFIG [--pairs N] [--volumes N]

pairs: bound volumes with their claims, as a cluster holds them. volumes: free static ones of 1 GiB and no class.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from bench.objects import bound_claim, bound_volume, free_volume

from volplane.apiserver.store import Store, key_of
from volplane.cli import running
from volplane.cli.embedded import Place, embedded_server

__all__: list[str] = []

HISTORY = 50_000


def _fill(store: Store, pairs: int, volumes: int) -> None:
    for number in range(pairs):
        bound, claim = bound_volume(number), bound_claim(number)
        store.put("persistentvolumes", bound["metadata"]["name"], bound)
        store.put("persistentvolumeclaims", key_of(claim["metadata"]["namespace"], claim["metadata"]["name"]), claim)
    for number in range(volumes):
        free = free_volume(number)
        store.put("persistentvolumes", free["metadata"]["name"], free)
    store.compact()


async def _serve(kubeconfig: Path, pairs: int, volumes: int, stop: asyncio.Event) -> None:
    ready = kubeconfig.with_suffix(".begun")
    place = Place(data=None, host="127.0.0.1", port=0, kubeconfig=ready)
    async with embedded_server(place, history=HISTORY) as embedded:
        _fill(embedded.server.store, pairs, volumes)
        ready.rename(kubeconfig)
        await stop.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--volumes", type=int, default=0)
    chosen = parser.parse_args()
    running.run(lambda stop: _serve(chosen.kubeconfig, chosen.pairs, chosen.volumes, stop))
