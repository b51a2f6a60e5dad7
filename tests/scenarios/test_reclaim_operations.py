"""What the operations of released volumes read before they call the backend, ask of it, and do with its answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from scenarios import deleting, recycling
from scenarios.backends import OK, ScriptedBackend
from scenarios.harness import Harness
from scenarios.single import hold
from scenarios.stories import DRIVER, claim, reference, volume
from volplane import BackendError, InProgress, PodScrub, RecycleRequest, Throttled, VolumeInUse
from volplane.errors import VolplaneError
from volplane.kube.kinds import VOLUMES

GENERATION = "volplane.dev/generation"

# --- deleting ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [None, "3"])
async def test_the_backend_deletes_the_generation_that_was_made(written: str | None) -> None:
    backend = ScriptedBackend(DRIVER)
    async with Harness(backend) as lab:
        name = await deleting.made_volume(lab)
        if written is not None:
            await lab.patch("volumes", name, {"metadata": {"annotations": {GENERATION: written}}})
        await lab.delete("claims", "c")
        await lab.settle()
        deletion = backend.requests[-1]
        assert deletion.context.generation == deletion.volume.owner.generation == int(written or 1)
        assert deletion.context.cluster_id == deletion.volume.owner.cluster_id == "cluster-1"
        assert deletion.volume.handle == f"/assets/{name}"


async def test_a_volume_that_a_person_made_has_no_owner_and_is_the_first_generation() -> None:
    backend = ScriptedBackend(DRIVER)
    async with Harness(backend) as lab:
        await lab.create("volumes", deleting.released())
        await lab.start()
        await lab.settle()
        (deletion,) = backend.requests
        assert deletion.volume.owner is None
        assert deletion.context.generation == 1


async def test_an_asset_that_another_volume_shares_by_now_is_not_deleted() -> None:
    """The other one comes between the decision and its turn."""
    backend = ScriptedBackend(DRIVER)
    async with Harness(backend) as lab:

        async def share(operation: str) -> None:
            if operation.startswith("delete-"):
                await lay_another_volume_on_it(lab)

        await lab.create("volumes", deleting.released(hostPath={"path": "/static/v"}))
        lab.adjust = lambda plane: hold(plane.operations, share)
        await lab.start()
        await asyncio.sleep(30.0)
        assert backend.calls["delete"] == 0


@pytest.mark.parametrize("released", [deleting.released, recycling.released])
async def test_long_work_goes_on_when_it_is_due_with_what_the_backend_said_last(
    released: Callable[[], dict[str, object]],
) -> None:
    hook = "delete" if released is deleting.released else "recycle"
    backend = ScriptedBackend(DRIVER)
    backend.script(hook, *(InProgress(retry_after=20.0, state={"job": number}) for number in (1, 2)), OK)
    async with Harness(backend) as lab:
        await lab.create("volumes", released())
        await lab.start()
        for calls in (1, 2, 3):
            await asyncio.sleep(15.0)
            assert backend.calls[hook] == calls
            await asyncio.sleep(5.0)
        assert [dict(request.context.state) for request in backend.requests] == [{}, {"job": 1}, {"job": 2}]


async def test_the_backend_is_told_whose_the_volume_was_that_it_erases() -> None:
    backend = ScriptedBackend(DRIVER)
    async with Harness(backend) as lab:
        name = await deleting.made_volume(lab)
        await lab.patch("volumes", name, {"spec": {"persistentVolumeReclaimPolicy": "Recycle"}})
        await lab.delete("claims", "c")
        await lab.settle()
        erasing = next(request for request in backend.requests if isinstance(request, RecycleRequest))
        assert erasing.volume.owner is not None
        assert erasing.volume.owner.cluster_id == "cluster-1"


@pytest.mark.parametrize("error", [VolumeInUse("mounted", retry_after=100.0), Throttled("slow", retry_after=100.0)])
@pytest.mark.parametrize("released", [deleting.released, recycling.released])
async def test_a_backend_that_fails_is_asked_again_when_it_says(
    released: Callable[[], dict[str, object]], error: BackendError
) -> None:
    hook = "delete" if released is deleting.released else "recycle"
    backend = ScriptedBackend(DRIVER)
    backend.script(hook, error, OK)
    async with Harness(backend) as lab:
        await lab.create("volumes", released())
        await lab.start()
        await asyncio.sleep(90.0)
        assert backend.calls == {hook: 1}
        await asyncio.sleep(60.0)
        assert backend.calls == {hook: 2}
        assert [request.context.attempt for request in backend.requests] == [1, 2]
        assert await lab.volumes() == ({} if hook == "delete" else {"v": "Available"})


async def test_a_volume_in_use_is_told_as_no_failure_of_the_volume() -> None:
    backend = ScriptedBackend(DRIVER, {"delete": [VolumeInUse("mounted on n")]})
    async with Harness(backend) as lab:
        await lab.create("volumes", deleting.released())
        await lab.start()
        await asyncio.sleep(0.2)
        assert await lab.volumes() == {"v": "Released"}
        (told,) = [each for each in lab.recorded if each.reason == "VolumeDelete"]
        assert (told.kind, told.about.name, told.type, told.message) == (VOLUMES, "v", "Normal", "mounted on n")


# --- failures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hook", "reason", "message"),
    [("delete", "VolumeFailedDelete", "broken"), ("recycle", "VolumeFailedRecycle", "Recycle failed: broken")],
)
async def test_the_same_failure_again_is_an_event_that_counts_as_the_same(hook: str, reason: str, message: str) -> None:
    backend = ScriptedBackend(DRIVER, {hook: ["broken"]})
    async with Harness(backend) as lab:
        await lab.create("volumes", deleting.released() if hook == "delete" else recycling.released())
        await lab.start()
        await asyncio.sleep(1.0)
        shown = (await lab.volume("v"))["status"]
        assert (shown["phase"], shown["message"]) == ("Failed", message)
        first, second = [each for each in lab.recorded if each.reason == reason]
        assert first.message == message
        assert second.message == f"{message}; next attempt in 1 s"
        assert second.same_as == message
        assert (second.kind, second.about.name, second.type) == (VOLUMES, "v", "Warning")


@pytest.mark.parametrize(("hook", "prefix"), [("delete", ""), ("recycle", "Recycle failed: ")])
async def test_another_failure_is_told_once_with_the_phase(hook: str, prefix: str) -> None:
    backend = ScriptedBackend(DRIVER, {hook: ["broken", "busy", OK]})
    async with Harness(backend) as lab:
        await lab.create("volumes", deleting.released() if hook == "delete" else recycling.released())
        await lab.start()
        await asyncio.sleep(1.0)
        assert (await lab.volume("v"))["status"]["message"] == f"{prefix}busy"
        told = [event.message for event in lab.recorded if event.reason.startswith("VolumeFailed")]
        assert told == [f"{prefix}broken", f"{prefix}busy"]


@pytest.mark.parametrize("hook", ["delete", "recycle"])
async def test_the_next_attempt_is_told_as_the_backend_asked_for_it(hook: str) -> None:
    backend = ScriptedBackend(DRIVER, {hook: ["broken", BackendError("broken", retry_after=50.0)]})
    async with Harness(backend) as lab:
        await lab.create("volumes", deleting.released() if hook == "delete" else recycling.released())
        await lab.start()
        await asyncio.sleep(40.0)
        assert backend.calls == {hook: 2}
        assert lab.recorded[-1].message.endswith("broken; next attempt in 50 s")


async def test_beside_another_binder_a_failure_is_told_at_once_and_changes_no_phase() -> None:
    backend = ScriptedBackend(DRIVER, {"delete": ["broken"]})
    async with Harness(backend) as lab:
        name = await deleting.made_volume(lab)
        await lab.kill()
        lab.change_role(binder=False)
        await lab.start()
        await lab.delete("claims", "c")
        await lab.patch("volumes", name, {"status": {"phase": "Released"}}, subresource="status")
        await asyncio.sleep(0.2)
        assert await lab.volumes() == {name: "Released"}
        assert "broken; next attempt in 0.5 s" in lab.messages("VolumeFailedDelete")
        backend.script("delete", OK)
        await lab.settle()
        assert await lab.volumes() == {}


async def test_nothing_is_remembered_of_a_volume_that_went_while_its_deletion_failed() -> None:
    backend = ScriptedBackend(DRIVER, {"delete": ["broken"]})
    async with Harness(backend, latency=lambda _driver, hook: (5.0, 5.0) if hook == "delete" else (0.0, 0.0)) as lab:
        await lab.create("volumes", deleting.released())
        await lab.start()
        await asyncio.sleep(2.0)
        await lab.patch("volumes", "v", {"metadata": {"finalizers": None}})
        assert await lab.volumes() == {}
        await lab.settle()
        assert backend.calls == {"delete": 1}
        assert "Warning VolumeFailedDelete" not in lab.events
        assert not len(lab.plane.state.progress)


@pytest.mark.parametrize("hook", ["delete", "recycle"])
async def test_a_volume_that_is_gone_when_its_turn_comes_is_no_failure(
    hook: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "volplane")
    backend = ScriptedBackend(DRIVER)

    async def remove(operation: str) -> None:
        if operation.startswith(f"{hook}-v["):
            await lab.patch("volumes", "v", {"metadata": {"finalizers": None}})
            if hook == "recycle":
                await lab.delete("volumes", "v")
            assert await lab.volumes() == {}

    async with Harness(backend) as lab:
        await lab.create("volumes", deleting.released() if hook == "delete" else recycling.released())
        lab.adjust = lambda plane: hold(plane.operations, remove)
        await lab.start()
        await lab.settle()
        assert backend.calls == {}
        errors = [record.exc_info[1] for record in caplog.records if record.exc_info]
        assert not [error for error in errors if not isinstance(error, VolplaneError)]
        assert not [event for event in lab.recorded if event.type == "Warning"]


# --- recycling ---------------------------------------------------------------------------------------------------

Change = Callable[[Harness], Awaitable[None]]


async def keep_it(lab: Harness) -> None:
    await lab.patch("volumes", "v", {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})


async def take_the_record(lab: Harness) -> None:
    await lab.patch("volumes", "v", {"metadata": {"annotations": {recycling.INTENT: None}}})


async def write_the_record_of_another_term(lab: Harness) -> None:
    record = {**await recycling.intent(lab), "fence": "8/another/lease"}
    await lab.patch("volumes", "v", {"metadata": {"annotations": {recycling.INTENT: json.dumps(record)}}})


async def lay_another_volume_on_it(lab: Harness) -> None:
    if await lab.get("volumes", "twin") is None:
        await lab.create("volumes", volume("twin", hostPath={"path": "/static/v"}))
        await asyncio.sleep(0.5)


async def delete_it(lab: Harness) -> None:
    await lab.patch("volumes", "v", {"metadata": {"finalizers": ["example.com/held"]}})
    await lab.delete("volumes", "v")


async def remove_it(lab: Harness) -> None:
    await lab.patch("volumes", "v", {"metadata": {"finalizers": None}})
    await lab.delete("volumes", "v")


async def bind_it(lab: Harness) -> None:
    if await lab.get("claims", "new") is None:
        made = await lab.create("claims", claim("new", volumeName="v"))
        ref = reference("new", uid=made["metadata"]["uid"])
        await lab.patch("volumes", "v", {"spec": {"claimRef": ref}})


@pytest.mark.parametrize(
    "change",
    [
        keep_it,
        take_the_record,
        write_the_record_of_another_term,
        lay_another_volume_on_it,
        delete_it,
        remove_it,
        bind_it,
    ],
)
async def test_nothing_is_erased_that_the_volume_does_not_justify_when_its_turn_comes(change: Change) -> None:
    backend = ScriptedBackend(DRIVER)

    async def before(operation: str) -> None:
        if operation.startswith("recycle-v["):
            await change(lab)

    async with Harness(backend) as lab:
        await lab.create("volumes", recycling.released())
        lab.adjust = lambda plane: hold(plane.operations, before)
        await lab.start()
        await asyncio.sleep(60.0)
        assert backend.calls["recycle"] == 0
        assert (await lab.volumes()).get("v") != "Available"


@pytest.mark.parametrize("left", [None, {"namespace": ""}])
async def test_a_volume_that_refers_to_no_claim_when_its_turn_comes_has_no_users(
    left: dict[str, str] | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "volplane.operations")
    backend = ScriptedBackend(DRIVER)

    async def before(operation: str) -> None:
        if operation.startswith("recycle-v["):
            await lab.patch("volumes", "v", {"spec": {"claimRef": left}})

    async with Harness(backend) as lab:
        await lab.create("volumes", recycling.released())
        lab.adjust = lambda plane: hold(plane.operations, before)
        await lab.start()
        await lab.settle()
        assert backend.calls["recycle"] == 1
        assert not [text for text in caplog.messages if "failed" in text]


async def test_the_backend_erases_the_volume_as_it_is_when_its_turn_comes() -> None:
    backend = ScriptedBackend(DRIVER)
    async with Harness(backend) as lab:
        await lab.create("volumes", recycling.released())

        async def move(operation: str) -> None:
            if operation.startswith("recycle-v["):
                await lab.patch("volumes", "v", {"metadata": {"annotations": {"volplane.dev/handle": "moved"}}})

        lab.adjust = lambda plane: hold(plane.operations, move)
        await lab.start()
        await lab.settle()
        (request,) = backend.requests
        assert (request.volume.name, request.volume.handle) == ("v", "moved")
        assert (request.context.driver, request.context.cluster_id) == (DRIVER, "cluster-1")
        assert await lab.volumes() == {"v": "Available"}


async def test_the_pod_mounts_what_the_backend_says() -> None:
    """The API server adds an empty type to a hostPath without one."""
    plan = PodScrub(volume={"hostPath": {"path": "/exports"}}, sub_path="v/data")
    async with Harness(ScriptedBackend(DRIVER, {"recycle": [plan]})) as lab:
        await lab.create("volumes", recycling.released())
        await lab.start()
        await asyncio.sleep(5.0)
        (pod,) = await recycling.pods(lab)
        (mounted,) = pod["spec"]["volumes"]
        assert mounted["hostPath"]["path"] == "/exports"
        assert pod["spec"]["containers"][0]["volumeMounts"][0]["subPath"] == "v/data"


async def test_pods_that_still_use_the_volume_are_told_on_it() -> None:
    backend = ScriptedBackend(DRIVER)
    async with Harness(backend) as lab:
        await lab.create("volumes", recycling.released())
        for name, phase in (("user", "Running"), ("another", "Pending"), ("done", "Succeeded")):
            body = recycling.user()
            body["metadata"]["name"], body["status"] = name, {"phase": phase}
            await lab.create("pods", body)
        elsewhere = recycling.user()
        elsewhere["metadata"] = {"name": "user", "namespace": "elsewhere"}
        await lab.create("pods", elsewhere)
        other = recycling.user()
        other["metadata"]["name"] = "other"
        other["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] = "another"
        await lab.create("pods", other)
        lab.rules.hide("pods", "*")
        await lab.start()
        await asyncio.sleep(30.0)
        assert backend.calls["recycle"] == 0
        told = next(each for each in lab.recorded if each.reason == "VolumeFailedRecycle")
        assert (told.kind, told.about.name, told.type) == (VOLUMES, "v", "Normal")
        assert told.message == "Volume is used by pods: default/another,default/user"
        for name in ("user", "another"):
            await lab.delete("pods", name, grace=0)
        await asyncio.sleep(30.0)
        assert await lab.volumes() == {"v": "Available"}, "other pods and those that ended do not use it"
