"""Webhooks that deny, change or slow down what we write; quotas; namespaces that go. It is said, and heals."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

import pytest

from integration.beside import Beside
from scenarios.backends import ScriptedBackend
from scenarios.harness import OURS, Harness, Json
from scenarios.recycling import by_pod, end, permitted, pods, released
from scenarios.stories import DRIVER, claim, storage_class
from volplane import Absent, Asset, hookimpl
from volplane.kube.transport import Response, Transport
from volplane.requests import FindRequest
from volplane_embedded.apiserver.errors import denied, forbidden, webhook_failed
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing.transport import ApiCall, Ask, FaultScript, FaultTransport, requests

SPELL = 40.0
INTENT = "volplane.dev/intent"
ANSWERS = {"no code": (0, ""), "403": (403, "Forbidden"), "404": (404, "NotFound"), "409": (409, "Conflict")}
Webhook = Callable[[str, Json, Json | None], None]


def denying(resource: str, *, creating: bool = False, code: int = 0, reason: str = "") -> Webhook:
    """Denies what controllers write; people's own creations pass, unless `creating`."""

    def webhook(target: str, new: Json, old: Json | None) -> None:
        if target == resource and (old is None) == creating:
            raise denied("tags.example.com", "tags are missing", code, reason)

    return webhook


def warnings(harness: Harness) -> list[str]:
    return [event.message for event in harness.recorded if event.type == "Warning"]


async def made(harness: Harness, name: str = "c") -> str:
    """The phase of a claim of class `fast`."""
    return str((await harness.claim(name))["status"]["phase"])


@pytest.mark.parametrize("answer", ANSWERS)
async def test_a_webhook_that_denies_our_patches_of_claims_is_named_on_the_claim_and_nothing_is_made(
    answer: str,
) -> None:
    code, reason = ANSWERS[answer]
    async with Harness(ScriptedBackend(DRIVER)) as harness:
        await harness.create("classes", storage_class("fast"))
        await harness.create("claims", claim("c", storageClassName="fast"))
        harness.server.webhooks.append(denying("persistentvolumeclaims", code=code, reason=reason))
        await harness.start()
        await asyncio.sleep(SPELL)
        assert await made(harness) == "Pending"
        assert not harness.backends[DRIVER].calls["provision"]
        assert any('"tags.example.com" denied the request: tags are missing' in text for text in warnings(harness))
        harness.server.webhooks.clear()
        await harness.settle()
        assert await made(harness) == "Bound"


@pytest.mark.parametrize("answer", ANSWERS)
async def test_a_webhook_that_denies_the_volume_is_named_and_the_asset_is_kept_for_the_claim(answer: str) -> None:
    code, reason = ANSWERS[answer]
    async with Harness(ScriptedBackend(DRIVER)) as harness:
        await harness.create("classes", storage_class("fast"))
        await harness.create("claims", claim("c", storageClassName="fast"))
        harness.server.webhooks.append(denying("persistentvolumes", creating=True, code=code, reason=reason))
        await harness.start()
        await asyncio.sleep(SPELL)
        assert any('"tags.example.com" denied the request: tags are missing' in text for text in warnings(harness))
        (asset,) = harness.backends[DRIVER].assets
        harness.server.webhooks.clear()
        await harness.settle()
        assert await made(harness) == "Bound"
        assert list(harness.backends[DRIVER].assets) == [asset]
        assert harness.backends[DRIVER].calls["provision"] == 1


async def test_a_claim_that_goes_while_its_volume_is_denied_leaves_nothing() -> None:
    async with Harness(ScriptedBackend(DRIVER)) as harness:
        await harness.create("classes", storage_class("fast"))
        await harness.create("claims", claim("c", storageClassName="fast"))
        harness.server.webhooks.append(denying("persistentvolumes", creating=True))
        await harness.start()
        await asyncio.sleep(SPELL)
        await harness.delete("claims", "c")
        await harness.settle()
        assert await harness.everything("claims") == []
        assert not harness.backends[DRIVER].assets


async def test_a_webhook_that_undoes_our_marks_is_said_and_no_hook_is_called_without_them() -> None:
    def strip(target: str, new: Json, _old: Json | None) -> None:
        if target == "persistentvolumeclaims":
            meta = new["metadata"]
            kept = [name for name in meta.get("finalizers") or () if not name.startswith("volplane.dev/")]
            meta["finalizers"] = kept
            (meta.get("annotations") or {}).pop(INTENT, None)

    async with Harness(ScriptedBackend(DRIVER)) as harness:
        await harness.create("classes", storage_class("fast"))
        await harness.create("claims", claim("c", storageClassName="fast"))
        harness.server.webhooks.append(strip)
        await harness.start()
        await asyncio.sleep(SPELL)
        assert not harness.backends[DRIVER].calls["provision"]
        assert any("does an admission webhook or another controller undo it?" in text for text in warnings(harness))
        assert harness.events["Warning ApiWriteUndone"] < 20
        harness.server.webhooks.clear()
        await harness.settle()
        assert await made(harness) == "Bound"


async def test_a_webhook_that_fails_is_named_on_the_claim_at_once() -> None:
    def broken(target: str, _new: Json, old: Json | None) -> None:
        if target == "persistentvolumeclaims" and old is not None:
            raise webhook_failed("tags.example.com", "context deadline exceeded")

    async with Harness(ScriptedBackend(DRIVER)) as harness:
        await harness.create("classes", storage_class("fast"))
        await harness.create("claims", claim("c", storageClassName="fast"))
        harness.server.webhooks.append(broken)
        await harness.start()
        await asyncio.sleep(0.1)
        assert 'failed calling webhook "tags.example.com": context deadline exceeded' in warnings(harness)[0]
        harness.server.webhooks.clear()
        await harness.settle()
        assert await made(harness) == "Bound"


async def test_what_a_webhook_changes_of_a_new_volume_holds() -> None:
    def keep(target: str, new: Json, old: Json | None) -> None:
        if target == "persistentvolumes" and old is None:
            new["spec"]["persistentVolumeReclaimPolicy"] = "Retain"
            new["metadata"].setdefault("labels", {})["team"] = "storage"

    async with Harness(ScriptedBackend(DRIVER)) as harness:
        harness.server.webhooks.append(keep)
        await harness.create("classes", storage_class("fast"))
        await harness.create("claims", claim("c", storageClassName="fast"))
        await harness.start()
        await harness.settle()
        assert await made(harness) == "Bound"
        await harness.delete("claims", "c")
        await harness.settle()
        (volume,) = await harness.everything("volumes")
        assert volume["status"]["phase"] == "Released"
        assert volume["metadata"]["labels"] == {"team": "storage"}
        assert not [name for name in volume["metadata"].get("finalizers") or () if name.startswith("volplane.dev/")]
        assert harness.backends[DRIVER].assets


class Finding(ScriptedBackend):
    """It can also say what it has."""

    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        self.calls["find"] += 1
        return self.memory.find(request)


def without_annotations(target: str, new: Json, _old: Json | None) -> None:
    if target == "persistentvolumes":
        new["metadata"].pop("annotations", None)


def without_unknown_annotations(target: str, new: Json, _old: Json | None) -> None:
    if target == "persistentvolumes":
        annotations = new["metadata"].get("annotations") or {}
        for name in [each for each in annotations if each.startswith("volplane.dev/")]:
            del annotations[name]


@pytest.mark.parametrize("webhook", [without_annotations, without_unknown_annotations])
async def test_a_webhook_that_takes_our_marks_off_a_new_volume_is_said_and_the_asset_does_not_stay_behind(
    webhook: Webhook,
) -> None:
    async with Harness(ScriptedBackend(DRIVER)) as harness:
        harness.server.webhooks.append(webhook)
        await harness.create("classes", storage_class("fast"))
        await harness.create("claims", claim("c", storageClassName="fast"))
        await harness.start()
        await asyncio.sleep(SPELL)
        assert any("does an admission webhook or another controller undo it?" in text for text in warnings(harness))
        harness.server.webhooks.clear()
        await harness.settle()
        assert await made(harness) == "Bound"
        (volume,) = await harness.everything("volumes")
        assert volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] == DRIVER
        assert volume["metadata"]["annotations"]["volplane.dev/handle"]
        await harness.delete("claims", "c")
        await harness.settle()
        assert await harness.everything("volumes") == []
        assert not harness.backends[DRIVER].assets


async def test_beside_a_binder_our_marks_come_back_to_a_volume_that_it_has_bound_without_them() -> None:
    async with Beside() as harness:
        harness.server.webhooks.append(without_annotations)
        await harness.create("classes", storage_class("fast"))
        await harness.create("claims", claim("c", storageClassName="fast"))
        await harness.start_both()
        await asyncio.sleep(SPELL)
        assert any("does an admission webhook or another controller undo it?" in text for text in warnings(harness))
        assert await made(harness) == "Bound"
        harness.server.webhooks.clear()
        await harness.settle()
        marks = (await harness.bound_volume("c"))["metadata"]["annotations"]
        assert {INTENT, "pv.kubernetes.io/provisioned-by", "volplane.dev/handle"} & marks.keys() == {
            "pv.kubernetes.io/provisioned-by",
            "volplane.dev/handle",
        }
        await harness.delete("claims", "c")
        await harness.settle()
        await harness.nothing_left()


async def dies_before_it_puts_marks_back(harness: Beside, webhook: Webhook) -> None:
    """A volume is made for claim c and loses its marks to the webhook, and the process that knows them dies."""
    harness.server.webhooks.append(webhook)
    await harness.create("classes", storage_class("fast"))
    await harness.create("claims", claim("c", storageClassName="fast"))
    harness.crash_after("create persistentvolumes")
    await harness.start_both()
    await asyncio.sleep(1.0)
    assert harness.restarts == 1


@pytest.mark.parametrize("webhook", [without_annotations, without_unknown_annotations])
@pytest.mark.parametrize("backend", [ScriptedBackend, Finding])
async def test_the_next_process_puts_marks_back_that_a_webhook_took_off_a_volume_before_the_former_one_died(
    webhook: Webhook, backend: type[ScriptedBackend]
) -> None:
    async with Beside(backend(DRIVER)) as harness:
        await dies_before_it_puts_marks_back(harness, webhook)
        harness.server.webhooks.clear()
        await harness.settle()
        marks = (await harness.bound_volume("c"))["metadata"]["annotations"]
        (asset,) = harness.backend.assets.values()
        assert marks["pv.kubernetes.io/provisioned-by"] == DRIVER
        assert marks["volplane.dev/handle"] == asset.handle
        assert INTENT not in (await harness.claim("c"))["metadata"].get("annotations", {})
        await harness.delete("claims", "c")
        await harness.settle()
        await harness.nothing_left()


async def test_a_claim_that_was_deleted_meanwhile_leaves_no_asset_under_a_volume_without_marks() -> None:
    async with Beside() as harness:
        await dies_before_it_puts_marks_back(harness, without_annotations)
        await harness.delete("claims", "c")
        harness.server.webhooks.clear()
        await harness.settle()
        await harness.nothing_left()


async def test_a_claim_whose_volume_without_marks_has_lost_its_asset_waits_for_nothing() -> None:
    async with Beside(Finding(DRIVER)) as harness:
        harness.server.webhooks.append(without_annotations)
        await harness.create("classes", storage_class("fast"))
        await harness.create("claims", claim("c", storageClassName="fast"))
        await harness.start_both()
        await asyncio.sleep(1.0)
        await harness.kill()
        harness.backend.assets.clear()
        await harness.start()
        await harness.settle()
        found = await harness.claim("c")
        assert found["status"]["phase"] == "Bound"
        assert "volplane.dev/provisioning" not in found["metadata"]["finalizers"]
        assert harness.backend.calls["provision"] == 1
        assert not harness.backend.assets


class Slow(Harness):
    """A webhook that takes its time for what is written to claims of one namespace."""

    SECONDS = 25.0

    def way_to_server(self) -> Transport:
        script = FaultScript()
        script.add(requests("patch", "persistentvolumeclaims"), self._answer, times=math.inf)
        return FaultTransport(InProcessTransport(self.server), script)

    async def _answer(self, call: ApiCall, ask: Ask) -> Response:
        if call.namespace == "slow":
            await asyncio.sleep(self.SECONDS)
        return await ask()


async def test_a_webhook_that_is_slow_for_one_namespace_delays_no_claim_of_another_class_and_none_for_ever() -> None:
    async with Slow(ScriptedBackend(DRIVER)) as harness:
        await harness.create("classes", storage_class("fast"))
        await harness.create("classes", storage_class("other"))
        for number in range(100):
            body = claim(f"s{number}", storageClassName="fast")
            body["metadata"]["namespace"] = "slow"
            await harness.create("claims", body)
        await harness.start()
        await asyncio.sleep(5.0)
        begun = asyncio.get_running_loop().time()
        await harness.create("claims", claim("c", storageClassName="other"))

        async def bound() -> bool:
            return await made(harness) == "Bound"

        await harness.until(bound, 120.0, "the claim of another class is bound")
        assert asyncio.get_running_loop().time() - begun < 1.0
        await harness.settle()
        assert {each["status"]["phase"] for each in await harness.everything("claims")} == {"Bound"}
        assert not warnings(harness)


CSI = {"driver": "x.example.com", "volumeHandle": "h"}


@pytest.mark.parametrize("counted", ["pods", "persistentvolumeclaims"])
async def test_a_quota_that_forbids_a_scrub_is_said_on_the_volume_and_heals(counted: str) -> None:
    def exceeded(target: str, new: Json, old: Json | None) -> None:
        if target == counted and old is None:
            why = f"exceeded quota: scrubs, requested: {counted}=1, used: {counted}=0, limited: {counted}=0"
            raise forbidden(target, "", new["metadata"]["name"], why)

    async with Harness(by_pod()) as harness:
        harness.server.webhooks.append(exceeded)
        body = released()
        if counted == "persistentvolumeclaims":
            body["spec"] = {name: value for name, value in body["spec"].items() if name != "hostPath"} | {"csi": CSI}
        await harness.create("volumes", body)
        await harness.start()
        await asyncio.sleep(SPELL)
        assert await pods(harness) == []
        told = harness.messages("VolumeFailedRecycle")
        assert f"exceeded quota: scrubs, requested: {counted}=1" in told[0]
        assert len(told) == len(warnings(harness)) < 10
        harness.server.webhooks.clear()
        await end(harness, await permitted(harness, 120.0), "Succeeded")
        await harness.settle()
        assert await harness.volumes() == {"v": "Available"}


@pytest.mark.parametrize("moment", [0.0, 0.01, 0.5, 3.0])
async def test_a_namespace_that_goes_while_its_claims_are_served_goes_with_all_that_was_made(
    moment: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with Harness(ScriptedBackend(DRIVER), latency=lambda _driver, _hook: (1.0, 1.0)) as harness:
        await harness.create("classes", storage_class("fast"))
        for number in range(10):
            body = claim(f"c{number}", storageClassName="fast")
            body["metadata"]["namespace"] = "team"
            await harness.create("claims", body)
        await harness.start()
        await asyncio.sleep(moment)
        await harness.request("DELETE", "/api/v1/namespaces/team")
        await harness.settle()
        assert await harness.everything("claims") == []
        assert await harness.everything("volumes") == []
        assert not harness.backends[DRIVER].assets
        assert await harness.get("namespaces", "team") is None
    assert [record for record in caplog.records if record.exc_info or record.levelno > logging.WARNING] == []


async def test_the_controllers_own_namespace_that_goes_is_said_on_the_volume_and_scrubs_go_on_in_the_next_one() -> None:
    async with Harness(by_pod()) as harness:
        await harness.start()
        await harness.request("DELETE", f"/api/v1/namespaces/{OURS}")
        await harness.create("volumes", released())
        await asyncio.sleep(SPELL)
        assert any("namespaces" in text and OURS in text for text in warnings(harness))
        await harness.create("namespaces", {"metadata": {"name": OURS}})
        await end(harness, await permitted(harness, 120.0), "Succeeded")
        await harness.settle()
        assert await harness.volumes() == {"v": "Available"}
