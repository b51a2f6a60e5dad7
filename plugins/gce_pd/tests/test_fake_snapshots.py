"""What the mock of Compute Engine does with snapshots and images: states, limits, sources, other projects."""

from __future__ import annotations

from typing import Any

import pytest

from volplane_gce_pd.api import ComputeClient, GceError, Method
from volplane_gce_pd.resources import Operation
from volplane_gce_pd.settings import Settings
from volplane_gce_pd.testing import Behaviour, FakeCompute, InProcess
from volplane_testing.cloud import SteppedClock

PROJECT, REGION, A = "test-project", "europe-test1", "europe-test1-a"
DISK = f"projects/{PROJECT}/zones/{A}/disks/d"


class Account:
    def __init__(self, **behaviour: Any) -> None:
        self.clock = SteppedClock()
        self.fake = FakeCompute(Behaviour(**behaviour), clock=self.clock)
        self.client = ComputeClient(Settings(project=PROJECT, region=REGION), InProcess(self.fake))
        self.disk("d")

    def call(self, method: Method, **fields: Any) -> Any:
        return self.client.call(method, **fields)

    def disk(self, name: str, **fields: Any) -> Any:
        kind = f"projects/{PROJECT}/zones/{A}/diskTypes/pd-ssd"
        wanted = {"name": name, "type_": kind, **({"size_gb": 10} if not fields else {}), **fields}
        made = self.call(Method.DISKS_INSERT, zone=A, disk_resource=wanted)
        self.clock.advance(2.0)
        return made

    def cut(self, name: str = "s", **fields: Any) -> Any:
        return self.call(Method.SNAPSHOTS_INSERT, snapshot_resource={"name": name, "source_disk": DISK, **fields})

    def image(self, name: str = "i", **more: Any) -> Any:
        wanted = {"name": name, "source_disk": DISK}
        return self.call(Method.IMAGES_INSERT, image_resource=wanted, **{"force_create": True, **more})

    def status(self, name: str = "s") -> str:
        return str(self.call(Method.SNAPSHOTS_GET, snapshot=name).status)

    def done(self, operation: Any) -> bool:
        return Operation.of(self.call(Method.GLOBAL_OPERATIONS_GET, operation=operation.name)).done


@pytest.fixture
def account() -> Account:
    return Account()


def refused(code: str, call: Any, *given: Any, **fields: Any) -> None:
    with pytest.raises(GceError) as raised:
        call(*given, **fields)
    assert raised.value.code == code


def test_a_snapshot_is_cut_uploaded_and_then_ready_before_its_operation_ends() -> None:
    account = Account(cut_seconds=2.0, upload_seconds=20.0, ready_early_seconds=10.0)
    operation = account.cut()
    seen = []
    for seconds in (0.0, 3.0, 20.0, 10.0):
        account.clock.advance(seconds)
        seen.append((account.status(), account.done(operation)))
    assert seen == [("CREATING", False), ("UPLOADING", False), ("READY", False), ("READY", True)]


def test_nothing_is_made_from_a_snapshot_before_it_is_ready(account: Account) -> None:
    account.cut()
    account.clock.advance(5.0)
    source = f"projects/{PROJECT}/global/snapshots/s"
    refused("resourceNotReady", account.disk, "copy", source_snapshot=source)
    account.clock.advance(30.0)
    account.disk("copy", source_snapshot=source)
    refused("invalid", account.disk, "small", source_snapshot=source, size_gb=5)
    refused("invalid", account.disk, "odd", source_snapshot="global/snapshots/s")
    refused("notFound", account.disk, "none", source_snapshot=f"{source}-2")


def test_a_disk_is_cut_once_in_ten_minutes_by_snapshots_and_images_together(account: Account) -> None:
    account.cut()
    refused("resourceOperationRateExceeded", account.cut, "s2")
    refused("resourceOperationRateExceeded", account.image)
    account.clock.advance(600.0)
    account.image()
    refused("alreadyExists", account.image)


def test_a_snapshot_is_restored_so_often_a_minute() -> None:
    account = Account(restores_a_minute=1)
    account.cut()
    account.clock.advance(30.0)
    source = f"projects/{PROJECT}/global/snapshots/s"
    account.disk("one", source_snapshot=source)
    refused("resourceOperationRateExceeded", account.disk, "two", source_snapshot=source)
    account.clock.advance(60.0)
    account.disk("two", source_snapshot=source)


def test_an_image_is_forced_of_a_zonal_disk_and_pending_until_it_is_ready(account: Account) -> None:
    refused("invalid", account.image, force_create=False)
    account.image()
    assert account.call(Method.IMAGES_GET, image="i").status == "PENDING"
    refused("resourceNotReady", account.disk, "early", source_image=f"projects/{PROJECT}/global/images/i")
    account.clock.advance(30.0)
    assert account.call(Method.IMAGES_GET, image="i").status == "READY"
    account.disk("copy", source_image=f"projects/{PROJECT}/global/images/i")
    assert account.fake.snapshots == {}


def test_a_snapshot_knows_the_id_of_its_disk_which_a_new_one_of_that_name_has_not(account: Account) -> None:
    account.cut()
    account.clock.advance(30.0)
    account.call(Method.DISKS_DELETE, zone=A, disk="d")
    account.clock.advance(5.0)
    account.disk("d")
    told = account.call(Method.SNAPSHOTS_GET, snapshot="s")
    now = account.call(Method.DISKS_GET, zone=A, disk="d")
    assert told.source_disk.endswith(DISK)
    assert int(told.source_disk_id) != int(now.id)


def test_a_snapshot_that_is_being_cut_is_not_deleted(account: Account) -> None:
    account.cut()
    refused("resourceNotReady", account.call, Method.SNAPSHOTS_DELETE, snapshot="s")
    account.clock.advance(5.0)
    account.call(Method.SNAPSHOTS_DELETE, snapshot="s")
    assert account.status() == "DELETING"
    account.clock.advance(5.0)
    refused("notFound", account.status)


def test_snapshots_of_another_project_are_read_only_there() -> None:
    account = Account(shared_projects=frozenset({"backups"}))
    account.cut()
    account.clock.advance(30.0)
    account.fake.snapshots["s"].project = "backups"
    refused("notFound", account.status)
    found = account.call(Method.SNAPSHOTS_GET, project="backups", snapshot="s")
    assert found.self_link.endswith("projects/backups/global/snapshots/s")
    refused("notFound", account.call, Method.SNAPSHOTS_DELETE, project="backups", snapshot="s")
    refused("notFound", account.call, Method.SNAPSHOTS_GET, project="elsewhere", snapshot="s")
    account.disk("copy", source_snapshot="projects/backups/global/snapshots/s")
