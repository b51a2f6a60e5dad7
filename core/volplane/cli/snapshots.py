"""`volplane snapshot`: has a snapshot cut of a claim, and waits until it is cut, or until it can be used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from typer import Argument, Option

from volplane.cli.controller_client import cluster_client
from volplane.cli.framework.console import Console
from volplane.cli.framework.options import Kubeconfig, duration_option
from volplane.errors import ApiError, ConfigurationError, VolplaneError
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, VOLUME_SNAPSHOTS
from volplane.kube.objects import VolumeSnapshot
from volplane.snapshots.state import is_terminal

POLL_SECONDS: Final = 0.5
NOT_SERVED: Final = (
    "this cluster serves no VolumeSnapshots: install the CustomResourceDefinitions of external-snapshotter"
)


def snapshot(
    claim: Annotated[str, Argument(metavar="NAMESPACE/NAME", help="The claim; it may be in use.")],
    *,
    name: Annotated[str, Option("--name", help="Name of the VolumeSnapshot; default: the claim's, and the time.")] = "",
    of_class: Annotated[
        str, Option("--class", metavar="NAME", help="The VolumeSnapshotClass; default: that of the driver.")
    ] = "",
    wait: Annotated[bool, Option("--wait", help="Wait until it can be used, not only until it is cut.")] = False,
    timeout: Annotated[float, duration_option("--timeout", says="How long to wait.", default="5m")] = 300.0,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Have a snapshot cut of a claim, as of now, and wait until that has happened.

    What is written to the volume afterwards is not in it. Exit code 1 if it has not happened in time, or failed; the
    VolumeSnapshot stays, and may come to be later.
    """
    if claim.count("/") != 1 or "" in claim.split("/"):
        raise ConfigurationError(f'the claim "{claim}" must be NAMESPACE/NAME')
    console = Console()
    key = f"{claim.partition('/')[0]}/{name or name_at(claim, datetime.now(UTC))}"
    reached: Callable[[VolumeSnapshot], bool] = is_ready if wait else is_cut

    async def cut() -> VolumeSnapshot:
        async with cluster_client(kubeconfig) as client:
            await wish(client, claim, key, of_class)
            with console.progress(f"waiting for snapshot {key}"):
                return await until(client, key, reached, timeout)

    made = asyncio.run(cut())
    if reached(made):
        done = "can be used" if made.status.ready_to_use else "is cut, and not ready to be used yet"
        console.done(f"snapshot {key} {done}; it is of {made.status.creation_time}")
        return
    why = f": {made.status.error.message}" if made.status.error is not None else ""
    console.failed(f"snapshot {key} is not {'ready' if wait else 'cut'} yet{why}")
    raise typer.Exit(1)


def name_at(claim: str, now: datetime) -> str:
    """Return the name of a snapshot of the claim that is wished for now."""
    return f"{claim.partition('/')[2][:236]}-{now:%Y%m%dt%H%M%S}"


def is_cut(made: VolumeSnapshot) -> bool:
    return made.status.creation_time is not None


def is_ready(made: VolumeSnapshot) -> bool:
    return made.status.ready_to_use


async def wish(client: Client, claim: str, key: str, of_class: str = "") -> None:
    """Create the VolumeSnapshot of this key, of the claim. Raises VolplaneError if that makes no sense."""
    found = await client.find(CLAIMS, claim)
    if found is None:
        raise VolplaneError(f"there is no claim {claim}")
    if found.status.phase != "Bound":
        raise VolplaneError(f"claim {claim} is {found.status.phase or 'Pending'}: only a bound one can be cut")
    namespace, _, name = key.partition("/")
    spec: dict[str, Any] = {"source": {"persistentVolumeClaimName": found.name}}
    if of_class:
        spec["volumeSnapshotClassName"] = of_class
    body = VOLUME_SNAPSHOTS.body(metadata={"name": name, "namespace": namespace}, spec=spec)
    try:
        await client.create(VOLUME_SNAPSHOTS, body)
    except ApiError as error:
        if error.already_exists:
            raise VolplaneError(f"snapshot {key} exists already; give another --name") from error
        if error.status == 404:
            raise VolplaneError(NOT_SERVED) from error
        raise


async def until(client: Client, key: str, reached: Callable[[VolumeSnapshot], bool], seconds: float) -> VolumeSnapshot:
    """Return the VolumeSnapshot once that is reached, once it has failed for good, or after so many seconds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        made = await client.find(VOLUME_SNAPSHOTS, key)
        if made is None:
            raise VolplaneError(f"snapshot {key} was deleted meanwhile")
        if reached(made) or is_terminal(made.status.error) or loop.time() > end:
            return made
        await asyncio.sleep(POLL_SECONDS)
