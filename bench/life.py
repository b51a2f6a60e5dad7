"""What a life asks of the API server, counted exactly: requests, bytes and events.

    python -m bench.life [--lives 20]

API server and controllers in one loop, in virtual time. Each figure is the controllers' part of one life: what users
and nodes ask does not count. The embedded server keeps no managedFields.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Final

from bench.backends import MemoryBackend
from bench.counting import Counting, Tally
from bench.objects import DRIVER, claim, volume

import volplane_testing
from volplane_testing import Cluster

__all__ = ["MODES", "measure"]

MODES: Final = ("static", "dynamic")
"""static: a volume that a person made is bound and released. dynamic: provisioned, bound, deleted with its asset."""


async def _live(cluster: Cluster, mode: str, name: str) -> None:
    api = cluster.api
    if mode == "static":
        api.create("persistentvolumes", volume(name))
    api.create("persistentvolumeclaims", claim(name, "" if mode == "static" else "fast"))
    await cluster.settle()
    bound = api.get("persistentvolumeclaims", name)
    if bound is None or bound["status"].get("phase") != "Bound":
        raise SystemExit(f"{name} is not bound")
    api.delete("persistentvolumeclaims", name)
    await cluster.settle()
    if mode == "static":
        api.delete("persistentvolumes", name)
        await cluster.settle()


def measure(mode: str, lives: int) -> dict[str, float]:
    """Return the figures of one life of this mode."""

    async def main() -> dict[str, float]:
        tally = Tally()
        async with Cluster({DRIVER: MemoryBackend({})}, transport=lambda inner: Counting(inner, tally)) as cluster:
            await cluster.create_class("fast", driver=DRIVER)
            await _live(cluster, mode, "first")
            await asyncio.sleep(1.0)
            tally.requests.clear()
            tally.events.clear()
            tally.sent = tally.received = tally.watched = 0
            for number in range(lives):
                await _live(cluster, mode, f"life-{number}")
            figures = {verb: count / lives for verb, count in sorted(tally.requests.items())}
            return figures | {
                "events watched": sum(tally.events.values()) / lives,
                "bytes sent": tally.sent / lives,
                "bytes answered": (tally.received - tally.watched) / lives,
                "bytes watched": tally.watched / lives,
            }

    return volplane_testing.run(main())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lives", type=int, default=20)
    chosen = parser.parse_args()
    for mode in MODES:
        print(mode)
        for name, figure in measure(mode, chosen.lives).items():
            print(f"  {name:30} {figure:10,.1f}")


if __name__ == "__main__":
    main()
