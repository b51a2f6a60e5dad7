"""EC2 as the operations see it: looks that are shared, changes that are paced, refusals that are explained."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from volplane_aws_ebs.api import AwsRefusal, Call, Gateway
from volplane_aws_ebs.batching import Lookups
from volplane_aws_ebs.errors import THROTTLED, translated
from volplane_aws_ebs.hook_calls import Later, Memory, Turn
from volplane_aws_ebs.polling import Board
from volplane_aws_ebs.rate_limits import Pacer
from volplane_aws_ebs.resources import InstanceSeen, ModificationSeen, SnapshotSeen, VolumeSeen
from volplane_aws_ebs.settings import Settings

__all__ = ["SETTLE_SECONDS", "Ec2"]

SETTLE_SECONDS = 60.0
"""After this what a call made is visible, or will never be: EC2's eventual consistency and the SDK's longest call."""
_ENCODED = re.compile(r"\s*Encoded authorization failure message: (\S+)")
_INSTANCE_SECONDS = 30.0
_NAME_SECONDS = 30.0
_RECENT_SECONDS = 10.0
_DENIED_SECONDS = 300.0

V = TypeVar("V")


class Ec2:
    """The region of one driver. Safe for threads."""

    def __init__(self, settings: Settings, gateway: Gateway, clock: Callable[[], float]) -> None:
        self.settings = settings
        self.clock = clock
        self.lookups = Lookups(gateway, clock)
        self._gateway = gateway
        self._pacer = Pacer(rate=settings.mutations_per_second, burst=settings.mutation_burst, clock=clock)
        self._limits: Memory[str, tuple[int, bool]] = Memory()
        self._limits_denied = -_DENIED_SECONDS
        self._may_decode = threading.Event()
        self._may_decode.set()
        self.born = clock()
        """An attempt that nobody here knows of was made before this."""

    # --- looks --------------------------------------------------------------------------------------------------

    def volume(self, id_: str) -> VolumeSeen | None:
        """The volume as it is now; None if EC2 does not show it. Raises Later."""
        return _answered(self.lookups.volumes, id_)

    def recent(self, id_: str) -> VolumeSeen | None:
        """The volume as it was up to 10 s ago, if that is known: enough to try what EC2 itself refuses if it is wrong."""
        sighting = self.lookups.volumes.recall(id_, _RECENT_SECONDS)
        return sighting.value if sighting is not None else None

    def named(self, cluster: str, name: str) -> tuple[VolumeSeen, ...]:
        """Volumes that carry the name's tag, oldest first, without those that are going. Raises Later.

        That there is none may have been seen up to 30 s ago, unless `touched`: who waits for its turn to create need
        not look again before, and EC2 compares the token.
        """
        key = (cluster, name)
        known = self.lookups.names.recall(key, _NAME_SECONDS)
        if known is not None and not known.value:
            return ()
        return _staying(_answered(self.lookups.names, key))

    def named_now(self, cluster: str, name: str) -> tuple[VolumeSeen, ...]:
        """The same by a call of its own."""
        return _staying(self.lookups.names.ask_now((cluster, name)).value)

    def snapshots(self, cluster: str, name: str) -> tuple[SnapshotSeen, ...]:
        """Snapshots that carry the name's tag, oldest first. Raises Later."""
        return _answered(self.lookups.snapshots, (cluster, name)) or ()

    def instance(self, id_: str) -> InstanceSeen | None:
        """The instance as it was at most 30 s ago, unless `touched`. Raises Later."""
        return _answered(self.lookups.instances, id_, max_age=_INSTANCE_SECONDS)

    def modification(self, volume: str) -> ModificationSeen | None:
        """The volume's last change. Raises Later."""
        return _answered(self.lookups.modifications, volume)

    def attach_limit(self, kind: str) -> tuple[int, bool] | None:
        """How many volumes an instance of this type holds, and whether network interfaces count; None = unknown."""
        if self.settings.attach_limit:
            return self.settings.attach_limit, False
        known = self._limits.get(kind)
        if known is None and self.clock() - self._limits_denied >= _DENIED_SECONDS:
            try:
                shown = self._gateway.call(Call.DESCRIBE_INSTANCE_TYPES, InstanceTypes=[kind])["InstanceTypes"]
            except AwsRefusal:
                self._limits_denied = self.clock()
                return None
            info = shown[0].get("EbsInfo", {}) if shown else {}
            limit = info.get("MaximumEbsAttachments", 0)
            known = self._limits.put(kind, (limit, info.get("AttachmentLimitType") == "shared"))
        return known if known is not None and known[0] else None

    def read(self, call: Call, **parameters: Any) -> Mapping[str, Any]:
        """A Describe call of its own. Raises AwsRefusal."""
        return self._gateway.call(call, **parameters)

    # --- changes ------------------------------------------------------------------------------------------------

    def change(self, call: Call, key: str, turn: Turn, **parameters: Any) -> Mapping[str, Any]:
        """Make a change when its turn has come. key: what is changed. Raises Later, AwsRefusal."""
        turn.before_a_change()
        wait = self._pacer.wait(call, key)
        if wait > 0:
            raise Later(wait)
        try:
            result = self._gateway.call(call, **parameters)
        except AwsRefusal as refusal:
            if refusal.code in THROTTLED:
                self._pacer.throttled(call)
            raise
        self._pacer.went_through(call)
        return result

    @contextmanager
    def explained(self, doing: str) -> Iterator[None]:
        """Translate every refusal that leaves the block. doing: as in "make a volume for pvc-1"."""
        try:
            yield
        except AwsRefusal as refusal:
            raise translated(self.readable(refusal), doing) from refusal

    def readable(self, refusal: AwsRefusal) -> AwsRefusal:
        """The refusal with its encoded part decoded, or cut off where the driver may not have it decoded."""
        encoded = _ENCODED.search(refusal.message)
        if encoded is None:
            return refusal
        told = self._decoded(encoded[1])
        return AwsRefusal(refusal.call, refusal.code, _ENCODED.sub("", refusal.message).rstrip(" .") + told)

    def _decoded(self, encoded: str) -> str:
        if not self._may_decode.is_set():
            return ""
        try:
            answer = self._gateway.call(Call.DECODE_AUTHORIZATION_MESSAGE, EncodedMessage=encoded)
            context = json.loads(answer["DecodedMessage"])["context"]
            who = context.get("principal", {}).get("arn", "the driver")
            where = f" on {context['resource']}" if "resource" in context else ""
            return f": {who} may not {context['action']}{where}"
        except AwsRefusal:
            self._may_decode.clear()
        except (KeyError, ValueError, TypeError):
            pass
        return ""

    def close(self) -> None:
        """Close the connections."""
        self._gateway.close()


def _answered(board: Board[Any, V], key: Any, *, max_age: float | None = None) -> V | None:
    sighting = board.ask(key, max_age=max_age)
    if sighting is None:
        raise Later(board.come_back(key))
    return sighting.value


def _staying(seen: tuple[VolumeSeen, ...] | None) -> tuple[VolumeSeen, ...]:
    return tuple(volume for volume in seen or () if not volume.going)
