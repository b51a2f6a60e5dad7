"""The options of a driver, which the operator sets."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from volplane import InvalidArgument, Param, Secret
from volplane.cloud import AccountOptions, CsiDriverName, DiskOptions, SecretKey
from volplane_aws_ebs.ownership_tags import MOST_TAGS, OWN_TAGS, RESERVED_PREFIXES

CSI_DRIVER = "ebs.csi.aws.com"
ZONE_LABEL = "topology.kubernetes.io/zone"
EBS_ZONE_LABEL = "topology.ebs.csi.aws.com/zone"
ZONE_ID_LABEL = "topology.k8s.aws/zone-id"
_URL = r"(https?://[^\s?#]+)?"
_ROLE = r"arn:[^\s]+:role/[^\s]+"
_MAX_EXTRA_TAGS = 30


@dataclass(frozen=True, kw_only=True)
class Settings(AccountOptions, DiskOptions):
    """The options of a driver."""

    zones: Annotated[
        tuple[str, ...],
        Param(
            "Zones for volumes that have no chosen place (volumeBindingMode Immediate without allowedTopologies), "
            "local zones too; empty = all availability zones of the region. Of these it takes one in which a node is, "
            "if there is any. Ids such as euc1-az1 where zone_label holds ids."
        ),
    ] = ()
    access_key_id: Annotated[
        Secret | None,
        Param(
            "Access key instead of the default chain of credentials (environment, web identity, pod identity, "
            "shared files, instance profile), which is the better choice where it works: its keys expire. "
            "Together with secret_access_key."
        ),
    ] = None
    secret_access_key: Annotated[
        Secret | None,
        Param("What belongs to access_key_id. Both are read again for every call, so changed ones are used at once."),
    ] = None
    session_token: Annotated[Secret | None, Param("What belongs to access_key_id if it is temporary.")] = None
    role_arn: Annotated[
        str,
        Param("Role to assume with those credentials; empty = use them as they are.", pattern=rf"({_ROLE})?"),
    ] = ""
    role_external_id: Annotated[str, Param("External id that the role's trust policy asks for.")] = field(
        default="", repr=False
    )
    role_session_name: Annotated[
        str, Param("Under which name the role's calls appear in the audit log.", pattern=r"[\w+=,.@-]{2,64}")
    ] = "volplane"
    sts_endpoint: Annotated[str, Param("URL of the STS API instead of the region's own.", pattern=_URL)] = ""
    class_roles: Annotated[
        Mapping[str, str],
        Param(
            "Roles that classes may name by roleArn, each with the external id that its trust policy asks for, or an "
            "empty text. They are assumed with the driver's own credentials, under role_session_name."
        ),
    ] = field(default_factory=dict, repr=False)
    csi_driver_name: CsiDriverName = CSI_DRIVER
    zone_label: Annotated[
        str,
        Param(
            "Node label that holds the zone, and key of the volumes' node affinity. The last one holds the zone's "
            "id, which names the same place in every account.",
            choices=(ZONE_LABEL, EBS_ZONE_LABEL, ZONE_ID_LABEL),
        ),
    ] = ZONE_LABEL
    tags: Annotated[Mapping[str, str], Param("Tags for everything that is made, beside volplane's own.")] = field(
        default_factory=dict
    )
    mutations_per_second: Annotated[
        int,
        Param(
            "Calls a second of each kind that changes something (CreateVolume, AttachVolume, …), 5 being what EC2 "
            "grants unless an account asked for more. Lowered for a while when EC2 throttles all the same.",
            minimum=1,
            maximum=1_000,
        ),
    ] = 5
    mutation_burst: Annotated[
        int,
        Param(
            "How many of these calls may come at once after a pause. EC2 grants 50; a few less, because calls do "
            "not arrive as evenly as they are sent.",
            minimum=1,
            maximum=10_000,
        ),
    ] = 40
    reserved_attachments: Annotated[
        int,
        Param(
            "How many attachments of each node are left free, for what others attach there; without effect on "
            "attach_limit.",
            minimum=0,
            maximum=1_000,
        ),
    ] = 0

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` naming the key, the value and what would be right."""
        super().__post_init__()
        if self.access_key_id is None and (self.secret_access_key or self.session_token) is not None:
            given = "session_token" if self.secret_access_key is None else "secret_access_key"
            raise InvalidArgument(f"option access_key_id is missing; it belongs to {given}")
        if self.access_key_id is not None and self.secret_access_key is None:
            raise InvalidArgument("option secret_access_key is missing; it belongs to access_key_id")
        if self.role_external_id and not self.role_arn:
            raise InvalidArgument("option role_external_id: an external id says nothing alone; it needs role_arn")
        outside = [zone for zone in self.zones if not zone.startswith(self.region)]
        if outside and not self.zone_ids:
            raise InvalidArgument(f"option zones: {outside[0]!r} is not in region {self.region!r}")
        check_tags(self.tags, "option tags")
        self.check_secrets()
        if wrong := next((each for each in self.class_roles if not re.fullmatch(_ROLE, each)), None):
            raise InvalidArgument(f"option class_roles: {wrong!r} is no ARN of a role, arn:aws:iam::ACCOUNT:role/NAME")

    @property
    def of_classes(self) -> dict[str, Settings]:
        """Return the settings with the credentials of each account that classes may name."""
        plain = replace(self, role_arn="", role_external_id="")
        found = {arn: replace(self, role_arn=arn, role_external_id=id_) for arn, id_ in self.class_roles.items()}
        for each in self.class_secrets:
            found[each.where] = replace(
                plain,
                access_key_id=SecretKey(each, "key_id"),
                secret_access_key=SecretKey(each, "access_key"),
                session_token=SecretKey(each, "session_token", needed=False),
            )
        return found

    @property
    def zone_ids(self) -> bool:
        """Return whether zones are named by their ids."""
        return self.zone_label == ZONE_ID_LABEL


def check_tags(tags: Mapping[str, str], where: str, reserved: tuple[str, ...] = RESERVED_PREFIXES) -> None:
    """Raise InvalidArgument for tags that EC2 refuses or that the driver writes itself.

    where: as in "option tags". reserved: beginnings of keys.
    """
    if len(tags) > _MAX_EXTRA_TAGS:
        raise InvalidArgument(
            f"{where}: {len(tags)} tags, at most {_MAX_EXTRA_TAGS} are possible beside volplane's own"
        )
    for key, value in tags.items():
        if key.lower().startswith(reserved):
            raise InvalidArgument(f"{where}: {key!r} is reserved; choose a key that does not begin so")
        if not 1 <= len(key) <= 128 or len(value) > 256:
            raise InvalidArgument(f"{where}: {key!r} must have 1 to 128 characters and its value at most 256")


def check_tag_count(options: Mapping[str, str], parameters: Collection[str]) -> None:
    """Raise InvalidArgument if a volume cannot have the tags of the driver's options and of its class together."""
    both, most = len({*options, *parameters}), MOST_TAGS - OWN_TAGS
    if both > most:
        raise InvalidArgument(
            f"parameter tags: with the {len(options)} of the driver's option tags these are {both}, at most {most} are "
            "possible beside volplane's own; remove some here or there"
        )
