"""The actions and fault rates of one run, all derived from the seed before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from volplane_testing.simulation.backends import BackendTraits
from volplane_testing.simulation.changes import write_changes
from volplane_testing.simulation.election import write_damage, write_late_attach, write_partitions
from volplane_testing.simulation.followers import write_followers
from volplane_testing.simulation.grouped_snapshots import write_groups
from volplane_testing.simulation.hooks import HookFaults
from volplane_testing.simulation.installations import write_installations
from volplane_testing.simulation.interruptions import write_interruptions
from volplane_testing.simulation.names_used_again import write_names_used_again
from volplane_testing.simulation.network import NetworkFaults
from volplane_testing.simulation.nodes import NODES, PodFaults
from volplane_testing.simulation.scenarios import ALPHA, BETA, CLASSES, SCENARIOS, Scenario
from volplane_testing.simulation.scheduled_snapshots import write_schedules
from volplane_testing.simulation.server_faults import write_proxies
from volplane_testing.simulation.snapshots import write_snapshots
from volplane_testing.simulation.tenants import write_hostility
from volplane_testing.simulation.trash import write_trash
from volplane_testing.simulation.twins import write_twins

__all__ = ["Action", "Schedule", "generate"]

_CHANGING: Final = ("provision", "delete", "recycle", "expand")
_ATTACHING: Final = ("attach", "detach", "modify")
"""Hooks before whose calls a process is stopped."""


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a user or the environment. number: stays when others are dropped. what: a method of `Actors`."""

    number: int
    at: float
    what: str
    detail: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        details = " ".join(f"{key}={value}" for key, value in self.detail.items())
        return f"{self.what.replace('_', ' ')} {details}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule. calm: virtual second from which there are no faults, and no actions any more."""

    seed: int
    scenario: str
    actions: tuple[Action, ...]
    calm: float
    network: NetworkFaults
    without_bookmarks: frozenset[str]
    """Plurals of kinds whose watches get none."""
    hooks: HookFaults
    pods: PodFaults
    alpha: BackendTraits
    beta: BackendTraits


def generate(seed: int, scenario: str = "any") -> Schedule:
    """Make the schedule of a seed. Raises KeyError.

    scenario: a name in SCENARIOS, or "any": the seed chooses among those that are not for themselves.
    """
    random = Random(f"{seed} {scenario}")  # noqa: S311 -- schedules, not secrets
    usual = sorted(name for name, each in SCENARIOS.items() if not each.alone)
    chosen = random.choice(usual) if scenario == "any" else scenario
    return _Writer(seed, chosen, SCENARIOS[chosen], random).write()


class _Writer:
    """Writes one schedule: a sequence of actions for every claim, static volume and process."""

    def __init__(self, seed: int, name: str, scenario: Scenario, random: Random) -> None:
        self._seed = seed
        self._name = name
        self._scenario = scenario
        self._random = random
        self._actions: list[Action] = []
        self._server = Random(f"{seed} {name} server")  # noqa: S311 -- so that its draws change nothing else
        # Swarm testing: each run leaves out some kinds of faults.
        self._level = random.choice((0.0, 0.01, 0.03, 0.08))
        self._static = [f"sv{number}" for number in range(random.randint(*scenario.static))]
        self._claims = [f"c{number}" for number in range(random.randint(*scenario.claims))]

    def write(self) -> Schedule:
        random = self._random
        self._write_classes()
        for name in self._static:
            self._write_static(name)
        for name in self._claims:
            (self._write_attached if self._scenario.attaches else self._write_claim)(name)
        leaders = random.random() < self._scenario.leaders
        stops = random.random() < self._scenario.stops
        end = max((action.at for action in self._actions), default=0.0)
        self._write_processes(end, leaders=leaders)
        if self._scenario.attaches:
            self._write_nodes(end)
        write_interruptions(self._do, f"{self._seed} {self._name}", self._static, self._scenario.interrupted, end)
        write_twins(self._do, f"{self._seed} {self._name}", self._claims, self._scenario.twins, end)
        write_damage(self._do, f"{self._seed} {self._name}", self._scenario.damaged, end)
        write_names_used_again(self._do, f"{self._seed} {self._name}", self._claims, self._scenario.reused, end)
        write_installations(self._do, f"{self._seed} {self._name}", self._scenario.twice, end)
        write_hostility(self._do, f"{self._seed} {self._name}", self._claims, self._scenario.hostile, end)
        write_trash(self._do, f"{self._seed} {self._name}", self._claims, self._scenario.trash, end)
        write_snapshots(self._do, f"{self._seed} {self._name}", self._claims, self._scenario.snapshots, end)
        write_schedules(self._do, f"{self._seed} {self._name}", self._claims, self._scenario.scheduled, end)
        write_groups(self._do, f"{self._seed} {self._name}", self._claims, self._scenario.groups, end)
        write_followers(self._do, f"{self._seed} {self._name}", self._scenario.followers, end)
        without_bookmarks = self._write_server(end)
        self._write_leases(end, stops=stops)
        write_proxies(self._do, f"{self._seed} {self._name}", end)
        if not (leaders or stops):
            write_partitions(self._do, f"{self._seed} {self._name}", self._scenario, end)
        actions = sorted(self._actions, key=lambda action: (action.at, action.number))
        level = self._level
        return Schedule(
            seed=self._seed,
            scenario=self._name,
            actions=tuple(actions),
            calm=max((action.at for action in actions), default=0.0) + random.uniform(0.0, 5.0),
            network=NetworkFaults(
                requests=level * random.choice((0.0, 1.0, 1.0)),
                watches=level * random.choice((0.0, 1.0, 2.0)),
                crashes=random.choice((0.0, 0.0, 0.01, 0.02)),
                lag=random.choice(self._scenario.lags),
                slow=random.choice((0.0, 0.02, 0.1)),
            ),
            without_bookmarks=without_bookmarks,
            hooks=HookFaults(
                errors=random.choice((0.0, 0.1, 0.3)),
                slow=random.choice((0.5, 0.9) if stops else (0.0, 0.2)),
                hangs=random.choice((0.0, 0.0, 0.05)),
                crashes=random.choice((0.0, 0.0, 0.1)),
                # A hook of a former leader that takes effect after its successor looked would be its backend's to
                # refuse.
                longest=4.0 if leaders or stops or self._scenario.twice else 60.0,
                listing=random.choice((0.0, 0.0, 0.3)),
                cancels=0.1 if self._scenario.hostile else 0.0,
            ),
            pods=PodFaults(
                failing=random.choice((0.0, 0.2)), slow=random.choice((0.0, 0.2)), notice=random.choice((0.5, 5.0))
            ),
            alpha=BackendTraits(
                steps=random.choice((0.0, 0.3)),
                late=random.choice((0.0, 0.2)),
                erases=random.random() < 0.2,
                sees_mounts=random.random() < 0.5,
                attaches=self._scenario.attaches,
                notated=bool(self._scenario.twins),
                cuts=bool(self._scenario.snapshots or self._scenario.groups),
                groups=bool(self._scenario.groups),
                # Of two leaders only the backend can tell whose call is the later one.
                strict=leaders or bool(self._scenario.twice) or (self._scenario.attaches and random.random() < 0.5),
            ),
            beta=BackendTraits(
                zones=("a", "b"),
                finds=False,
                tokens=False,
                steps=random.choice((0.0, 0.3)),
                full=random.choice((0.0, 0.2)),
                erases=random.random() < 0.7,
                sees_mounts=random.random() < 0.5,
            ),
        )

    def _write_attached(self, claim: str) -> None:
        """Add a claim whose pods come one after the other, sometimes before the last one has gone."""
        random, at = self._random, self._gap()
        self._do(at, "create_claim", name=claim, storage_class=random.choice(self._scenario.classes), size=1, volume="")
        for number in range(random.randint(1, 4)):
            pod = f"p-{claim}-{number}"
            lifetime = round(random.uniform(1.0, 30.0), 2) if self._sometimes(0.2) else 0.0
            self._do(at + self._gap(), "create_pod", name=pod, claim=claim, lifetime=lifetime)
            at += self._gap() + random.choice((0.5, 5.0, 30.0))
            if number == 0 or self._sometimes(0.8):
                self._do(at - random.choice((0.0, 0.0, 1.0)), "delete_pod", name=pod)
        if self._sometimes(0.4):
            self._do(at + self._gap(), "delete_claim", name=claim)
            for number in range(4):
                self._do(at + self._gap(), "delete_pod", name=f"p-{claim}-{number}")

    def _write_nodes(self, end: float) -> None:
        """Lose nodes, which return or not, and change claims."""
        random = self._random
        for _ in range(random.choice((0, 1, 1, 2))):
            node, at = random.choice(NODES), random.uniform(0.0, end)
            self._do(at, "lose_node", node=node)
            if self._sometimes(0.7):
                self._do(at + random.uniform(0.1, 30.0), "evict_pods", node=node)
            if self._sometimes(0.3):
                self._do(at + random.uniform(0.1, 30.0), "taint_node", node=node)
            back = random.choice(("return_node", "return_node", "renew_node"))
            self._do(at + random.choice((2.0, 40.0, 500.0)) * random.uniform(0.5, 1.5), back, node=node)
        write_changes(self._do, f"{self._seed} {self._name}", self._claims, end)

    # --- times --------------------------------------------------------------------------------------------------

    def _do(self, at: float, what: str, **detail: Any) -> None:
        self._actions.append(Action(len(self._actions) + 1, at, what, detail))

    def _gap(self) -> float:
        """Return the seconds between two actions of a sequence: often shorter than a request, rarely long."""
        draw = self._random.random()
        if draw < 0.4:
            return self._random.uniform(0.0, 0.06)
        return self._random.uniform(0.05, 2.0) if draw < 0.8 else self._random.uniform(2.0, 20.0)

    def _sometimes(self, share: float) -> bool:
        return self._random.random() < share

    # --- sequences ----------------------------------------------------------------------------------------------

    def _write_classes(self) -> None:
        for name in dict.fromkeys(self._scenario.classes):
            at = self._gap() if self._sometimes(0.1) else 0.0
            self._do(at, "create_class", name=name, like=name)
            if self._sometimes(self._scenario.class_changes / 2):
                at += 1.0 + self._gap() + self._gap()
                self._do(at, "delete_class", name=name)
                self._do(at + self._gap(), "create_class", name=name, like=self._random.choice((name, "fast", "zonal")))
            elif self._sometimes(self._scenario.switches):
                self._switch_class(name, at)

    def _switch_class(self, name: str, at: float) -> None:
        """Let the class name another driver, and soon its own again; watches bring both late."""
        driver = CLASSES[name]["provisioner"]
        other = "zonal" if driver == ALPHA else "fast"
        if self._sometimes(0.5):
            # What was begun cannot be taken back before the class names its own driver again, which nobody hears of.
            self._do(at, "outage", driver=driver, down=True)
            at += self._random.uniform(0.5, 3.0)
            self._do(at, "delete_class", name=name)
            self._do(at, "create_class", name=name, like=other)
            self._do(at + 0.3, "hold_watches", seconds=60.0, plural="storageclasses")
            at += self._random.uniform(0.5, 1.5)
            self._do(at, "delete_class", name=name)
            self._do(at, "create_class", name=name, like=name)
            self._do(at + self._random.uniform(16.0, 40.0), "outage", driver=driver, down=False)
            return
        for like in (other, name, other, name):
            at += self._gap() + self._gap()
            self._do(at, "delete_class", name=name)
            self._do(at, "create_class", name=name, like=like)
            if self._sometimes(0.4):
                held = self._random.uniform(0.0, 60.0)
                self._do(at + self._random.uniform(0.0, 1.0), "hold_watches", seconds=held, plural="storageclasses")

    def _write_static(self, name: str) -> None:
        random = self._random
        policy = random.choice(self._scenario.policies)
        reserved = random.choice(self._claims) if self._sometimes(0.25) else ""
        root = random.choice((ALPHA, ALPHA, BETA))
        at = self._gap()
        self._do(
            at, "create_volume", name=name, policy=policy, size=random.randint(1, 4), reserved=reserved, driver=root
        )
        if self._sometimes(self._scenario.admins / 2):
            at += 1.0 + self._gap() + self._gap()
            self._do(at, "delete_volume", of=name)
            if self._sometimes(0.5):
                made = {"name": name, "policy": policy, "size": random.randint(1, 4), "driver": root}
                self._do(at + self._gap(), "create_volume", reserved="", **made)

    def _write_claim(self, name: str) -> None:
        random, scenario = self._random, self._scenario
        at = self._gap()
        for _ in range(random.randint(*scenario.incarnations)):
            storage_class = "" if self._sometimes(scenario.static_claims) else random.choice(scenario.classes)
            named = random.choice(self._static) if self._static and not storage_class and self._sometimes(0.2) else ""
            begun = at
            self._do(
                at, "create_claim", name=name, storage_class=storage_class, size=random.randint(1, 3), volume=named
            )
            if self._sometimes(scenario.pods) or storage_class.startswith("late"):
                at = self._write_pod(name, at)
            at += self._gap()
            if storage_class.startswith("late") and self._sometimes(0.5):
                self._do(begun + self._gap(), "select_node", claim=name, node=random.choice(NODES))
            if self._sometimes(scenario.grown):
                self._do(begun + self._gap() + self._gap(), "grow_claim", name=name)
            self._disturb(name, begun, at)
            if self._sometimes(scenario.kept):
                return
            self._do(at, "delete_claim", name=name)
            self._disturb(name, at, at + 2.0)
            if self._sometimes(scenario.admins):
                self._meddle(name, at)
            at += self._gap() if self._sometimes(0.7) else 0.0

    def _write_pod(self, claim: str, at: float) -> float:
        """Add a pod that uses the claim, from about its creation; return the time of the pod's deletion."""
        pod = f"p-{claim}-{len(self._actions)}"
        begun = max(0.0, at + self._random.choice((-0.01, 0.0, self._gap())))
        lifetime = round(self._random.uniform(0.1, 5.0), 2) if self._sometimes(0.3) else 0.0
        self._do(begun, "create_pod", name=pod, claim=claim, lifetime=lifetime)
        end = begun + self._gap() + self._gap()
        if self._sometimes(0.1):
            # What tells of the pod comes late, what tells of its claim does not.
            held = self._random.uniform(5.0, 60.0)
            self._do(max(0.0, begun - 0.05), "hold_watches", seconds=held, plural="pods")
            end = begun + self._random.uniform(2.0, 60.0)
            self._do(begun + self._random.uniform(0.5, 2.0), "delete_claim", name=claim)
        elif self._sometimes(self._scenario.forced):
            end = begun + self._random.uniform(5.0, 60.0)
            self._do(begun + self._random.uniform(0.5, 4.0), "force_claim", name=claim)
        self._do(end, "delete_pod", name=pod)
        if self._sometimes(0.1):
            late = end + self._gap()
            self._do(late, "create_pod", name=f"{pod}-late", claim=claim, lifetime=1.0)
            self._do(late + 2.0 + self._gap(), "delete_pod", name=f"{pod}-late")
        return end

    def _disturb(self, claim: str, low: float, high: float) -> None:
        """Actions of users and tenants on a claim or its volume between two moments."""
        random, scenario = self._random, self._scenario

        def when() -> float:
            return random.uniform(low, high) + random.choice((0.0, 0.0, self._gap()))

        if self._sometimes(scenario.tenants):
            variant = random.choice(("garbage", "other driver", "other generation", "stripped", "replayed", "copied"))
            self._do(when(), "forge_intent", claim=claim, variant=variant)
        if self._sometimes(scenario.tenants / 4):
            self._do(when(), "strip_finalizer", claim=claim)
        target = random.choice((f"of {claim}", *self._static))
        if self._sometimes(scenario.forgers):
            self._do(when(), "forge_scrub_pod", of=target)
        if self._sometimes(scenario.admins):
            policy = random.choice(("Delete", "Retain", "Retain", "Recycle"))
            self._do(when(), "set_policy", of=target, policy=policy)
        if self._sometimes(scenario.admins / 2):
            variant = random.choice(("all", "uid", "other"))
            self._do(when(), "clear_reference", of=target, variant=variant, claim=random.choice(self._claims))
        if self._sometimes(scenario.admins / 3):
            self._do(when(), "delete_volume", of=target)
        if self._sometimes(scenario.restores):
            variant = random.choice(("both", "both", "claim", "fresh reference"))
            self._do(when(), "restore", claim=claim, variant=variant)

    def _meddle(self, claim: str, at: float) -> None:
        """Changes of policy and deletions while the claim's volume is reclaimed."""
        random = self._random
        of = random.choice((f"of {claim}", f"of {claim}", *self._static))
        if self._sometimes(0.4):
            # The deletion has to wait; meanwhile the policy forbids it, and watches bring that late.
            back = at + random.uniform(1.0, 10.0)
            for driver in (ALPHA, BETA):
                self._do(at, "outage", driver=driver, down=True)
                self._do(back, "outage", driver=driver, down=False)
            changed = back - random.uniform(0.0, 0.5)
            self._do(changed, "hold_watches", seconds=random.uniform(0.0, 20.0))
            self._do(changed, "set_policy", of=of, policy="Retain")
        elif self._sometimes(0.5):
            policy = random.choice(("Retain", "Delete"))
            self._do(at + random.choice((self._gap(), random.uniform(0.0, 1.0))), "set_policy", of=of, policy=policy)
        else:
            self._do(at + random.uniform(0.0, 1.0), random.choice(("strip_volume_intent", "delete_scrubber")), of=of)

    def _write_leases(self, end: float, *, stops: bool) -> None:
        """Stopped processes, many of them in the middle of what they do, and deleted Leases."""
        random = self._random
        for _ in range(random.choice((1, 2, 3)) if stops else 0):
            seconds = random.choice((random.uniform(0.1, 9.0), random.uniform(16.0, 60.0), 3600.0))
            if self._sometimes(0.4):
                window = random.choice((0.0, random.uniform(0.0, 2.0)))
                self._do(random.uniform(0.0, end), "stop_process", window=window, seconds=seconds)
            else:
                hook = random.choice(_ATTACHING if self._scenario.attaches else _CHANGING)
                self._do(random.uniform(0.0, end) / 2, "stop_before", hook=hook, seconds=seconds)
        # A disk whose volume was made again with another one is nobody's: a late call for it would stay unnoticed.
        if self._scenario.attaches and not self._scenario.reused:
            write_late_attach(self._do, f"{self._seed} {self._name}", end)
        if self._sometimes(self._scenario.leases):
            self._do(random.uniform(0.0, end), "remake_lease", delay=random.uniform(0.0, 10.0))

    def _write_processes(self, end: float, *, leaders: bool) -> None:
        random = self._random
        for _ in range(random.choice((0, 0, 1, 2))):
            self._do(random.uniform(0.0, end), "crash", which=0)
        if leaders:
            begun = random.uniform(0.0, end * 0.5)
            self._do(begun, "second_leader")
            self._do(begun + random.choice((2.0, 30.0, end)) * random.random(), "crash", which=random.choice((0, 1)))
        if self._sometimes(self._scenario.outages):
            driver, at = random.choice((ALPHA, BETA)), random.uniform(0.0, end)
            self._do(at, "outage", driver=driver, down=True)
            self._do(at + random.uniform(0.5, 60.0), "outage", driver=driver, down=False)
        for _ in range(random.choice((0, 0, 0, 1, 2))):
            self._do(random.uniform(0.0, end), "set_clock", seconds=random.choice((-600.0, -30.0, 5.0, 600.0)))
        for _ in range(random.choice((0, 0, 1))):
            self._do(random.uniform(0.0, end), "compact")
        for _ in range(random.choice((0, 0, 1))):
            self._do(random.uniform(0.0, end), "end_watches")
        for _ in range(random.choice((0, 0, 1))):
            self._do(random.uniform(0.0, end), "hold_watches", seconds=random.uniform(0.0, 30.0))

    def _write_server(self, end: float) -> frozenset[str]:
        """Faults of the whole API server; the kinds that get no bookmarks."""
        random = self._server
        if random.random() < 0.12:
            self._do(random.uniform(0.0, end), "rotate_certificate")
        if random.random() < 0.12:
            seconds = random.choice((0.5, 2.0, 10.0)) * random.random()
            self._do(random.uniform(0.0, end), "refuse", status=random.choice((401, 403)), seconds=seconds)
        if random.random() < 0.06 and not (
            self._scenario.attaches or self._scenario.snapshots or self._scenario.groups
        ):
            begun = random.uniform(0.0, end)
            self._do(begun, "back_up")
            age = random.uniform(0.0, 20.0)
            self._do(begun + (3600.0 if age < 3.0 else age), "restore_server")
        silent = ("persistentvolumes", "persistentvolumeclaims", "storageclasses", "pods", "nodes")
        without_bookmarks = frozenset({"events", *silent[: random.choice((0, 0, 0, 0, 2, 5))]})
        deletions = [action for action in self._actions if action.what == "delete_claim"]
        if deletions and random.random() < (0.5 if self._scenario.static_claims > 0.5 else 0.05):
            last = random.choice(deletions)
            self._do(last.at, "delete_scrubber", of=f"of {last.detail['name']}")
        return without_bookmarks
