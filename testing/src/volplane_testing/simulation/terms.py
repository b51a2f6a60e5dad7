"""Records of intents and the terms that they name: a former leader writes over none of its successor."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from volplane.fence import Fence
from volplane.kube import names
from volplane_testing.simulation.cluster_view import ClusterView, Commit, Json, annotations_of
from volplane_testing.simulation.trace import FirstViolation

__all__ = ["Terms"]

_LEASES = "leases.coordination.k8s.io"


class _Intent(msgspec.Struct):
    fence: str = ""


class _Record(msgspec.Struct):
    """That of a claim is sealed, and has its fence in `intent`."""

    intent: _Intent = msgspec.field(default_factory=_Intent)
    fence: str = ""


class Terms:
    """Listens to `view`."""

    def __init__(self, view: ClusterView, violations: FirstViolation, *, damaged: Callable[[str], bool]) -> None:
        """damaged: whether a user wrote the record of the object with this uid. Nobody can tell whose that was."""
        self._view = view
        self._violations = violations
        self._damaged = damaged
        view.listeners.append(self._committed)

    def _committed(self, commit: Commit) -> None:
        if not commit.by_controller or commit.kind not in ("claim", "volume") or commit.old is None:
            return
        before, after = _term_of(commit.old), _term_of(commit.new or {})
        if before is None or after is None or before == after or before.lease != after.lease:
            return
        if before in self._present() and not self._damaged(commit.old["metadata"]["uid"]):
            text = f"{after.holder} writes over the record of {commit.kind} {commit.name}, though {before.holder} leads"
            self._violations.report("records-follow-the-leader", text)

    def _present(self) -> list[Fence]:
        """The terms that the Leases name now."""
        leases = [stored.decode() for stored in self._view.server.store.all(_LEASES)]
        specs = [(lease["metadata"]["uid"], lease["spec"]) for lease in leases]
        return [Fence(spec["leaseTransitions"], spec["holderIdentity"], uid) for uid, spec in specs]


def _term_of(obj: Json) -> Fence | None:
    """The term that the record on a claim or a volume names; None if there is no such record."""
    text = annotations_of(obj).get(names.INTENT, "") if obj else ""
    try:
        record = msgspec.json.decode(text, type=_Record)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    return Fence.parse(record.fence or record.intent.fence)
