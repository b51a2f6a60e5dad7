"""Records that somebody else writes over, or that another installation has sealed: what a process remembers of them.

A tenant may write claims. Another installation of volplane may serve a driver of the same name, with a sealing key and
a Lease of its own. A process may run without an election beside one that was elected. What follows from a contest is
decided in `volplane.intents.contest`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from volplane.backoff import RECORD_OVERWRITTEN
from volplane.kube import names
from volplane.kube.objects import Claim, Volume
from volplane.state.records import RecycleIntent, Sealer, named_in_record, read_recycle_intent

__all__ = ["STANDS_AFTER", "Contest", "Contests"]

STANDS_AFTER = 10.0
"""Seconds that a record of ours must stand in the place of another installation's, before a hook is called by it."""
_MOST_NAMED = 10
"""Other installations that are named in the log; the names stand on claims, and tenants may write those."""

_LOG = logging.getLogger(__name__)


class Contest(msgspec.Struct):
    """About the record of one object.

    other: namespace of the installation that sealed the record which stands there, or stood there before ours; "" =
    none is known. since: loop time at which what stands there was put there. losses: how often in a row somebody wrote
    over a record of ours that counted. tries: how often the other installation took its record back. tried: whether
    ours was put in the place of another installation's, and may be taken back. holds: whether a record of ours counted.
    """

    other: str = ""
    since: float = 0.0
    losses: int = 0
    tries: int = 0
    tried: bool = False
    holds: bool = False

    def lost(self, now: float) -> None:
        """A record of ours stands there no more."""
        if self.tried and now < self.since + STANDS_AFTER:
            self.tries += 1
        else:
            again = self.losses and now < self.since + RECORD_OVERWRITTEN.forget_after
            self.losses = self.losses + 1 if again else 1
            self.holds = True
        self.since, self.tried = now, False

    def regained(self, now: float) -> None:
        """A record of ours stands there again, or for the first time."""
        self.since, self.tried = now, bool(self.other) and not self.holds


class Contests:
    """By uid of the object. Follows the caches of claims and volumes; objects that nobody contests are not in it."""

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
        self._known: dict[str, Contest] = {}
        self._named: set[str] = set()

    def about(self, uid: str) -> Contest | None:
        """What is known of the object's record; None: nobody else has written it."""
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
            self._known.setdefault(new.uid, Contest()).lost(self._monotonic())
        elif has and not had and (known := self._known.get(new.uid)) is not None:
            known.regained(self._monotonic())
        if not has and (author := self._sealer.other_author(new.uid, now)):
            # What another installation writes shows that it is at work, so patience begins anew.
            known = self._known.setdefault(new.uid, Contest())
            known.other, known.since = author, self._monotonic()
            self._say(new, author)

    def _say(self, claim: Claim, author: str) -> None:
        """Name another installation in the log, once, if it serves what is served here."""
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
        """Listener of the cache of volumes. Whose the record of a scrub is, it says itself."""
        if new is None or old is None or new.uid != old.uid:
            if old is not None:
                self._known.pop(old.uid, None)
            return
        before, now = old.annotation(names.INTENT), new.annotation(names.INTENT)
        if before == now:
            return
        had, has = read_recycle_intent(before), read_recycle_intent(now)
        if has is None:
            self._known.pop(new.uid, None)
        elif self._is_of_our_term(had) and not self._is_of_our_term(has) and has.same_scrub(had):
            self._known.setdefault(new.uid, Contest()).lost(self._monotonic())
        elif self._is_of_our_term(has) and (known := self._known.get(new.uid)) is not None:
            known.regained(self._monotonic())

    def _is_of_our_term(self, intent: RecycleIntent | None) -> bool:
        return intent is not None and intent.fence == self._fence()


def _needs_none(claim: Claim) -> bool:
    """Whether nothing more is made for the claim."""
    return claim.terminating or bool(claim.spec.volume_name) or claim.annotation(names.BIND_COMPLETED) is not None
