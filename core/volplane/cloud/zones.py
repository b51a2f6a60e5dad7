"""The zones of a region in which a driver makes assets whose place nobody chose."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from volplane.cloud.error_table import CloudError
from volplane.errors import InvalidArgument
from volplane.requests import Context

__all__ = ["ZoneStates", "Zones"]

_SECONDS: Final = 600.0


class ZoneStates(NamedTuple):
    """What the cloud answers. states: of every zone by name. usual: those that are used where no option names any."""

    states: Mapping[str, str]
    usual: Collection[str]


class Zones:
    """Reads the zones, and again after ten minutes, since their states change.

    A zone that is not up is left out, unless no other one is left: then the cloud says why it refuses. Safe for
    threads in so far as `read` is.
    """

    def __init__(
        self,
        read: Callable[[], ZoneStates],
        *,
        wanted: tuple[str, ...],
        up: Collection[str],
        assets: str,
        clock: Callable[[], float],
    ) -> None:
        """read: asks the cloud; raises CloudError or InvalidArgument. wanted: of the option `zones`, empty = the usual
        ones. up: states in which a zone can be used. assets: their name in messages, "disks". clock: seconds.
        """
        self._read = read
        self._wanted = wanted
        self._up = up
        self._assets = assets
        self._clock = clock
        self._read_at = 0.0
        self.names: tuple[str, ...] = ()
        """The zones that can be used now, empty before the first reading."""

    def load(self, context: Context) -> None:
        """Read them now. Raises CloudError, and InvalidArgument for a zone of the option that does not exist."""
        states, usual = self._read()
        unknown = [zone for zone in self._wanted if zone not in states]
        if unknown:
            raise InvalidArgument(f"option zones: {unknown[0]!r} is not one of {', '.join(sorted(states))}")
        wanted = self._wanted or tuple(sorted(usual))
        up = tuple(name for name in wanted if states[name] in self._up)
        for name in wanted:
            if name not in up:
                context.log.warning(
                    "zone %s is %s: %s without a place of their own are made elsewhere",
                    name,
                    states[name],
                    self._assets,
                )
        self.names, self._read_at = up or wanted, self._clock()

    def refresh(self, context: Context) -> None:
        """Read them again if they are ten minutes old. Only a first reading may fail."""
        if self.names and self._clock() - self._read_at < _SECONDS:
            return
        try:
            self.load(context)
        except CloudError:
            if not self.names:
                raise
            self._read_at = self._clock()
