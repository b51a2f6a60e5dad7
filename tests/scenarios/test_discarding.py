"""Assets of claims that want them no more: whether they are still unwanted, whose they are, and what is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from scenarios.backends import OK, ScriptedBackend, SearchableBackend
from scenarios.harness import Harness, Json
from scenarios.provisioning import INTENT, ask, create_class, made_without_a_volume, slow_provisioning
from scenarios.single import hold
from scenarios.stories import DRIVER, claim, reference, volume
from volplane import (
    Absent,
    AlreadyDeleted,
    Asset,
    AssetPage,
    BackendError,
    DeleteRequest,
    Done,
    InProgress,
    InvalidArgument,
    ProvisionRequest,
    VolumeSource,
    hookimpl,
)
from volplane.kube import names
from volplane.kube.kinds import CLAIMS
from volplane.kube.names import NODE
from volplane.leaks.comparison import GRACE_SECONDS, Verdict
from volplane.requests import FindRequest, ListRequest
from volplane.state.naming import node_hash
from volplane.state.records import INTENT_VERSION, ClaimIntent

OTHER = "other.example.com"
Change = Callable[[Harness], Awaitable[None]]

# --- still unwanted? ---------------------------------------------------------------------------------------------


async def nothing(_lab: Harness) -> None:
    """What was decided still holds."""


async def remove_by_force(lab: Harness) -> None:
    await lab.patch("claims", "c", {"metadata": {"finalizers": None}})
    await lab.delete("claims", "c")
    await asyncio.sleep(1.0)


async def create_again(lab: Harness) -> None:
    await remove_by_force(lab)
    await lab.create("classes", {"metadata": {"name": "none"}, "provisioner": "kubernetes.io/no-provisioner"})
    await lab.create("claims", claim("c", storageClassName="none"))
    await switch_class(lab, DRIVER)
    await asyncio.sleep(1.0)


async def end_the_claim(lab: Harness) -> None:
    await switch_class(lab, DRIVER)
    await lab.delete("claims", "c")


async def point_elsewhere(lab: Harness) -> None:
    await switch_class(lab, DRIVER)
    await lab.patch("claims", "c", {"spec": {"volumeName": "static"}})


async def point_to_ours(lab: Harness) -> None:
    await switch_class(lab, DRIVER)
    uid = (await lab.claim("c"))["metadata"]["uid"]
    await lab.patch("claims", "c", {"spec": {"volumeName": f"pvc-{uid}"}})


async def switch_back(lab: Harness) -> None:
    await switch_class(lab, DRIVER)


async def remove_the_class(lab: Harness) -> None:
    await lab.delete("classes", "fast")


@pytest.mark.parametrize("stripped", [False, True])
@pytest.mark.parametrize("change", [nothing, remove_by_force, create_again, end_the_claim, point_elsewhere])
async def test_what_is_not_wanted_when_its_turn_comes_is_deleted(change: Change, *, stripped: bool) -> None:
    """stripped: a tenant took the record away, and the process may know nothing of a claim that is gone."""
    backend = SearchableBackend(DRIVER)
    async with Harness(backend, SearchableBackend(OTHER), latency=slow_provisioning) as lab:
        uid = await with_an_asset_of_the_former_class(lab, change, stripped=stripped)
        await asyncio.sleep(30.0)
        assert f"pvc-{uid}" not in backend.assets
        assert backend.calls["delete"] == 1
        assert backend.calls["provision"] == 1


@pytest.mark.parametrize(
    ("change", "stripped", "recorded"),
    [
        (nothing, False, True),
        (nothing, True, True),
        (end_the_claim, False, False),
        (remove_by_force, False, False),
    ],
)
async def test_a_discard_is_written_down_first_where_the_claim_may_get_another_asset(
    change: Change, *, stripped: bool, recorded: bool
) -> None:
    """Nothing is made for a claim that ends, and nothing is written to one that is gone."""
    backend = SearchableBackend(DRIVER)
    said: list[bool] = []
    async with Harness(backend, SearchableBackend(OTHER), latency=slow_provisioning) as lab:

        def look(hook: str) -> None:
            item = lab.plane.state.claims.get("default/c")
            record = None
            if hook == "delete" and item is not None:
                record = lab.plane.state.sealer.open(item.uid, item.annotation(INTENT))
            if hook == "delete":
                said.append(record is not None and record.discard is not None)

        backend.after = look
        await with_an_asset_of_the_former_class(lab, change, stripped=stripped)
        await asyncio.sleep(30.0)
        assert said == [recorded]


def records(lab: Harness) -> list[str]:
    """What becomes of the records of claims from now on."""
    written: list[str] = []

    async def note(_event: str, item: Json) -> None:
        written.append((item["metadata"].get("annotations") or {}).get(INTENT, ""))

    lab.follow("claims", note)
    return written


async def test_of_an_asset_that_no_job_makes_no_discard_is_written_down_if_its_claim_ends() -> None:
    async with Harness(SearchableBackend(DRIVER)) as lab:
        await made_without_a_volume(lab)
        written = records(lab)
        await lab.delete("claims", "c")
        await lab.settle(60.0)
        assert await lab.claims() == {}
        assert not [text for text in written if '"discard"' in text]


async def test_of_an_asset_that_was_never_made_no_discard_is_written_down() -> None:
    backend = SearchableBackend(DRIVER, {"provision": [BackendError("lost")]})
    async with Harness(backend, SearchableBackend(OTHER)) as lab:
        written = records(lab)
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(0.2)
        await switch_class(lab, OTHER)
        await lab.settle(60.0)
        assert await lab.claims() == {"c": "Bound"}
        assert not [text for text in written if '"discard"' in text]


@pytest.mark.parametrize("change", [switch_back, remove_the_class, point_to_ours])
async def test_what_is_wanted_again_when_its_turn_comes_is_kept(
    change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "volplane.operations")
    backend = SearchableBackend(DRIVER)
    async with Harness(backend, SearchableBackend(OTHER), latency=slow_provisioning) as lab:
        uid = await with_an_asset_of_the_former_class(lab, change)
        await asyncio.sleep(30.0)
        assert list(backend.assets) == [f"pvc-{uid}"]
        assert backend.calls["delete"] == 0
        assert not [text for text in caplog.messages if "failed" in text]


async def made_on_a_node(lab: Harness) -> str:
    """Let the process make an asset for a claim of node n, and die before its volume is there. The claim's uid."""
    await lab.create("nodes", {"metadata": {"name": "n", "labels": {"place": "here"}}})
    await create_class(lab)
    lab.fail("create persistentvolumes", "away", 10**6)
    body = claim("c", storageClassName="fast")
    body["metadata"] |= {"annotations": {"volume.kubernetes.io/selected-node": "n"}, "labels": {NODE: node_hash("n")}}
    uid = (await lab.create("claims", body))["metadata"]["uid"]
    await lab.start()
    await asyncio.sleep(1.0)
    await lab.kill()
    return str(uid)


@pytest.mark.parametrize("node", ["", "n"])
async def test_on_its_node_an_asset_goes_though_a_volume_that_leads_elsewhere_has_its_name(node: str) -> None:
    """A process that serves one node may come back after the claim got a volume of another node."""
    backend = SearchableBackend(DRIVER, info={"topology_keys": ("place",)})
    async with Harness(backend) as lab:
        uid = await made_on_a_node(lab)
        assert list(backend.assets) == [f"pvc-{uid}"]
        elsewhere = volume(f"pvc-{uid}", storageClassName="fast", claimRef=reference("c", uid=uid))
        elsewhere["metadata"]["labels"] = {NODE: node_hash("n")}
        await lab.create("volumes", elsewhere)
        await lab.delete("claims", "c")
        lab.change_role(node_name=node, binder=not node)
        await lab.start()
        await lab.settle()
        assert await lab.claims() == {}
        assert list(backend.assets) == ([] if node else [f"pvc-{uid}"])


@pytest.mark.parametrize("held", [True, False])
async def test_on_its_node_an_asset_stays_if_a_volume_holds_it_that_no_cache_shows_yet(*, held: bool) -> None:
    backend = SearchableBackend(DRIVER, info={"topology_keys": ("place",)})
    async with Harness(backend) as lab:
        uid = await made_on_a_node(lab)
        if held:
            ours = volume(f"pvc-{uid}", storageClassName="fast", claimRef=reference("c", uid=uid))
            ours["metadata"] |= {"labels": {NODE: node_hash("n")}, "annotations": {names.PROVISIONED_BY: DRIVER}}
            await lab.create("volumes", ours)
        lab.rules.hide("persistentvolumes", "*")
        await lab.delete("claims", "c")
        lab.change_role(node_name="n", binder=False)
        await lab.start()
        await lab.settle()
        assert await lab.claims() == {}
        assert list(backend.assets) == ([f"pvc-{uid}"] if held else [])


async def test_what_another_leader_took_over_is_deleted_only_once_it_is_taken_back() -> None:
    """The process was paused, and has decided before."""
    backend = SearchableBackend(DRIVER)
    terms: list[str] = []
    async with Harness(backend) as lab:
        uid = await made_without_a_volume(lab)

        def term() -> str:
            claim = lab.plane.state.claims.get("default/c")
            record = lab.plane.state.sealer.open(uid, claim.annotation(INTENT)) if claim is not None else None
            return record.fence if record is not None else "none"

        async def take_over(operation: str) -> None:
            if operation.startswith("discard-") and not terms:
                terms.append(term())
                theirs = ClaimIntent(v=INTENT_VERSION, driver=DRIVER, fence="8/another/lease")
                text = lab.plane.state.sealer.seal(uid, theirs)
                lab.fail("update persistentvolumeclaims", "busy", 8)
                await lab.patch("claims", "c", {"metadata": {"annotations": {INTENT: text}}})

        hold(lab.plane.operations, take_over)
        backend.after = lambda hook: terms.append(term()) if hook == "delete" else None
        await lab.delete("claims", "c")
        await lab.settle(60.0)
        assert await lab.claims() == {}
        assert terms == ["", ""]


async def with_an_asset_of_the_former_class(lab: Harness, change: Change, *, stripped: bool = False) -> str:
    """The class names another driver while the asset is made; `change` comes before the first discard. The uid."""
    changes = [change]

    async def once(operation: str) -> None:
        if operation.startswith("discard-") and changes:
            await changes.pop()(lab)

    await create_class(lab)
    lab.adjust = lambda plane: hold(plane.operations, once)
    await lab.start()
    uid = await ask(lab)
    await asyncio.sleep(1.0)
    await switch_class(lab, OTHER)
    if stripped:
        await asyncio.sleep(0.5)
        await lab.patch("claims", "c", {"metadata": {"annotations": {INTENT: None}}})
    return uid


# --- what is asked for -------------------------------------------------------------------------------------------


async def test_the_backend_is_told_which_asset_of_whom_is_to_go() -> None:
    """The second driver's asset is the second generation."""
    backend, other = SearchableBackend(DRIVER), SearchableBackend(OTHER)
    other.script("delete", InProgress(retry_after=20.0, state={"job": 5}), "it is busy", OK)

    async with Harness(backend, other, latency=slow_provisioning) as lab:
        uid = await with_an_asset_of_the_former_class(lab, nothing)
        await lab.until(lambda: called(other, "provision"), 60.0)
        assert other.calls["find"] == 0, "only on a node that came back something may be left of what was before"
        await lab.delete("claims", "c")
        await asyncio.sleep(15.0)
        assert len(deletions(other)) == 1, "the backend asked for 20 seconds"
        await asyncio.sleep(60.0)
        assert await lab.claims() == {}
        assert not backend.assets
        assert not other.assets
        assert [request.context.generation for request in deletions(backend)] == [1]
        assert [dict(request.context.state) for request in deletions(other)] == [{}, {"job": 5}, {"job": 5}]
        for request in deletions(other):
            assert request.context.generation == 2
            assert request.volume.handle == f"/assets/pvc-{uid}"
            assert request.volume.owner is not None
            assert (request.volume.owner.claim_uid, request.volume.owner.generation) == (uid, 2)
            assert request.volume.owner.cluster_id == request.context.cluster_id == "cluster-1"
        (event,) = [each for each in lab.recorded if each.reason == "ProvisioningCleanupFailed"]
        assert (event.kind, event.about.name, event.type) == (CLAIMS, "c", "Warning")
        assert event.message == "Error cleaning provisioned volume for claim default/c: it is busy; it is tried again"


async def test_an_asset_that_went_while_the_process_was_away_is_not_made_once_more_to_be_deleted() -> None:
    backend = SearchableBackend(DRIVER)
    backend.script("provision", InProgress(retry_after=2.0, state={"job": 1}), OK)
    backend.script("delete", InProgress(retry_after=20.0, state={"job": 5}))

    async with Harness(backend) as lab:
        await create_class(lab)
        lab.fail("create persistentvolumes", "away", 10**6)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(4.0)
        await lab.delete("claims", "c")
        await asyncio.sleep(5.0)
        assert deletions(backend), "it was begun"
        made = backend.calls["provision"]
        await lab.kill()
        backend.assets.clear()
        await lab.start()
        await lab.settle(60.0)
        assert await lab.claims() == {}
        assert backend.calls["provision"] == made
        assert len(deletions(backend)) == 1


class TokenBackend(SearchableBackend):
    """Makes one asset for a name and generation, and never another one, as a storage that keeps client tokens."""

    deleted: frozenset[tuple[str, int]] = frozenset()

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        if (request.name, request.context.generation) in self.deleted:
            self.requests.append(request)
            raise AlreadyDeleted(f"the client token of {request.name} was used for what is no more")
        return super().provision(request)

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        self.deleted |= {(request.volume.name, request.context.generation)}
        return super().delete(request)


async def a_claim_of_a_restored_server(lab: Harness, backend: TokenBackend) -> str:
    """Its volume is being made, as its record says; in truth that was made and deleted after the backup. The uid."""
    backend.script("provision", InProgress(retry_after=2.0, state={"job": 1}), OK)
    await create_class(lab)
    await lab.start()
    uid = await ask(lab)
    await asyncio.sleep(1.0)
    await lab.kill()
    backend.deleted = frozenset({(f"pvc-{uid}", 1)})
    return uid


async def test_a_claim_whose_asset_was_deleted_before_the_server_was_restored_can_be_deleted_once_more() -> None:
    """Found by the simulation: `find` does not end a job that is known to run, and `provision` refused for ever."""
    backend = TokenBackend(DRIVER)
    async with Harness(backend) as lab:
        await a_claim_of_a_restored_server(lab, backend)
        await lab.delete("claims", "c")
        await lab.start()
        await lab.settle(60.0)
        assert await lab.claims() == {}
        assert backend.assets == {}
        assert lab.messages("ProvisioningCleanupFailed") == []


async def test_a_claim_whose_asset_was_deleted_before_the_server_was_restored_gets_another_one() -> None:
    backend = TokenBackend(DRIVER)
    async with Harness(backend) as lab:
        uid = await a_claim_of_a_restored_server(lab, backend)
        await lab.start()
        await lab.settle(60.0)
        assert await lab.claims() == {"c": "Bound"}
        assert list(backend.assets) == [f"pvc-{uid}"]
        made = [each.context.generation for each in backend.requests if isinstance(each, ProvisionRequest)]
        assert made == [1, 1, 2], "begun, refused after the restore, and made as the next generation"
        assert "was used for what is no more" in lab.messages("ProvisioningFailed")[-1]


class GenerationBackend(TokenBackend):
    """Looks for the asset of one generation only, and lists its assets."""

    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        made = self.assets.get(request.name)
        if made is not None and made.owner is not None and made.owner.generation != request.context.generation:
            return Absent()
        return super().find(request)

    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        return self.memory.list_assets(request)


async def test_a_later_asset_whose_record_a_tenant_removed_is_an_orphan_once_its_claim_is_gone() -> None:
    """Without a record the first generation is presumed: the second is not found, nor taken for another one."""
    backend = GenerationBackend(DRIVER)
    async with Harness(backend) as lab:
        uid = await a_claim_of_a_restored_server(lab, backend)
        lab.fail("create persistentvolumes", "away", 10**6)
        await lab.start()
        await asyncio.sleep(60.0)
        assert backend.assets[f"pvc-{uid}"].owner.generation == 2
        await lab.kill()
        await lab.patch("claims", "c", {"metadata": {"annotations": {INTENT: None}}})
        await lab.delete("claims", "c")
        await lab.start()
        await lab.settle(60.0)
        assert await lab.claims() == {}
        assert list(backend.assets) == [f"pvc-{uid}"]
        check, driver = lab.plane.leak_check, lab.plane.drivers.get(DRIVER)
        assert driver is not None
        for _ in range(2):
            assert await check.check(driver)
            await asyncio.sleep(GRACE_SECONDS + 1.0)
        [finding] = check.observations.findings()
        assert (finding.verdict, finding.handle) == (Verdict.ORPHAN, backend.assets[f"pvc-{uid}"].handle)
        assert check.observations.confirmed(finding)


async def test_a_deletion_that_failed_once_goes_on_though_the_class_switches_back() -> None:
    """Who knows what the failed call has destroyed already."""
    backend = SearchableBackend(DRIVER, {"delete": ["it is busy", OK]})
    async with Harness(backend, SearchableBackend(OTHER), latency=slow_provisioning) as lab:
        uid = await with_an_asset_of_the_former_class(lab, nothing)
        await lab.until(lambda: called(backend, "delete"))
        await switch_class(lab, DRIVER)
        await asyncio.sleep(30.0)
        assert [request.context.generation for request in deletions(backend)] == [1, 1]
        assert await lab.claims() == {"c": "Bound"}
        assert backend.assets[f"pvc-{uid}"].owner.generation == 2


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_the_asset_of_a_job_is_not_made_once_more_if_the_answer_of_its_deletion_is_lost(
    *, elsewhere: bool
) -> None:
    """Before the deletion it is written down that the job has ended. elsewhere: the claim takes another volume."""
    backend = SearchableBackend(DRIVER)
    backend.script("provision", InProgress(retry_after=2.0, state={"job": 1}), OK)
    async with Harness(backend) as lab:
        await create_class(lab)
        lab.fail("create persistentvolumes", "away", 10**6)
        backend.after = lambda hook: lab.crash() if hook == "delete" and lab.restarts == 0 else None
        await lab.start()
        await ask(lab)
        await asyncio.sleep(4.0)
        made = backend.calls["provision"]
        if elsewhere:
            await lab.create("volumes", volume("static", storageClassName="fast"))
            await lab.patch("claims", "c", {"spec": {"volumeName": "static"}})
        else:
            await lab.delete("claims", "c")
        await lab.settle(60.0)
        assert lab.restarts == 1
        assert backend.calls["provision"] == made
        assert await lab.claims() == ({"c": "Bound"} if elsewhere else {})
        assert not backend.assets


# --- an unknown outcome ------------------------------------------------------------------------------------------


async def with_a_lost_answer(lab: Harness) -> None:
    """A claim is deleted of which nobody knows whether an asset was made."""
    await create_class(lab)
    await lab.start()
    await ask(lab)
    await asyncio.sleep(0.05)
    await lab.delete("claims", "c")


async def test_without_find_a_backend_that_is_certain_that_nothing_was_made_lets_the_claim_go() -> None:
    backend = ScriptedBackend(DRIVER, {"provision": [BackendError("lost"), BackendError("none", nothing_done=True)]})
    async with Harness(backend) as lab:
        await with_a_lost_answer(lab)
        await lab.settle()
        assert await lab.claims() == {}
        assert backend.calls == {"provision": 2}


async def test_without_find_an_error_of_the_second_call_proves_nothing_about_the_first() -> None:
    backend = ScriptedBackend(DRIVER, {"provision": [BackendError("lost"), InvalidArgument("too large"), OK]})
    async with Harness(backend) as lab:
        await with_a_lost_answer(lab)
        await asyncio.sleep(60.0)
        assert await lab.claims() == {"c": "Pending"}
        assert "too large" in lab.messages("ProvisioningCleanupFailed")[0]
        await asyncio.sleep(300.0)
        assert await lab.claims() == {}
        assert not backend.assets
        assert backend.calls == {"provision": 3, "delete": 1}


async def test_without_find_nothing_is_demanded_by_a_class_that_turned_to_another_driver() -> None:
    """Its parameters are that driver's: ours would refuse them, and the claim would never go."""
    backend = ScriptedBackend(DRIVER, {"provision": [BackendError("lost"), OK]})
    async with Harness(backend) as lab:
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(0.05)
        await lab.delete("classes", "fast")
        await create_class(lab, provisioner=OTHER, parameters={"tier": "gold"}, mountOptions=["ro"])
        await lab.delete("claims", "c")
        await lab.settle(60.0)
        assert await lab.claims() == {}
        assert not backend.assets
        assert backend.calls == {"provision": 2, "delete": 1}
        made = [request for request in backend.requests if isinstance(request, ProvisionRequest)]
        assert [(dict(request.parameters), request.mount_options) for request in made] == [({}, ()), ({}, ())]


async def test_without_find_a_job_is_followed_to_its_asset_and_that_is_deleted() -> None:
    backend = ScriptedBackend(DRIVER)
    first, second = (InProgress(retry_after=20.0, state={"job": number}) for number in (7, 8))
    backend.script("provision", BackendError("lost"), first, second, OK)
    async with Harness(backend) as lab:
        await with_a_lost_answer(lab)
        await asyncio.sleep(15.0)
        assert backend.calls["provision"] == 2, "the backend asked for 20 seconds"
        await asyncio.sleep(60.0)
        assert await lab.claims() == {}
        assert not backend.assets
        made = [request for request in backend.requests if isinstance(request, ProvisionRequest)]
        assert [dict(request.context.state) for request in made] == [{}, {}, {"job": 7}, {"job": 8}]
        assert {request.context.generation for request in made} == {1}
        assert len({(request.name, request.owner, request.capacity_bytes) for request in made}) == 1


@pytest.mark.parametrize("crashes", [0, 1])
async def test_a_job_is_followed_with_the_size_that_it_was_asked_for_though_its_claim_took_another_volume_and_grew(
    crashes: int,
) -> None:
    backend = ScriptedBackend(DRIVER)
    running = InProgress(retry_after=2.0, state={"job": 7})
    backend.script("provision", running, running, OK)
    async with Harness(backend) as lab:
        await create_class(lab, allowVolumeExpansion=True)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(1.0)
        await lab.create("volumes", volume("static", storageClassName="fast"))
        await lab.patch("claims", "c", {"spec": {"volumeName": "static"}})
        await lab.until(lambda: bound(lab))
        await lab.patch("claims", "c", {"spec": {"resources": {"requests": {"storage": "3Gi"}}}})
        for _ in range(crashes):
            lab.crash()
        await lab.settle(60.0)
        made = [request.capacity_bytes for request in backend.requests if isinstance(request, ProvisionRequest)]
        assert made == [1 << 30] * 3
        assert not backend.assets
        assert INTENT not in (await lab.claim("c"))["metadata"]["annotations"]


async def test_without_find_a_job_that_was_begun_to_find_an_asset_goes_on_if_that_is_wanted_again() -> None:
    backend = ScriptedBackend(DRIVER)
    backend.script("provision", BackendError("lost"), InProgress(retry_after=20.0, state={"job": 7}), OK)
    async with Harness(backend, ScriptedBackend(OTHER)) as lab:
        await create_class(lab)
        await lab.start()
        uid = await ask(lab)
        await asyncio.sleep(0.05)
        await switch_class(lab, OTHER)
        await lab.until(lambda: calls_of(backend, "provision", 2))
        await switch_class(lab, DRIVER)
        await asyncio.sleep(15.0)
        assert backend.calls["provision"] == 2, "the backend asked for 20 seconds"
        await lab.settle(60.0)
        assert await lab.claims() == {"c": "Bound"}
        assert list(backend.assets) == [f"pvc-{uid}"]
        made = [request for request in backend.requests if isinstance(request, ProvisionRequest)]
        assert [dict(request.context.state) for request in made] == [{}, {}, {"job": 7}]


async def test_without_find_a_deletion_that_failed_goes_on_with_the_asset_that_was_found() -> None:
    backend = ScriptedBackend(DRIVER, {"provision": [BackendError("lost"), OK], "delete": ["it is busy", OK]})
    async with Harness(backend) as lab:
        await with_a_lost_answer(lab)
        await lab.settle(60.0)
        assert await lab.claims() == {}
        assert not backend.assets
        assert backend.calls == {"provision": 2, "delete": 2}


@pytest.mark.parametrize(
    ("kind", "unable"), [(SearchableBackend, "follow what it began"), (ScriptedBackend, "look assets up")]
)
async def test_a_job_whose_class_is_gone_is_said_to_lack_it_and_ends_once_it_is_back(
    kind: type[ScriptedBackend], unable: str
) -> None:
    backend = kind(DRIVER)
    backend.script("provision", InProgress(retry_after=5.0, state={"job": 17}), BackendError("still lost"), OK)
    async with Harness(backend) as lab:
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(1.0)
        await lab.delete("classes", "fast")
        await lab.delete("claims", "c")
        await asyncio.sleep(60.0)
        assert await lab.claims() == {"c": "Pending"}
        said = lab.messages("ProvisioningCleanupFailed")[0]
        assert f'class "fast" is gone and without it driver "{DRIVER}" cannot {unable}' in said
        await create_class(lab)
        await lab.settle(600.0)
        assert await lab.claims() == {}
        assert not backend.assets
        assert backend.calls["provision"] == 3, "an outcome that is unknown is asked for again"


async def bound(lab: Harness) -> bool:
    return await lab.claims() == {"c": "Bound"}


async def called(backend: ScriptedBackend, hook: str) -> bool:
    return backend.calls[hook] > 0


async def calls_of(backend: ScriptedBackend, hook: str, number: int) -> bool:
    return backend.calls[hook] >= number


def deletions(backend: ScriptedBackend) -> list[DeleteRequest]:
    return [request for request in backend.requests if isinstance(request, DeleteRequest)]


async def switch_class(lab: Harness, driver: str) -> None:
    """A provisioner is immutable: the class is made again."""
    await lab.delete("classes", "fast")
    await create_class(lab, provisioner=driver)


# --- an asset that another volume holds --------------------------------------------------------------------------


def given_twice(handle: str) -> Asset:
    return Asset(handle=handle, source=VolumeSource(kind="hostPath", fields={"path": handle}), capacity_bytes=2**30)


@pytest.mark.parametrize("kind", [ScriptedBackend, SearchableBackend])
async def test_a_backend_that_gives_one_asset_to_two_claims_is_an_error_and_nothing_is_destroyed(
    kind: type[ScriptedBackend],
) -> None:
    """As a script does that names what it makes after `namespace-name`."""
    backend = kind(DRIVER)
    async with Harness(backend) as lab:
        await create_class(lab)
        await lab.start()
        first = await ask(lab)
        await lab.settle()
        backend.script("provision", given_twice(f"/assets/pvc-{first}"))
        await ask(lab, "twin")
        await lab.settle()
        assert await lab.claims() == {"c": "Bound", "twin": "Pending"}
        assert await lab.volumes() == {f"pvc-{first}": "Bound"}
        assert f'is that of volume "pvc-{first}"' in lab.messages("ProvisioningFailed")[-1]
        await lab.delete("claims", "twin")
        await lab.settle(700.0)
        assert await lab.claims() == {"c": "Bound"}
        assert list(backend.assets) == [f"pvc-{first}"]
        assert backend.calls["delete"] == 0


async def test_an_asset_that_a_person_has_made_a_volume_of_is_not_destroyed_with_its_claim() -> None:
    backend = ScriptedBackend(DRIVER)
    async with Harness(backend) as lab:
        uid = await made_without_a_volume(lab)
        await lab.create("volumes", volume("rescued", hostPath={"path": f"/assets/pvc-{uid}"}))
        await asyncio.sleep(1.0)
        await lab.delete("claims", "c")
        await lab.settle(60.0)
        assert await lab.claims() == {}
        assert list(backend.assets) == [f"pvc-{uid}"]
        assert 'is that of volume "rescued"' in lab.messages("ProvisioningCleanupFailed")[-1]


async def test_an_asset_that_lies_within_a_volume_of_everything_is_made_and_deleted_as_ever() -> None:
    """A person may have a volume of the whole directory in which a driver makes its own."""
    backend = ScriptedBackend(DRIVER)
    async with Harness(backend) as lab:
        await lab.create("volumes", volume("everything", hostPath={"path": "/assets"}))
        await made_without_a_volume(lab)
        await lab.delete("claims", "c")
        await lab.settle(60.0)
        assert await lab.claims() == {}
        assert not backend.assets
