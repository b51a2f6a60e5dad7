"""Declines every call that changes something, with a message that says what it would do."""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from typing import Any, ClassVar

from volplane import (
    AdoptRequest,
    AttachRequest,
    Declined,
    DeleteRequest,
    DeleteSnapshotRequest,
    DetachRequest,
    ExpandRequest,
    ModifyRequest,
    Parameter,
    ParameterKind,
    ParameterSchema,
    ProvisionRequest,
    RecycleRequest,
    SnapshotRequest,
    hookimpl,
)

__all__ = ["DryRun"]

log = logging.getLogger(__name__)


class DryRun:
    """Hooks that change something raise `Declined` with the plan, which becomes an event of the claim or volume.

    `find`, `owns`, `list_assets`, `probe` and other reading hooks are called, so matching and the leak check work.
    """

    options_schema: ClassVar[ParameterSchema] = ParameterSchema(
        parameters=(
            Parameter(
                name="retryAfter",
                doc="How long until the plan is reported again.",
                kind=ParameterKind.DURATION,
                minimum=1,
                default=600.0,
            ),
        )
    )

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._retry_after: float = options["retryAfter"]

    @hookimpl(wrapper=True)
    def provision(self, request: ProvisionRequest) -> Generator[None, Any, Any]:
        place = f" in {_labels(request.segment)}" if request.segment else ""
        claim = f"{request.claim.namespace}/{request.claim.name}"
        self._decline(request, f"make {request.name}, {request.capacity_bytes} bytes{place}, for claim {claim}")
        return (yield)

    @hookimpl(wrapper=True)
    def delete(self, request: DeleteRequest) -> Generator[None, Any, Any]:
        self._decline(request, f"delete {request.volume.handle}")
        return (yield)

    @hookimpl(wrapper=True)
    def recycle(self, request: RecycleRequest) -> Generator[None, Any, Any]:
        self._decline(request, f"erase the contents of {request.volume.handle}")
        return (yield)

    @hookimpl(wrapper=True)
    def attach(self, request: AttachRequest) -> Generator[None, Any, Any]:
        self._decline(request, f"attach {request.volume.handle} to node {request.node.name}")
        return (yield)

    @hookimpl(wrapper=True)
    def detach(self, request: DetachRequest) -> Generator[None, Any, Any]:
        self._decline(request, f"detach {request.volume.handle} from node {request.node.name}")
        return (yield)

    @hookimpl(wrapper=True)
    def expand(self, request: ExpandRequest) -> Generator[None, Any, Any]:
        self._decline(request, f"grow {request.volume.handle} to {request.capacity_bytes} bytes")
        return (yield)

    @hookimpl(wrapper=True)
    def modify(self, request: ModifyRequest) -> Generator[None, Any, Any]:
        self._decline(request, f"change {_labels(request.parameters)} of {request.volume.handle}")
        return (yield)

    @hookimpl(wrapper=True)
    def adopt(self, request: AdoptRequest) -> Generator[None, Any, Any]:
        self._decline(request, f"take over {request.volume.handle} from cluster {request.former.cluster_id}")
        return (yield)

    @hookimpl(wrapper=True)
    def create_snapshot(self, request: SnapshotRequest) -> Generator[None, Any, Any]:
        self._decline(request, f"make snapshot {request.name} of {request.volume.handle}")
        return (yield)

    @hookimpl(wrapper=True)
    def delete_snapshot(self, request: DeleteSnapshotRequest) -> Generator[None, Any, Any]:
        self._decline(request, f"delete snapshot {request.handle}")
        return (yield)

    def _decline(self, request: Any, plan: str) -> None:
        log.info("dry run: driver %s would %s", request.context.driver, plan)
        raise Declined(f"dry run: would {plan}", retry_after=self._retry_after)


def _labels(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))
