"""One controller process from start to end: drivers, leader election, and the control plane while it leads.

`read_control_plane` makes one that reads the cluster once and writes nothing, for a command that no controller answers.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from random import Random

from volplane.controller.actions import warning
from volplane.controller.config import Configuration
from volplane.controller.controller import Role
from volplane.controller.leader import RENEW_PERIOD, Elector, Leadership
from volplane.controller.metrics import Metrics
from volplane.drivers.discovery import InstalledPlugins
from volplane.drivers.driver import BrokenDriver, Driver, DriverStatus, LoadedDrivers, problem
from volplane.drivers.executor import ThreadExecutor
from volplane.drivers.loading import in_daemon_thread, load_drivers
from volplane.errors import ApiError, ApiForbidden, VolplaneError
from volplane.intents.bootstrap import Bootstrap, cluster_id_of, ensure_namespace, find_sealer
from volplane.kube import names
from volplane.kube.client import Client
from volplane.kube.events import EventRecorder
from volplane.kube.kinds import LEASES
from volplane.kube.leases import LEASE, Endpoint, LeaseLock, drivers_of, wait_unheld
from volplane.process.assembly import Dependencies, build
from volplane.process.control_plane import STOP_SECONDS, ControlPlane, Term
from volplane.process.duties import ALL_CONTROLLERS, namespace_labels
from volplane.state.naming import node_hash, nodes_namespace
from volplane.state.records import Sealer

log = logging.getLogger(__name__)

LEASE_SECONDS = 15
NODE_LEASE_SECONDS = 40
NODE_RENEW_PERIOD = (10.0, 12.0)
"""Of processes that serve one node. As the kubelet's: a thousand of them write a hundred times a second."""
GRACE = 2.0
"""Seconds for which drivers are waited for before the first term begins; those that take longer join later."""
RENEWED_WITHIN = 4 / 5
"""Part of the lease after which a leader that could not renew it stops its work."""
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
NO_KEY = (
    "the key that seals intents may not be read here, so a record on a claim of what was made for it is not believed"
)
Work = Callable[[Leadership], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Role):
    """A role, and the options of `volplane run` beside it. What a start finds out is put into the role then."""

    controllers: frozenset[str] = frozenset(ALL_CONTROLLERS)
    cluster_id: str = ""
    leader_elect: bool = True
    """Whether it works only while it holds the Lease."""
    resync: float = 600.0
    """Seconds between passes over all objects; 0 = never."""
    identity: str = field(default_factory=lambda: f"{socket.gethostname()}_{secrets.token_hex(4)}")
    """The holder's name in the Lease."""

    @property
    def home(self) -> str:
        """The namespace of this process, with its Lease and its sealing key."""
        return nodes_namespace(self.namespace) if self.node_name else self.namespace

    @property
    def lease_name(self) -> str:
        """Name of the Lease; a process that serves one node has one of its own."""
        return f"{LEASE}-{node_hash(self.node_name)}" if self.node_name else LEASE


@dataclass(eq=False, repr=False)
class ControllerProcess:
    """Runs the control plane while it leads. The other methods report its state, for the HTTP endpoints."""

    client: Client
    configuration: Configuration
    options: Options
    _: KW_ONLY
    metrics: Metrics
    plugins: InstalledPlugins = field(default_factory=InstalledPlugins)

    def __post_init__(self) -> None:
        self._random = Random()  # noqa: S311 - jitter, not secrets
        self._loaded = LoadedDrivers()
        self._term: Term | None = None
        self._next: asyncio.Task[Term] | None = None
        """Prepares the term in which this process may lead, and lets it follow another one until then."""
        self._leading = asyncio.Event()
        self._elector: Elector | None = None
        self._gave_up = ""
        """Why the process ends by itself."""
        self.port = 0
        """Where commands can ask it on its loopback address; 0 = nowhere."""
        self._bootstrap = Bootstrap(
            self.client,
            namespace=self.options.home,
            labels=namespace_labels(self.options.controllers),
            cluster_id=self.configuration.cluster_id,
            on_node=bool(self.options.node_name),
        )

    @property
    def plane(self) -> ControlPlane | None:
        """The controllers, while this process leads."""
        return None if self._term is None or self._term.stopping else self._term.plane

    @property
    def leads(self) -> bool:
        """Whether it works, and no other process may have begun to since: then what it knows is not of now."""
        held = self._elector.leadership if self._elector is not None else None
        return self.plane is not None and (self._elector is None or (held is not None and held.may_begin()))

    async def leader(self) -> str:
        """The holder of the Lease, "" if it has none. Raises ApiError."""
        if not self.options.leader_elect or self.leads:
            return self.options.identity
        lease = await self.client.find(LEASES, f"{self.options.home}/{self.options.lease_name}")
        return "" if lease is None else lease.spec.holder_identity or ""

    async def wait_working(self) -> ControlPlane:
        """Return the controllers once this process leads, its caches are synced, and every driver is made or broken."""
        while (plane := self.plane) is None:
            await self._leading.wait()
        await plane.wait_synced()
        await plane.drivers.made.wait()
        return plane

    def unready(self) -> Sequence[str]:
        """Why /readyz answers 503; empty = ready. A process that waits for the Lease is ready.

        A driver whose hooks all hang makes the process unready, because only a restart helps. A broken or unavailable
        driver does not, as long as another one is healthy, or the processes of nodes serve one: their claims are
        assigned here. Without any driver only a binder is ready.
        """
        plane, term = self.plane, self._term
        if plane is None or term is None:
            if trouble := self._bootstrap.trouble or (self._elector.failing if self._elector is not None else ""):
                return (f"the API server does not do as it must: {trouble}",)
            return () if self._elector is not None else ("starting",)
        if not plane.synced:
            return ("the caches are not synced with the API server", *plane.unread(required=True))
        if failing := plane.unread(required=True):
            return failing
        reasons = [problem(each) for each in self.driver_status() if each.hung]
        return [*reasons, why] if (why := term.no_driver_works()) else reasons

    def details(self) -> Sequence[str]:
        """More lines of /readyz: every driver that has a problem, kinds that are not served, and why."""
        missing = self.plane.unread(required=False) if self.plane is not None else ()
        wrong = (each for each in self.driver_status() if not each.hung and (each.error or not each.healthy))
        return [*missing, *map(problem, wrong)]

    def driver_status(self) -> tuple[DriverStatus, ...]:
        """Every driver; only the broken ones while another process leads."""
        if (plane := self.plane) is not None:
            return plane.drivers.status()
        return self._loaded.settled().broken

    def measure(self) -> None:
        """Bring the metrics up to date that show the present state of drivers, operations and controllers."""
        self.metrics.drivers.show({each.name: each.healthy for each in self.driver_status()})
        if (plane := self.plane) is not None:
            self.metrics.operations.show(plane.operations.counts())
            for controller in plane.controllers.values():
                controller.measure(self.metrics)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set; then finish running steps and operations, log what is left, release the Lease.

        It ends in the same way when every driver hangs for `HUNG_SECONDS`, or the API server was restored from a
        backup, and raises VolplaneError: another process, or this one after a restart, may be able to work. Raises
        ConfigurationError if the API server refuses what the start needs.
        """
        working = asyncio.ensure_future(self._load_and_work(stop))
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if self._term is not None and not working.done():
                await asyncio.wait({working}, timeout=STOP_SECONDS)
        finally:
            stopped.cancel()
            if not working.done():
                working.cancel()
                await asyncio.wait({working}, timeout=STOP_SECONDS)
            if self._next is not None:
                self._next.cancel()
            await self._leave(await self._followed())
        if working.done() and not working.cancelled():
            working.result()
        if self._gave_up:
            raise VolplaneError(self._gave_up)

    async def _load_and_work(self, stop: asyncio.Event) -> None:
        options, node_name = self.options, self.options.node_name or None
        loading = in_daemon_thread(
            "loading drivers", load_drivers, self.configuration, self.plugins, node_name=node_name, grace=GRACE
        )
        self._loaded = await asyncio.wrap_future(loading)
        for broken in self._loaded.broken:
            _say_broken(broken)
        for pending in self._loaded.pending:
            pending.made.add_done_callback(lambda made: _say_broken(made.result()))
        cluster_id, _ = await self._bootstrap.run(self._loaded.on_nodes)
        await self._introduce(cluster_id)
        if not options.leader_elect:
            self.metrics.leading[(options.lease_name,)].set(1)
            await self._lead(stop, Leadership(fence=None, until=math.inf))
            return
        self._next = asyncio.create_task(self._follow())
        lock = LeaseLock(
            self.client,
            namespace=options.home,
            name=options.lease_name,
            identity=options.identity,
            duration=NODE_LEASE_SECONDS if options.node_name else LEASE_SECONDS,
            drivers=self._loaded.names,
            endpoint=_endpoint(options.identity, self.port),
        )
        self._elector = Elector(
            lock,
            random=self._random,
            overrun=_exit_hard,
            renew_seconds=lock.duration * RENEWED_WITHIN,
            period=NODE_RENEW_PERIOD if options.node_name else RENEW_PERIOD,
            ensure_namespace=partial(ensure_namespace, self.client, options.home, self._bootstrap.labels),
            metrics=self.metrics,
        )
        if options.node_name:
            # Versions before that of the namespace of nodes elected the process of a node in that of the central one.
            await wait_unheld(self.client, f"{options.namespace}/{options.lease_name}", NODE_LEASE_SECONDS)
        work: Work = partial(self._lead, stop)
        predecessors = [each.view.info.predecessor for each in self._loaded.settled().drivers]
        for key in sorted({key for each in predecessors if each is not None for key in each.leases}):
            work = self._holding(key, work)
        await self._elector.run(work)

    def _holding(self, key: str, work: Work) -> Work:
        """Return work that is done only while this process holds the Lease of another controller, too."""
        namespace, _, name = key.partition("/")
        lock = LeaseLock(self.client, namespace=namespace, name=name, identity=self.options.identity)
        seconds = lock.duration * RENEWED_WITHIN
        elector = Elector(lock, random=self._random, overrun=_exit_hard, renew_seconds=seconds)
        return lambda leadership: elector.run(lambda _theirs: work(leadership))

    async def _introduce(self, cluster_id: str) -> None:
        """Say in one line what this process is, where it works, and whether it leads."""
        options, loaded = self.options, self._loaded.settled()
        drivers = [f"{each.name} ({each.plugin.name})" for each in loaded.drivers]
        drivers += [f"{each.name} ({each.plugin.name}, on nodes)" for each in loaded.distributed]
        drivers += [f"{each.name} ({each.backend}, not usable)" for each in loaded.broken]
        drivers += [f"{each.name} ({each.backend}, starting)" for each in loaded.pending]
        leads, found = "works without a lease", None
        if options.leader_elect:
            try:
                found = await self.client.find(LEASES, f"{options.home}/{options.lease_name}")
                holder = "" if found is None else found.spec.holder_identity or ""
            except ApiError as error:
                holder = f"nobody can say who ({error})"
            lease = f"lease {options.home}/{options.lease_name}"
            leads = f"waits for {lease}, which {holder} holds" if holder else f"takes {lease}, which nobody holds"
        runs = ", ".join(name for name in ALL_CONTROLLERS if name in options.controllers)
        text = "volplane %s as %s for cluster %s: controllers %s; drivers %s; %s"
        log.info(text, version("volplane"), options.identity, cluster_id, runs, ", ".join(drivers) or "none", leads)
        if found is not None and found.spec.holder_identity and (missing := drivers_of(found) - self._loaded.names):
            text = (
                "the leader serves drivers that this process is not configured with: %s; nobody serves them once this "
                "process leads. Give the processes of one lease the same drivers"
            )
            log.warning(text, ", ".join(sorted(missing)))

    def _say_who_is_left_out(self, recorder: EventRecorder) -> None:
        """Say in log and event which drivers the last leader served and this one does not, as after an upgrade."""
        lock = self._elector.lock if self._elector is not None else None
        if lock is None or lock.taken is None or not (missing := drivers_of(lock.former) - self._loaded.names):
            return
        text = (
            f"drivers that the last leader was configured with are not served any more: {', '.join(sorted(missing))}. "
            "What is asked of them waits; give the processes of one lease the same drivers"
        )
        log.warning("lease %s: %s", lock.name, text)
        recorder.record(warning(LEASES, lock.taken, "DriversLeftOut", text))

    def _build(self, cluster_id: str, sealer: Sealer) -> Term:
        """Build the controllers of a term. They write only while this process leads."""
        self._loaded = self._loaded.settled()
        options = self.options
        recorder = EventRecorder(self.client, instance=options.identity, metrics=self.metrics)
        parts = Dependencies(
            client=self.client,
            loaded=self._loaded,
            executor=ThreadExecutor(self._loaded.limits),
            recorder=recorder,
            sealer=sealer,
            random=self._random,
            fence=lambda: str(term.leadership.fence or ""),
            may_begin=lambda: term.leadership.may_begin(),  # noqa: PLW0108 - it is another one once the term begins
            metrics=self.metrics,
            lifecycle_metrics=self.metrics,
            fenced=lambda newer: term.leadership.fenced(newer),  # noqa: PLW0108
        )
        known_as = f"{options.home}/{options.lease_name}" if options.leader_elect else ""
        role = replace(options, cluster_id=cluster_id, lease=known_as, scrub=self.configuration.scrubber)
        plane, on_nodes = build(role, parts), bool(self._loaded.on_nodes)
        term = Term(plane, recorder, resync=options.resync, random=self._random, served_on_nodes=on_nodes)
        return term

    async def _follow(self) -> Term:
        """Build the next term, and keep its caches and indexes as they must be when this process leads."""
        term = self._build(*await self._bootstrap.run(self._loaded.on_nodes))
        term.plane.follow()
        term.following = asyncio.create_task(term.plane.run(), name="controllers")
        term.counted, self.metrics.counted = self.metrics.counted, Counter()  # Of all processes the leader shows them.
        return term

    async def _followed(self) -> Term | None:
        """Return the term that was prepared; None if there is none that can be used."""
        preparing, self._next = self._next, None
        if preparing is None:
            return None
        await asyncio.wait({preparing})
        if preparing.cancelled() or preparing.exception() is not None:
            return None
        term = preparing.result()
        if term.following is not None and not term.following.done() and not term.plane.restored.is_set():
            return term
        await self._leave(term)
        return None

    async def _leave(self, term: Term | None) -> None:
        """End what a term runs that will not begin."""
        if term is not None and term.following is not None:
            term.following.cancel()
            await asyncio.wait({term.following})
            term.plane.executor.close()

    async def _lead(self, stop: asyncio.Event, leadership: Leadership) -> None:
        """Run a control plane until `stop`, or until the Lease is over."""
        # In each term again: the namespace with the sealing key may have been deleted and created again.
        cluster_id, sealer = await self._bootstrap.run(self._loaded.on_nodes)
        term = await self._followed()
        if term is None or term.plane.role.cluster_id != cluster_id or not term.plane.state.sealer.same_as(sealer):
            await self._leave(term)
            term = self._build(cluster_id, sealer)
        else:
            self.metrics.counted = term.counted
        term.leadership = leadership
        self._term = term
        self._leading.set()
        if self._elector is not None and (taken := self._elector.lock.taken) is not None:
            term.plane.leak_check.follow(taken.annotation(names.FINDINGS) or "", self._elector.lock.notes)
        self._say_who_is_left_out(term.recorder)
        log.info("leads%s", f" by lease {term.plane.role.lease}" if term.plane.role.lease else "")
        try:
            await term.run(stop)
        finally:
            self._leading.clear()
            self._term = None
            self.metrics.counted = Counter()  # Another process counts from now on.
            self._gave_up = term.gave_up
            if leadership.fence is not None and not stop.is_set():
                self._next = asyncio.create_task(self._follow())
            # Another process may lead from now on: a hook that goes on in a thread would work beside its hooks.
            if not stop.is_set() and (left := term.plane.executor.running()):
                _exit_hard(f"the lease is lost, and hooks have not returned ({', '.join(each.what for each in left)})")


async def read_control_plane(
    client: Client, configuration: Configuration, options: Options
) -> tuple[ControlPlane, tuple[str, ...]]:
    """Fill the caches of a control plane once; return it, and sentences on what is not known. Its runners never run.

    Calls no hook but `describe`, writes nothing. Raises ApiError, ConfigurationError.
    """
    loaded = await asyncio.to_thread(load_drivers, configuration, InstalledPlugins())
    doubts = [f"driver {broken.name} is not usable here: {broken.error}" for broken in loaded.broken]
    sealer = None
    try:
        sealer = await find_sealer(client, options.namespace, loaded.on_nodes)
    except ApiForbidden:
        doubts.append(NO_KEY)
    cluster_id = await cluster_id_of(client, configuration.cluster_id)
    recorder = EventRecorder(client, instance=options.identity)
    parts = Dependencies(
        client=client, loaded=loaded, recorder=recorder, sealer=sealer or Sealer(secrets.token_bytes(32))
    )
    plane = build(replace(options, cluster_id=cluster_id, scrub=configuration.scrubber), parts)
    plane.drivers.presume_started()
    own = {each.cache.kind.plural: each for controller in plane.controllers.values() for each in controller.own}
    for watch in own.values():
        with suppress(ApiError):  # The cluster may not serve the kind.
            for item in (await client.list(watch.cache.kind, field_selector=watch.field_selector)).items:
                watch.cache.observe(item)
    for cache in plane.caches.values():
        listing = await client.list(cache.kind)
        for item in listing.items:
            cache.observe(item)
        cache.listed.set()
    return plane, tuple(doubts)


def _endpoint(identity: str, port: int) -> Endpoint | None:
    """Return where this process can be asked, None if nowhere. A pod has its name as that of its machine."""
    host = socket.gethostname()
    if not port:
        return None
    with suppress(OSError):
        return Endpoint(holder=identity, host=host, pod=host, namespace=_POD_NAMESPACE.read_text(), port=port)
    return Endpoint(holder=identity, host=host, port=port)


def _say_broken(made: Driver | BrokenDriver) -> None:
    if isinstance(made, BrokenDriver):
        log.error("driver %s is not usable: %s", made.name, made.error)


def _exit_hard(why: str = "the lease is over and work did not stop in time") -> None:
    """End the process: the Lease is lost, and running work cannot be stopped in another way."""
    log.critical("%s; exiting at once", why)
    os._exit(1)
