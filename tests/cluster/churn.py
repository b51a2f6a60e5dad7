"""Churn on a real cluster under kills: is anything lost, leaked, stuck, or detached while it is in use?

    PYTHONPATH=tests .venv/bin/python -m cluster.churn --kubeconfig FILE --minutes 20 --api-server RUN/apiserver.pid

Two replicas of `volplane run --controllers all`, with the leases they have by default, serve claims of directories
(hostpath) and of disks (aws_ebs on a mocked EC2 in this process). Claims are made, bound, grown, attached to nodes by
pods, moved and deleted by this program, which also plays the nodes that have the disks, and their kubelets. Leader,
follower and, with `--api-server`, the API server are killed (SIGKILL) by turns and started again; a file names the
server's process, whose command line, environment and log are taken from /proc. With `--pods NODE=IMAGE` a real
kubelet runs pods on claims of directories too.

All the time it is watched that no bound claim loses its volume, its asset or what was written there, that no disk is
detached while a pod has it mounted, or is on two instances. In the end the churn stops, everything must become quiet,
and the objects, directories and disks must be exactly those of the claims that are left; then all are deleted, and
nothing may be left. The program looks at the cluster and the storage alone, never at what volplane says. It exits with
1 if something was wrong, or if there were too few terms or claims for the run to count.

With `--soak` nothing is killed: the leader's memory, open files, series of metrics and cached objects are measured
every 30 s. The first third of the run is for bounded caches to fill; of the rest the second half is compared with the
first, and more by 3 % or more is wrong; of open files the least count of each half.

The cluster's kube-controller-manager must run without persistentvolume-binder-controller,
persistentvolumeclaim-protection-controller, persistentvolume-protection-controller and
persistentvolume-attach-detach-controller, and there must be no volumes but those of this program: they would be served.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from cluster.churn_api import CORE, LEASES, STORAGE, Api, connect
from cluster.churn_claims import DIRECTORIES, DISKS, Churn
from cluster.churn_nodes import PASS_SECONDS, ZONE, Nodes, WatchedEC2
from cluster.churn_record import Record, say
from volplane_aws_ebs.testing import Behaviour, FakeEC2Server
from volplane_testing.qualification.controllers import Controllers, Replica

NAMESPACE = "volplane-churn"
SYSTEM = "volplane-churn-system"
LEAST = {"terms": 40, "bound": 500, "attached and grown": 100}
"""A run of twenty minutes with less than this shows too little; in a shorter one in proportion."""
LEAST_MINUTES = 20.0
LONGER = 1.5
"""How much longer a run may take, on a slow machine, until it counts."""
WORK_SECONDS = (6.0, 6.0)
"""How long a new leader works until the follower or the server is killed, and then until it is killed itself."""
TAKEOVER_SECONDS = 60.0
LEASE_OVER = "the lease is over and work did not stop in time"
"""Why a process may end by itself: the API server was away for longer than the lease."""
QUIET_SECONDS = 240.0
TELL_SECONDS = 30.0
WARM = 1.0 / 3.0
"""Part of a soak that counts for nothing: caches that have a bound, such as that of 4,096 events, are filling."""
FLAT = 1.03
FEW_FILES = 8
"""So many connections to the API server are opened at once."""


@dataclass(slots=True)
class Server:
    """The API server of a file with its process id."""

    pid_file: Path
    command: list[str] = field(init=False)
    environment: dict[str, str] = field(init=False)
    directory: str = field(init=False)
    log: str = field(init=False)
    pid: int = field(init=False)
    killed: bool = field(init=False, default=False)
    """It is about to be started again."""
    _process: subprocess.Popen[bytes] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.pid = int(self.pid_file.read_text())
        of = Path("/proc") / str(self.pid)
        self.command = (of / "cmdline").read_bytes().decode().rstrip("\0").split("\0")
        pairs = (of / "environ").read_bytes().decode().rstrip("\0").split("\0")
        self.environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        self.directory = os.readlink(of / "cwd")  # noqa: PTH115 - not a path of ours
        self.log = os.readlink(of / "fd/1")  # noqa: PTH115

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    async def start(self) -> None:
        """Start it, and again if its port is not free yet; return once it lives for a moment."""
        while True:
            process = self._start()
            for _ in range(20):
                await asyncio.sleep(0.1)
                if process.poll() is not None:
                    break
            else:
                return

    def _start(self) -> subprocess.Popen[bytes]:
        log = self.log if self.log.startswith("/") and ":" not in self.log else os.devnull
        with Path(log).open("ab") as output:
            process = subprocess.Popen(
                self.command,
                env=self.environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._process, self.pid = process, process.pid
        self.pid_file.write_text(f"{self.pid}\n")
        return process

    async def keep(self) -> None:
        """Start it again whenever it has ended, until cancelled."""
        while True:
            await asyncio.sleep(0.5)
            if not self.killed and self._process is not None and self._process.poll() is not None:
                await self.start()


@dataclass(slots=True)
class Run:
    """A run, from the first object to the last."""

    api: Api
    churn: Churn
    controllers: Controllers
    record: Record
    server: Server | None
    logs: Path
    minutes: float
    kills: int = 0
    slowest: float = 0.0
    """Seconds until another process led, at most."""
    first_term: int = 0
    terms: int = 0
    begun: float = field(default_factory=time.monotonic)

    async def transitions(self) -> int:
        """Return how often a process has taken the Lease."""
        leases = await self.api.list(f"{LEASES}/{SYSTEM}/leases")
        return max((each["spec"].get("leaseTransitions") or 0 for each in leases), default=0)

    async def led(self) -> Replica:
        """Wait until a process leads; it counts as wrong if none does for long."""
        begun = time.monotonic()
        late = begun + TAKEOVER_SECONDS
        while True:
            await self._restart_ended()
            for replica in self.controllers.replicas:
                if await replica.leads():
                    self.slowest = max(self.slowest, time.monotonic() - begun)
                    return replica
            if time.monotonic() > late:
                self.record.fault(f"nobody leads {TAKEOVER_SECONDS:g} s after {self.kills} kills")
                late = math.inf
            await asyncio.sleep(PASS_SECONDS)

    async def _restart_ended(self) -> None:
        """Start again what has ended, as a kubelet does; only the end of its lease is a good reason to end."""
        for replica in [each for each in self.controllers.replicas if each.ended]:
            if LEASE_OVER not in replica.last_words():
                self.record.fault(f"a process ended by itself: {replica.last_words()}")
            self.record.count("ended with their lease")
            await self._start_instead(replica)

    async def _start_instead(self, replica: Replica) -> None:
        await self.controllers.kill(replica)
        await self.controllers.start()

    async def trouble(self) -> None:
        """Kill leader, follower, leader and server by turns, until the time is over and the run counts."""
        end = self.begun + self.minutes * 60.0
        last = self.begun + self.minutes * 60.0 * LONGER
        others = ["follower", "API server"] if self.server is not None else ["follower"]
        turn = 0
        while time.monotonic() < end or (self.missing() and time.monotonic() < last):
            leader = await self.led()
            await asyncio.sleep(WORK_SECONDS[0])
            other = others[turn % len(others)]
            turn += 1
            if other == "follower":
                await self._replace(next(each for each in self.controllers.replicas if each is not leader), other)
            elif self.server is not None:
                self.server.killed = True
                self.server.kill()
                self._killed(other)
                await self.server.start()
                self.server.killed = False
                await self.transitions()  # answered once it is back
            await asyncio.sleep(WORK_SECONDS[1])
            await self._replace(await self.led(), "leader")
            self.terms = await self.transitions() - self.first_term + 1

    async def _replace(self, replica: Replica, role: str) -> None:
        self._killed(role)
        await self._start_instead(replica)

    def _killed(self, who: str) -> None:
        self.kills += 1
        self.record.interval += 1
        self.record.done[f"kills of the {who}"] += 1

    def told(self) -> str:
        seconds = time.monotonic() - self.begun
        return f"{seconds:.0f} s: terms {self.terms}, {self.record.told()}, alive {len(self.churn.lives)}"

    async def tell(self) -> None:
        while True:
            await asyncio.sleep(TELL_SECONDS)
            say(self.told())

    async def observe(self) -> None:
        """Look at everything again and again, until cancelled."""
        while True:
            await self.churn.observe()
            await asyncio.sleep(PASS_SECONDS)

    async def quiet(self, what: str) -> None:
        """Wait until the cluster and the storage are as they should be."""
        begun = told = time.monotonic()
        while True:
            passes = self.churn.passes
            while self.churn.passes < passes + 2:
                await asyncio.sleep(0.1)
            amiss = self.churn.unsettled()
            if not amiss:
                say(f"{what}: quiet after {time.monotonic() - begun:.1f} s")
                return
            if time.monotonic() - told > TELL_SECONDS / 2:
                told = time.monotonic()
                say(f"{what}, not yet quiet: {'; '.join(amiss[:4])}{f' and {len(amiss) - 4} more' * (len(amiss) > 4)}")
            if time.monotonic() - begun > QUIET_SECONDS:
                for each in amiss:
                    self.record.fault(f"{what}, after {QUIET_SECONDS:g} s: {each}")
                return

    async def delete_all(self) -> None:
        base = f"{CORE}/namespaces/{NAMESPACE}"
        for life in list(self.churn.lives.values()):
            for name in life.pods:
                await self.api.delete(f"{base}/pods/{name}")
            life.pods.clear()
            life.deleted = True
            self.churn.fake.needed.discard(life.asset)
            await self.api.delete(f"{base}/persistentvolumeclaims/{life.name}")

    def read_logs(self) -> None:
        for log in sorted(self.logs.glob("*.log")):
            text = log.read_text("utf-8", errors="replace")
            if "Traceback" in text:
                self.record.fault(f"a traceback in {log}")

    def judge(self) -> bool:
        """Tell what was wrong; whether nothing was and the run counts."""
        within = {what: len(pauses) for what, pauses in self.record.within.items()}
        say(self.told())
        say(f"kills {self.kills}; slowest takeover {self.slowest:.1f} s; pauses between kills in which: {within}")
        for text in self.record.faults:
            say(f"WRONG: {text}")
        return not self.record.faults

    def missing(self) -> list[str]:
        """Return of what there was too little for the run to count."""
        share = min(1.0, self.minutes / LEAST_MINUTES)
        has = {"terms": self.terms, **self.record.done}
        least = {what: number * share for what, number in LEAST.items()}
        return [f"{what} {has.get(what, 0)} of {least[what]:.0f}" for what in least if has.get(what, 0) < least[what]]

    def counts(self) -> bool:
        missing = self.missing()
        if missing:
            say(f"the run does not count: {', '.join(missing)}")
        return not missing


# --- soak -------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Sample:
    seconds: float
    memory: int
    """Resident, in KiB."""
    files: int
    series: int
    cached: int
    """Claims, volumes and attached volumes, as the leader counts them."""


async def sample(leader: Replica, begun: float) -> Sample:
    of = Path("/proc") / str(leader._process.pid)
    memory = int(
        next(line.split()[1] for line in (of / "status").read_text().splitlines() if line.startswith("VmRSS:"))
    )
    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.get(f"http://{leader.address}/metrics") as response,
    ):
        text = await response.text()
    series = [line for line in text.splitlines() if line and not line.startswith("#")]
    counted = ("pv_collector_", "attachdetach_controller_total_volumes{")
    cached = sum(float(line.rsplit(" ", 1)[1]) for line in series if line.startswith(counted))
    files = sum(1 for _ in (of / "fd").iterdir())
    return Sample(time.monotonic() - begun, memory, files, len(series), int(cached))


async def soak(run: Run) -> bool:
    """Measure until the time is over; whether all is flat."""
    leader = await run.led()
    samples: list[Sample] = []
    while (seconds := time.monotonic() - run.begun) < run.minutes * 60.0:
        await asyncio.sleep(TELL_SECONDS)
        taken = await sample(leader, run.begun)
        samples.append(taken)
        say(f"{seconds:.0f} s: {taken.memory} KiB, series {taken.series}, cached {taken.cached}, files {taken.files}")
    samples = samples[round(len(samples) * WARM) :]
    half = len(samples) // 2
    if half == 0:
        say("too short to be judged")
        return False
    flat = True
    for what in ("memory", "series", "cached", "files"):
        # A busy API server is given more connections for a minute; files that are never closed raise the least, too.
        figure: Callable[[Iterable[int]], float] = min if what == "files" else statistics.fmean
        first, second = (figure(getattr(each, what) for each in part) for part in (samples[:half], samples[half:]))
        growth = second / max(first, 1.0)
        within = growth < FLAT or (what == "files" and second - first < FEW_FILES)
        flat = flat and within
        told = "flat" if within else "GROWS"
        say(f"{what}: {first:.0f} in the first half, {second:.0f} in the second: {growth - 1.0:+.1%}, {told}")
    return flat


# --- the run ----------------------------------------------------------------------------------------------------------


async def prepare(api: Api, nodes: Nodes) -> None:
    await api.create(f"{CORE}/namespaces", {"metadata": {"name": NAMESPACE}})
    for name, driver in ((DIRECTORIES, "hostpath.volplane.dev"), (DISKS, "ebs.volplane.dev")):
        body = {"metadata": {"name": name}, "provisioner": driver, "allowVolumeExpansion": True}
        await api.create(f"{STORAGE}/storageclasses", body)
    await nodes.register()
    account = f"{CORE}/namespaces/{NAMESPACE}/serviceaccounts/default"
    for _ in range(100):  # without it no pod is admitted
        if await api.get(account) is not None:
            break
        await asyncio.sleep(0.2)


async def remove(api: Api, nodes: Nodes) -> None:
    for name in (DIRECTORIES, DISKS):
        await api.delete(f"{STORAGE}/storageclasses/{name}")
    await nodes.remove()
    for name in (NAMESPACE, SYSTEM):
        await api.delete(f"{CORE}/namespaces/{name}")


def configuration(work: Path, url: str) -> Path:
    drivers = [
        {
            "name": "hostpath.volplane.dev",
            "backend": "hostpath",
            "options": {"root": str(work / "root"), "create_root": True, "shared": True},
        },
        {
            "name": "ebs.volplane.dev",
            "backend": "aws_ebs",
            "options": {"region": "eu-test-1", "endpoint": url, "attach": True, "zones": [ZONE]},
        },
    ]
    path = work / "config.yaml"
    path.write_text(json.dumps({"drivers": drivers}))
    return path


@asynccontextmanager
async def background(*coroutines: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run these until the block ends; one that fails ends the block."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in coroutines]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def main_run(options: argparse.Namespace, work: Path) -> int:
    record = Record()
    behaviour = Behaviour(
        create_seconds=0.3,
        attach_seconds=0.5,
        detach_seconds=0.5,
        delete_seconds=0.3,
        modify_seconds=0.5,
        optimize_seconds=1.0,
    )
    fake = WatchedEC2(behaviour, record)
    api = connect(options.kubeconfig)
    nodes = Nodes(api, NAMESPACE, fake, record, options.nodes)
    node, _, image = options.pods.partition("=")
    churn = Churn(api, NAMESPACE, nodes, fake, work / "root", record, image=image, real=node)
    with FakeEC2Server(fake) as ec2:
        logs = work / "logs"
        logs.mkdir()
        arguments = [
            *("--kubeconfig", str(options.kubeconfig), "--config", str(configuration(work, ec2.url))),
            *("--controllers", "all", "--namespace", SYSTEM),
        ]
        controllers = Controllers(arguments, logs)
        server = Server(options.api_server) if options.api_server is not None else None
        run = Run(api, churn, controllers, record, server, logs, options.minutes)
        flat = True
        try:
            await prepare(api, nodes)
            await controllers.need(2)
            run.first_term = await run.transitions()
            run.terms, run.begun = 1, time.monotonic()
            always = [run.observe(), nodes.beat(), *([server.keep()] if server is not None else [])]
            async with background(*always):
                async with background(run.tell()), asyncio.TaskGroup() as lives:
                    for _ in range(options.directories):
                        lives.create_task(churn.directories())
                    for _ in range(options.disks):
                        lives.create_task(churn.disks())
                    for _ in range(2 if image else 0):
                        lives.create_task(churn.directories(pods=True))
                    try:
                        if options.soak:
                            flat = await soak(run)
                        else:
                            await run.trouble()
                    finally:
                        churn.over = True
                say(f"the churn is over; {run.told()}")
                await run.led()
                await run.quiet("with the claims that are left")
                await run.delete_all()
                await run.quiet("without claims")
            await controllers.stop()
            await remove(api, nodes)
        finally:
            for replica in controllers.replicas:
                await replica.kill()
            if server is not None and server.killed:
                await server.start()
            await api.session.close()
        run.read_logs()
        right = run.judge()
        counts = options.soak or run.counts()
    say("holds" if right and counts and flat else "FAILS")
    return 0 if right and counts and flat else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="cluster.churn", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--api-server", type=Path, metavar="PIDFILE", help="also kill and restart this process")
    parser.add_argument(
        "--pods", default="", metavar="NODE=IMAGE", help="run pods on directories there, by its kubelet"
    )
    parser.add_argument("--soak", action="store_true", help="kill nothing, measure the leader")
    parser.add_argument("--directories", type=int, default=6, help="claims of directories that live at once")
    parser.add_argument("--disks", type=int, default=10, help="claims of disks that live at once")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--work", type=Path, help="a directory of scratch, kept if something was wrong")
    options = parser.parse_args()
    for key in [each for each in os.environ if each.lower().endswith("_proxy")]:
        del os.environ[key]
    os.environ |= {"AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": "secret"}
    if options.work is not None:
        options.work.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="volplane-churn-", dir=options.work))
    code = asyncio.run(main_run(options, work))
    if code:
        say(f"logs: {work}")
    else:
        shutil.rmtree(work)
    return code


if __name__ == "__main__":
    sys.exit(main())
