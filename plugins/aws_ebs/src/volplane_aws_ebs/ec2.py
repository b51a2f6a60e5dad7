"""EC2 as the operations use it: batched reads, rate-limited changes, errors with readable messages."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

from volplane import BackendError
from volplane.cloud import BoundedCache, CloudError, HookCall, RateLimiter, RetryLater
from volplane_aws_ebs.api import Action, AwsClient, AwsError
from volplane_aws_ebs.batching import DescribeBatches
from volplane_aws_ebs.errors import refusal, to_backend_error
from volplane_aws_ebs.resources import Ec2Instance, Ec2Snapshot, Ec2Volume, InstanceLimits, VolumeModification
from volplane_aws_ebs.settings import Settings

SETTLE_SECONDS = 60.0
"""After this time a change is visible to Describe calls or was never made.

It covers eventual consistency (Amazon EC2 Developer Guide, "Eventual consistency in the Amazon EC2 API") and the
longest call of the SDK.
"""
_ENCODED_MESSAGE = re.compile(r"\s*Encoded authorization failure message: (\S+)")
_INSTANCE_MAX_AGE = 30.0
_NO_SUCH_NAME_MAX_AGE = 30.0
_LONG_QUEUE = 2.0
"""Where calls wait longer than this for their rate, a later look at volumes delays nothing, and is shared by more."""
_LONGEST_PATIENCE = 4.0
_RECENT_MAX_AGE = 10.0
_MODIFICATION_MAX_AGE = 2.0
_SNAPSHOT_MAX_AGE = 2.5
_LIMITS_DENIED_SECONDS = 300.0
"""After a failed DescribeInstanceTypes, the type is not asked for again for this long."""


class Ec2:
    """One region of one account, for one driver. Safe for threads."""

    def __init__(self, settings: Settings, client: AwsClient, clock: Callable[[], float]) -> None:
        """clock: seconds, never going back."""
        self.settings = settings
        self.clock = clock
        self.batches = DescribeBatches(client, clock)
        self._client = client
        self._rate_limiter = RateLimiter(rate=settings.mutations_per_second, burst=settings.mutation_burst, clock=clock)
        self._limits: BoundedCache[str, InstanceLimits] = BoundedCache()
        self._limits_denied: BoundedCache[str, float] = BoundedCache()
        """By type: until when no DescribeInstanceTypes is tried again."""
        self._may_decode = threading.Event()
        self._may_decode.set()
        self.started_at = clock()
        """Start of this process: attempts that it does not know of were made before."""

    # --- reads --------------------------------------------------------------------------------------------------

    def volume(self, id_: str) -> Ec2Volume | None:
        """Return the volume as it is now; None if EC2 does not show it. Raises RetryLater."""
        return self.batches.volumes.current(id_)

    def recent_volume(self, id_: str) -> Ec2Volume | None:
        """Return the volume as it was at most 10 s ago, if that is known.

        Enough before a change that EC2 refuses if the volume's state is another one by now.
        """
        observation = self.batches.volumes.cached(id_, _RECENT_MAX_AGE)
        return observation.value if observation is not None else None

    def volumes_named(self, cluster: str, name: str) -> tuple[Ec2Volume, ...]:
        """Return the volumes with these tags, oldest first, without those that are being deleted. Raises RetryLater.

        An empty result may be up to 30 s old, unless the name was invalidated. That is safe before CreateVolume,
        whose client token makes it idempotent. While CreateVolume has to wait for its rate, few calls look up many.
        """
        key = (cluster, name)
        known = self.batches.names.cached(key, _NO_SUCH_NAME_MAX_AGE)
        if known is not None and not known.value:
            return ()
        queue = self._rate_limiter.queue_seconds(Action.CREATE_VOLUME) if known is None else 0.0
        return _not_deleting(self.batches.names.current(key, patience=min(queue, _LONGEST_PATIENCE)))

    def volumes_named_now(self, cluster: str, name: str) -> tuple[Ec2Volume, ...]:
        """Return what `volumes_named` returns, by a call of its own that begins now."""
        return _not_deleting(self.batches.names.fetch_now((cluster, name)).value)

    def snapshots_named(self, cluster: str, name: str) -> tuple[Ec2Snapshot, ...]:
        """Return the snapshots with these tags, oldest first. Raises RetryLater."""
        return self.batches.snapshot_names.current((cluster, name)) or ()

    def snapshots_named_now(self, cluster: str, name: str) -> tuple[Ec2Snapshot, ...]:
        """Return the same by a call that begins now."""
        return self.batches.snapshot_names.fetch_now((cluster, name)).value or ()

    def snapshot(self, id_: str) -> Ec2Snapshot | None:
        """Return the snapshot as it was some seconds ago at most; None if EC2 does not show it."""
        return self.batches.snapshots.observe(id_, max_age=_SNAPSHOT_MAX_AGE).value

    def instance(self, id_: str) -> Ec2Instance | None:
        """Return the instance as it was at most 30 s ago, or since it was invalidated. Raises RetryLater."""
        return self.batches.instances.current(id_, max_age=_INSTANCE_MAX_AGE)

    def modification(self, volume: str) -> VolumeModification | None:
        """Return the last modification of the volume, as it was at most 2 s ago; None if there never was one.

        Whoever waits for it looks at the volume too, and must not lose one look while it waits for the other. Raises
        RetryLater.
        """
        return self.batches.modifications.current(volume, max_age=_MODIFICATION_MAX_AGE)

    def limits(self, instance_type: str) -> InstanceLimits:
        """Return what such an instance can hold; after a failed call it is unknown for a while, unless it is known."""
        known = self._limits.get(instance_type)
        if known is None and self.clock() >= (self._limits_denied.get(instance_type) or 0.0):
            try:
                types = self._client.call(Action.DESCRIBE_INSTANCE_TYPES, InstanceTypes=[instance_type])[
                    "InstanceTypes"
                ]
                known = self._limits.put(instance_type, InstanceLimits.of(types[0] if types else {}))
            except AwsError:
                self._limits_denied.put(instance_type, self.clock() + _LIMITS_DENIED_SECONDS)
        limits = known or InstanceLimits()
        if self.settings.attach_limit:
            return replace(limits, attachments=self.settings.attach_limit, shared=False)
        return limits

    def read(self, action: Action, **parameters: Any) -> Mapping[str, Any]:
        """Make a Describe call that is not batched. Raises AwsError."""
        return self._client.call(action, **parameters)

    # --- changes ------------------------------------------------------------------------------------------------

    def change(
        self, action: Action, key: str, call: HookCall, *, resource: Hashable = None, **parameters: Any
    ) -> Mapping[str, Any]:
        """Make a mutating call once the rate limit allows it. key: what is changed. resource: of what EC2 counts the
        changes, None = of what is changed.

        Raises RetryLater, AwsError, and `Unavailable` if the hook call was cancelled.
        """
        try:
            return self._rate_limiter.make(
                action,
                key,
                call,
                lambda: self._client.call(action, **parameters),
                refusal=refusal,
                resource=resource,
            )
        except RetryLater as retry:
            if retry.seconds > _LONG_QUEUE:
                self.batches.volumes.relax(retry.seconds)
            raise

    # --- errors -------------------------------------------------------------------------------------------------

    def backend_error(self, error: CloudError, doing: str) -> BackendError:
        """Return the error of the contract. doing: as in "make a volume for pvc-1".

        An encoded authorization message is decoded, or removed if the driver may not decode it.
        """
        encoded = _ENCODED_MESSAGE.search(error.message)
        if encoded is None:
            return to_backend_error(error, doing)
        reason = self._decoded_message(encoded[1])
        message = _ENCODED_MESSAGE.sub("", error.message).rstrip(" .") + reason
        return to_backend_error(CloudError(error.call, error.code, message), doing)

    def _decoded_message(self, encoded: str) -> str:
        if not self._may_decode.is_set():
            return ""
        try:
            answer = self._client.call(Action.DECODE_AUTHORIZATION_MESSAGE, EncodedMessage=encoded)
            context = json.loads(answer["DecodedMessage"])["context"]
            who = context.get("principal", {}).get("arn", "the driver")
            where = f" on {context['resource']}" if "resource" in context else ""
            return f": {who} may not {context['action']}{where}"
        except AwsError:
            self._may_decode.clear()
        except (KeyError, ValueError, TypeError):
            pass
        return ""

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _not_deleting(volumes: tuple[Ec2Volume, ...] | None) -> tuple[Ec2Volume, ...]:
    return tuple(volume for volume in volumes or () if not volume.being_deleted)
