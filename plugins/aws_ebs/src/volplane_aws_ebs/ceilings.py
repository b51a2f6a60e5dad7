"""How many IOPS a zone gives to a volume at most, where that is not the same everywhere.

EC2 says so only in its refusals. So it is asked by a dry run for more than any zone has, as the official driver does
(kubernetes-sigs/aws-ebs-csi-driver, pkg/cloud/cloud.go, getVolumeLimits).
"""

from __future__ import annotations

import re
from typing import Final

from volplane.cloud import BoundedCache, HookCall
from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import Action, AwsError
from volplane_aws_ebs.ec2 import Ec2
from volplane_aws_ebs.errors import THROTTLED
from volplane_aws_ebs.resources import zone_parameter
from volplane_aws_ebs.volume_types import VOLUME_TYPES

_KNOWN_SECONDS: Final = 12 * 3_600.0
_UNKNOWN_SECONDS: Final = 600.0
_TOO_MANY: Final = 2**31 - 1
_SIZE: Final = 4
_MAXIMUM: Final = re.compile(r"volume iops.*is too high.*maximum is (\d+)", re.IGNORECASE | re.DOTALL)
_THOUSANDS: Final = re.compile(r"(\d+)K IOPS", re.IGNORECASE)
"""EC2's two ways to say it, for gp3 and io1, and for io2."""


class Ceilings:
    """The ceilings of the region's zones, each remembered for twelve hours. Safe for threads."""

    def __init__(self, ec2: Ec2) -> None:
        self._ec2 = ec2
        self._known: BoundedCache[tuple[str, str], tuple[float, int | None]] = BoundedCache()

    def capped(self, volume_type: str, zone: str, iops: int, call: HookCall) -> int:
        """Return the IOPS, or as many as the zone gives. Where EC2 does not say, it decides when the volume is made.

        Raises RetryLater, and AwsError when EC2 throttles.
        """
        kind = VOLUME_TYPES.get(volume_type)
        if kind is None or iops <= kind.iops_everywhere:
            return iops
        return min(iops, self._ceiling(volume_type, zone, call) or iops)

    def _ceiling(self, volume_type: str, zone: str, call: HookCall) -> int | None:
        key, now = (volume_type, zone), self._ec2.clock()
        known = self._known.get(key)
        if known is not None and now < known[0]:
            return known[1]
        ceiling = self._asked(volume_type, zone, call)
        self._known.put(key, (now + (_KNOWN_SECONDS if ceiling is not None else _UNKNOWN_SECONDS), ceiling))
        return ceiling

    def _asked(self, volume_type: str, zone: str, call: HookCall) -> int | None:
        tags = {ownership_tags.CLUSTER: call.context.cluster_id}
        try:
            self._ec2.change(
                Action.CREATE_VOLUME,
                f"ceiling {volume_type} {zone}",
                call,
                DryRun=True,
                VolumeType=volume_type,
                Size=_SIZE,
                Iops=_TOO_MANY,
                TagSpecifications=ownership_tags.tag_specifications("volume", tags),
                **zone_parameter(self._ec2.settings, zone),
            )
        except AwsError as error:
            if error.code in THROTTLED:
                raise
            found = _MAXIMUM.search(error.message)
            thousands = _THOUSANDS.search(error.message)
            return int(found[1]) if found else int(thousands[1]) * 1_000 if thousands else None
        return None
