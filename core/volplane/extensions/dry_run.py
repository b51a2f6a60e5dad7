"""Declines every call that changes something, with a message that says what it would do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

from volplane import Declined, Param, ParameterSchema, ProvisionRequest, hookimpl, read_parameters

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    retry_after: Annotated[float, Param("How long until the plan is reported again.", name="retryAfter", minimum=1)] = (
        600.0
    )


class DryRun:
    """Hooks that change something raise `Declined` with the plan, which becomes an event of the claim or volume.

    `find`, `owns`, `list_assets`, `find_snapshot`, `probe` and others that only ask are called: matching and the leak
    check work.
    """

    options_schema: ClassVar[ParameterSchema] = ParameterSchema.of(Options)

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._retry_after = read_parameters(Options, options).retry_after

    def decline(self, request: Any, plan: str) -> None:
        log.info("dry run: driver %s would %s", request.context.driver, plan)
        raise Declined(f"dry run: would {plan}", retry_after=self._retry_after)


def _labels(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _provision(request: ProvisionRequest) -> str:
    place = f" in {_labels(request.segment)}" if request.segment else ""
    claim = f"{request.claim.namespace}/{request.claim.name}"
    return f"make {request.name}, {request.capacity_bytes} bytes{place}, for claim {claim}"


PLANS: Final[Mapping[str, Callable[[Any], str]]] = {
    "provision": _provision,
    "delete": lambda r: f"delete {r.volume.handle}",
    "recycle": lambda r: f"erase the contents of {r.volume.handle}",
    "attach": lambda r: f"attach {r.volume.handle} to node {r.node.name}",
    "detach": lambda r: f"detach {r.volume.handle} from node {r.node.name}",
    "expand": lambda r: f"grow {r.volume.handle} to {r.capacity_bytes} bytes",
    "modify": lambda r: f"change {_labels(r.parameters)} of {r.volume.handle}",
    "adopt": lambda r: f"take over {r.volume.handle} from cluster {r.former.cluster_id}",
    "create_snapshot": lambda r: f"make snapshot {r.name} of {r.volume.handle}",
    "delete_snapshot": lambda r: f"delete snapshot {r.handle}",
    "create_group_snapshot": lambda r: f"make snapshots {r.name} of {', '.join(v.handle for v in r.volumes)}",
    "delete_group_snapshot": lambda r: f"delete the snapshots of group {r.handle}",
}
"""By hook: what a request would do."""


def _wrapper(hook: str) -> Callable[..., Generator[None, Any, Any]]:
    @hookimpl(wrapper=True)
    def wrapper(self: DryRun, request: Any) -> Generator[None, Any, Any]:
        self.decline(request, PLANS[hook](request))  # Raises: the hook inside is never called.
        return (yield)

    return wrapper


for _hook in PLANS:
    setattr(DryRun, _hook, _wrapper(_hook))
