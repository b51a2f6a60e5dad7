"""The duties of a process, and what follows from the list: names of `--controllers`, defaults, labels of the namespace.

A new duty is one name here. `volplane.process.assembly` makes its controllers, `volplane.cli.installation` its rules.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from volplane._messages import near
from volplane.attach import ATTACH_DETACH, ATTACHER, CSI_DRIVER_OBJECTS
from volplane.binding import BINDER
from volplane.controller.controller import Duty
from volplane.errors import ConfigurationError
from volplane.expand import EXPANDER
from volplane.placement import ASSIGNER, CAPACITY
from volplane.protection import PROTECTION
from volplane.provision import PROVISIONER
from volplane.reclaim import RECLAIMER
from volplane.roles import CLAIMS_AND_VOLUMES
from volplane.snapshots import SNAPSHOT_CONTROLLER, SNAPSHOT_SCHEDULER, SNAPSHOTS, SNAPSHOTTER

DUTIES: Final[list[Duty[Any]]] = [
    *(CLAIMS_AND_VOLUMES, BINDER, PROVISIONER, RECLAIMER, EXPANDER, PROTECTION),
    *(ATTACH_DETACH, ATTACHER, CSI_DRIVER_OBJECTS, ASSIGNER, CAPACITY),
    *(SNAPSHOT_CONTROLLER, SNAPSHOTTER, SNAPSHOT_SCHEDULER, SNAPSHOTS),
]


def options() -> tuple[str, ...]:
    return tuple(duty.option for duty in DUTIES if duty.option)


ALL_CONTROLLERS: Final = options()
DEFAULT_CONTROLLERS: Final = ",".join(duty.option for duty in DUTIES if duty.default)
"""Value of `--controllers` where a kube-controller-manager binds, protects, and decides what is attached."""
CHANGES: Final = tuple(queue for duty in DUTIES for queue in duty.changes)
"""The queues of controllers that change the volumes of bound claims."""
PLACER: Final = ASSIGNER.option
"""The controller that places claims of distributed drivers: a value of `--placement` and `--immediate`."""
ATTACHES: Final = ATTACHER.option
"""The queue of the controller that calls the hooks of attachments, with whose nodes attachments are compared."""
NODE_CONTROLLERS: Final = tuple(duty.option for duty in DUTIES if duty.on_nodes)
"""What a process with `--node-name` may run: the rest is decided for the whole cluster."""


def controllers_of_node(text: str) -> frozenset[str]:
    """Return `--controllers` beside `--node-name`. Raises ConfigurationError for one of the whole cluster."""
    if text == DEFAULT_CONTROLLERS:
        return frozenset(NODE_CONTROLLERS)
    chosen = parse_controllers(text)
    for name in sorted(chosen - set(NODE_CONTROLLERS)):
        raise ConfigurationError(
            f'--controllers: "{name}" works for the whole cluster, not for one node: leave it to a process without '
            f"--node-name; beside it some of {', '.join(NODE_CONTROLLERS)} may run"
        )
    return chosen


def parse_controllers(text: str) -> frozenset[str]:
    """Return the value of `--controllers`: names separated by commas, or `all`. Raises ConfigurationError."""
    chosen, every = [name.strip() for name in text.split(",") if name.strip()], options()
    if chosen == ["all"]:
        return frozenset(every)
    known = ", ".join(every)
    for name in chosen:
        if name not in every:
            close = near(name, ("all", *every))
            raise ConfigurationError(f'--controllers: "{name}" is no controller{close}; give {known}, or all alone')
    if not chosen:
        raise ConfigurationError(f"--controllers is empty; name some of {known}, or all")
    return frozenset(chosen)


def namespace_labels(controllers: Collection[str], *, mounts: bool | None = None) -> dict[str, str]:
    """Return the labels of our namespace: which pods may run there. Source: Pod Security Standards of Kubernetes.

    mounts: whether our own pods, and scrubber pods, mount directories of nodes; None = not known. Scrubber pods are
    root with capabilities, which `baseline` admits; hostPath takes `privileged`.
    """
    scrubs = RECLAIMER.option in controllers
    without = "baseline" if scrubs else "restricted"
    level = "privileged" if mounts or (scrubs and mounts is None) else without
    return {"pod-security.kubernetes.io/enforce": level}
