"""Volumes that were reserved for a claim which never named them: nobody can have used those."""

from __future__ import annotations

from collections.abc import Callable

from volplane.kube.names import CLAIM_PROTECTION
from volplane.kube.objects import Volume
from volplane_testing.simulation.cluster_view import ClusterView, Commit, Json, finalizers_of, reference_of

__all__ = ["Promises"]


class Promises:
    """Listens to `view`."""

    def __init__(self, view: ClusterView) -> None:
        self.believed: dict[str, Callable[[str], Volume | None]] = {}
        """Process -> the volume of a name in its cache."""
        self._promised: set[tuple[str, str]] = set()
        """(uid of a volume, uid of a claim) for which the volume was reserved while that claim existed."""
        self._pointed: set[str] = set()
        """Uids of claims that named a volume once: nobody can take that back, and a pod may have used it."""
        self._deleted: set[str] = set()
        """Uids of volumes that a user deleted."""
        self._view = view
        view.listeners.append(self._committed)

    def bind(self, volume: Json) -> bool:
        """Tell whether the volume must keep its contents, because the claim it was reserved for never had it.

        A process that let that claim go without having seen the reservation could not know: the answer to the write was
        lost, and no watch has brought the volume since. Nor could any where a user took the protection of the claim.
        """
        uid, taker = volume["metadata"]["uid"], reference_of(volume).get("uid", "")
        return (uid, taker) in self._promised and taker not in self._pointed and uid not in self._deleted

    def _committed(self, commit: Commit) -> None:
        match commit.kind:
            case "volume" if commit.new is not None:
                uid = commit.new["metadata"]["uid"]
                if (taker := reference_of(commit.new).get("uid", "")) in self._view.claims_by_uid:
                    self._promised.add((uid, taker))
                if not commit.by_controller and "deletionTimestamp" in commit.new["metadata"]:
                    self._deleted.add(uid)
            case "claim":
                if commit.new is not None and commit.new["spec"].get("volumeName"):
                    self._pointed.add(commit.new["metadata"]["uid"])
                if commit.old is not None and _let_go(commit):
                    self._forget_unseen(commit.who, commit.old["metadata"]["uid"])

    def _forget_unseen(self, who: str, claim_uid: str) -> None:
        """Forget promises that whoever let the claim go did not see, as a user who removed its protection."""
        for uid, taker in [promise for promise in self._promised if promise[1] == claim_uid]:
            name = next((key for key, each in self._view.volumes.items() if each["metadata"]["uid"] == uid), "")
            seen = self.believed[who](name) if who in self.believed else None
            if seen is None or seen.spec.claim_ref is None or seen.spec.claim_ref.uid != claim_uid:
                self._promised.discard((uid, taker))


def _let_go(commit: Commit) -> bool:
    """Tell whether the protection of a claim no longer keeps it, or a user deletes it while it has none."""
    if commit.new is None and not commit.by_controller:
        return True
    held = commit.old is not None and CLAIM_PROTECTION in finalizers_of(commit.old)
    return held and (commit.new is None or CLAIM_PROTECTION not in finalizers_of(commit.new))
