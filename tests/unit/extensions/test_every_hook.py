"""Extensions are around every hook of every backend: nothing is called beside them, and nothing is lost in them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from volplane import (
    Absent,
    AccessMode,
    Asset,
    AssetPage,
    Attachment,
    BackendSpec,
    Capacity,
    ClaimIdentity,
    Context,
    Declined,
    Done,
    DriverInfo,
    Erased,
    GroupSnapshot,
    NodeIdentity,
    Ownership,
    Snapshot,
    SnapshotIdentity,
    SnapshotOwnership,
    SnapshotPage,
    StartRequest,
    VolumeIdentity,
    VolumeSource,
    hookimpl,
)
from volplane.drivers.contract import HOOKS, Plugin
from volplane.drivers.driver import Driver, Extension
from volplane.drivers.loading import build_driver, build_extension
from volplane.extensions.call_log import LOGGED, CallLog
from volplane.extensions.dry_run import DryRun
from volplane.extensions.quota import Quota
from volplane_aws_ebs import AwsEbsBackend
from volplane_aws_ebs.testing import FakeEC2, InProcess
from volplane_hostpath import HostPathBackend

GIB = 1 << 30
SOURCE = VolumeSource(kind="hostPath", fields={"path": "/x"})
OWNER = Ownership(cluster_id="c", claim_uid="1", volume_name="pvc-1")
SNAPSHOT_OWNER = SnapshotOwnership(cluster_id="c", snapshot_uid="2", content_name="snapcontent-2")
VOLUME = VolumeIdentity(name="pvc-1", uid="u", handle="pvc-1", source=SOURCE, capacity_bytes=GIB, owner=OWNER)
FIELDS: dict[str, Any] = {
    "context": Context(driver="d.example.com", cluster_id="c"),
    "name": "pvc-1",
    "handle": "pvc-1",
    "capacity_bytes": GIB,
    "owner": OWNER,
    "former": OWNER,
    "claim": ClaimIdentity(namespace="team-a", name="data", uid="1"),
    "source": SOURCE,
    "node": NodeIdentity(name="node-a"),
    "snapshot": SnapshotIdentity(namespace="team-a", name="before", content="snapcontent-2"),
    "group": SnapshotIdentity(namespace="team-a", name="before", content="groupsnapcontent-2"),
    "volumes": (VOLUME,),
    "parameters": {},
    "volume": VOLUME,
}
CUT = Snapshot(handle="s", size_bytes=1, ready=True, source="pvc-1")
RESULTS: Mapping[str, Any] = {
    "describe": DriverInfo(version="1"),
    "provision": Asset(handle="pvc-1", source=SOURCE, capacity_bytes=GIB),
    "delete": Done(),
    "find": Absent(),
    "inspect": Absent(),
    "owns": True,
    "recycle": Erased(),
    "attach": Attachment(metadata={"devicePath": "/dev/x"}),
    "detach": Done(),
    "expand": Asset(handle="pvc-1", source=SOURCE, capacity_bytes=2 * GIB),
    "modify": Done(),
    "list_assets": AssetPage(assets=()),
    "adopt": Done(),
    "get_capacity": Capacity(available_bytes=7),
    "validate": Done(),
    "create_snapshot": Snapshot(handle="s", size_bytes=1, ready=True),
    "delete_snapshot": Done(),
    "find_snapshot": Absent(),
    "list_snapshots": SnapshotPage(snapshots=()),
    "create_group_snapshot": GroupSnapshot(handle="g", snapshots=(CUT,)),
    "delete_group_snapshot": Done(),
    "find_group_snapshot": Absent(),
    "start": Done(),
    "stop": Done(),
    "probe": Done(),
}
CHANGING = frozenset(LOGGED) - {"find", "find_snapshot", "find_group_snapshot"}
every_hook = pytest.mark.parametrize("hook", sorted(HOOKS))


def request_of(hook: str) -> Any:
    """A request with every field that it must have."""
    given = FIELDS | ({"owner": SNAPSHOT_OWNER} if "snapshot" in hook else {})
    kind = get_type_hints(getattr(BackendSpec, hook))["request"]
    required = [
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    return kind(**{name: given[name] for name in required})


def marked(name: str, function: Callable[..., Any], *, wrapper: bool = False) -> Any:
    function.__name__ = name
    return hookimpl(wrapper=wrapper)(function)


def whole_backend(calls: list[str]) -> type:
    """Implements every hook there is."""

    def implementing(hook: str) -> Any:
        def act(self: Any, request: Any) -> Any:
            calls.append(hook)
            return RESULTS[hook]

        return marked(hook, act)

    return type("Whole", (BackendSpec,), {hook: implementing(hook) for hook in HOOKS})


def watcher(seen: list[tuple[str, Any, Any]]) -> type:
    """An extension around every hook there is."""

    def wrapping(hook: str) -> Any:
        def around(self: Any, request: Any) -> Any:
            result = yield
            seen.append((hook, request, result))
            return result

        return marked(hook, around, wrapper=True)

    body = {hook: wrapping(hook) for hook in HOOKS}

    def init(self: Any, options: Any) -> None: ...

    return type("Watcher", (), {"__init__": init, **body})


def extension(factory: Any, **options: object) -> Extension:
    return build_extension(Plugin(kind="extension", name=factory.__name__.lower(), factory=factory), options)


def driver_around(factory: Any, *extensions: Extension, **options: object) -> Driver:
    return build_driver("d.example.com", Plugin(kind="backend", name="b", factory=factory), options, extensions)


def shipped(directory: Path, *names: type) -> list[Extension]:
    options: dict[type, dict[str, object]] = {
        CallLog: {"path": str(directory / "calls")},
        DryRun: {},
        Quota: {"ledger": str(directory / "quota.json"), "limits": "team-a=100Gi"},
    }
    return [extension(name, **options[name]) for name in names]


def logged(directory: Path) -> list[tuple[str, str]]:
    file = directory / "calls"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(line["hook"], line["outcome"]) for line in map(json.loads, lines)]


@every_hook
def test_a_wrapper_sees_request_and_real_result_of_every_hook(hook: str) -> None:
    seen: list[tuple[str, Any, Any]] = []
    driver = driver_around(whole_backend([]), extension(watcher(seen)))
    seen.clear()
    request = request_of(hook)
    assert driver.call(request) == RESULTS[hook]
    [(called, asked, result)] = seen
    assert (called, asked, result) == (hook, request, RESULTS[hook])
    assert asked is request


@every_hook
def test_the_call_log_and_the_quota_leave_every_result_as_it_is(hook: str, tmp_path: Path) -> None:
    calls: list[str] = []
    driver = driver_around(whole_backend(calls), *shipped(tmp_path, CallLog, Quota))
    calls.clear()
    assert driver.call(request_of(hook)) == RESULTS[hook]
    assert calls == [hook]
    assert logged(tmp_path) == ([(hook, "ok")] if hook in LOGGED else [])


@every_hook
def test_a_dry_run_stops_what_changes_something_and_nothing_else(hook: str, tmp_path: Path) -> None:
    calls: list[str] = []
    driver = driver_around(whole_backend(calls), *shipped(tmp_path, CallLog, DryRun))
    calls.clear()
    if hook not in CHANGING:
        assert driver.call(request_of(hook)) == RESULTS[hook]
        assert calls == [hook]
        return
    with pytest.raises(Declined, match=r"^dry run: would "):
        driver.call(request_of(hook))
    assert calls == []
    assert logged(tmp_path) == [(hook, "Declined")]


def hostpath(directory: Path) -> tuple[Any, dict[str, object]]:
    (directory / "root").mkdir()
    return HostPathBackend, {"root": str(directory / "root"), "shared": True}


def aws_ebs(_directory: Path) -> tuple[Any, dict[str, object]]:
    connect = InProcess(FakeEC2())

    def make(options: Mapping[str, Any]) -> AwsEbsBackend:
        return AwsEbsBackend(options, connect_to=connect)

    make.options_schema = AwsEbsBackend.options_schema  # type: ignore[attr-defined]
    return make, {"region": "eu-test-1"}


@pytest.mark.parametrize("backend", [hostpath, aws_ebs])
def test_our_backends_work_within_all_of_them_and_not_behind_their_back(backend: Any, tmp_path: Path) -> None:
    factory, options = backend(tmp_path)
    seen: list[tuple[str, Any, Any]] = []
    around = [*shipped(tmp_path, CallLog, Quota), extension(watcher(seen))]
    driver = driver_around(factory, *around, **options)
    driver.call(StartRequest(context=FIELDS["context"]))
    demand = dataclasses.replace(
        request_of("provision"),
        parameters=driver.view.typed_parameters({}),
        access_modes=(AccessMode.READ_WRITE_ONCE,),
    )
    first = driver.call(demand)
    found = driver.call(request_of("find"))
    assert [hook for hook, _, _ in seen] == ["describe", "start", "provision", "find"]
    assert seen[2][2] is first
    assert seen[3][2] is found
    assert logged(tmp_path) == [("provision", "ok"), ("find", "ok")]

    declining = driver_around(factory, *shipped(tmp_path, DryRun), **options)
    declining.call(StartRequest(context=FIELDS["context"]))
    with pytest.raises(Declined, match="dry run: would make pvc-2"):
        declining.call(dataclasses.replace(demand, name="pvc-2"))
    assert {each.name for each in driver.call(request_of("list_assets")).assets} == {"pvc-1"}
