"""Whole lives with one CSI driver: volplane with the backend csi, and the stock sidecar, side by side.

    python -m bench.sidecars KUBECONFIG BINARIES [--lives 200] [--rounds 3] [--who stock,beside,whole]

KUBECONFIG: of an API server for this alone, without any controller. BINARIES: a folder with `hostpathplugin`, and for
`stock` and `beside` also `kube-controller-manager` and `csi-provisioner`, whose limits on requests are lifted.
A life is that of a claim from its creation until its volume is gone. `stock`: csi-provisioner and the binder of
kube-controller-manager. `beside`: volplane in the place of csi-provisioner. `whole`: volplane alone. Those of a round
take turns, each with new processes and an empty driver. CPU is that of the controllers, of a life, without the API
server; the driver's stands apart. Figures are medians; a ratio is the median of the rounds' ratios to `stock`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from bench import clients
from bench.objects import NAMESPACE, claim, claim_name
from bench.processes import Process, child, load, machine, program

from volplane.kube.kinds import CLAIMS, STORAGE_CLASSES, VOLUMES

DRIVER = "hostpath.csi.k8s.io"
CLASS = "by-csi"
WHO = ("stock", "beside", "whole")
BINDER = (
    "persistentvolume-binder-controller",
    "persistentvolumeclaim-protection-controller",
    "persistentvolume-protection-controller",
)
UNLIMITED = ("--kube-api-qps=2000", "--kube-api-burst=4000")
BESIDE = "provisioner,reclaimer"


@dataclass(frozen=True)
class Figures:
    """Of the lives of one measurement."""

    bound: float
    """Seconds until the last claim was bound."""
    gone: float
    """Seconds from the first deletion until the last volume was gone."""
    cpu: float
    """Milliseconds of the controllers, of a life."""
    driver: float
    """The same of the driver."""
    lives: float
    """Of a second."""


@contextmanager
def _running(who: str, kubeconfig: Path, binaries: Path, directory: Path) -> Iterator[tuple[Process, list[Process]]]:
    """Run driver and controllers. They are begun, not ready yet."""
    socket = directory / "csi.sock"
    with ExitStack() as stack:

        def run(name: str, *options: str) -> Process:
            started: Process = stack.enter_context(
                program(str(binaries / name), *options, log=directory / f"{name}.log")
            )
            return started

        state = directory / "state"
        state.mkdir()
        driver = run(
            "hostpathplugin",
            *(f"--drivername={DRIVER}", f"--endpoint=unix://{socket}", f"--statedir={state}"),
            *("--nodeid=node-1", "--enable-topology=false", "--v=0"),
        )
        driver.wait_for(socket)
        controllers: list[Process] = []
        if who != "whole":
            controllers.append(
                run(
                    "kube-controller-manager",
                    *(f"--kubeconfig={kubeconfig}", f"--controllers={','.join(BINDER)}", "--leader-elect=false"),
                    *("--bind-address=127.0.0.1", "--secure-port=0", "--v=0", *UNLIMITED),
                )
            )
        if who == "stock":
            controllers.append(
                run(
                    "csi-provisioner",
                    *(f"--kubeconfig={kubeconfig}", f"--csi-address={socket}", "--leader-election=false"),
                    *("--feature-gates=Topology=false", "--v=0", *UNLIMITED),
                )
            )
        else:
            options = {"socket": str(socket), "attach": False}
            configuration = directory / "volplane.yaml"
            driver_settings = {"name": DRIVER, "backend": "csi", "options": options}
            configuration.write_text(yaml.safe_dump({"drivers": [driver_settings]}))
            words = ("run", "--kubeconfig", str(kubeconfig), "--config", str(configuration), "--no-leader-elect")
            duties = BESIDE if who == "beside" else "all"
            controllers.append(
                stack.enter_context(child("-m", "volplane", *words, "--controllers", duties, "--http", "127.0.0.1:0"))
            )
        yield driver, controllers


async def _live(kubeconfig: Path, count: int, prefix: str) -> tuple[float, float]:
    """Let so many claims live; return the seconds until all were bound, and until all volumes were gone."""

    def named(number: int) -> str:
        return f"{prefix}{claim_name(number)}"

    async with clients.connected(kubeconfig) as client:
        version = (await client.list(CLAIMS, namespace=NAMESPACE)).version
        bound = clients.BoundClaims(client, count, prefix=prefix)
        following = asyncio.ensure_future(bound.follow(version))
        begun = time.perf_counter()
        await clients.each(count, lambda number: client.create(CLAIMS, claim(named(number), CLASS)))
        await following
        first = time.perf_counter() - begun
        version = (await client.list(VOLUMES)).version
        going = asyncio.ensure_future(clients.until_gone(client, version, count))
        begun = time.perf_counter()
        await clients.each(count, lambda number: client.delete(CLAIMS, f"{NAMESPACE}/{named(number)}"))
        await going
        return first, time.perf_counter() - begun


async def _make_class(kubeconfig: Path) -> None:
    async with clients.connected(kubeconfig) as client:
        if all(each.name != CLASS for each in (await client.list(STORAGE_CLASSES)).items):
            await clients.create_class(client, CLASS, DRIVER)


def measure(who: str, kubeconfig: Path, binaries: Path, lives: int) -> Figures:
    """Measure once, after some lives that do not count."""
    with (
        tempfile.TemporaryDirectory(prefix="sidecars-") as name,
        _running(who, kubeconfig, binaries, Path(name)) as (driver, controllers),
    ):
        asyncio.run(_live(kubeconfig, max(lives // 10, 1), "warm-"))
        before = [each.quiet().cpu for each in (driver, *controllers)]
        bound, gone = asyncio.run(_live(kubeconfig, lives, "life-"))
        after = [each.quiet().cpu for each in (driver, *controllers)]
    of_driver, *of_controllers = [1000 * (late - early) / lives for early, late in zip(before, after, strict=True)]
    return Figures(bound, gone, sum(of_controllers), of_driver, lives / (bound + gone))


def summary(measured: Mapping[str, Sequence[Figures]]) -> Iterator[str]:
    """Yield a line about each."""
    for who, found in measured.items():
        bound, gone, cpu, driver, lives = (
            statistics.median(getattr(each, field) for each in found)
            for field in ("bound", "gone", "cpu", "driver", "lives")
        )
        line = f"{who:7} bound {bound:5.1f} s, gone {gone:5.1f} s, {lives:6.1f} lives/s, {cpu:5.1f} ms of CPU a life"
        line += f", driver {driver:.1f}"
        if who != "stock" and (stock := measured.get("stock")):
            rate = statistics.median(one.lives / other.lives for one, other in zip(found, stock, strict=True))
            share = statistics.median(one.cpu / other.cpu for one, other in zip(found, stock, strict=True))
            line += f"; of stock: rate {rate:.2f}, CPU {share:.2f}"
        yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("binaries", type=Path)
    parser.add_argument("--lives", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--who", default=",".join(WHO), help="only these")
    given = parser.parse_args()
    asyncio.run(_make_class(given.kubeconfig))
    measured: dict[str, list[Figures]] = {who: [] for who in given.who.split(",")}
    print(f"{machine()}; {load()}", flush=True)
    for number in range(given.rounds):
        for who in list(measured)[:: 1 if number % 2 == 0 else -1]:
            measured[who].append(measure(who, given.kubeconfig, given.binaries.resolve(), given.lives))
            print(f"{who}: {measured[who][-1]}; {load()}", flush=True)
    for line in summary(measured):
        print(line)


if __name__ == "__main__":
    main()
