"""The options of a driver, which the operator sets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from volplane import InvalidArgument, Parameter, ParameterKind, ParameterSchema, Secret

__all__ = ["CSI_DRIVER", "OPTIONS", "OWN_LABELS", "ZONE_LABEL", "Settings", "check_labels"]

CSI_DRIVER = "pd.csi.storage.gke.io"
ZONE_LABEL = "topology.gke.io/zone"
_STOCK_ZONE_LABEL = "topology.kubernetes.io/zone"
_MOST_LABELS = 64
"""Labels that a resource can have (Google Cloud, "Labels overview")."""
OWN_LABELS = 6
"""Labels of a disk that the driver writes at most."""
_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_RESERVED = ("volplane-", "goog")

OPTIONS = ParameterSchema(
    version=1,
    parameters=(
        Parameter(
            name="project",
            doc="Id of the project of the disks. Never guessed.",
            pattern=r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]",
            required=True,
        ),
        Parameter(
            name="region",
            doc="Region of the disks, such as europe-west3. Disks of other regions are never listed or touched.",
            pattern=r"[a-z0-9-]+",
            required=True,
        ),
        Parameter(
            name="zones",
            doc="Zones for disks whose place nobody chose (volumeBindingMode Immediate without allowedTopologies); "
            "empty = all of the region. Of these it takes one in which a node is, if there is any.",
            kind=ParameterKind.STRINGS,
            default=(),
        ),
        Parameter(
            name="credentials",
            doc="A credentials file of Google (JSON: of a service account, or of workload identity federation) instead "
            "of the default chain (environment, workload identity, metadata server), which is the better choice where "
            "it works: it has no key that can be stolen.",
            kind=ParameterKind.SECRET,
        ),
        Parameter(
            name="impersonate_service_account",
            doc="Service account to act as, with those credentials; empty = use them as they are.",
            pattern=r"([^@\s]+@[^@\s]+)?",
            default="",
        ),
        Parameter(
            name="endpoint",
            doc="URL of the Compute API instead of the public one, for private endpoints and tests. Credentials are "
            "sent there, which is why no class can set it.",
            pattern=r"(https?://[^\s?#]+)?",
            default="",
        ),
        Parameter(
            name="attach",
            doc="Declare that volplane attaches the disks. Only where the controller of the official driver does not "
            "run, because its attacher serves the same VolumeAttachments.",
            kind=ParameterKind.BOOLEAN,
            default=False,
        ),
        Parameter(
            name="csi_driver_name",
            doc="Name of the CSI driver whose node plugin mounts the disks, as it stands in spec.csi.driver.",
            default=CSI_DRIVER,
        ),
        Parameter(
            name="zone_label",
            doc="Node label that holds the zone, and key of the volumes' node affinity.",
            choices=(ZONE_LABEL, _STOCK_ZONE_LABEL),
            default=ZONE_LABEL,
        ),
        Parameter(
            name="labels",
            doc="Labels for everything that is made, beside volplane's own.",
            kind=ParameterKind.MAPPING,
            default={},
        ),
        Parameter(
            name="mutations_per_second",
            doc="Calls a second that change something. Compute Engine grants 1,500 a minute and region, together with "
            "all other clients of the project; 20 with the default of mutation_burst never exceeds that. Lowered for "
            "a while when Compute Engine refuses all the same.",
            kind=ParameterKind.INTEGER,
            default=20,
            minimum=1,
            maximum=1_000,
        ),
        Parameter(
            name="mutation_burst",
            doc="How many of these calls may come at once after a pause.",
            kind=ParameterKind.INTEGER,
            default=300,
            minimum=1,
            maximum=10_000,
        ),
        Parameter(
            name="operations_per_vm",
            doc="Attachments and detachments of one virtual machine that run or wait in Compute Engine at once. It "
            "queues 32 and refuses more.",
            kind=ParameterKind.INTEGER,
            default=16,
            minimum=1,
            maximum=32,
        ),
        Parameter(
            name="attach_limit",
            doc="How many disks a node may hold, its boot disk included; 0 = what its machine type allows.",
            kind=ParameterKind.INTEGER,
            default=0,
            minimum=0,
            maximum=1_000,
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options, checked."""

    project: str
    region: str
    zones: tuple[str, ...]
    credentials: Secret | None
    impersonate_service_account: str
    endpoint: str
    attach: bool
    csi_driver_name: str
    zone_label: str
    labels: Mapping[str, str]
    mutations_per_second: int
    mutation_burst: int
    operations_per_vm: int
    attach_limit: int

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Settings:
        """Read the options; raises `InvalidArgument` naming the key, the value and what would be right."""
        values: dict[str, Any] = {option.name: option.default for option in OPTIONS.parameters}
        values.update({name: value for name, value in options.items() if value is not None})
        settings = cls(**values)
        outside = [zone for zone in settings.zones if not settings.in_region(zone)]
        if outside:
            raise InvalidArgument(
                f"option zones: {outside[0]!r} is not in region {settings.region!r}; its zones begin with "
                f"{settings.region}-"
            )
        check_labels(settings.labels, "option labels")
        return settings

    def in_region(self, zone: str) -> bool:
        """Whether the zone is in the driver's region."""
        return zone.startswith(f"{self.region}-")


def check_labels(labels: Mapping[str, str], where: str) -> None:
    """Raise InvalidArgument for labels that Compute Engine refuses or that the driver writes itself.

    where: as in "option labels".
    """
    if len(labels) > _MOST_LABELS - OWN_LABELS:
        raise InvalidArgument(
            f"{where}: {len(labels)} labels, at most {_MOST_LABELS - OWN_LABELS} are possible beside volplane's own"
        )
    for key, value in labels.items():
        if key.startswith(_RESERVED):
            raise InvalidArgument(f"{where}: {key!r} is reserved; choose a key that does not begin so")
        if not _KEY.fullmatch(key):
            raise InvalidArgument(
                f"{where}: the key {key!r} must begin with a lower-case letter and have at most 63 lower-case letters, "
                "digits, _ and -"
            )
        if not _VALUE.fullmatch(value):
            raise InvalidArgument(
                f"{where}: the value {value!r} of {key!r} may have at most 63 lower-case letters, digits, _ and -"
            )
