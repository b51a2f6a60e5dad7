"""Records of intents and the terms that they name: a former leader writes over none of its successor."""

from __future__ import annotations

import msgspec

from volplane.kube import names
from volplane.requests import Fence
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

    def __init__(self, view: ClusterView, violations: FirstViolation) -> None:
        self._view = view
        self._violations = violations
        self._by_users: set[str] = set()
        """Uids of objects whose record was written by a user last: nobody can tell what it was."""
        view.listeners.append(self._committed)

    def _committed(self, commit: Commit) -> None:
        if commit.kind not in ("claim", "volume") or commit.new is None:
            return
        before, after = _record_of(commit.old), _record_of(commit.new)
        if before == after:
            return
        uid = commit.new["metadata"]["uid"]
        if not commit.by_controller:
            self._by_users.add(uid)
        elif uid in self._by_users:
            self._by_users.discard(uid)
        elif self._taken_back(_term_in(before), _term_in(after)):
            text = f"{commit.who} writes over the record of {commit.kind} {commit.name}, though another process leads"
            self._violations.report("records-follow-the-leader", text)

    def _taken_back(self, before: Fence | None, after: Fence | None) -> bool:
        if before is None or after is None or before == after or before.lease != after.lease:
            return False
        return before in self._present()

    def _present(self) -> list[Fence]:
        """Return the terms that the Leases name now."""
        leases = [stored.decode() for stored in self._view.server.store.all(_LEASES)]
        specs = [(lease["metadata"]["uid"], lease["spec"]) for lease in leases]
        return [Fence(spec["leaseTransitions"], spec["holderIdentity"], uid) for uid, spec in specs]


def _record_of(obj: Json | None) -> str:
    return annotations_of(obj).get(names.INTENT, "") if obj is not None else ""


def _term_in(text: str) -> Fence | None:
    """Return the term that a record names; None if there is none."""
    try:
        record = msgspec.json.decode(text, type=_Record)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    return Fence.parse(record.fence or record.intent.fence)
