"""The typed face of a backend: results are checked, exceptions are classified, extensions wrap."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import inspect
import json
import logging
import re
import typing
import weakref
from typing import Any

import pytest

from volplane import (
    Asset,
    AssetPage,
    BackendSpec,
    Declined,
    Done,
    HookRequest,
    InProgress,
    ListedArchive,
    ListedAsset,
    PodScrub,
    Snapshot,
    SnapshotOwnership,
    SnapshotPage,
    Throttled,
    VolumeSource,
    hookimpl,
)
from volplane.drivers.contract import HOOKS, RESULTS
from volplane.drivers.driver import Driver
from volplane.drivers.loading import build_driver, build_extension
from volplane.errors import InvalidArgument, OutcomeUnknown, PluginError, Unsupported
from volplane.requests import (
    AttachRequest,
    DeleteRequest,
    FindRequest,
    FindSnapshotRequest,
    ListRequest,
    ListSnapshotsRequest,
    NodeIdentity,
    OwnsRequest,
    ProbeRequest,
    RecycleRequest,
    StartRequest,
    StopRequest,
    ValidateRequest,
)


def test_whoever_loads_a_backend_with_a_deprecated_hook_is_warned_and_it_works(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = DeprecationWarning("use another hook")
    monkeypatch.setitem(BackendSpec.probe.volplane_spec, "warn_on_impl", said)  # type: ignore[attr-defined]

    class Old(kit.Memory):  # type: ignore[misc]
        @hookimpl
        def probe(self, request: ProbeRequest) -> Done:
            return Done()

    with pytest.warns(DeprecationWarning, match="use another hook"):
        driver = build_driver("d.example.com", kit.backend(Old), {})
    assert driver.supports("probe")


def answering(kit: Any, answer: Any, hook: str = "provision") -> Driver:
    """A driver whose `hook` raises or returns `answer`."""

    def body(self: object, request: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    cls = type("Backend", (kit.Memory,), {hook: hookimpl(body)})
    return build_driver("d.example.com", kit.backend(cls), {})


def asset(**fields: Any) -> Asset:
    source = VolumeSource(kind="hostPath", fields={"path": "/x"})
    return dataclasses.replace(Asset(handle="h", source=source, capacity_bytes=1), **fields)


def test_every_hook_has_a_request_that_names_what_it_returns() -> None:
    assert set(RESULTS) == HOOKS
    for hook in HOOKS:
        hints = typing.get_type_hints(getattr(BackendSpec, hook))
        assert issubclass(hints["request"], HookRequest)
        assert hints["request"].hook == hook
        assert RESULTS[hook] == (typing.get_args(hints["return"]) or (hints["return"],))


def test_a_right_result_comes_back_as_it_is(kit: Any) -> None:
    driver = build_driver("d.example.com", kit.backend(kit.Memory), {})
    made = driver.call(kit.demand("pvc-7", 33))
    assert isinstance(made, Asset)
    assert (made.handle, made.capacity_bytes) == ("pvc-7", 33)
    assert driver.call(DeleteRequest(context=kit.context, volume=kit.volume("pvc-7"))) == Done()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "returned None, expected Asset or InProgress: a return is missing"),
        (Done(), "returned Done, expected Asset or InProgress"),
        ({"handle": "x"}, "returned dict, expected Asset or InProgress"),
        (asset(handle=""), "returned an Asset with handle '', expected 1 to 1024 characters"),
        (asset(handle="x" * 1025), "expected 1 to 1024 characters"),
        (asset(handle="\udcff"), "returned an Asset that cannot be written as JSON: 'utf-8' codec can't encode"),
        (
            asset(source=VolumeSource(kind="hostPath", fields={"path": {1}})),
            "cannot be written as JSON: Object of type set",
        ),
        (asset(mount_options=("\udcff",)), "returned an Asset that cannot be written as JSON: 'utf-8' codec"),
        (asset(attributes=7), "returned an Asset that cannot be written as JSON"),
        (asset(handle=7), "returned an Asset with handle '7', expected 1 to 1024 characters"),
        (asset(capacity_bytes=1.5), "returned an Asset with capacity_bytes 1.5, expected whole bytes"),
        (asset(capacity_bytes=-1), "returned an Asset with capacity_bytes -1, expected whole bytes"),
        (asset(capacity_bytes=10**5000), "returned an Asset with capacity_bytes of 2**63 or more"),
        (asset(mount_options=iter(["ro"])), "with mount_options of type list_iterator, expected a tuple"),
        (asset(node_affinity=({"zone": each} for each in "a")), "node_affinity of type generator, expected a tuple"),
        (asset(source={"path": "/x"}), "returned an Asset with a source of type dict, expected VolumeSource"),
        (InProgress(retry_after=-1), "returned InProgress with retry_after -1, expected seconds"),
        (InProgress(retry_after=float("nan")), "returned InProgress with retry_after nan, expected seconds"),
        (InProgress(retry_after=1, state={"x": object()}), "returned InProgress with a state that is not JSON"),
        (InProgress(retry_after=1, state={"x": "y" * 5000}), "at most 4096 are kept"),
    ],
)
def test_a_wrong_result_is_an_unknown_outcome_that_names_plugin_and_hook(kit: Any, answer: Any, message: str) -> None:
    with pytest.raises(OutcomeUnknown) as unknown:
        answering(kit, answer).call(kit.demand())
    assert str(unknown.value).startswith("hook provision of backend memory ")
    assert message in str(unknown.value)
    assert not unknown.value.nothing_done


@pytest.mark.parametrize("path", ["/etc", "../other", "a/../..", 7])
def test_a_scrub_whose_path_leads_out_of_its_volume_is_refused(kit: Any, path: Any) -> None:
    scrub = PodScrub(volume={"hostPath": {"path": "/data"}}, sub_path=path)
    with pytest.raises(OutcomeUnknown, match="expected a relative path without"):
        answering(kit, scrub, "recycle").call(RecycleRequest(context=kit.context, volume=kit.volume()))


def test_a_scrub_of_a_part_names_the_whole(kit: Any) -> None:
    with pytest.raises(OutcomeUnknown, match="with sub_path 'a' and no volume that has it"):
        answering(kit, PodScrub(sub_path="a"), "recycle").call(RecycleRequest(context=kit.context, volume=kit.volume()))


def test_a_class_returned_instead_of_an_instance_is_told_apart(kit: Any) -> None:
    with pytest.raises(OutcomeUnknown, match="returned the class Done or InProgress itself, expected an instance"):
        answering(kit, Done, "delete").call(DeleteRequest(context=kit.context, volume=kit.volume()))


def test_a_coroutine_that_slipped_through_is_closed_and_reported(kit: Any) -> None:
    async def later() -> None: ...

    with pytest.raises(OutcomeUnknown, match="returned coroutine, expected Asset"):
        answering(kit, later()).call(kit.demand())


def test_errors_of_the_contract_pass_unchanged(kit: Any) -> None:
    error = Throttled("slow down", code="Throttling", retry_after=9)
    with pytest.raises(Throttled) as raised:
        answering(kit, error).call(kit.demand())
    assert raised.value is error


@pytest.mark.parametrize("error", [KeyError("zone"), StopIteration(), SystemExit(3), RecursionError("deep")])
def test_any_other_exception_is_an_unknown_outcome_in_one_line(
    kit: Any, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(OutcomeUnknown) as unknown:
        answering(kit, error).call(kit.demand())
    assert f"hook provision of backend memory raised {type(error).__name__} (line " in str(unknown.value)
    assert unknown.value.__cause__ is None
    records = [r for r in caplog.records if r.exc_info]
    assert [r.levelno for r in records] == [logging.DEBUG]


def test_a_bug_names_the_last_line_of_the_backend_and_not_that_of_a_library(kit: Any) -> None:
    class Backend(kit.Memory):  # type: ignore[misc, name-defined]
        @hookimpl
        def provision(self, request: Any) -> Any:
            return json.loads("{")

    here = inspect.getsourcelines(Backend)[1] + 3
    with pytest.raises(OutcomeUnknown) as unknown:
        build_driver("d.example.com", kit.backend(Backend), {}).call(kit.demand())
    assert f"raised JSONDecodeError (line {here} of test_driver.py): Expecting" in str(unknown.value)


def test_an_interrupt_is_not_swallowed(kit: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        answering(kit, KeyboardInterrupt()).call(kit.demand())


def test_owns_answers_yes_or_no_or_is_broken(kit: Any) -> None:
    def request(path: str) -> OwnsRequest:
        return OwnsRequest(context=kit.context, source=VolumeSource(kind="hostPath", fields={"path": path}))

    driver = build_driver("d.example.com", kit.backend(kit.Memory), {})
    assert driver.call(request("/memory/a")) is True
    assert driver.call(request("/elsewhere")) is False
    for answer in (None, 1, ValueError("x")):
        with pytest.raises(PluginError, match="hook owns of backend memory"):
            answering(kit, answer, "owns").call(request("/memory/a"))


def test_an_optional_hook_that_is_missing_is_unsupported(kit: Any) -> None:
    driver = build_driver("d.example.com", kit.backend(kit.Memory), {})
    assert not driver.supports("attach")
    node = NodeIdentity(name="n")
    with pytest.raises(Unsupported, match="backend memory does not implement attach"):
        driver.call(AttachRequest(context=kit.context, volume=kit.volume(), node=node))
    with pytest.raises(Unsupported, match="does not implement find"):
        driver.call(FindRequest(context=kit.context, name="x", owner=kit.demand().owner))
    with pytest.raises(Unsupported, match="does not implement list_assets"):
        driver.call(ListRequest(context=kit.context))


def test_hooks_around_the_life_of_a_driver_may_be_missing(kit: Any) -> None:
    driver = build_driver("d.example.com", kit.backend(kit.Memory), {})
    assert driver.call(StartRequest(context=kit.context)) == Done()
    assert driver.call(ProbeRequest(context=kit.context)) == Done()
    assert driver.call(StopRequest(context=kit.context)) == Done()
    assert driver.call(ValidateRequest(context=kit.context, parameters={})) == Done()


def test_what_describe_said_is_kept(kit: Any) -> None:
    driver = build_driver("d.example.com", kit.backend(kit.Memory), {})
    assert driver.view.info.version == "1.0"
    assert driver.view.typed_parameters({"TIER": "cold"}) == {"tier": "cold"}
    with pytest.raises(
        InvalidArgument, match=r"driver d\.example\.com: parameter 'tier' is 'hto', expected one of hot, cold"
    ):
        driver.view.typed_parameters({"tier": "hto"})


def test_a_driver_does_not_show_its_options(kit: Any) -> None:
    driver = build_driver("d.example.com", kit.backend(kit.Memory), {"limit": 424242})
    assert repr(driver) == "<Driver d.example.com (backend memory (volplane-memory 1.0))>"


# --- extensions -------------------------------------------------------------------------------------------------


class Recorder:
    """Writes down what passes."""

    def __init__(self, options: Any) -> None:
        self.seen: list[tuple[str, object]] = []

    @hookimpl(wrapper=True)
    def provision(self, request: Any) -> Any:
        try:
            result = yield
        except Exception as error:
            self.seen.append((request.name, type(error)))
            raise
        self.seen.append((request.name, result))
        return result


class Forbidding:
    def __init__(self, options: Any) -> None: ...

    @hookimpl(wrapper=True)
    def provision(self, request: Any) -> Any:
        raise Declined("the namespace is full", retry_after=60)
        yield


def extensions(kit: Any, *factories: Any) -> list[Any]:
    return [build_extension(kit.extension(factory, factory.__name__.lower()), {}) for factory in factories]


def test_an_extension_sees_the_real_result_of_a_backend(kit: Any) -> None:
    (watcher,) = extensions(kit, Recorder)
    driver = build_driver("d.example.com", kit.backend(kit.Memory), {}, [watcher])
    made = driver.call(kit.demand())
    assert watcher.instance.seen == [("pvc-1", made)]


def test_one_extension_wraps_several_drivers(kit: Any) -> None:
    (watcher,) = extensions(kit, Recorder)
    for name in ("a.example.com", "b.example.com"):
        build_driver(name, kit.backend(kit.Memory), {}, [watcher]).call(kit.demand(name))
    assert [name for name, _ in watcher.instance.seen] == ["a.example.com", "b.example.com"]


def test_an_extension_can_decline_a_call_before_it_reaches_the_backend(kit: Any) -> None:
    outer, inner = extensions(kit, Recorder, Forbidding)
    reached: list[str] = []

    class Backend(kit.Memory):  # type: ignore[misc, name-defined]
        @hookimpl
        def provision(self, request: Any) -> Any:
            reached.append(request.name)

    driver = build_driver("d.example.com", kit.backend(Backend), {}, [outer, inner])
    with pytest.raises(Declined) as declined:
        driver.call(kit.demand())
    assert declined.value.nothing_done
    assert reached == []
    assert outer.instance.seen == [("pvc-1", Declined)]


def test_the_first_extension_is_the_outermost(kit: Any) -> None:
    inner_first = extensions(kit, Forbidding, Recorder)
    driver = build_driver("d.example.com", kit.backend(kit.Memory), {}, inner_first)
    with pytest.raises(Declined):
        driver.call(kit.demand())
    assert inner_first[1].instance.seen == []


def test_an_extension_that_loses_the_result_is_named(kit: Any) -> None:
    class Careless:
        def __init__(self, options: Any) -> None: ...

        @hookimpl(wrapper=True)
        def provision(self, request: Any) -> Any:
            yield

    driver = build_driver("d.example.com", kit.backend(kit.Memory), {}, extensions(kit, Careless))
    with pytest.raises(OutcomeUnknown) as unknown:
        driver.call(kit.demand())
    assert "hook provision of backend memory (wrapped by careless) returned None" in str(unknown.value)


def test_a_hook_that_only_an_extension_has_is_still_unsupported(kit: Any) -> None:
    class Wrapper:
        def __init__(self, options: Any) -> None: ...

        @hookimpl(wrapper=True)
        def find(self, request: Any) -> Any:
            return (yield)

    driver = build_driver("d.example.com", kit.backend(kit.Memory), {}, extensions(kit, Wrapper))
    assert not driver.supports("find")
    with pytest.raises(Unsupported):
        driver.call(FindRequest(context=kit.context, name="x", owner=kit.demand().owner))


def listed(**fields: Any) -> ListedAsset:
    return dataclasses.replace(ListedAsset(handle="h", name="n", capacity_bytes=1, owner=None), **fields)


def archive(**fields: Any) -> ListedArchive:
    return dataclasses.replace(ListedArchive(place="/p", volume="v"), **fields)


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (AssetPage(assets=(), next_page=""), "next_page '', expected text"),
        (AssetPage(assets=(), next_page=7), "next_page 7, expected text"),  # type: ignore[arg-type]
        (AssetPage(assets=("h",)), "an entry of type str, expected ListedAsset"),  # type: ignore[arg-type]
        (AssetPage(assets=(listed(handle=""),)), "an asset with handle '', expected 1 to 1024"),
        (AssetPage(assets=(listed(owner="me"),)), "listed h with an owner of type str"),
        (AssetPage(assets=(each for each in (listed(),))), "assets of type generator, expected a tuple"),  # type: ignore[arg-type]
        (AssetPage(assets=(listed(attached_to="node"),)), "attached_to of type str, expected a tuple"),
        (AssetPage(assets=(), archives=archive()), "archives of type ListedArchive, expected a tuple"),  # type: ignore[arg-type]
        (AssetPage(assets=(), archives=("a",)), "an archive of type str, expected ListedArchive"),  # type: ignore[arg-type]
        (AssetPage(assets=(), archives=(archive(volume=None),)), "texts that are none, or too long"),
        (AssetPage(assets=(), archives=(archive(until=float("nan")),)), "times None and nan, expected seconds"),
        (AssetPage(assets=(), archives=(archive(capacity_bytes="1Gi"),)), "capacity_bytes '1Gi', expected whole bytes"),
    ],
)
def test_a_page_of_a_listing_is_checked_as_a_whole(kit: Any, page: AssetPage, message: str) -> None:
    with pytest.raises(OutcomeUnknown, match=message):
        answering(kit, page, "list_assets").call(ListRequest(context=kit.context))


def snapshot(**fields: Any) -> Snapshot:
    return dataclasses.replace(Snapshot(handle="s", size_bytes=1, ready=False), **fields)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (snapshot(handle=""), "handle '', expected 1 to 1024 characters"),
        (snapshot(handle="x" * 1025), f"handle {'x' * 60!r}, expected 1 to 1024 characters"),
        (snapshot(size_bytes=1.5), "size_bytes 1.5, expected whole bytes"),
        (snapshot(size_bytes=2**63), "size_bytes of 2**63 or more, which no volume can have"),
        (snapshot(created_at=float("nan")), "created_at nan, expected a Unix time in seconds, or None"),
        (snapshot(created_at=1.8e12), "created_at 1800000000000.0, expected a Unix time in seconds, or None"),
        (snapshot(created_at="2026"), "created_at '2026', expected a Unix time in seconds, or None"),
        (snapshot(retry_after=-1), "retry_after -1, expected seconds"),
        (snapshot(retry_after=float("inf")), "retry_after inf, expected seconds"),
        (snapshot(ready=1), "ready of type int, expected bool"),
        (snapshot(owner="me"), "owner of type str, expected SnapshotOwnership"),
        (snapshot(node_affinity={"zone": "a"}), "node_affinity of type dict, expected tuple"),
        (snapshot(node_affinity=({"zone": {1}},)), "fields that cannot be written as JSON: Object of type set"),
        (snapshot(source=None), "source of type NoneType, expected str"),
        (snapshot(state="x" * 5000), "state of 5000 characters, at most 4096 are kept"),
        (snapshot(failed="x" * 5000), "failed of 5000 characters, at most 4096 are kept"),
        (snapshot(ready=True, failed="the disk broke"), "failed 'the disk broke', although it is ready"),
        (snapshot(name="\udcff"), "fields that cannot be written as JSON: 'utf-8' codec can't encode"),
    ],
)
def test_a_wrong_snapshot_is_an_unknown_outcome_alone_and_in_a_page(kit: Any, answer: Snapshot, message: str) -> None:
    find, listing = FindSnapshotRequest(context=kit.context, handle="s"), ListSnapshotsRequest(context=kit.context)
    with pytest.raises(OutcomeUnknown) as unknown:
        answering(kit, answer, "find_snapshot").call(find)
    assert f"hook find_snapshot of backend memory returned a Snapshot with {message}" in str(unknown.value)
    page = SnapshotPage(snapshots=(snapshot(), answer))
    with pytest.raises(OutcomeUnknown) as unknown:
        answering(kit, page, "list_snapshots").call(listing)
    assert message in str(unknown.value)


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (SnapshotPage(snapshots=(), next_page=""), "returned SnapshotPage with next_page '', expected text"),
        (SnapshotPage(snapshots=("s",)), "an entry of type str, expected Snapshot"),  # type: ignore[arg-type]
        (SnapshotPage(snapshots=iter(())), "snapshots of type tuple_iterator, expected a tuple"),  # type: ignore[arg-type]
    ],
)
def test_a_page_of_snapshots_is_checked_as_a_whole(kit: Any, page: SnapshotPage, message: str) -> None:
    with pytest.raises(OutcomeUnknown, match=re.escape(message)):
        answering(kit, page, "list_snapshots").call(ListSnapshotsRequest(context=kit.context))


def test_a_right_snapshot_comes_back_as_it_is(kit: Any) -> None:
    owner = SnapshotOwnership(cluster_id="c", snapshot_uid="1", content_name="snapcontent-1")
    right = snapshot(created_at=1.8e9, owner=owner, state="40 %", node_affinity=({"zone": "a"},), retry_after=0)
    page = SnapshotPage(snapshots=(right,), next_page="s")
    assert answering(kit, page, "list_snapshots").call(ListSnapshotsRequest(context=kit.context)) is page


class Broken(Exception):
    """Nothing a backend should raise; unlike Python's own it can be referred to weakly."""


@pytest.mark.parametrize("failure", [Throttled, Broken])
def test_a_failure_goes_with_its_last_user_and_waits_for_no_garbage_collection(kit: Any, failure: type) -> None:
    raised: list[weakref.ref[Any]] = []

    class Failing(kit.Memory):  # type: ignore[misc]
        @hookimpl
        def provision(self, request: Any) -> Any:
            error = failure("not now")
            raised.append(weakref.ref(error))
            raise error

    driver = build_driver("d.example.com", kit.backend(Failing), {})
    gc.disable()
    try:
        with contextlib.suppress(Throttled, OutcomeUnknown):
            driver.call(kit.demand())
        assert [reference() for reference in raised] == [None]
    finally:
        gc.enable()
