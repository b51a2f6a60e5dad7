"""Which Event a notification belongs to: equal ones are one Event with a count, and so are many similar ones.

Source: client-go tools/record/events_cache.go, EventCorrelator: from the tenth text for one reason within ten minutes
on, further texts are one Event, and one object gets 25 writes and then one per 5 minutes. client-go drops what is above
that rate; here it waits.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Protocol

from volplane._messages import sanitize
from volplane.kube.kinds import Kind
from volplane.kube.objects import KubeObject

__all__ = ["Budgets", "Correlator", "Notification", "Series"]

BURST = 25
REFILL_SECONDS = 300.0
SIMILAR = 10
"""Texts for one reason, the last of which stands for all further ones."""
SIMILAR_SECONDS = 600.0
_WHOLE = 1.0 - 1e-6
"""A timer may ring a clock tick early."""
COMBINED = "(combined from similar events): "
_REMEMBERED = 4096
_LONGEST_MESSAGE = 1024
_LONGEST_NAME = 253

_Key = tuple[str, ...]


class Notification(Protocol):
    """Something to tell about an object; `volplane.controller.actions.EventRecord` is one."""

    @property
    def kind(self) -> Kind[Any]: ...

    @property
    def about(self) -> KubeObject: ...

    @property
    def type(self) -> str:
        """Either "Normal" or "Warning"."""
        ...

    @property
    def reason(self) -> str: ...

    @property
    def message(self) -> str: ...

    @property
    def same_as(self) -> str:
        """Notifications of one reason with the same text here are one Event, whatever their messages; "": those with
        the same message.
        """
        ...


@dataclass(slots=True, eq=False)
class Series:
    """Equal events about one object: one Event. Times are the server's texts, `*_at` are loop times."""

    key: _Key
    kind: Kind[Any]
    about: KubeObject
    type: str
    reason: str
    message: str
    first: str
    last: str
    count: int = 0
    earlier: int = 0
    """The count of the Event when this process found it."""
    written: int = 0
    """The count that was written last, without `earlier`."""
    writes: int = 0
    due_at: float = float("-inf")
    """When it may be written again."""
    tries: int = 0
    waiting: bool = False
    """Whether there is something to write, now or later."""

    @property
    def namespace(self) -> str:
        return self.about.namespace or "default"

    def name(self, component: str) -> str:
        """Return a digest of what is equal, so that another process continues the count."""
        digest = hashlib.sha256("\0".join((component, *self.key)).encode()).hexdigest()[:16]
        return f"{self.about.name[: _LONGEST_NAME - 17].rstrip('-.')}.{digest}"


class Correlator:
    """Finds the series of a notification. Series with something to write are kept, of the others the newest 4,096."""

    def __init__(self) -> None:
        self._waiting: dict[_Key, Series] = {}
        self._settled: OrderedDict[_Key, Series] = OrderedDict()
        self._similar: OrderedDict[_Key, _Similar] = OrderedDict()

    def __len__(self) -> int:
        """Describe how many series have something to write."""
        return len(self._waiting)

    def waiting(self) -> list[Series]:
        """Return all of them, oldest first."""
        return list(self._waiting.values())

    def take(self, event: Notification, stamp: str, now: float) -> Series:
        """Count a notification. stamp: the time as the server writes it. now: loop time."""
        about = event.about
        group = (event.kind.plural, about.key, about.uid, event.type, event.reason)
        text = sanitize(event.message)
        same = sanitize(event.same_as) if event.same_as else text
        if self._is_one_too_many(group, same, now):
            same, text = COMBINED, COMBINED + text
        key = (*group, _shortened(same))
        series = self._waiting.get(key) or self._settled.get(key)
        if series is None:
            series = Series(key, event.kind, about, event.type, event.reason, "", stamp, stamp)
        series.message = _shortened(text)
        series.count += 1
        series.last = stamp
        return series

    def begin(self, series: Series) -> None:
        """Note that the series has something to write."""
        series.waiting = True
        self._settled.pop(series.key, None)
        self._waiting[series.key] = series

    def end(self, series: Series) -> None:
        """Note that the series has nothing more to write."""
        series.waiting = False
        self._waiting.pop(series.key, None)
        self._settled[series.key] = series
        self._settled.move_to_end(series.key)
        if len(self._settled) > _REMEMBERED:
            self._settled.popitem(last=False)

    def _is_one_too_many(self, group: _Key, text: str, now: float) -> bool:
        """Tell whether this text joins the combined Event of its group."""
        similar = self._similar.get(group)
        if similar is None or now > similar.last + SIMILAR_SECONDS:
            similar = self._similar[group] = _Similar({text}, now)
            if len(self._similar) > _REMEMBERED:
                self._similar.popitem(last=False)
            return False
        self._similar.move_to_end(group)
        similar.last = now
        if text in similar.texts:
            return False
        if len(similar.texts) >= SIMILAR - 1:
            return True
        similar.texts.add(text)
        return False


@dataclass(slots=True)
class _Similar:
    """Texts for one reason about one object."""

    texts: set[str]
    last: float


class Budgets:
    """Event writes that each object has left."""

    def __init__(self) -> None:
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, uid: str, now: float) -> float:
        """Take one; 0, or the seconds to wait until there is one."""
        left, filled = self._left.get(uid, (float(BURST), now))
        left = min(float(BURST), left + (now - filled) / REFILL_SECONDS)
        missing = 1.0 - left if left < _WHOLE else 0.0
        self._left[uid] = (left - 1.0 if not missing else left, now)
        self._left.move_to_end(uid)
        if len(self._left) > _REMEMBERED:
            self._left.popitem(last=False)
        return missing * REFILL_SECONDS


def _shortened(message: str) -> str:
    """Cut a message to the bytes that the API server accepts."""
    if len(message) * 4 <= _LONGEST_MESSAGE:
        return message
    encoded = message.encode()
    if len(encoded) <= _LONGEST_MESSAGE:
        return message
    return encoded[: _LONGEST_MESSAGE - 3].decode(errors="ignore") + "…"
