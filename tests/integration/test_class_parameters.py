"""Classes against the schema of their backend: at first use, with an event, and over the schema's versions."""

from __future__ import annotations

from typing import Any

from backends import Shelf
from volplane import (
    Asset,
    Done,
    DriverInfo,
    InvalidArgument,
    Parameter,
    ParameterKind,
    ParameterSchema,
    Throttled,
    VolumeSource,
    hookimpl,
)
from volplane_testing import Cluster

KIND = ParameterKind
FIRST = ParameterSchema(
    version=1,
    parameters=(
        Parameter(name="tier", doc="Speed.", choices=("hot", "cold"), default="cold"),
        Parameter(name="copies", doc="How many.", kind=KIND.INTEGER, minimum=1, maximum=3, default=1),
    ),
)
SECOND = ParameterSchema(
    version=2,
    parameters=(
        *FIRST.parameters,
        Parameter(name="encrypted", doc="At rest.", kind=KIND.BOOLEAN, default=False, since=2),
    ),
)


class Tiered(Shelf):
    """Remembers the parameters that it was asked with."""

    def __init__(self, schema: ParameterSchema, made: dict[str, Any], asked: list[Any]) -> None:
        super().__init__()
        self.schema, self.made, self.asked = schema, made, asked

    @hookimpl
    def describe(self, request: Any) -> DriverInfo:
        return DriverInfo(version=str(self.schema.version), parameters=self.schema)

    @hookimpl
    def validate(self, request: Any) -> Done:
        self.asked.append(("validate", dict(request.parameters)))
        if request.parameters["tier"] == "hot" and request.parameters["copies"] > 2:
            raise InvalidArgument("parameter 'copies' is 3, hot shelves hold at most 2")
        return Done()

    @hookimpl
    def provision(self, request: Any) -> Asset:
        self.asked.append(("provision", dict(request.parameters)))
        self.made[request.name] = dict(request.parameters)
        return super().provision(request)

    @hookimpl
    def delete(self, request: Any) -> Any:
        self.made.pop(request.volume.handle.removeprefix("shelf/"), None)
        return super().delete(request)


class Site:
    """A cluster whose one backend's schema can be exchanged, as by an upgrade."""

    def __init__(self) -> None:
        self.schema = FIRST
        self.made: dict[str, Any] = {}
        self.asked: list[Any] = []

    def shelf(self) -> Tiered:
        return Tiered(self.schema, self.made, self.asked)

    def cluster(self) -> Cluster:
        return Cluster({"shelf.example.com": self.shelf})


def said(cluster: Cluster, about: Any) -> list[tuple[str, str]]:
    return [(event["reason"], event["message"]) for event in cluster.api.events(about)]


async def test_a_class_that_the_schema_refuses_is_told_on_the_claim_and_reaches_no_backend() -> None:
    site = Site()

    async with site.cluster() as cluster:
        await cluster.create_class("odd", parameters={"teir": "hot", "copies": "9"})
        claim = await cluster.create_claim("data", storage_class="odd")
        await cluster.advance(1)
        [(reason, message)] = said(cluster, claim)
        assert reason == "ProvisioningFailed"
        assert "unknown parameter 'teir' (value 'hot'); did you mean 'tier'?" in message
        assert "parameter 'copies' is '9', expected a whole number, from 1 to 3" in message
        assert site.asked == []


async def test_what_the_schema_cannot_say_the_backend_is_asked_once_for_each_set_of_parameters() -> None:
    site = Site()

    async with site.cluster() as cluster:
        await cluster.create_class("good", parameters={"tier": "hot", "copies": "2"})
        await cluster.create_class("same", parameters={"COPIES": "2", "tier": "hot"})
        await cluster.create_class("other")
        for number, name in enumerate(["good", "good", "same", "other"]):
            await cluster.wait_bound(await cluster.create_claim(f"data-{number}", storage_class=name))
        hooks = [hook for hook, _ in site.asked]
        assert (hooks.count("validate"), hooks.count("provision")) == (2, 4)
        assert hooks[0] == "validate"


async def test_what_the_backend_refuses_of_a_class_is_told_before_anything_is_made() -> None:
    site = Site()

    async with site.cluster() as cluster:
        await cluster.create_class("odd", parameters={"tier": "hot", "copies": "3"})
        claim = await cluster.create_claim("data", storage_class="odd")
        await cluster.advance(1)
        [(reason, message)] = said(cluster, claim)
        assert reason == "ProvisioningFailed"
        assert "parameter 'copies' is 3, hot shelves hold at most 2" in message
        assert site.made == {}
        assert [hook for hook, _ in site.asked] == ["validate"]


async def test_old_classes_and_volumes_outlive_a_schema_that_gains_a_version() -> None:
    site = Site()

    async with site.cluster() as cluster:
        await cluster.create_class("old", parameters={"tier": "hot", "copies": "2"})
        before = await cluster.create_claim("before", storage_class="old")
        volume = await cluster.wait_bound(before)
        assert site.made[volume["metadata"]["name"]] == {"tier": "hot", "copies": 2}

        site.schema = SECOND
        await cluster.restart()
        after = await cluster.wait_bound(await cluster.create_claim("after", storage_class="old"))
        assert site.made[after["metadata"]["name"]] == {"tier": "hot", "copies": 2, "encrypted": False}
        await cluster.create_class("new", parameters={"encrypted": "true"})
        newest = await cluster.wait_bound(await cluster.create_claim("newest", storage_class="new"))
        assert site.made[newest["metadata"]["name"]]["encrypted"] is True

        await cluster.delete_claim(before)
        await cluster.settle()
        assert volume not in cluster.api
        assert volume["metadata"]["name"] not in site.made


async def test_attributes_come_back_whatever_the_source_is() -> None:
    seen: list[dict[str, str]] = []
    told = {"pool": "a", "note": 'quotes " and ünï'}

    class Attributed(Tiered):
        def __init__(self, kind: str) -> None:
            super().__init__(FIRST, {}, [])
            self.kind = kind

        @hookimpl
        def describe(self, request: Any) -> DriverInfo:
            return DriverInfo(version="1", csi_driver_name="csi.example.com")

        @hookimpl
        def provision(self, request: Any) -> Asset:
            fields = {
                "csi": {"driver": "csi.example.com", "volumeHandle": request.name},
                "nfs": {"server": "s", "path": "/"},
            }
            source = VolumeSource(kind=self.kind, fields=fields[self.kind])
            return Asset(handle=request.name, source=source, capacity_bytes=request.capacity_bytes, attributes=told)

        @hookimpl
        def validate(self, request: Any) -> Done:
            return Done()

        @hookimpl
        def delete(self, request: Any) -> Done:
            seen.append(dict(request.volume.attributes))
            return Done()

    async def story(kind: str) -> None:
        async with Cluster({"shelf.example.com": lambda: Attributed(kind)}) as cluster:
            await cluster.create_class("fast")
            claim = await cluster.create_claim("data", storage_class="fast")
            volume = await cluster.wait_bound(claim)
            annotation = volume["metadata"]["annotations"].get("volplane.dev/attributes")
            assert (annotation is None) == (kind == "csi")
            await cluster.restart()
            await cluster.delete_claim(claim)
            await cluster.settle()

    for kind in ("csi", "nfs"):
        await story(kind)
    assert seen == [told, told]


async def test_a_hook_is_told_which_try_it_is() -> None:
    attempts: list[int] = []

    class Slow(Tiered):
        @hookimpl
        def provision(self, request: Any) -> Asset:
            attempts.append(request.context.attempt)
            if len(attempts) in (1, 2, 3):
                raise Throttled("slow down", retry_after=2)
            return super().provision(request)

    async with Cluster({"shelf.example.com": lambda: Slow(FIRST, {}, [])}) as cluster:
        await cluster.create_class("fast")
        for name in ("one", "two"):
            await cluster.wait_bound(await cluster.create_claim(name, storage_class="fast"))
    assert attempts == [1, 2, 3, 4, 1]
