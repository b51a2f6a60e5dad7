"""Conflicts over records: a record that somebody else overwrites, or that another installation has sealed.

A tenant may write claims. Another installation of volplane may serve a driver of the same name, with a sealing key and
a Lease of its own. A process may run without an election beside one that was elected. Nothing refuses such writes: a
conflict is no 409, but two writers that both take the record for theirs, as two field managers of Server-Side Apply.
This module remembers what the caches show of that. `volplane.intents.conflict` decides what to do about it.
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
"""Seconds after which a record of ours that replaced another installation's counts: no hook is called before. The other
installation writes its own again meanwhile, if it is at work.
"""
_MOST_NAMED = 10
"""Other installations that are named in the log; the names stand on claims, and tenants may write those."""

_LOG = logging.getLogger(__name__)


class RecordConflict(msgspec.Struct):
    """What is known of the conflict over the record of one object.

    other: namespace of the installation whose record is on the object, or was there before ours; "" = none is known.
    since: loop time of the last change of the record. was_ours: whether a record of ours counted, before it was
    overwritten. overwrites: how often in a row that happened. taking_over: whether the record is ours and replaced that
    of the other installation. undone_takeovers: how often the other installation wrote its own again within
    `TAKEOVER_GRACE`.
    """

    other: str = ""
    since: float = 0.0
    was_ours: bool = False
    overwrites: int = 0
    taking_over: bool = False
    undone_takeovers: int = 0

    def overwritten(self, now: float) -> None:
        """The record was ours, and is not any more. now: loop time."""
        if self.taking_over and now < self.since + TAKEOVER_GRACE:
            self.undone_takeovers += 1
        else:
            again = self.overwrites and now < self.since + RECORD_OVERWRITTEN.forget_after
            self.overwrites = self.overwrites + 1 if again else 1
            self.was_ours = True
        self.since, self.taking_over = now, False

    def written(self, now: float) -> None:
        """The record is ours now, and was not before. now: loop time."""
        self.since, self.taking_over = now, bool(self.other) and not self.was_ours


class RecordConflicts:
    """By uid of the object. Follows the caches of claims and volumes. Objects without a conflict are not in it."""

    def __init__(
        self,
        sealer: Sealer,
        *,
        serves: Callable[[str], bool],
        fence: Callable[[], str],
        monotonic: Callable[[], float],
    ) -> None:
        """serves: whether a driver of this name is configured here. fence: text of our term's `Fence`. monotonic: loop
        time.
        """
        self._sealer = sealer
        self._serves = serves
        self._fence = fence
        self._monotonic = monotonic
        self._known: dict[str, RecordConflict] = {}
        self._named: set[str] = set()

    def about(self, uid: str) -> RecordConflict | None:
        """The conflict over the object's record; None: nobody else has written it."""
        return self._known.get(uid)

    def is_ours(self, claim: Claim) -> bool:
        """Whether the record on the claim was sealed with our key, in our term."""
        return self._ours(claim.uid, claim.annotation(names.INTENT))

    def _ours(self, uid: str, text: str | None) -> bool:
        intent = self._sealer.open(uid, text)
        return intent is not None and intent.fence == self._fence()

    def claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        """Listener of the cache of claims."""
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
        if now is None and (_needs_none(new) or (not had and not new.has_finalizer(names.PROVISIONING_FINALIZER))):
            self._known.pop(new.uid, None)  # It has ended.
            return
        if had and not has:
            self._known.setdefault(new.uid, RecordConflict()).overwritten(self._monotonic())
        elif has and not had and (known := self._known.get(new.uid)) is not None:
            known.written(self._monotonic())
        if not has and (author := self._sealer.other_author(new.uid, now)):
            # What another installation writes shows that it is at work, so the delay begins anew.
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
        """Listener of the cache of volumes. The record of a scrub is not sealed, and names its installation."""
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


def _needs_none(claim: Claim) -> bool:
    """Whether the claim needs no record any more: nothing more is made for it."""
    return claim.terminating or bool(claim.spec.volume_name) or claim.annotation(names.BIND_COMPLETED) is not None
