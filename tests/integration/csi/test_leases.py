"""A process with the backend csi works only while it holds the Leases of the sidecars that it replaces."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from integration.controller_process import running_process
from volplane.controller.config import Configuration, DriverSettings
from volplane.drivers.contract import Plugin
from volplane.kube.client import Client
from volplane.kube.kinds import LEASES, NAMESPACES
from volplane_csi import CsiBackend
from volplane_csi.testing import Behaviour, FakeDriver, InProcess
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport

DRIVER = "fake.csi.example.com"
NAMES = [
    f"{begin}fake-csi-example-com"
    for begin in ("", "external-attacher-leader-", "external-resizer-", "external-snapshotter-leader-")
]


def backend(fake: FakeDriver) -> Any:
    def factory(options: Any) -> CsiBackend:
        return CsiBackend(options, connect_to=InProcess(fake))

    factory.options_schema = CsiBackend.options_schema  # type: ignore[attr-defined]
    return Plugin(kind="backend", name="csi", factory=factory, distribution="tests")


@pytest.mark.real_time
async def test_it_waits_for_a_sidecar_that_leads_and_keeps_others_away(tmp_path: Path) -> None:
    options = {"socket": "/csi/csi.sock", "sidecar_namespace": "team"}
    configured = Configuration(drivers=(DriverSettings(name=DRIVER, backend="csi", options=options),))
    given: Any = {"configuration": configured, "plugins": [backend(FakeDriver(Behaviour()))], "hostpath": False}
    server = ApiServer(now=lambda: datetime.now(UTC), random=Random(1))
    others = Client(InProcessTransport(server))
    await others.create(NAMESPACES, NAMESPACES.body(metadata={"name": "team"}))
    spec = {"holderIdentity": "the-sidecar", "leaseDurationSeconds": 3600}
    await others.create(LEASES, LEASES.body(metadata={"name": NAMES[2], "namespace": "team"}, spec=spec))
    controllers = frozenset({"provisioner", "reclaimer"})
    async with running_process(tmp_path, controllers, leads=False, server=server, **given) as site:
        resizer = f"team/{NAMES[2]}"

        async def holders() -> list[str | None]:
            found = []
            for name in NAMES:
                lease = await others.find(LEASES, f"team/{name}")
                found.append(lease.spec.holder_identity if lease is not None else None)
            return found

        async def has_others() -> bool:
            return sum(holder not in (None, "the-sidecar") for holder in await holders()) == 2

        await site.until("it has those before", has_others)
        assert site.process.plane is None
        held = await others.get(LEASES, resizer)
        released = {"metadata": {"resourceVersion": held.metadata.resource_version}, "spec": {"holderIdentity": None}}
        await others.patch(LEASES, resizer, released)
        async with asyncio.timeout(60.0):
            await site.process.wait_working()
        assert set(await holders()) == {site.process.options.identity}
