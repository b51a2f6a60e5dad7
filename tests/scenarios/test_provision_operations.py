"""Between a decision to provision and its hook: the claim is looked at once more, and what came before is removed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from scenarios.backends import OK, ScriptedBackend, SearchableBackend
from scenarios.harness import Harness
from scenarios.provisioning import INTENT, ask, create_class, slow_provisioning
from scenarios.single import hold
from scenarios.stories import DRIVER, claim, reference, volume
from volplane import (
    AlreadyDeleted,
    Asset,
    BackendError,
    DeleteRequest,
    Done,
    FindRequest,
    InProgress,
    InvalidArgument,
    ProvisionRequest,
    ResourceExhausted,
    ValidateRequest,
    hookimpl,
)
from volplane.errors import OutcomeUnknown
from volplane.kube.names import NODE
from volplane.state.naming import node_hash
from volplane.state.records import INTENT_VERSION, ClaimIntent

OTHER = "other.example.com"
Change = Callable[[Harness, str], Awaitable[None]]


def before_the_hook(lab: Harness, change: Change) -> None:
    """Let something happen to claim `c` once, after it was decided to provision for it."""
    changes = [change]

    async def once(operation: str) -> None:
        if operation.startswith("provision-") and changes:
            uid = (await lab.claim("c"))["metadata"]["uid"]
            await changes.pop()(lab, uid)
            await asyncio.sleep(1.0)

    hold(lab.plane.operations, once)


def made(backend: ScriptedBackend) -> list[ProvisionRequest]:
    return [request for request in backend.requests if isinstance(request, ProvisionRequest)]


# --- still wanted? -----------------------------------------------------------------------------------------------


async def remove_by_force(lab: Harness, _uid: str) -> None:
    await lab.patch("claims", "c", {"metadata": {"finalizers": None}})
    await lab.delete("claims", "c")


async def create_again(lab: Harness, uid: str) -> None:
    await remove_by_force(lab, uid)
    await lab.create("classes", {"metadata": {"name": "none"}, "provisioner": "kubernetes.io/no-provisioner"})
    await lab.create("claims", claim("c", storageClassName="none"))


async def end(lab: Harness, _uid: str) -> None:
    await lab.delete("claims", "c")


async def bind_elsewhere(lab: Harness, uid: str) -> None:
    await lab.create("volumes", volume("static", storageClassName="fast", claimRef=reference("c", uid=uid)))
    await asyncio.sleep(1.0)


async def take_the_name(lab: Harness, uid: str) -> None:
    await lab.create("volumes", volume(f"pvc-{uid}", storageClassName="fast", claimRef=reference("another")))


@pytest.mark.parametrize("change", [remove_by_force, create_again, end, bind_elsewhere, take_the_name])
async def test_nothing_is_made_for_what_is_not_wanted_when_its_turn_comes(
    change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "volplane.operations")
    backend = SearchableBackend(DRIVER)
    async with Harness(backend) as lab:
        await create_class(lab)
        await lab.start()
        before_the_hook(lab, change)
        await ask(lab)
        await asyncio.sleep(30.0)
        assert backend.calls["provision"] == 0
        assert not [text for text in caplog.messages if "failed" in text]


async def test_for_a_claim_that_was_made_anew_the_hook_is_called_for_the_new_one_alone() -> None:
    async def anew(lab: Harness, uid: str) -> None:
        await remove_by_force(lab, uid)
        await lab.create("claims", claim("c", storageClassName="fast"))

    backend = SearchableBackend(DRIVER)
    async with Harness(backend, latency=slow_provisioning) as lab:
        await create_class(lab)
        await lab.start()
        before_the_hook(lab, anew)
        await ask(lab)
        await lab.settle(60.0)
        assert await lab.claims() == {"c": "Bound"}
        assert backend.calls["provision"] == 1


async def test_a_first_volume_is_made_without_reading_the_server() -> None:
    async with Harness(SearchableBackend(DRIVER)) as lab:
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await lab.settle(60.0)
        assert await lab.claims() == {"c": "Bound"}
        assert [read for read in lab.rules.reads() if "persistentvolumes" in read] == []


@pytest.mark.parametrize(
    "theirs",
    [
        None,
        ClaimIntent(v=INTENT_VERSION, driver=OTHER),
        ClaimIntent(v=INTENT_VERSION, driver=DRIVER, fence="8/another/lease"),
    ],
    ids=["no record", "another driver's", "another leader's"],
)
async def test_nothing_is_made_under_a_record_that_is_not_ours(
    theirs: ClaimIntent | None, caplog: pytest.LogCaptureFixture
) -> None:
    """It is taken away or replaced before the hook, and cannot be written again for a while."""
    caplog.set_level("INFO", "volplane.operations")
    backend = SearchableBackend(DRIVER)
    records: list[ClaimIntent | None] = []
    async with Harness(backend, SearchableBackend(OTHER)) as lab:

        def look(hook: str) -> None:
            item = lab.plane.state.claims.get("default/c")
            if hook == "provision" and item is not None:
                records.append(lab.plane.state.sealer.open(item.uid, item.annotation(INTENT)))

        async def damage(lab: Harness, uid: str) -> None:
            lab.fail("update persistentvolumeclaims", "busy", 8)
            text = lab.plane.state.sealer.seal(uid, theirs) if theirs is not None else None
            await lab.patch("claims", "c", {"metadata": {"annotations": {INTENT: text}}})

        backend.after = look
        await create_class(lab)
        await lab.start()
        before_the_hook(lab, damage)
        await ask(lab)
        await lab.settle(120.0)
        assert await lab.claims() == {"c": "Bound"}
        assert [(each.driver, each.fence) for each in records if each is not None] == [(DRIVER, "")]
        assert not [text for text in caplog.messages if "failed" in text]


# --- what came before it -----------------------------------------------------------------------------------------


async def test_an_attempt_that_got_lost_is_not_dated_by_the_one_before() -> None:
    """Absence is proven so many seconds after the last attempt; of a lost one nobody knows the end."""
    backend = SearchableBackend(DRIVER, info={"settle_seconds": 60.0})
    backend.script("provision", BackendError("not now", retry_after=40.0), OutcomeUnknown("lost"))
    async with Harness(backend) as lab:
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(41.0)
        assert backend.calls["provision"] == 2
        await lab.delete("claims", "c")
        await asyncio.sleep(50.0)
        assert await lab.claims() == {"c": "Pending"}
        await asyncio.sleep(15.0)
        assert await lab.claims() == {}


@pytest.mark.parametrize(
    "answer", [BackendError("lost", retry_after=300.0), InProgress(retry_after=300.0, state={"job": 1})]
)
async def test_absence_is_counted_from_the_end_of_the_last_attempt(answer: object) -> None:
    backend = SearchableBackend(DRIVER, info={"settle_seconds": 60.0})
    backend.script("provision", answer, BackendError("there is none", nothing_done=True))
    async with Harness(backend) as lab:
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(50.0)
        await lab.delete("claims", "c")
        await asyncio.sleep(8.0)
        assert await lab.claims() == {"c": "Pending"}
        await asyncio.sleep(4.0)
        assert await lab.claims() == {}


async def test_a_failure_is_told_on_the_claim_with_the_next_attempt_which_makes_it_no_other_failure() -> None:
    backend = ScriptedBackend(DRIVER, {"provision": [BackendError("the filer is down")]})
    async with Harness(backend) as lab:
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(0.7)
        failure = 'Failed to provision volume with StorageClass "fast": the filer is down'
        told = [each for each in lab.recorded if each.reason == "ProvisioningFailed"]
        assert [each.about.name for each in told] == ["c", "c"]
        assert [each.message for each in told] == [f"{failure}; next attempt in {after} s" for after in ("0.5", "1")]
        assert {each.same_as for each in told} == {failure}


async def on_a_node(
    lab: Harness, backend: ScriptedBackend, *, generation: int, hidden: bool = False, lost: bool = False
) -> str:
    """A claim of node n has an asset of the first generation there, and a record of this one; its process starts.

    hidden: a volume of its name exists, which no cache shows yet. lost: the asset is gone. The uid.
    """
    await lab.create("nodes", {"metadata": {"name": "n", "labels": {"place": "here"}}})
    await create_class(lab)
    lab.fail("create persistentvolumes", "away", 1)
    body = claim("c", storageClassName="fast")
    body["metadata"] |= {"annotations": {"volume.kubernetes.io/selected-node": "n"}, "labels": {NODE: node_hash("n")}}
    uid = str((await lab.create("claims", body))["metadata"]["uid"])
    await lab.start()
    await asyncio.sleep(0.001)
    await lab.kill()
    if lost:
        backend.assets.clear()
    record = ClaimIntent(
        v=INTENT_VERSION, driver=DRIVER, generation=generation, segment={"place": "here"}, state={"job": generation}
    )
    text = lab.plane.state.sealer.seal(uid, record)
    await lab.patch("claims", "c", {"metadata": {"annotations": {INTENT: text}}})
    if hidden:
        await lab.create("volumes", volume(f"pvc-{uid}", storageClassName="fast"))
        lab.rules.hide("persistentvolumes", "*")
    lab.change_role(node_name="n", binder=False)
    await lab.start()
    return uid


def of_a_node(**script: list[object]) -> SearchableBackend:
    return SearchableBackend(DRIVER, script, info={"topology_keys": ("place",)})


@pytest.mark.parametrize("generation", [2, 3])
async def test_what_a_node_has_of_an_earlier_generation_goes_before_the_next_is_made_there(
    generation: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The node was given up, and came back with it."""
    caplog.set_level("INFO", "volplane.operations")
    backend = of_a_node(delete=[InProgress(retry_after=20.0, state={"job": 5}), OK])
    async with Harness(backend) as lab:
        uid = await on_a_node(lab, backend, generation=generation)
        assert backend.assets[f"pvc-{uid}"].owner.generation == 1
        await asyncio.sleep(10.0)
        assert backend.assets[f"pvc-{uid}"].owner.generation == 1, "it is being deleted"
        await lab.settle(60.0)
        assert backend.assets[f"pvc-{uid}"].owner.generation == generation
        sought = [request for request in backend.requests if isinstance(request, FindRequest)]
        assert {(request.context.generation, bool(request.context.state)) for request in sought} == {
            (former, False) for former in range(1, generation)
        }
        assert not [text for text in caplog.messages if "failed" in text]
        gone = [request for request in backend.requests if isinstance(request, DeleteRequest)]
        assert {request.context.generation for request in gone} == {1}
        assert {request.volume.owner.generation for request in gone if request.volume.owner} == {1}


async def test_without_find_the_next_generation_is_made_at_once() -> None:
    backend = ScriptedBackend(DRIVER, info={"topology_keys": ("place",)})
    async with Harness(backend) as lab:
        uid = await on_a_node(lab, backend, generation=2, lost=True)
        await lab.settle(60.0)
        assert backend.assets[f"pvc-{uid}"].owner.generation == 2


async def test_a_job_goes_on_with_what_it_said_last_in_another_process() -> None:
    backend = SearchableBackend(DRIVER)
    backend.script("provision", *(InProgress(retry_after=5.0, state={"job": number}) for number in (1, 2)), OK)
    async with Harness(backend) as lab:
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(7.0)
        await lab.restart()
        await lab.settle(60.0)
        assert await lab.claims() == {"c": "Bound"}
        assert [dict(request.context.state) for request in made(backend)] == [{}, {"job": 1}, {"job": 2}]


async def test_it_stays_while_a_volume_that_no_cache_shows_yet_may_hold_it() -> None:
    backend = of_a_node()
    async with Harness(backend) as lab:
        uid = await on_a_node(lab, backend, generation=2, hidden=True)
        await asyncio.sleep(30.0)
        assert backend.assets[f"pvc-{uid}"].owner.generation == 1
        assert backend.calls["delete"] == 0


# --- what it says of a class -------------------------------------------------------------------------------------


class ValidatingBackend(SearchableBackend):
    @hookimpl
    def validate(self, request: ValidateRequest) -> Done:
        result: Done = self._play("validate", request, Done)
        return result


async def test_the_backend_is_asked_about_the_parameters_of_a_class_once_before_they_are_used() -> None:
    backend = ValidatingBackend(DRIVER, {"validate": [InvalidArgument("no such tier"), OK]}, parameters=["tier"])
    other = ValidatingBackend(OTHER, parameters=["tier"])
    async with Harness(backend, other) as lab:
        await create_class(lab, parameters={"tier": "gold"})
        await lab.start()
        await ask(lab)
        await asyncio.sleep(10.0)
        assert backend.calls == {"validate": 1}
        assert "no such tier" in lab.messages("ProvisioningFailed")[0]
        await lab.settle(600.0)
        await ask(lab, "d")
        await lab.settle(60.0)
        assert await lab.claims() == {"c": "Bound", "d": "Bound"}
        assert (backend.calls["validate"], backend.calls["provision"]) == (2, 2)
        asked = [request for request in backend.requests if isinstance(request, ValidateRequest)]
        assert [dict(request.parameters) for request in asked] == [{"tier": "gold"}] * 2
        assert {request.context.cluster_id for request in asked} == {"cluster-1"}
        for name, driver, tier in (("tin", DRIVER, "tin"), ("again", DRIVER, "gold"), ("other", OTHER, "gold")):
            await lab.create(
                "classes", {"metadata": {"name": name}, "provisioner": driver, "parameters": {"tier": tier}}
            )
            await lab.create("claims", claim(name, storageClassName=name))
            await lab.settle(60.0)
        assert (backend.calls["validate"], other.calls["validate"]) == (3, 1)


# --- a place that is full ----------------------------------------------------------------------------------------


async def in_a_place(lab: Harness) -> None:
    """A claim whose scheduler chose node n, which has a place."""
    await lab.create("nodes", {"metadata": {"name": "n", "labels": {"place": "here"}}})
    await create_class(lab, volumeBindingMode="WaitForFirstConsumer")
    body = claim("c", storageClassName="fast")
    body["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "n"}
    await lab.create("claims", body)
    await lab.start()
    await asyncio.sleep(0.8)


FULL = ResourceExhausted("full", reschedule=True)
PROVEN = ResourceExhausted("full", reschedule=True, nothing_done=True)


@pytest.mark.parametrize(
    ("kind", "error", "settle", "given_back"),
    [
        (ScriptedBackend, PROVEN, 0.0, True),
        (ScriptedBackend, FULL, 0.0, False),
        (SearchableBackend, FULL, 0.0, True),
        (SearchableBackend, FULL, 60.0, False),
        (SearchableBackend, FULL, 0.9, False),
        (SearchableBackend, PROVEN, 60.0, True),
        (SearchableBackend, ResourceExhausted("full", nothing_done=True), 0.0, False),
        (SearchableBackend, BackendError("down", nothing_done=True), 0.0, False),
    ],
)
async def test_another_place_may_be_chosen_only_where_this_one_is_full_and_nothing_is_left_in_it(
    kind: type[ScriptedBackend], error: BackendError, settle: float, *, given_back: bool
) -> None:
    """settle: seconds after which `find` proves that nothing is there."""
    backend = kind(DRIVER, {"provision": [error]}, info={"topology_keys": ("place",), "settle_seconds": settle})
    async with Harness(backend) as lab:
        await in_a_place(lab)
        chosen = (await lab.claim("c"))["metadata"]["annotations"].get("volume.kubernetes.io/selected-node")
        assert chosen == (None if given_back else "n")
        assert {state.error for state in lab.plane.operations.snapshot()} == (set() if given_back else {str(error)})


async def test_what_nobody_chose_a_place_for_is_tried_again_in_it() -> None:
    backend = SearchableBackend(DRIVER, {"provision": [PROVEN, OK]}, info={"topology_keys": ("place",)})
    async with Harness(backend) as lab:
        await lab.create("nodes", {"metadata": {"name": "n", "labels": {"place": "here"}}})
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(2.0)
        assert await lab.claims() == {"c": "Bound"}
        assert lab.events["Normal WaitForFirstConsumer"] == 0


async def test_the_next_generation_of_what_was_deleted_may_be_made_in_the_same_place() -> None:
    """In-tree drivers give a place back after every other failure."""
    name = "kubernetes.io/disk"
    backend = SearchableBackend(name, {"provision": [AlreadyDeleted("its token was used"), OK]})
    async with Harness(backend) as lab:
        await lab.create("nodes", {"metadata": {"name": "n"}})
        await create_class(lab, provisioner=name, volumeBindingMode="WaitForFirstConsumer")
        body = claim("c", storageClassName="fast")
        body["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "n"}
        await lab.create("claims", body)
        await lab.start()
        await lab.settle(60.0)
        assert await lab.claims() == {"c": "Bound"}
        assert lab.events["Normal WaitForFirstConsumer"] == 0


async def test_a_place_in_which_a_job_was_begun_or_the_asset_is_found_is_kept() -> None:
    begun = {"provision": [InProgress(retry_after=0.1, state={"job": 1}), FULL]}
    for backend in (
        SearchableBackend(DRIVER, begun, info={"topology_keys": ("place",)}),
        FullAfterAll(DRIVER, info={"topology_keys": ("place",)}),
    ):
        async with Harness(backend) as lab:
            await in_a_place(lab)
            assert backend.calls["provision"] > 0
            annotations = (await lab.claim("c"))["metadata"]["annotations"]
            assert annotations["volume.kubernetes.io/selected-node"] == "n"


class FullAfterAll(SearchableBackend):
    """Says that it is full, and has made the asset."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        super().provision(request)
        raise FULL
