"""The three extensions of the core, around a backend in memory."""

from __future__ import annotations

import json
import logging
import threading
import tomllib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from backends import Shelf, reached
from volplane import (
    Absent,
    Asset,
    AttachRequest,
    ClaimIdentity,
    Context,
    Declined,
    DeleteRequest,
    DeleteSnapshotRequest,
    ExpandRequest,
    FindRequest,
    FindSnapshotRequest,
    InvalidArgument,
    NodeIdentity,
    Ownership,
    ProvisionRequest,
    Snapshot,
    SnapshotIdentity,
    SnapshotOwnership,
    SnapshotRequest,
    Throttled,
    Unavailable,
    VolumeIdentity,
    VolumeSource,
)
from volplane.drivers.contract import Plugin
from volplane.drivers.driver import Driver
from volplane.drivers.loading import build_driver, build_extension
from volplane.errors import ConfigurationError
from volplane.extensions.call_log import CallLog
from volplane.extensions.dry_run import DryRun
from volplane.extensions.quota import Quota
from volplane_testing import Answer, FailBefore, FaultyBackend

GIB = 2**30
SOURCE = VolumeSource(kind="hostPath", fields={"path": "/x"})
CONTEXT = Context(driver="d.example.com", cluster_id="c")


class Memory(Shelf):
    """The handle of an asset is its name."""

    def handle_of(self, name: str) -> str:
        return name


Wrap = Callable[..., tuple[Driver, FaultyBackend]]


def wrapped(factory: Any, **options: object) -> tuple[Driver, FaultyBackend]:
    """A driver with one extension around it, loaded as the configuration file would."""
    backend = FaultyBackend(Memory())
    plugin = Plugin(kind="backend", name="memory", factory=lambda _options: backend)
    extension = build_extension(Plugin(kind="extension", name="x", factory=factory), options)
    return build_driver("d.example.com", plugin, {}, [extension]), backend


def owned(name: str) -> Ownership:
    return Ownership(cluster_id="c", claim_uid="1", volume_name=name)


def demand(name: str = "pvc-1", size: int = GIB, namespace: str = "team-a") -> ProvisionRequest:
    claim = ClaimIdentity(namespace=namespace, name="data", uid="1")
    segment = {"topology.kubernetes.io/zone": "a"}
    return ProvisionRequest(
        context=CONTEXT, name=name, capacity_bytes=size, owner=owned(name), claim=claim, segment=segment
    )


def volume(name: str = "pvc-1") -> VolumeIdentity:
    return VolumeIdentity(name=name, uid="u", handle=name, source=SOURCE, capacity_bytes=GIB, owner=owned(name))


def deletion(name: str = "pvc-1") -> DeleteRequest:
    return DeleteRequest(context=CONTEXT, volume=volume(name))


def search(name: str = "pvc-1") -> FindRequest:
    return FindRequest(context=CONTEXT, name=name, owner=owned(name))


def growth(name: str = "pvc-1", size: int = 2 * GIB) -> ExpandRequest:
    return ExpandRequest(context=CONTEXT, volume=volume(name), capacity_bytes=size)


def test_they_are_entry_points_of_the_core(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    found = {}
    for name, value in project["entry-points"]["volplane.extensions"].items():
        module, _, attribute = value.partition(":")
        found[name] = getattr(import_module(module), attribute)
    assert found == {"call_log": CallLog, "dry_run": DryRun, "quota": Quota}


# --- call log ---------------------------------------------------------------------------------------------------


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_call_is_a_line_with_its_outcome_and_duration(tmp_path: Path) -> None:
    ticks = iter([10.0, 11.5, 20.0, 20.25])

    def make(options: Mapping[str, Any]) -> CallLog:
        return CallLog(options, now=lambda: datetime(2026, 5, 4, tzinfo=UTC), monotonic=lambda: next(ticks))

    make.options_schema = CallLog.options_schema  # type: ignore[attr-defined]
    driver, backend = wrapped(make, path=str(tmp_path / "calls"))
    driver.call(demand())
    backend.fail("delete", FailBefore(Throttled("slow\ndown", code="RequestLimitExceeded")))
    with pytest.raises(Throttled):
        driver.call(deletion())
    assert lines(tmp_path / "calls") == [
        {
            "time": "2026-05-04T00:00:00.000+00:00",
            "driver": "d.example.com",
            "hook": "provision",
            "asset": "pvc-1",
            "claim": "team-a/data",
            "seconds": 1.5,
            "outcome": "ok",
            "result": "Asset",
        },
        {
            "time": "2026-05-04T00:00:00.000+00:00",
            "driver": "d.example.com",
            "hook": "delete",
            "asset": "pvc-1",
            "seconds": 0.25,
            "outcome": "Throttled",
            "message": "slow down (RequestLimitExceeded)",
            "code": "RequestLimitExceeded",
        },
    ]


def test_a_call_about_a_snapshot_names_it_and_its_asset(tmp_path: Path) -> None:
    driver, _ = wrapped(CallLog, path=str(tmp_path / "calls"))
    context, asset = demand().context, driver.call(demand())
    assert isinstance(asset, Asset)
    owner = SnapshotOwnership(cluster_id=context.cluster_id, snapshot_uid="2", content_name="snapcontent-2")
    identity = SnapshotIdentity(namespace="team-a", name="before", content=owner.content_name)
    volume = deletion().volume
    cut = driver.call(
        SnapshotRequest(context=context, name="snapshot-2", volume=volume, owner=owner, snapshot=identity)
    )
    assert isinstance(cut, Snapshot)
    driver.call(FindSnapshotRequest(context=context, name="snapshot-2", owner=owner))
    driver.call(DeleteSnapshotRequest(context=context, handle=cut.handle, owner=owner))
    told = [(line["hook"], line.get("asset"), line["snapshot"]) for line in lines(tmp_path / "calls")[1:]]
    assert told == [
        ("create_snapshot", volume.handle, "snapshot-2"),
        ("find_snapshot", None, "snapshot-2"),
        ("delete_snapshot", None, cut.handle),
    ]


def test_only_the_chosen_hooks_are_logged(tmp_path: Path) -> None:
    driver, _ = wrapped(CallLog, path=str(tmp_path / "calls"), hooks=["delete"])
    driver.call(demand())
    driver.call(deletion())
    assert [line["hook"] for line in lines(tmp_path / "calls")] == ["delete"]


def test_a_log_that_cannot_be_written_harms_no_call_and_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    driver, _ = wrapped(CallLog, path=str(tmp_path / "missing" / "calls"))
    for _ in range(3):
        assert isinstance(driver.call(demand()), Asset)
    assert [r.getMessage() for r in caplog.records if "cannot be written" in r.getMessage()] != []
    assert len(caplog.records) == 1


def test_lines_of_many_threads_do_not_mix(tmp_path: Path) -> None:
    driver, _ = wrapped(CallLog, path=str(tmp_path / "calls"))
    threads = [threading.Thread(target=lambda: [driver.call(demand()) for _ in range(20)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines(tmp_path / "calls")) == 160


# --- dry run ----------------------------------------------------------------------------------------------------


def test_a_dry_run_tells_the_plan_and_reaches_no_backend() -> None:
    driver, backend = wrapped(DryRun)
    with pytest.raises(Declined) as declined:
        driver.call(demand())
    assert str(declined.value) == (
        "dry run: would make pvc-1, 1073741824 bytes in topology.kubernetes.io/zone=a, for claim team-a/data"
    )
    assert declined.value.retry_after == 600
    with pytest.raises(Declined, match="dry run: would delete pvc-1"):
        driver.call(deletion())
    with pytest.raises(Declined, match="dry run: would grow pvc-1 to 2147483648 bytes"):
        driver.call(growth())
    assert reached(backend) == []


def test_a_dry_run_lets_questions_through() -> None:
    driver, backend = wrapped(DryRun, retryAfter="30s")
    assert driver.call(search()) == Absent()
    assert reached(backend) == ["find"]


def test_a_dry_run_wraps_every_hook_that_changes_something() -> None:
    driver, _ = wrapped(DryRun)
    with pytest.raises(Declined, match="dry run: would attach pvc-1 to node n1"):
        driver.call(AttachRequest(context=CONTEXT, volume=volume(), node=NodeIdentity(name="n1")))


# --- quota ------------------------------------------------------------------------------------------------------


@pytest.fixture
def limited(tmp_path: Path) -> Wrap:
    def make(**options: object) -> tuple[Driver, FaultyBackend]:
        return wrapped(Quota, **{"ledger": str(tmp_path / "quota.json"), "limits": "team-a=3Gi", **options})

    return make


def test_what_does_not_fit_is_declined_before_it_reaches_the_backend(limited: Wrap) -> None:
    driver, backend = limited()
    driver.call(demand("pvc-1", 2 * GIB))
    with pytest.raises(Declined) as declined:
        driver.call(demand("pvc-2", 2 * GIB))
    assert str(declined.value) == "namespace team-a has 2Gi of its 3Gi; 2Gi more do not fit"
    assert (declined.value.nothing_done, declined.value.retry_after) == (True, 60)
    assert reached(backend) == ["provision"]
    driver.call(demand("pvc-3", GIB))


def test_a_repeated_call_for_the_same_asset_counts_once(limited: Wrap) -> None:
    driver, _ = limited()
    for _ in range(5):
        driver.call(demand("pvc-1", 2 * GIB))
    driver.call(demand("pvc-2", GIB))


def test_namespaces_without_a_limit_have_the_default_or_none(limited: Wrap) -> None:
    limited()[0].call(demand("pvc-1", 500 * GIB, "team-b"))
    driver, _ = limited(default="1Gi")
    with pytest.raises(Declined, match="namespace team-c has 0 of its 1Gi; 2Gi more do not fit"):
        driver.call(demand("pvc-2", 2 * GIB, "team-c"))


def test_deleting_gives_the_room_back(limited: Wrap) -> None:
    driver, _ = limited()
    driver.call(demand("pvc-1", 3 * GIB))
    driver.call(deletion("pvc-1"))
    driver.call(demand("pvc-2", 3 * GIB))


def test_an_attempt_that_left_nothing_gives_the_room_back_and_an_unknown_one_does_not(limited: Wrap) -> None:
    driver, backend = limited()
    backend.fail("provision", FailBefore(InvalidArgument("bad")))
    with pytest.raises(InvalidArgument):
        driver.call(demand("pvc-1", 3 * GIB))
    backend.fail("provision", FailBefore(Unavailable("no answer")))
    with pytest.raises(Unavailable):
        driver.call(demand("pvc-2", 3 * GIB))
    with pytest.raises(Declined):
        driver.call(demand("pvc-3", 1))
    assert driver.call(search("pvc-2")) == Absent()
    driver.call(demand("pvc-3", 3 * GIB))


def test_growing_counts_too(limited: Wrap) -> None:
    driver, backend = limited()
    driver.call(demand("pvc-1", GIB))
    driver.call(growth("pvc-1", 3 * GIB))
    with pytest.raises(Declined):
        driver.call(growth("pvc-1", 4 * GIB))
    with pytest.raises(Declined):
        driver.call(demand("pvc-2", 1))
    backend.fail("expand", Answer(Asset(handle="static", source=SOURCE, capacity_bytes=100 * GIB), effect=False))
    driver.call(growth("static", 100 * GIB))


def test_the_ledger_outlives_the_process(limited: Wrap) -> None:
    limited()[0].call(demand("pvc-1", 3 * GIB))
    with pytest.raises(Declined):
        limited()[0].call(demand("pvc-2", 1))


def test_claims_that_race_for_the_last_bytes_do_not_both_get_them(limited: Wrap) -> None:
    driver, backend = limited()
    declined: list[str] = []

    def ask(name: str) -> None:
        try:
            driver.call(demand(name, 2 * GIB))
        except Declined:
            declined.append(name)

    threads = [threading.Thread(target=ask, args=(f"pvc-{n}",)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(declined), reached(backend)) == (9, ["provision"])


def test_without_its_ledger_nothing_is_made_and_nothing_counted(limited: Wrap, tmp_path: Path) -> None:
    driver, backend = limited(ledger=str(tmp_path / "gone" / "quota.json"))
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"quota\.json cannot be written: No such file or directory"):
            driver.call(demand())
    assert reached(backend) == []


def test_limits_and_ledgers_that_make_no_sense_are_refused(limited: Wrap, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="limit of namespace team-a is 'much', expected a size such as 10Gi"):
        limited(limits={"team-a": "much"})
    (tmp_path / "quota.json").write_text("[1, 2]")
    with pytest.raises(ConfigurationError, match=r"quota ledger .*quota\.json cannot be read"):
        limited()
