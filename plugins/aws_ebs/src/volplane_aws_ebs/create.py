"""CreateVolume: find the volume by its tags, create it, wait until it is available."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from volplane import (
    AlreadyExists,
    Asset,
    InProgress,
    InvalidArgument,
    Ownership,
    ProvisionRequest,
    ResourceExhausted,
    Unavailable,
)
from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import AwsRefusal, Call
from volplane_aws_ebs.ec2 import SETTLE_SECONDS, Ec2
from volplane_aws_ebs.errors import leaves_doubt, translated, vanished
from volplane_aws_ebs.hook_calls import Later, Memory, Turn, fence_of
from volplane_aws_ebs.parameters import Demand, rendered_tags
from volplane_aws_ebs.resources import VolumeSeen, asset_of, new_source

__all__ = ["Provisioning", "legal_zones", "zone_for"]


def legal_zones(request: ProvisionRequest, label: str, region: Sequence[str]) -> tuple[str, ...]:
    """The zones the volume may be in, the preferred first: the chosen one, else the allowed ones, else the region's.

    Which of several comes first is decided by the claim alone, so that it is the same in every try and every process.
    """
    if request.segment is not None:
        return (_zone_of(request.segment.get(label), label),)
    allowed = [_zone_of(segment.get(label), label) for segment in request.allowed_segments]
    zones = allowed or list(region)
    if not zones:
        raise InvalidArgument("the region has no availability zone for volumes; look at the option zones")
    return tuple(sorted(set(zones), key=lambda zone: hashlib.sha256(f"{request.claim.uid}\0{zone}".encode()).digest()))


def _zone_of(zone: str | None, label: str) -> str:
    if not zone:
        raise InvalidArgument(f"the place chosen for the volume has no {label}: nodes and the class's topology need it")
    return zone


def zone_for(zones: Sequence[str], full: Iterable[str]) -> str:
    """The first zone that is not known to be full; the first of all when every one is."""
    known = set(full)
    return next((zone for zone in zones if zone not in known), zones[0])


_FIRST_LOOK = 1.25
_SLOWEST_LOOK = 10.0
_UNSEEN_SECONDS = 10.0
"""A volume that CreateVolume named and that is not shown after this is probably gone; that is proven only later."""
_LONGEST_BREAK = 5.0
_MOST_MAKINGS = 20_000

Key = tuple[str, str, int]


@dataclass(slots=True)
class _Making:
    """What this process knows of an asset in the making.

    volume: the id that EC2 gave it, "" while there is none. mark: of the demand it was made for. since: when it did. seen: a look has shown it. burnt: the
    token's volume is proven to be gone. told: that it probably is. refused: since when EC2 refuses the token. doubt: until
    when absence is no proof.
    """

    doubt: float
    attempt: int = 0
    volume: str = ""
    mark: str = ""
    since: float = 0.0
    seen: bool = False
    burnt: bool = False
    told: bool = False
    refused: float | None = None


class Provisioning:
    """The hook `provision` of one driver. Safe for threads."""

    def __init__(self, ec2: Ec2) -> None:
        self._ec2 = ec2
        self._makings: Memory[Key, _Making] = Memory(_MOST_MAKINGS)

    def provision(self, request: ProvisionRequest, turn: Turn, region: tuple[str, ...]) -> Asset | InProgress:
        """region: zones for volumes whose place nobody chose. Raises Later, AwsRefusal and the errors of the contract."""
        demand = Demand.of(request)
        zones = legal_zones(request, self._ec2.settings.zone_label, region)
        state = request.context.state
        making = self._making(request)
        making.attempt = max(making.attempt, _number(state.get("attempt")))
        if not making.volume or making.mark != demand.mark:
            found = self._existing(request)
            if found is None:
                return self._create(request, demand, making, turn, zones)
            self._refuse_other(request, demand, found, zones)
            making.volume, making.mark, making.since, making.seen = found.id, demand.mark, self._ec2.clock(), True
        return self._watch(request, demand, making, turn)

    def proven_gone(self, owner: Ownership) -> None:
        """The owner's volume was deleted: its token is burnt, and another one may be used at once."""
        known = self._makings.get(_key(owner))
        attempt = known.attempt if known is not None else 0
        self._makings.put(_key(owner), _Making(doubt=0.0, attempt=attempt, burnt=True))

    def _making(self, request: ProvisionRequest) -> _Making:
        return self._makings.setdefault(_key(request.owner), _Making(doubt=self._ec2.born + SETTLE_SECONDS))

    # --- what is there already ----------------------------------------------------------------------------------

    def _existing(self, request: ProvisionRequest) -> VolumeSeen | None:
        seen = self._ec2.named(request.owner.cluster_id, request.name)
        ours = [volume for volume in seen if _generation(volume) == request.owner.generation]
        if not ours:
            return None
        usable = [volume for volume in ours if volume.state != "error"] or ours
        if len(usable) > 1:
            ids = ", ".join(volume.id for volume in usable)
            request.context.log.warning("several volumes are marked as %s: %s; the oldest is used", request.name, ids)
        return usable[0]

    def _refuse_other(
        self, request: ProvisionRequest, demand: Demand, found: VolumeSeen, zones: tuple[str, ...]
    ) -> None:
        ownership_tags.refuse_foreign(found.id, found.tags, request.owner)
        mark = ownership_tags.demand_mark(found.tags)
        if mark and mark != demand.mark:
            raise AlreadyExists(f"{found.id} was made for {request.name} by another demand: {demand.difference(found)}")
        if found.zone not in zones:
            raise AlreadyExists(
                f"{found.id} was made for {request.name} in zone {found.zone}, but {', '.join(zones)} is asked for"
            )

    # --- creating -----------------------------------------------------------------------------------------------

    def _create(
        self, request: ProvisionRequest, demand: Demand, making: _Making, turn: Turn, zones: tuple[str, ...]
    ) -> Asset | InProgress:
        if making.burnt:
            return self._next_attempt(request, making)
        zone = zone_for(zones, _texts(request.context.state.get("full")))
        tags = {
            **self._ec2.settings.tags,
            **rendered_tags(demand.shape.tags, request.claim, request.name),
            **ownership_tags.volume_tags(
                request.owner, request.claim, demand=demand.mark, fence=fence_of(request.context)
            ),
        }
        if demand.shape.iops_per_gib is not None:
            tags[ownership_tags.IOPS_PER_GIB] = str(demand.shape.iops_per_gib)
        try:
            answer = self._ec2.change(
                Call.CREATE_VOLUME,
                request.name,
                turn,
                AvailabilityZone=zone,
                ClientToken=ownership_tags.client_token(request.owner, making.attempt),
                TagSpecifications=[
                    {"ResourceType": "volume", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
                ],
                **demand.call(),
            )
        except AwsRefusal as refusal:
            return self._refused(request, making, refusal, zone, zones)
        made = VolumeSeen.of(answer)
        making.volume, making.mark, making.since = made.id, demand.mark, self._ec2.clock()
        making.seen, making.told, making.refused = False, False, None
        self._ec2.lookups.volumes.touched(made.id)
        self._ec2.lookups.names.touched((request.owner.cluster_id, request.name))
        raise Later(self._ec2.lookups.volumes.come_back(made.id, after=_FIRST_LOOK))

    def _refused(
        self, request: ProvisionRequest, making: _Making, refusal: AwsRefusal, zone: str, zones: tuple[str, ...]
    ) -> InProgress:
        now = self._ec2.clock()
        self._ec2.lookups.names.touched((request.owner.cluster_id, request.name))
        if leaves_doubt(refusal):
            making.doubt = max(making.doubt, now + SETTLE_SECONDS)
        if refusal.code == "IdempotentParameterMismatch":
            return self._token_refused(request, making, now)
        if refusal.code == "IncorrectState" and "snapshot" in refusal.message.lower():
            raise Later(_LONGEST_BREAK)  # The snapshot is not complete yet.
        error = translated(self._ec2.readable(refusal), f"make a volume for {request.name} in zone {zone}")
        if isinstance(error, ResourceExhausted) and error.reschedule and now >= making.doubt:
            error.nothing_done = True
            full = {*_texts(request.context.state.get("full")), zone}
            if any(other not in full for other in zones):
                request.context.log.warning("%s; another zone is tried", error)
                return InProgress(retry_after=0.0, state=_state(making.attempt, full))
        raise error

    def _token_refused(self, request: ProvisionRequest, making: _Making, now: float) -> InProgress:
        """The token stands for a volume of another demand or for one that is gone, and no look shows one.

        Once such a volume would have to be visible, it is gone for sure: another token may be used.
        """
        if making.refused is None:
            making.refused = now
        left = max(making.refused + SETTLE_SECONDS, making.doubt) - now
        if left > 0:
            raise Later(min(left, _LONGEST_BREAK))
        return self._next_attempt(request, making)

    def _next_attempt(self, request: ProvisionRequest, making: _Making) -> InProgress:
        """Another token, written down before it is used."""
        making.burnt, making.refused = False, None
        making.attempt += 1
        return InProgress(retry_after=0.0, state=_state(making.attempt, _texts(request.context.state.get("full"))))

    # --- watching -----------------------------------------------------------------------------------------------

    def _watch(self, request: ProvisionRequest, demand: Demand, making: _Making, turn: Turn) -> Asset | InProgress:
        id_, age = making.volume, self._ec2.clock() - making.since
        seen = self._ec2.volume(id_)
        if seen is None:
            if making.seen or age > SETTLE_SECONDS:
                return self._lost(request, demand, making)
            if age > _UNSEEN_SECONDS and not making.told:
                making.told = True
                raise vanished(id_, demand.shape.kms_key, making.attempt)
            raise Later(self._ec2.lookups.volumes.come_back(id_, after=_pause(age)))
        making.seen = True
        if seen.going:
            making.volume, making.seen, making.burnt = "", False, True
            raise Unavailable(
                f"{id_}, made for {request.name}, is being deleted by somebody else; another volume is made",
                retry_after=1.0,
            )
        if seen.state == "creating":
            raise Later(self._ec2.lookups.volumes.come_back(id_, after=_pause(age)))
        if seen.state == "error":
            self._ec2.change(Call.DELETE_VOLUME, id_, turn, VolumeId=id_)
            return self._lost(request, demand, making)
        self._makings.drop(_key(request.owner))
        source = new_source(self._ec2.settings, id_, request.volume_mode, demand.shape.fs_type)
        return asset_of(self._ec2.settings, seen, source, driver=request.context.driver)

    def _lost(self, request: ProvisionRequest, demand: Demand, making: _Making) -> InProgress:
        """It is gone for good: another token may be used, once a person has been told."""
        id_, making.volume, making.seen, making.burnt = making.volume, "", False, True
        self._ec2.lookups.expect_gone(id_)
        if making.told:
            return self._next_attempt(request, making)
        raise vanished(id_, demand.shape.kms_key, making.attempt)


def _key(owner: Ownership) -> Key:
    return (owner.cluster_id, owner.volume_name, owner.generation)


def _pause(age: float) -> float:
    return min(max(age / 4, 0.0), _SLOWEST_LOOK)


def _generation(seen: VolumeSeen) -> int:
    owner = ownership_tags.owner_of(seen.tags)
    return owner.generation if owner is not None else 0


def _state(attempt: int, full: set[str] | tuple[str, ...]) -> Mapping[str, Any]:
    state: dict[str, Any] = {"attempt": attempt} if attempt else {}
    return {**state, "full": sorted(full)} if full else state


def _number(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(each) for each in value) if isinstance(value, list | tuple) else ()
