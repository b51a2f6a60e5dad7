"""Conflicts over records: a record that others overwrite, or that another installation has sealed.

A tenant may write claims. Another installation of volplane may serve a driver of the same name, with a sealing key and
a Lease of its own. A process may run without an election beside one that was elected. The API server refuses none of
these writes: both writers take the record for theirs, like two field managers of Server-Side Apply. This module
remembers what the caches show of that. `volplane.intents.conflict` decides what to do about it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from volplane._delays import RECORD_OVERWRITTEN
from volplane.kube import names
from volplane.kube.objects import Claim, Volume
from volplane.state.records import RecycleIntent, Sealer, named_in_record, read_intent

__all__ = ["TAKEOVER_GRACE", "RecordConflict", "RecordConflicts"]

TAKEOVER_GRACE = 10.0
"""Seconds for which no hook is called after our record has replaced another installation's.

If that is at work, it writes its own record again meanwhile.
"""
_MOST_NAMED = 10
"""Other installations that are named in the log; tenants may write their names on claims."""

_LOG = logging.getLogger(__name__)


class RecordConflict(msgspec.Struct):
    """What is known of the conflict over the record of one object."""

    other: str = ""
    """Namespace of the installation whose record is on the object, or was there before ours; "" = none is known."""
    since: float = 0.0
    """Loop time of the last change of the record."""
    was_ours: bool = False
    """A record of ours counted, before it was overwritten."""
    overwrites: int = 0
    """How often in a row that happened."""
    taking_over: bool = False
    """The record is ours, and replaced that of the other installation."""
    undone_takeovers: int = 0
    """How often the other installation wrote its own again within `TAKEOVER_GRACE`."""

    def overwritten(self, now: float) -> None:
        """Note that the record was ours, and is not any more. now: loop time."""
        if self.taking_over and now < self.since + TAKEOVER_GRACE:
            self.undone_takeovers += 1
        else:
            again = self.overwrites and now < self.since + RECORD_OVERWRITTEN.forget_after
            self.overwrites = self.overwrites + 1 if again else 1
            self.was_ours = True
        self.since, self.taking_over = now, False

    def written(self, now: float) -> None:
        """Note that the record is ours now, and was not before. now: loop time."""
        self.since, self.taking_over = now, bool(self.other) and not self.was_ours


class RecordConflicts:
    """Follows the caches of claims and volumes, and keeps the conflicts by uid of the object."""

    def __init__(
        self,
        sealer: Sealer,
        *,
        serves: Callable[[str], bool],
        fence: Callable[[], str],
        monotonic: Callable[[], float],
    ) -> None:
        """serves: whether a driver of this name is configured here. fence: text of our term's `Fence`."""
        self._sealer = sealer
        self._serves = serves
        self._fence = fence
        self._monotonic = monotonic
        self._known: dict[str, RecordConflict] = {}
        self._named: set[str] = set()

    def about(self, uid: str) -> RecordConflict | None:
        """Return the conflict over the object's record; None: no other has written it."""
        return self._known.get(uid)

    def is_ours(self, claim: Claim) -> bool:
        """Return whether the record on the claim was sealed with our key, in our term."""
        return self._ours(claim.uid, claim.annotation(names.INTENT))

    def _ours(self, uid: str, text: str | None) -> bool:
        intent = self._sealer.open(uid, text)
        return intent is not None and intent.fence == self._fence()

    def claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        """Follow the cache of claims."""
        if old is not None and (new is None or new.uid != old.uid):
            self._known.pop(old.uid, None)
            old = None
        if new is None:
            return
        before = None if old is None else old.annotation(names.INTENT)
        now = new.annotation(names.INTENT)
        if now == before:
            return
        had, has = self._ours(new.uid, before), self._ours(new.uid, now)
        bound = bool(new.spec.volume_name) or new.annotation(names.BIND_COMPLETED) is not None
        worked_on = had or new.has_finalizer(names.PROVISIONING_FINALIZER)
        if now is None and (new.terminating or bound or not worked_on):
            self._known.pop(new.uid, None)  # The record has ended: nothing more is made for the claim.
            return
        if had and not has:
            self._known.setdefault(new.uid, RecordConflict()).overwritten(self._monotonic())
        elif has and not had and (known := self._known.get(new.uid)) is not None:
            known.written(self._monotonic())
        if not has and (author := self._sealer.other_author(new.uid, now)):
            # The other installation is at work, so the delay starts again.
            known = self._known.setdefault(new.uid, RecordConflict())
            known.other, known.since = author, self._monotonic()
            self._warn(new, author)

    def _warn(self, claim: Claim, author: str) -> None:
        """Name the other installation in the log, once, if it serves a driver that is served here."""
        driver = named_in_record(claim.annotation(names.INTENT)).driver
        if author in self._named or len(self._named) >= _MOST_NAMED or not self._serves(driver):
            return
        self._named.add(author)
        _LOG.warning(
            "the installation of volplane in namespace %s serves driver %s too: its record stands on claim %s; give "
            "each installation driver names of its own, or stop one of them",
            author,
            driver,
            claim.key,
        )

    def volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        """Follow the cache of volumes. The record of a scrub is not sealed, and names its installation."""
        if new is None or old is None or new.uid != old.uid:
            if old is not None:
                self._known.pop(old.uid, None)
            return
        before, now = old.annotation(names.INTENT), new.annotation(names.INTENT)
        if before == now:
            return
        had, has = read_intent(RecycleIntent, before), read_intent(RecycleIntent, now)
        if has is None:
            self._known.pop(new.uid, None)
        elif self._is_of_our_term(had) and not self._is_of_our_term(has) and has.same_scrub(had):
            self._known.setdefault(new.uid, RecordConflict()).overwritten(self._monotonic())
        elif self._is_of_our_term(has) and (known := self._known.get(new.uid)) is not None:
            known.written(self._monotonic())

    def _is_of_our_term(self, intent: RecycleIntent | None) -> bool:
        return intent is not None and intent.fence == self._fence()
