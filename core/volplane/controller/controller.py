"""Defines a process: its role, the duties that `--controllers` names, and the controllers that a duty exports.

`volplane.process.duties` lists the duties. The assembly makes a runner of each controller; names of `--controllers`,
RBAC rules, watches, resync, metrics and explain follow from the same list.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeVar

from volplane.controller.actions import Decide, Flow, Predicate, Run
from volplane.controller.config import ScrubberSettings
from volplane.controller.metrics import Metrics
from volplane.kube.cache import Cache
from volplane.kube.objects import Claim

S = TypeVar("S")

Work = Callable[[], Coroutine[Any, Any, str | None]]
"""Does what a `Run` says, and returns what was done, in words. Raises the failure, or `Again` to go on later."""

Handler = Callable[[Run], Work]
"""Looks up, synchronously, what the operation needs of the caches, and returns the work. Called in the same turn of the
loop as the decision that returned the `Run`, so it sees the objects that were decided on. Raises OperationError.
"""

FORCE_DETACH_AFTER: Final = 360.0
"""Seconds, as in kube-controller-manager."""
READ: Final = ("get", "list", "watch")
FOLLOW: Final = ("list", "watch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What one process is for. Only the assembly and `volplane.roles` read it."""

    controllers: frozenset[str]
    """Values of `--controllers`."""
    cluster_id: str
    """The mark on assets."""
    namespace: str = "volplane-system"
    """Ours, with the Lease, the sealing key and the scrubber pods."""
    lease: str = ""
    """Key of the Lease under which this process leads; "" = there is no election."""
    node_name: str = ""
    """The node whose storage this process serves; "" = the whole cluster."""
    race: tuple[float, float] | None = None
    """Base and longest delay with which processes of nodes compete for claims; None = an assigner places them."""
    external_choice: bool = False
    """Whether others select the nodes of claims that bind immediately."""
    force_detach_after: float | None = FORCE_DETACH_AFTER
    """Seconds after which a volume that its unhealthy node does not unmount is detached; None = never."""
    unused_condition: bool = False
    """Whether protection keeps the condition `Unused` of claims."""
    scrub: ScrubberSettings = field(default_factory=ScrubberSettings)

    def runs(self, *options: str) -> bool:
        """Return whether this process runs any of these controllers."""
        return not self.controllers.isdisjoint(options)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of RBAC: verbs on a resource of an API group ("" = core)."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    """Only objects of these names; empty = all."""
    ours: bool = False
    """Whether it holds in our namespace only (a Role), instead of everywhere (a ClusterRole)."""
    where: Literal["", "distributed", "publishing", "cluster"] = ""
    """Where it is needed: where a driver is served by processes of nodes or publishes its room; where a driver
    publishes its room; in processes that serve the whole cluster; "" = always.
    """

    def body(self) -> dict[str, Any]:
        """Return a PolicyRule of rbac.authorization.k8s.io/v1."""
        rule: dict[str, Any] = {"apiGroups": [self.group], "resources": [self.resource], "verbs": list(self.verbs)}
        return rule | ({"resourceNames": list(self.names)} if self.names else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """A cache that a controller needs filled. Several controllers may need the same one."""

    cache: Cache[Any]
    namespace: str = ""
    """Only objects of this namespace; of several watches of a cache the one without a namespace wins."""
    field_selector: str = ""
    required: bool = True
    """Whether controllers start only once it is synced. Not so of a kind that a server may not serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """One queue of keys, the decision about a key, and what belongs to them."""

    queue: str
    """Its name in logs, metrics and explain."""
    cache: Cache[Any]
    """The objects that keys name. Events about a refused call are recorded on them."""
    decide: Decide
    """(key, what this pass read live) -> the next action."""
    explain: Decide | None = None
    """The pure decision behind `decide`, where that keeps memory between passes: for people, and for followers."""
    explained: Literal["decided", "reason", ""] = "decided"
    """How explain shows it: the action that is decided now, the reason for which the key waits, or not at all."""
    topic: str = ""
    """Words before the reason in explain, with their colon and space, where `explained` is "reason"."""
    awaited: Callable[[Claim], Iterable[str]] = lambda _claim: ()
    """Sentences of explain about what a bound claim waits for in this controller, beside its own keys."""
    watches: tuple[Watch, ...] = ()
    """What it reads beside `cache`."""
    own: tuple[Watch, ...] = ()
    """What it reads of kinds that a cluster may not serve: it alone waits until they are synced."""
    subscribe: Callable[[], None] = lambda: None
    """Subscribes the event handlers that turn changes of caches into keys. Called once all queues exist."""
    operations: Mapping[str, Handler] = field(default_factory=dict)
    """Verb of a `Run` -> its handler."""
    resync: Callable[[], Iterable[str]] = tuple
    """Keys to decide from time to time, in case an event was lost; "" for an object that needs no decision, so that
    other work can go on between many of them.
    """
    of_driver: Callable[[str], Iterable[str]] = lambda _name: ()
    """The same when the driver of this name has become usable or unusable, or was made."""
    flow: Flow | None = None
    predicate: Predicate | None = None
    measure: Callable[[Metrics], None] = lambda _metrics: None
    """Sets gauges before metrics are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty(Generic[S]):
    """A value of `--controllers`: what it may do, and the controllers that do it, which share an S."""

    option: str
    """The value; "" for controllers that serve several values, and decide by the role whether they are needed."""
    controllers: Callable[[Role, S], Iterable[Controller]] = lambda _role, _shared: ()
    permissions: tuple[Rule, ...] = ()
    """What its controllers need beside the rules of every process."""
    default: bool = False
    """Whether it runs unless `--controllers` is given: beside a stock kube-controller-manager."""
    on_nodes: bool = False
    """Whether it may run in the process of one node."""
    changes: tuple[str, ...] = ()
    """Queues of its controllers that change volumes of bound claims. `volplane status` shows why these claims wait."""
