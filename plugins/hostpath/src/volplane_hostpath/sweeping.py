"""Cleaning up what crashed calls left that no later call would meet: before `start` ends, and before a listing."""

from __future__ import annotations

from volplane import BackendError, Context, Unavailable
from volplane_hostpath.deletion import STATIC_PREFIX, empty_trash
from volplane_hostpath.directories import entry_exists, names_in, remove_entry
from volplane_hostpath.ledger import Ledger
from volplane_hostpath.locks import Locks, TimeSlice
from volplane_hostpath.markers import marker_file
from volplane_hostpath.parents import remove_stale_entries
from volplane_hostpath.provisioning import discard_staged
from volplane_hostpath.roots import LOCKS, TMP, TRASH, VOLUMES, Root

__all__ = ["sweep", "volume_of"]

_PATIENCE = 0.05
"""Seconds to wait for a volume's lock: who holds it is at work on it and needs no sweeping."""


def volume_of(entry: str) -> str:
    """The volume to which an entry of tmp or trash belongs."""
    return entry.partition("@")[0] if "@" in entry else entry.removesuffix(marker_file(""))


def sweep(root: Root, ledger: Ledger, locks: Locks, context: Context) -> None:
    """Remove from tmp and trash what belongs to no volume, as far as time allows. Never raises a `BackendError`."""
    patience = TimeSlice(context)
    try:
        with ledger.open(root, patience.left(), context.log):
            remove_stale_entries(root)
    except (BackendError, OSError) as error:
        context.log.warning("cannot tidy up %s: %s", root.path, error)
    for place in (TMP, TRASH):
        for entry in names_in(root.directory(place)):
            if patience.over():
                return
            if _is_wanted(root, entry):
                continue
            try:
                with locks.hold(_lock_name(entry), root.directory(LOCKS), _PATIENCE):
                    _sweep_entry(root, place, entry, patience)
            except Unavailable:
                context.log.debug("%s of %s is being worked on", entry, root.path)
            except (BackendError, OSError) as error:
                context.log.warning("cannot remove %s of %s yet: %s", entry, root.path, error)


def _lock_name(entry: str) -> str:
    return entry if entry.startswith(STATIC_PREFIX) else volume_of(entry)


def _is_wanted(root: Root, entry: str) -> bool:
    """The next provision or delete of this volume finishes it."""
    marker = marker_file(volume_of(entry))
    return entry != marker and entry_exists(marker, root.directory(VOLUMES))


def _sweep_entry(root: Root, place: str, entry: str, patience: TimeSlice) -> None:
    if _is_wanted(root, entry):
        return  # Its marker has come while we waited for the lock.
    if entry == marker_file(volume_of(entry)):
        # Nobody who holds the lock is about to put it in place.
        remove_entry(entry, root.directory(TMP))
    elif place == TMP:
        discard_staged(root, volume_of(entry))
    else:
        empty_trash(root, entry, patience)
