"""What `volplane check --cluster` waits for, against a cluster of this process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, NAMESPACES
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing.clock import now
from volplane_testing.qualification.assets import Assets
from volplane_testing.qualification.controllers import Controllers
from volplane_testing.qualification.crashing import _Churn
from volplane_testing.qualification.report import Facts, Failed
from volplane_testing.qualification.site import Site

PATIENCE = 60.0


async def site() -> Site:
    client = Client(InProcessTransport(ApiServer(now=now, random=Random(1))))
    made = Site(
        run="check",
        client=client,
        controllers=Controllers([], Path("/nonexistent")),
        assets=cast("Assets", None),  # no section of this file asks the backend
        facts=Facts(server="https://example.com", kubernetes="v1.36.0"),
        driver="check.volplane.dev",
        local=None,
        whole=False,
        image="image",
        capacity="1Mi",
        parameters={},
        kubeconfig=None,
        churn_seconds=1.0,
        kills=1,
        patience=PATIENCE,
    )
    for name in ("check", "check-system", "default"):
        if await client.find(NAMESPACES, name) is None:
            await client.create(NAMESPACES, NAMESPACES.body(metadata={"name": name}))
    return made


async def churned(made: Site) -> _Churn:
    """A churn that has left ten claims."""
    churn = _Churn(made, await made.make_class("kills"))
    for number in range(10):
        name = f"churn-{number}"
        await made.make_claim(name, "check-kills")
        churn.alive.append(name)
    return churn


async def bind(made: Site, *names: str, every: float) -> None:
    """Write the phase of one claim after the other, as a binder does whose calls are limited."""
    for name in names:
        await asyncio.sleep(every)
        patch: dict[str, Any] = {"status": {"phase": "Bound"}}
        await made.client.patch(CLAIMS, f"check/{name}", patch, subresource="status")


async def test_a_slow_binder_is_waited_for_as_long_as_it_goes_on() -> None:
    made = await site()
    churn = await churned(made)
    binder = asyncio.create_task(bind(made, *churn.alive, every=0.9 * PATIENCE))
    backlog, seconds = await made.until_none("claims that wait", churn.waiting)
    await binder
    assert backlog == 10
    assert seconds == pytest.approx(9 * PATIENCE, abs=5)


async def test_a_binder_that_stops_is_told_with_what_is_left() -> None:
    made = await site()
    churn = await churned(made)
    binder = asyncio.create_task(bind(made, *churn.alive[:4], every=1))
    with pytest.raises(Failed, match=r"^not after 60 s: fewer than 6 claims that wait \(at first 10\)"):
        await made.until_none("claims that wait", churn.waiting)
    await binder


async def test_a_claim_that_is_to_go_counts_until_it_has_gone() -> None:
    made = await site()
    churn = await churned(made)
    await bind(made, *churn.alive, every=0)
    assert await churn.waiting() == 0
    gone = churn.alive.pop()
    assert await churn.waiting() == 1
    await made.remove(CLAIMS, gone)
    assert await churn.waiting() == 0
    await made.remove(CLAIMS, churn.alive[0])
    assert await churn.waiting() == 1, "a claim that is lost"
