"""Two installations of volplane that serve one driver name, and others who write over records: nobody writes without
pause, nothing is made twice, and whoever is left goes on alone.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from scenarios.attach_objects import bound_claim, node
from scenarios.attaching import DRIVER as ATTACHER
from scenarios.backends import OK, AttachingBackend, GrowingBackend, ScriptedBackend, SearchableBackend
from scenarios.harness import OURS, Harness, Json
from scenarios.provisioning import INTENT, PROVISIONING, ask, create_class
from scenarios.recycling import by_pod, end, permitted, released
from scenarios.references import resolved
from scenarios.stories import DRIVER, storage_class
from volplane import InProgress

SECOND = "second-system"
SLOW = InProgress(retry_after=1.0, state={"job": "7"})
CLAIMS = ("a", "b", "c")


class Storage:
    """One storage for two installations, that answers slowly as long as it is told to."""

    def __init__(self, kind: type[ScriptedBackend]) -> None:
        self.first, self.second = kind(DRIVER), kind(DRIVER)
        self.second.memory = self.first.memory
        self.begin()

    def begin(self) -> None:
        for each in (self.first, self.second):
            each.script("provision", SLOW)

    def finish(self) -> None:
        for each in (self.first, self.second):
            each.script("provision", OK)


class Pair:
    """Two installations beside a binder: the first binds, too."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.first = Harness(storage.first)
        self.second = Harness(storage.second, settings={"binder": False}, namespace=SECOND, beside=self.first)
        self.writes: Counter[str] = Counter()
        """Changes of records, by claim."""
        self._records: dict[str, str | None] = {}
        self.first.follow("claims", self._changed)

    def _changed(self, _event: str, claim: Json) -> None:
        name, record = claim["metadata"]["name"], claim["metadata"].get("annotations", {}).get(INTENT)
        if self._records.get(name) != record:
            self.writes[name] += 1
        self._records[name] = record

    def author(self, name: str) -> str:
        """Namespace of the installation whose record stands on the claim."""
        return str(json.loads(self._records[name] or "{}").get("by"))

    @property
    def provisioned(self) -> tuple[int, int]:
        return self.storage.first.calls["provision"], self.storage.second.calls["provision"]


@asynccontextmanager
async def pair(kind: type[ScriptedBackend] = SearchableBackend) -> AsyncIterator[Pair]:
    """Both work, and every claim is asked for and being made by the first."""
    made = Pair(Storage(kind))
    async with made.first, made.second:
        await create_class(made.first)
        await made.first.start()
        for name in CLAIMS:
            await ask(made.first, name)
        await asyncio.sleep(0.5)
        await made.second.start()
        await asyncio.sleep(0.5)
        yield made


async def test_two_installations_that_serve_one_driver_do_not_write_over_each_other_without_pause() -> None:
    async with pair() as both:
        await asyncio.sleep(600.0)
        # The record and its state, and four times in ten minutes a try of the second that the first undoes.
        assert all(both.writes[name] <= 12 for name in CLAIMS), both.writes
        assert {both.author(name) for name in CLAIMS} == {OURS}
        assert both.provisioned[1] == 0


async def test_what_the_first_installation_makes_the_second_does_not_make_again() -> None:
    async with pair() as both:
        await asyncio.sleep(300.0)
        both.storage.finish()
        await both.first.settle()
        assert set((await both.first.claims()).values()) == {"Bound"}
        assert len(both.storage.first.assets) == len(CLAIMS)
        assert both.provisioned[1] == 0


async def test_the_claim_says_that_another_installation_serves_its_driver_and_what_to_do() -> None:
    async with pair() as both:
        await asyncio.sleep(1.0)
        (said,) = {event.message for event in both.second.recorded if event.reason == "DriverServedTwice"}
        assert f"in namespace {OURS} works on this claim" in said
        assert f'it serves driver "{DRIVER}" too' in said
        assert "give each installation driver names of its own, or stop one of them" in said
        about = {event.about.key for event in both.second.recorded if event.reason == "DriverServedTwice"}
        assert about == {f"default/{name}" for name in CLAIMS}


async def test_the_log_names_the_other_installation_once(caplog: pytest.LogCaptureFixture) -> None:
    async with pair():
        await asyncio.sleep(30.0)
    said = [each for each in caplog.messages if "serves driver" in each]
    assert len(said) == 1
    assert f"namespace {OURS} serves driver {DRIVER} too" in said[0]


@pytest.mark.parametrize("kind", [ScriptedBackend, SearchableBackend])
async def test_when_one_installation_is_stopped_the_other_finishes_what_it_began(kind: type[ScriptedBackend]) -> None:
    async with pair(kind) as both:
        await both.first.kill()
        both.storage.finish()
        await asyncio.sleep(100.0)
        await both.second.settle()
        assert len(both.storage.first.assets) == len(CLAIMS)
        assert len(await both.first.volumes()) == len(CLAIMS)
        assert both.provisioned[1] == len(CLAIMS)


async def test_when_one_installation_is_renamed_the_other_finishes_what_it_began() -> None:
    async with pair() as both:
        await both.first.kill()
        both.storage.finish()
        both.first.backends = {"other.example.com": ScriptedBackend("other.example.com")}
        await both.first.start()
        await asyncio.sleep(100.0)
        await both.first.settle()
        assert set((await both.first.claims()).values()) == {"Bound"}
        assert len(both.storage.first.assets) == len(CLAIMS)


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_claim_that_is_deleted_under_two_installations_leaves_nothing(*, stopped: bool) -> None:
    """stopped: the installation that has begun with it does not run any more."""
    async with pair() as both:
        if stopped:
            await both.first.kill()
        for name in CLAIMS:
            await both.first.delete("claims", name)
        both.storage.finish()
        await asyncio.sleep(100.0)
        await both.second.settle(100.0)
        assert await both.first.claims() == {}
        assert both.storage.first.assets == {}


async def test_two_installations_whose_drivers_have_names_of_their_own_say_nothing_of_each_other() -> None:
    async with pair() as both:
        await both.second.kill()
        both.second.backends = {"other.example.com": ScriptedBackend("other.example.com")}
        both.second.recorded.clear()
        await both.second.start()
        await asyncio.sleep(300.0)
        assert "DriverServedTwice" not in [event.reason for event in both.second.recorded]
        assert all(both.writes[name] <= 3 for name in CLAIMS), both.writes


async def test_a_class_that_goes_to_a_driver_of_another_installation_is_served_there_once_nothing_is_left() -> None:
    backend, other = SearchableBackend(DRIVER, {"provision": [SLOW]}), SearchableBackend("other.example.com")
    first = Harness(backend, settings={"binder": False})
    second = Harness(other, namespace=SECOND, beside=first)
    async with first, second:
        await create_class(first)
        await first.start()
        await second.start()
        await ask(first)
        await asyncio.sleep(3.0)
        assert backend.calls["provision"] > 0
        backend.script("provision", OK)
        await first.delete("classes", "fast")
        await create_class(first, provisioner="other.example.com")
        await asyncio.sleep(20.0)
        assert await first.claims() == {"c": "Bound"}
        assert backend.assets == {}
        assert len(other.assets) == 1
        assert "DriverServedTwice" not in [event.reason for event in second.recorded]


async def test_records_sealed_with_a_key_that_is_lost_are_resolved_at_once() -> None:
    """The Secret was deleted and made anew: nobody waits for an installation that is this one."""
    async with pair() as both:
        await both.second.kill()
        await both.first.kill()
        await both.first.request("DELETE", f"/api/v1/namespaces/{OURS}/secrets/volplane-seal")
        both.storage.finish()
        await both.first.start()
        await asyncio.sleep(5.0)
        assert set((await both.first.claims()).values()) == {"Bound"}
        assert len(both.storage.first.assets) == len(CLAIMS)


# --- tenants ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scribble", ["nonsense", None, '{"intent":{},"seal":"","by":"elsewhere"}'])
async def test_a_tenant_who_writes_over_a_record_in_a_loop_is_not_answered_in_a_loop(scribble: str | None) -> None:
    backend = SearchableBackend(DRIVER, {"provision": [SLOW]})
    async with Harness(backend) as harness:
        answered = Counter[str]()

        async def tenant(_event: str, claim: Json) -> None:
            record = claim["metadata"].get("annotations", {}).get(INTENT)
            if record != scribble and "by" in json.loads(record or "{}"):
                answered["records"] += 1
                await harness.patch("claims", "c", {"metadata": {"annotations": {INTENT: scribble}}})

        await create_class(harness)
        harness.follow("claims", tenant)
        await harness.start()
        await ask(harness)
        await asyncio.sleep(300.0)
        assert answered["records"] <= 12, answered
        reason = "DriverServedTwice" if scribble and "elsewhere" in scribble else "IntentOverwritten"
        assert reason in [event.reason for event in harness.recorded]


async def test_a_tenant_who_strips_record_and_finalizer_in_a_loop_is_not_answered_in_a_loop() -> None:
    backend = SearchableBackend(DRIVER, {"provision": [SLOW]})
    async with Harness(backend) as harness:
        answered = Counter[str]()

        async def tenant(_event: str, claim: Json) -> None:
            if PROVISIONING in claim["metadata"].get("finalizers", ()):
                answered["records"] += 1
                stripped = {"annotations": {INTENT: None}, "finalizers": None}
                await harness.patch("claims", "c", {"metadata": stripped})

        await create_class(harness)
        harness.follow("claims", tenant)
        await harness.start()
        await ask(harness)
        await asyncio.sleep(300.0)
        assert answered["records"] <= 12, answered


async def test_a_tenant_who_names_another_installation_holds_up_nothing_but_the_own_claim_for_a_while() -> None:
    forged = {"annotations": {INTENT: '{"intent":{},"seal":"","by":"elsewhere"}'}, "finalizers": [PROVISIONING]}
    backend = SearchableBackend(DRIVER)
    async with Harness(backend) as harness:
        await create_class(harness)
        await harness.create(
            "claims",
            {
                "metadata": {"name": "forged", **forged},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "fast",
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            },
        )
        await harness.start()
        await ask(harness, "honest")
        await asyncio.sleep(5.0)
        assert await harness.claims() == {"forged": "Pending", "honest": "Bound"}
        await asyncio.sleep(70.0)
        assert await harness.claims() == {"forged": "Bound", "honest": "Bound"}


# --- volumes ------------------------------------------------------------------------------------------------------


async def test_a_scrub_of_another_installation_is_never_taken_over() -> None:
    """Its pods are out of sight: one of them may erase what somebody else has got meanwhile."""
    async with Harness(by_pod()) as first, Harness(by_pod(), namespace=SECOND, beside=first) as second:
        await first.create("volumes", released())
        await first.start()
        pod = await permitted(first)
        await second.start()
        version = first.server.store.version
        await asyncio.sleep(600.0)
        assert first.server.store.version == version
        assert await first.everything("pods", SECOND) == []
        (said,) = {event.message for event in second.recorded if event.reason == "DriverServedTwice"}
        assert f"in namespace {OURS} scrubs this volume" in said
        assert "remove the annotation volplane.dev/intent" in said
        await end(first, pod, "Succeeded")
        await first.settle()
        assert await first.volumes() == {"v": "Available"}


def both(kind: type[ScriptedBackend], **settings: bool) -> tuple[Harness, Harness]:
    """Two installations that serve one storage, of which the first binds."""
    backend, twin = kind(DRIVER), kind(DRIVER)
    twin.memory = backend.memory
    first = Harness(backend)
    return first, Harness(twin, settings={"binder": False, **settings}, namespace=SECOND, beside=first)


@pytest.mark.parametrize("answer", [OK, SLOW])
async def test_two_installations_let_a_claim_grow_without_a_write_too_many(answer: object) -> None:
    first, second = both(GrowingBackend)
    async with first, second:
        await first.create("classes", storage_class(allowVolumeExpansion=True))
        await ask(first)
        await first.start()
        await first.settle()
        await second.start()
        for each in (first, second):
            each.backends[DRIVER].script("expand", answer)
        version = first.server.store.version
        await first.patch("claims", "c", {"spec": {"resources": {"requests": {"storage": "2Gi"}}}})
        await asyncio.sleep(60.0)
        assert first.server.store.version - version < 20
        for each in (first, second):
            each.backends[DRIVER].script("expand", OK)
        await first.settle()
        assert (await first.claim("c"))["status"]["capacity"]["storage"] == "2Gi"


@pytest.mark.parametrize("answer", [OK, SLOW])
async def test_two_installations_delete_a_volume_without_a_write_too_many(answer: object) -> None:
    first, second = both(SearchableBackend)
    async with first, second:
        await create_class(first)
        await ask(first)
        await first.start()
        await first.settle()
        await second.start()
        for each in (first, second):
            each.backends[DRIVER].script("delete", answer)
        version = first.server.store.version
        await first.delete("claims", "c")
        await asyncio.sleep(60.0)
        assert first.server.store.version - version < 20
        for each in (first, second):
            each.backends[DRIVER].script("delete", OK)
        await first.settle()
        assert await first.volumes() == {}
        assert first.backends[DRIVER].assets == {}


@pytest.mark.parametrize("works", [True, False])
async def test_two_installations_attach_and_detach_a_volume_without_a_write_too_many(works: bool) -> None:
    backend, twin = AttachingBackend(ATTACHER), AttachingBackend(ATTACHER)
    twin.attached = backend.attached
    if not works:
        twin.failing = {("attach", "node-a"), ("detach", "node-a")}
    attaches, alone = frozenset({"attacher"}), {"binder": False, "provisioner": False, "reclaimer": False}
    first = Harness(backend, controllers=attaches, settings=alone)
    second = Harness(twin, controllers=attaches, settings=alone, namespace=SECOND, beside=first)
    async with first, second:
        await first.create("nodes", node())
        for kind, body in zip(("claims", "volumes"), bound_claim(), strict=True):
            await first.create(kind, await resolved(first, body))
        await first.start()
        await second.start()
        version = first.server.store.version
        source = {"persistentVolumeName": "pv-1"}
        spec = {"attacher": ATTACHER, "nodeName": "node-a", "source": source}
        await first.create("attachments", {"metadata": {"name": "va"}, "spec": spec})
        await asyncio.sleep(60.0)
        if works:
            assert (await first.see("attachments", "va"))["status"]["attached"] is True
        assert first.server.store.version - version < 40
        version = first.server.store.version
        await first.delete("attachments", "va")
        await asyncio.sleep(60.0)
        assert first.server.store.version - version < 40
        assert await first.get("attachments", "va") is None
        assert backend.attached == set()
