"""What a development cluster that ends leaves on the storage of its drivers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from volplane.cli.framework.console import Console
from volplane.errors import VolplaneError
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, Volume
from volplane.state.naming import handle_of
from volplane_embedded.cli.development_cluster import DEFAULT_DRIVER, DevelopmentCluster

MOST_NAMED = 10
"""Assets that are named; of more it is told how many."""


async def say_what_is_left(console: Console, cluster: DevelopmentCluster, *, kept: bool) -> None:
    """Name what is on storages. kept: the objects are in --data, and the next start finds it."""
    try:
        volumes = list((await cluster.client.list(VOLUMES)).items)
        claims = list((await cluster.client.list(CLAIMS)).items)
    except VolplaneError as error:
        console.warning(f"what is left on the storage is not known: {error}")
        return
    root, temporary = cluster.directories.volumes, not kept
    # Without --data and --volumes the root of the default driver goes with the process.
    gone = {DEFAULT_DRIVER} if temporary and root.is_relative_to(cluster.directories.pods.parent) else set[str]()
    left = list(assets_left(volumes, claims, gone))
    if left and kept:
        console.note(f"left on the storage: {len(left)}; a start with the same --data goes on with it")
    elif left:
        for each in left[:MOST_NAMED]:
            console.warning(f"left on the storage: {each}")
        more = f", and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
        console.warning(f"the objects are gone with this process{more}: delete it by the means of the storage")


def assets_left(volumes: Sequence[Volume], claims: Sequence[Claim], gone: set[str]) -> Iterator[str]:
    """Name the assets of these objects. gone: drivers whose storage goes with the process."""
    made = {volume.name for volume in volumes}
    for volume in volumes:
        driver, reference = volume.annotation(names.PROVISIONED_BY), volume.spec.claim_ref
        if driver and driver not in gone:
            whose = f", of claim {reference.key}" if reference is not None else ""
            yield f"{handle_of(volume)} of driver {driver} (volume {volume.name}{whose})"
    for claim in claims:
        begun = claim.annotation(names.INTENT) is not None and f"pvc-{claim.uid}" not in made
        if begun and claim.annotation(names.STORAGE_PROVISIONER) not in gone:
            yield f"what was begun for claim {claim.key}, if anything (pvc-{claim.uid})"
