"""The options of a driver, which the operator sets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from volplane import InvalidArgument, Param, Secret
from volplane.cloud import AccountOptions, CsiDriverName, DiskOptions, SecretKey

CSI_DRIVER = "pd.csi.storage.gke.io"
ZONE_LABEL = "topology.gke.io/zone"
ZONE_LABELS = (ZONE_LABEL, "topology.kubernetes.io/zone")
_MOST_LABELS = 64
"""Labels that a resource can have (Google Cloud, "Labels overview")."""
OWN_LABELS = 6
"""Labels of a disk that the driver writes at most."""
_PROJECT = r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]"
_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_RESERVED = ("volplane-", "goog")


@dataclass(frozen=True, kw_only=True)
class Settings(AccountOptions, DiskOptions):
    """The options of a driver."""

    project: Annotated[
        str,
        Param("Id of the project of the disks. Never guessed.", pattern=_PROJECT),
    ]
    credentials: Annotated[
        Secret | None,
        Param(
            "A credentials file of Google (JSON: of a service account, or of workload identity federation) instead "
            "of the default chain (environment, workload identity, metadata server), which is the better choice where "
            "it works: it has no key that can be stolen."
        ),
    ] = None
    impersonate_service_account: Annotated[
        str,
        Param(
            "Service account to act as, with those credentials; empty = use them as they are.",
            pattern=r"([^@\s]+@[^@\s]+)?",
        ),
    ] = ""
    class_service_accounts: Annotated[
        tuple[str, ...],
        Param(
            "Service accounts that classes may name by impersonate-service-account. The driver acts as them with its "
            "own credentials.",
            pattern=r"[^@\s]+@[^@\s]+",
        ),
    ] = ()
    csi_driver_name: CsiDriverName = CSI_DRIVER
    zone_label: Annotated[
        str,
        Param(
            "Node label that holds the zone, and key of the volumes' node affinity.",
            choices=ZONE_LABELS,
        ),
    ] = ZONE_LABEL
    labels: Annotated[Mapping[str, str], Param("Labels for everything that is made, beside volplane's own.")] = field(
        default_factory=dict
    )
    snapshot_projects: Annotated[
        tuple[str, ...],
        Param(
            "Other projects whose snapshots and images may be restored. They are read with the driver's account, which "
            "needs the right to use them there, and are never deleted.",
            pattern=_PROJECT,
        ),
    ] = ()
    mutations_per_second: Annotated[
        int,
        Param(
            "Calls a second that change something. Compute Engine grants 1,500 a minute and region, together with "
            "all other clients of the project; 20 with the default of mutation_burst never exceeds that. Lowered for "
            "a while when Compute Engine refuses all the same.",
            minimum=1,
            maximum=1_000,
        ),
    ] = 20
    mutation_burst: Annotated[
        int, Param("How many of these calls may come at once after a pause.", minimum=1, maximum=10_000)
    ] = 300
    operations_per_vm: Annotated[
        int,
        Param(
            "Attachments and detachments of one virtual machine that run or wait in Compute Engine at once. It "
            "queues 32 and refuses more.",
            minimum=1,
            maximum=32,
        ),
    ] = 16

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` naming the key, the value and what would be right."""
        super().__post_init__()
        outside = [zone for zone in self.zones if not self.in_region(zone)]
        if outside:
            raise InvalidArgument(
                f"option zones: {outside[0]!r} is not in region {self.region!r}; its zones begin with {self.region}-"
            )
        check_labels(self.labels, "option labels")
        self.check_secrets()

    @property
    def of_classes(self) -> dict[str, Settings]:
        """Return the settings with the credentials of each account that classes may name."""
        found = {each: replace(self, impersonate_service_account=each) for each in self.class_service_accounts}
        for each in self.class_secrets:
            key = SecretKey(each, "cloud-sa.json")
            found[each.where] = replace(self, credentials=key, impersonate_service_account="")
        return found

    def in_region(self, zone: str) -> bool:
        """Return whether the zone is in the driver's region."""
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
