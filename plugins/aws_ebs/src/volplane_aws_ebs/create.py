"""The hook `provision`: find the volume by its tags, create it, wait until it is available.

What must survive the process is in EC2: tags and client tokens (Amazon EC2 Developer Guide, "Ensuring idempotency in
Amazon EC2 API requests"). The state of `InProgress` holds only what EC2 cannot tell: how many client tokens were used
up, and which zones had no capacity. The memory of the process only saves calls and keeps what is not yet certain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from volplane import (
    AlreadyExists,
    Asset,
    BackendError,
    InProgress,
    InvalidArgument,
    NotFound,
    Ownership,
    ProvisionRequest,
    ResourceExhausted,
    Unavailable,
    Unsupported,
)
from volplane.cloud import (
    TAGS,
    BoundedCache,
    HookCall,
    RetryLater,
    csi_source,
    refuse_other_zone,
    refuse_smaller,
    refuse_unusable,
    zones_for,
)
from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import Action, AwsError
from volplane_aws_ebs.ceilings import Ceilings
from volplane_aws_ebs.ec2 import SETTLE_SECONDS, Ec2
from volplane_aws_ebs.errors import outcome_unknown, volume_failed, volume_vanished
from volplane_aws_ebs.resources import Ec2Volume, asset_from, place, zone_parameter
from volplane_aws_ebs.settings import check_tag_count
from volplane_aws_ebs.snapshots import seen
from volplane_aws_ebs.state_waits import StateWaits
from volplane_aws_ebs.volume_spec import VolumeSpec

_FIRST_POLL = 1.25
_LONGEST_POLL_PAUSE = 10.0
_UNSEEN_SECONDS = 10.0
"""A created volume that EC2 does not show after this time is probably gone; it is certain after SETTLE_SECONDS."""
_LONGEST_PAUSE = 5.0
_MAX_CREATIONS = 20_000
_NO_COPIES = ("InvalidAction", "UnsupportedOperation")
"""Codes of CopyVolumes where there is no such action."""

Key = tuple[str, str, int]


def choose_zone(zones: Sequence[str], full: Iterable[str]) -> str:
    """Return the first zone that is not known to be full; the first of all if every one is."""
    known = set(full)
    return next((zone for zone in zones if zone not in known), zones[0])


@dataclass(slots=True)
class _Creation:
    """What this process knows of a volume that is being created. Times are seconds of the driver's clock."""

    uncertain_until: float
    """Before this, an empty Describe does not prove that there is no volume."""
    attempt: int = 0
    """Client tokens used up so far."""
    volume: str = ""
    """The id from EC2, "" while there is none."""
    spec: str = ""
    """Digest of the spec it was created for."""
    since: float = 0.0
    """When it was created or found."""
    shown: bool = False
    """A Describe call has shown it."""
    token_used_up: bool = False
    """The volume of the client token is proven to be gone, so the token is of no more use."""
    reported: bool = False
    """An error has reported that the volume is probably gone."""
    source: str = ""
    """What it is made from and its key, for messages."""
    token_refused: float | None = None
    """Since when EC2 refuses the client token."""


class Provisioner:
    """The hook `provision` of one driver. Safe for threads."""

    def __init__(self, ec2: Ec2, waits: StateWaits, ceilings: Ceilings) -> None:
        self._ec2 = ec2
        self._waits = waits
        self._ceilings = ceilings
        self._creations: BoundedCache[Key, _Creation] = BoundedCache(_MAX_CREATIONS)

    def provision(self, request: ProvisionRequest, call: HookCall, region: tuple[str, ...]) -> Asset | InProgress:
        """region: zones for volumes for which neither a node nor the class names one.

        Raises RetryLater, AwsError and the errors of the contract.
        """
        spec = VolumeSpec.of(request)
        check_tag_count(self._ec2.settings.tags, spec.parameters.tags.keys() | spec.mutable.tags.keys())
        zones = zones_for(request, self._ec2.settings.zone_label, region)
        creation = self._creation(request)
        creation.attempt = max(creation.attempt, _number(request.context.state.get("attempt")))
        if not creation.volume or creation.spec != spec.digest:
            found = self._existing(request)
            if found is None:
                return self._create(request, spec, creation, call, zones)
            self._refuse_other(request, spec, found, zones)
            creation.volume, creation.spec = found.id, spec.digest
            creation.since, creation.shown = self._ec2.clock(), True
        return self._wait(request, spec, creation, call)

    def volume_deleted(self, owner: Ownership) -> None:
        """Take the next client token at once: this driver has deleted the owner's volume."""
        known = self._creations.get(_key(owner))
        attempt = known.attempt if known is not None else 0
        self._creations.put(_key(owner), _Creation(uncertain_until=0.0, attempt=attempt, token_used_up=True))

    def _creation(self, request: ProvisionRequest) -> _Creation:
        return self._creations.setdefault(
            _key(request.owner), _Creation(uncertain_until=self._ec2.started_at + SETTLE_SECONDS)
        )

    def _existing(self, request: ProvisionRequest) -> Ec2Volume | None:
        named = self._ec2.volumes_named(request.owner.cluster_id, request.name)
        ours = [volume for volume in named if _generation(volume) == request.owner.generation]
        if not ours:
            return None
        usable = [volume for volume in ours if volume.state != "error"] or ours
        if len(usable) > 1:
            ids = ", ".join(volume.id for volume in usable)
            request.context.log.warning("several volumes are tagged as %s: %s; the oldest is used", request.name, ids)
        return usable[0]

    def _refuse_other(
        self, request: ProvisionRequest, spec: VolumeSpec, found: Ec2Volume, zones: tuple[str, ...]
    ) -> None:
        """Raise AlreadyExists unless the volume was created for this owner and an equal spec."""
        ownership_tags.refuse_foreign(found.id, found.tags, request.owner)
        recorded = ownership_tags.recorded_spec(found.tags)
        if recorded and recorded != spec.digest:
            raise AlreadyExists(f"{found.id} was made for {request.name} by another demand: {spec.difference(found)}")
        zone = place(self._ec2.settings, found)
        if zone not in zones:
            raise AlreadyExists(
                f"{found.id} was made for {request.name} in zone {zone}, but {', '.join(zones)} is asked for"
            )

    def _create(
        self, request: ProvisionRequest, spec: VolumeSpec, creation: _Creation, call: HookCall, zones: tuple[str, ...]
    ) -> InProgress:
        """Call CreateVolume. Raises RetryLater for the first look at the volume."""
        if creation.token_used_up:
            return self._next_attempt(request, creation)
        try:
            zones = self._zones_of_source(request, spec, creation, zones)
        except BackendError as failure:
            failure.nothing_done = self._ec2.clock() >= creation.uncertain_until
            raise
        zone = choose_zone(zones, _texts(request.context.state.get("full")))
        wanted = spec.create_volume_parameters()
        if spec.iops is not None:
            wanted["Iops"] = self._ceilings.capped(spec.parameters.volume_type, zone, spec.iops, call)
        where = {} if spec.copied else zone_parameter(self._ec2.settings, zone)
        try:
            answer = self._ec2.change(
                Action.COPY_VOLUMES if spec.copied else Action.CREATE_VOLUME,
                request.name,
                call,
                ClientToken=ownership_tags.client_token(request.owner, creation.attempt),
                TagSpecifications=ownership_tags.tag_specifications("volume", self._tags(request, spec)),
                **where,
                **wanted,
            )
        except AwsError as error:
            if spec.copied and error.code in _NO_COPIES:
                raise Unsupported(
                    f"EC2 copies no volumes in {self._ec2.settings.region} ({error.message.rstrip('.')}): make a "
                    "VolumeSnapshot, and a volume from that",
                    code=error.code,
                ) from error
            return self._create_failed(request, creation, error, zone, zones)
        created = Ec2Volume.of(answer["Volumes"][0] if spec.copied else answer)
        creation.volume, creation.spec, creation.since = created.id, spec.digest, self._ec2.clock()
        creation.shown, creation.reported, creation.token_refused = False, False, None
        self._ec2.batches.volumes.invalidate(created.id)
        self._ec2.batches.names.invalidate((request.owner.cluster_id, request.name))
        raise RetryLater(self._ec2.batches.volumes.next_poll(created.id, after=_FIRST_POLL))

    def _zones_of_source(
        self, request: ProvisionRequest, spec: VolumeSpec, creation: _Creation, zones: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Return the zones in which the volume can be made: of a copy, or of a local snapshot, that of its source.

        Raises RetryLater, too, and unless the snapshot or volume that it is made from, if any, can be used now.
        """
        if spec.snapshot is not None:
            found = self._ec2.snapshot(spec.snapshot)
            shown = seen(self._ec2.settings, found, request.context) if found is not None else None
            refuse_unusable(shown, spec.snapshot, spec.size)
            if found is not None:
                spec.refuse_source(found)
                creation.source = f"{found.id}, under KMS key {found.kms_key}" if found.kms_key else ""
                if found.zone and not self._ec2.settings.zone_ids:
                    refuse_other_zone(found.id, found.zone, zones, selected=request.segment is not None)
                    return (found.zone,)
        if spec.copied is None:
            return zones
        source = self._ec2.volume(spec.copied)
        if source is None or source.being_deleted:
            raise NotFound(
                f"volume {spec.copied}, which is to be copied, does not exist (any more)", code="InvalidVolume.NotFound"
            )
        if request.source_asset is not None and request.source_asset.owner is not None:
            ownership_tags.refuse_foreign(source.id, source.tags, request.source_asset.owner)
        if source.state not in ("available", "in-use"):
            raise Unavailable(f"volume {source.id} is {source.state}: it is copied when it is available")
        refuse_smaller(source.id, source.size, spec.size)
        spec.refuse_source(source)
        zone = place(self._ec2.settings, source)
        refuse_other_zone(source.id, zone, zones, selected=request.segment is not None)
        creation.source = f"{source.id}, under KMS key {source.kms_key}" if source.kms_key else ""
        return (zone,)

    def _tags(self, request: ProvisionRequest, spec: VolumeSpec) -> dict[str, str]:
        claim, parameters = request.claim, spec.parameters
        names = {"namespace": claim.namespace, "claim": claim.name, "volume": request.name}
        tags = {
            "Name": request.name,
            **self._ec2.settings.tags,
            **parameters.tags.rendered(**names),
            **spec.mutable.tags.rendered(**names),
            **ownership_tags.volume_tags(request.owner, claim, spec=spec.digest),
            **TAGS.of_term(request.context),
        }
        # That of the class stays even where another class gives the IOPS, as in the official driver.
        if per_gib := parameters.iops_per_gib or request.parameters.get("iopsPerGB"):
            tags[ownership_tags.IOPS_PER_GIB] = str(per_gib)
        if parameters.increase_on_modify:
            tags[ownership_tags.RAISE_ON_MODIFY] = "true"
        return tags

    def _create_failed(
        self, request: ProvisionRequest, creation: _Creation, error: AwsError, zone: str, zones: tuple[str, ...]
    ) -> InProgress:
        now = self._ec2.clock()
        self._ec2.batches.names.invalidate((request.owner.cluster_id, request.name))
        if outcome_unknown(error):
            creation.uncertain_until = max(creation.uncertain_until, now + SETTLE_SECONDS)
        if error.code == "IdempotentParameterMismatch":
            return self._token_refused(request, creation, now)
        doing = f"make a volume for {request.name} in zone {zone}"
        failure = self._ec2.backend_error(error, doing)
        settled = now >= creation.uncertain_until
        if settled and isinstance(failure, InvalidArgument):
            failure.nothing_done = True  # Nor has an earlier call made anything.
        if settled and isinstance(failure, ResourceExhausted) and failure.reschedule:
            failure.nothing_done = True
            full = {*_texts(request.context.state.get("full")), zone}
            if any(other not in full for other in zones):
                request.context.log.warning("%s; another zone is tried", failure)
                return InProgress(retry_after=0.0, state=_state(creation.attempt, full))
        raise failure

    def _token_refused(self, request: ProvisionRequest, creation: _Creation, now: float) -> InProgress:
        """EC2 refuses the client token and shows no volume: it was used for another spec, or its volume is gone.

        After SETTLE_SECONDS an existing volume would be visible: then it is gone, and another token may be used.
        """
        if creation.token_refused is None:
            creation.token_refused = now
        left = max(creation.token_refused + SETTLE_SECONDS, creation.uncertain_until) - now
        if left > 0:
            raise RetryLater(min(left, _LONGEST_PAUSE))
        return self._next_attempt(request, creation)

    def _next_attempt(self, request: ProvisionRequest, creation: _Creation) -> InProgress:
        """Choose the next client token; its number is saved in the state before it is used."""
        creation.token_used_up, creation.token_refused = False, None
        creation.attempt += 1
        return InProgress(retry_after=0.0, state=_state(creation.attempt, _texts(request.context.state.get("full"))))

    # --- waiting until it is available --------------------------------------------------------------------------

    def _wait(
        self, request: ProvisionRequest, spec: VolumeSpec, creation: _Creation, call: HookCall
    ) -> Asset | InProgress:
        id_, age = creation.volume, self._ec2.clock() - creation.since
        volume = self._ec2.volume(id_)
        if volume is None:
            if creation.shown or age > SETTLE_SECONDS:
                return self._gone(request, creation, self._vanished(spec, creation))
            if age > _UNSEEN_SECONDS and not creation.reported:
                creation.reported = True
                raise self._vanished(spec, creation)
            raise RetryLater(self._ec2.batches.volumes.next_poll(id_, after=_pause(age)))
        creation.shown = True
        if volume.being_deleted:
            creation.volume, creation.shown, creation.token_used_up = "", False, True
            raise Unavailable(
                f"{id_}, made for {request.name}, is being deleted by another client; another volume is made",
                retry_after=1.0,
            )
        if volume.state == "creating":
            self._waits.creating(volume, after=_pause(age))
        if volume.state == "error":
            self._ec2.change(Action.DELETE_VOLUME, id_, call, VolumeId=id_)
            return self._gone(request, creation, volume_failed(id_, spec.parameters.kms_key, creation.attempt))
        self._creations.drop(_key(request.owner))
        source = csi_source(self._ec2.settings, id_, request.volume_mode, spec.parameters.fs_type)
        return asset_from(self._ec2.settings, volume, source, driver=request.context.driver, attributes=spec.attributes)

    @staticmethod
    def _vanished(spec: VolumeSpec, creation: _Creation) -> BackendError:
        return volume_vanished(creation.volume, spec.parameters.kms_key, creation.attempt, source=creation.source)

    def _gone(self, request: ProvisionRequest, creation: _Creation, error: BackendError) -> InProgress:
        """Raise once that the volume is gone for certain, then use the next client token."""
        id_, creation.volume, creation.shown, creation.token_used_up = creation.volume, "", False, True
        self._ec2.batches.expect_missing(id_)
        if creation.reported:
            return self._next_attempt(request, creation)
        raise error


def _key(owner: Ownership) -> Key:
    return (owner.cluster_id, owner.volume_name, owner.generation)


def _pause(age: float) -> float:
    return min(max(age / 4, 0.0), _LONGEST_POLL_PAUSE)


def _generation(volume: Ec2Volume) -> int:
    owner = ownership_tags.owner_of(volume.tags)
    return owner.generation if owner is not None else 0


def _state(attempt: int, full: set[str] | tuple[str, ...]) -> Mapping[str, Any]:
    state: dict[str, Any] = {"attempt": attempt} if attempt else {}
    return {**state, "full": sorted(full)} if full else state


def _number(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(each) for each in value) if isinstance(value, list | tuple) else ()
