"""The section about leaving a cluster."""

from __future__ import annotations

import asyncio
import sys

from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane_testing.qualification.report import Failed, Measured
from volplane_testing.qualification.site import Site

__all__ = ["drain"]

OUR_FINALIZERS = ("volplane.dev/",)
DRAIN_SECONDS = 120.0


async def drain(site: Site) -> Measured:
    """Run `volplane drain --delete` with the controllers at work, and `--release` without them."""
    loop = asyncio.get_running_loop()
    leading = await site.controllers.need()
    storage_class = await site.make_class("drain")
    await _claims(site, storage_class, "drained-1", "drained-2")
    deleted = [(await site.volume_of(name)).name for name in ("drained-1", "drained-2")]
    begun = loop.time()
    await _drain(site, "--delete", leading.address)
    seconds = loop.time() - begun
    await site.gone(VOLUMES, *deleted)
    await site.assets_gone(*deleted)
    await _claims(site, storage_class, "kept")
    volume = (await site.volume_of("kept")).name
    await site.controllers.stop()
    await _drain(site, "--release", leading.address)
    released = await site.volume_of("kept")
    held = [name for name in released.metadata.finalizers or () if name.startswith(OUR_FINALIZERS)]
    claim = (await site.claims())["kept"]
    if held or released.spec.persistent_volume_reclaim_policy != "Retain" or claim.status.phase != "Bound":
        policy = released.spec.persistent_volume_reclaim_policy
        raise Failed(f"after a release the volume has policy {policy} and {held}, the claim is {claim.status.phase}")
    listed = await site.assets.names()
    if listed is not None and volume not in listed:
        raise Failed(f"the release took the asset {volume} along")
    # Taken back, so that what was made here goes.
    await site.client.patch(VOLUMES, volume, {"spec": {"persistentVolumeReclaimPolicy": "Delete"}})
    await site.controllers.need()
    await site.delete(CLAIMS, "kept")
    await site.gone(VOLUMES, volume)
    await site.assets_gone(volume)
    return {"delete_seconds": seconds}


async def _claims(site: Site, storage_class: str, *names: str) -> None:
    for name in names:
        await site.make_claim(name, storage_class)
    await site.bound(*names)


async def _drain(site: Site, mode: str, address: str) -> None:
    """Run the command on what our driver made, and nothing else."""
    where = [] if site.kubeconfig is None else ["--kubeconfig", str(site.kubeconfig)]
    command = [
        sys.executable,
        "-m",
        "volplane",
        "drain",
        *where,
        "--driver",
        site.driver,
        "--system-namespace",
        site.system,
    ]
    process = await asyncio.create_subprocess_exec(
        *command,
        *(mode, "--yes", "--http", address, "--timeout", f"{DRAIN_SECONDS:g}"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        told = " ".join(output.decode(errors="replace").split()[-60:])
        raise Failed(f"`volplane drain {mode}` ended with code {process.returncode}: {told}")
