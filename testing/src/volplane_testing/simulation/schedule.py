"""The actions and fault rates of one run, all derived from the seed before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from volplane_testing.simulation.backends import BackendTraits
from volplane_testing.simulation.changes import write_changes
from volplane_testing.simulation.hooks import HookFaults
from volplane_testing.simulation.network import NetworkFaults
from volplane_testing.simulation.nodes import NODES, PodFaults

__all__ = ["ALPHA", "BETA", "CLASSES", "SCENARIOS", "Action", "Schedule", "generate"]

ALPHA: Final = "alpha.sim"
"""Driver whose backend has `find`, and whose assets pods erase."""
BETA: Final = "beta.sim"
"""Driver whose backend has zones, no `find`, and erases by itself."""

CLASSES: Final[Mapping[str, Mapping[str, Any]]] = {
    "fast": {"provisioner": ALPHA, "reclaimPolicy": "Delete"},
    "keep": {"provisioner": ALPHA, "reclaimPolicy": "Retain"},
    "pool": {"provisioner": ALPHA, "reclaimPolicy": "Delete", "parameters": {"volplane.dev/on-release": "recycle"}},
    "zonal": {"provisioner": BETA, "reclaimPolicy": "Delete"},
    "late": {"provisioner": BETA, "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer"},
    "late-alpha": {"provisioner": ALPHA, "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer"},
}
"""Bodies of classes. "" as a claim's class means static volumes."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Ranges of counts and shares (0 to 1) from which a schedule is drawn."""

    claims: tuple[int, int] = (2, 5)
    static: tuple[int, int] = (0, 3)
    classes: tuple[str, ...] = tuple(CLASSES)
    static_claims: float = 0.3
    policies: tuple[str, ...] = ("Retain", "Recycle", "Recycle", "Delete")
    pods: float = 0.5
    incarnations: tuple[int, int] = (1, 2)
    admins: float = 0.15
    tenants: float = 0.1
    restores: float = 0.05
    leaders: float = 0.2
    outages: float = 0.3
    class_changes: float = 0.15
    lags: tuple[float, ...] = (0.0, 0.0, 0.5, 5.0)
    attaches: bool = False


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "mixed": Scenario(),
    "provision": Scenario(
        claims=(3, 6), static=(0, 1), static_claims=0.05, incarnations=(1, 3), pods=0.2, tenants=0.2, class_changes=0.3
    ),
    "recycle": Scenario(
        claims=(2, 4),
        static=(1, 4),
        classes=("pool",),
        static_claims=0.7,
        policies=("Recycle",),
        incarnations=(2, 3),
        pods=0.7,
        admins=0.25,
    ),
    "reclaim": Scenario(
        claims=(2, 4),
        classes=("fast", "keep", "zonal"),
        policies=("Delete", "Retain"),
        admins=0.6,
        incarnations=(1, 2),
        outages=0.5,
        lags=(0.0, 5.0, 20.0),
    ),
    "bind": Scenario(claims=(3, 6), static=(2, 5), static_claims=0.9, classes=("fast",), pods=0.2, admins=0.2),
    "leaders": Scenario(
        leaders=1.0,
        claims=(3, 5),
        static=(1, 3),
        static_claims=0.5,
        policies=("Retain", "Recycle", "Recycle", "Delete"),
        incarnations=(1, 3),
        lags=(0.5, 5.0, 20.0),
    ),
    "tenants": Scenario(claims=(3, 5), static=(0, 1), static_claims=0.05, tenants=0.8, pods=0.2, incarnations=(1, 2)),
    "restore": Scenario(restores=0.6, claims=(2, 3), static=(0, 2)),
    "attach": Scenario(attaches=True, claims=(1, 3), static=(0, 0), classes=("fast", "fast", "keep"), outages=0.3),
}


def generate(seed: int, scenario: str = "any") -> Schedule:
    """The schedule of a seed. Raises KeyError.

    scenario: a name in SCENARIOS, or "any": the seed chooses among those in which nothing is attached.
    """
    random = Random(f"{seed} {scenario}")  # noqa: S311 -- schedules, not secrets
    usual = sorted(name for name, each in SCENARIOS.items() if not each.attaches)
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
        end = max((action.at for action in self._actions), default=0.0)
        self._write_processes(end, leaders=leaders)
        if self._scenario.attaches:
            self._write_nodes(end)
        without_bookmarks = self._write_server(end)
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
                slow=random.choice((0.0, 0.2)),
                hangs=random.choice((0.0, 0.0, 0.05)),
                crashes=random.choice((0.0, 0.0, 0.1)),
                # A hook of a former leader that takes effect after its successor looked would be its backend's to
                # refuse.
                longest=4.0 if leaders else 60.0,
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
                # Of two leaders only the backend can tell whose call is the later one.
                strict=leaders or (self._scenario.attaches and random.random() < 0.5),
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
        """A claim whose pods come one after the other, now and then before the one before has gone."""
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
        """Nodes are lost; they return, or a person acts. Claims change."""
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
        """Seconds between two actions of a sequence: often shorter than a request, seldom long."""
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
            self._disturb(name, begun, at)
            if self._sometimes(0.2):
                return
            self._do(at, "delete_claim", name=name)
            self._disturb(name, at, at + 2.0)
            if self._sometimes(scenario.admins):
                self._meddle(name, at)
            at += self._gap() if self._sometimes(0.7) else 0.0

    def _write_pod(self, claim: str, at: float) -> float:
        """A pod that uses the claim, from a little before or after its creation; returns the time of its deletion."""
        pod = f"p-{claim}-{len(self._actions)}"
        begun = max(0.0, at + self._random.choice((-0.01, 0.0, self._gap())))
        lifetime = round(self._random.uniform(0.1, 5.0), 2) if self._sometimes(0.3) else 0.0
        self._do(begun, "create_pod", name=pod, claim=claim, lifetime=lifetime)
        end = begun + self._gap() + self._gap()
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
        if random.random() < 0.06 and not self._scenario.attaches:
            begun = random.uniform(0.0, end)
            self._do(begun, "back_up")
            self._do(begun + random.uniform(0.0, 20.0), "restore_server")
        silent = ("persistentvolumes", "persistentvolumeclaims", "storageclasses", "pods", "nodes")
        return frozenset({"events", *silent[: random.choice((0, 0, 0, 0, 2, 5))]})
