"""FakeCompute does what Compute Engine does: seen through Google's own client library."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core.exceptions import (
    BadRequest,
    Conflict,
    Forbidden,
    GoogleAPICallError,
    NotFound,
    PreconditionFailed,
    ServiceUnavailable,
)

from volplane_gce_pd.testing import COMPUTE_QUOTAS, Behaviour, FakeCompute, InProcess, ModelViolation
from volplane_gce_pd.testing.methods import METHODS, parsed
from volplane_testing.cloud import Fault, FaultKind, HttpRequest, SteppedClock

A, B = "europe-test1-a", "europe-test1-b"
ONE, TWO = (f"0000000{number}-0000-4000-8000-000000000000" for number in (1, 2))


def message(kind: str, /, **fields: Any) -> Any:
    from google.cloud import compute_v1

    return getattr(compute_v1, kind)(**fields)


class Account:
    def __init__(self, **behaviour: Any) -> None:
        self.clock = SteppedClock()
        self.fake = FakeCompute(Behaviour(**behaviour), clock=self.clock)
        self.connect = InProcess(self.fake)

    def __getattr__(self, service: str) -> Any:
        return self.connect.client(f"{service}Client")

    def disk(self, name: str = "d", zone: str = A, **fields: Any) -> Any:
        kind = fields.pop("kind", "pd-ssd")
        return message(
            "Disk",
            name=name,
            size_gb=fields.pop("size", 10),
            type_=f"projects/test-project/zones/{zone}/diskTypes/{kind}",
            **fields,
        )

    def insert(self, name: str = "d", zone: str = A, request_id: str = "", **fields: Any) -> Any:
        request = message(
            "InsertDiskRequest", project="test-project", zone=zone, disk_resource=self.disk(name, zone, **fields)
        )
        if request_id:
            request.request_id = request_id
        return self.Disks.insert_unary(request, retry=None)

    def operation(self, operation: Any) -> Any:
        return self.ZoneOperations.get(project="test-project", zone=A, operation=operation.name, retry=None)

    def get(self, name: str = "d", zone: str = A) -> Any:
        return self.Disks.get(project="test-project", zone=zone, disk=name, retry=None)


@pytest.fixture
def account() -> Account:
    return Account()


def reason(error: GoogleAPICallError) -> str:
    return str(error.errors[0]["reason"])


def test_an_operation_runs_for_its_time_and_the_disk_with_it(account: Account) -> None:
    operation = account.insert()
    assert (operation.status.name, account.get().status) == ("RUNNING", "CREATING")
    account.clock.advance(1.0)
    assert account.operation(operation).status.name == "DONE"
    assert (account.get().status, account.get().size_gb) == ("READY", 10)


def test_the_same_request_id_returns_the_same_operation_for_an_hour(account: Account) -> None:
    first = account.insert(request_id=ONE)
    assert account.insert(request_id=ONE).name == first.name
    with pytest.raises(BadRequest, match="used for another request"):
        account.insert("other", request_id=ONE)
    with pytest.raises(Conflict) as raised:
        account.insert(request_id=TWO)
    assert reason(raised.value) == "alreadyExists"
    account.clock.advance(3_601.0)
    with pytest.raises(Conflict):
        account.insert(request_id=ONE)


@pytest.mark.parametrize("wrong", ["1", "00000000-0000-0000-0000-000000000000"])
def test_a_request_id_that_is_no_uuid_is_refused(account: Account, wrong: str) -> None:
    with pytest.raises(BadRequest, match="non-zero UUID"):
        account.insert(request_id=wrong)


def test_a_finished_operation_is_forgotten_some_day() -> None:
    account = Account(operation_kept=100.0)
    operation = account.insert()
    account.clock.advance(90.0)
    assert account.operation(operation).status.name == "DONE"
    account.clock.advance(20.0)
    with pytest.raises(NotFound):
        account.operation(operation)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"name": "PVC_1"}, "resource.name"),
        ({"size": 70_000}, "between 1 and 65536"),
        ({"kind": "floppy"}, "diskTypes/floppy"),
        ({"provisioned_iops": 3_000}, "cannot be provisioned"),
        ({"access_mode": "READ_WRITE_MANY"}, "do not support"),
        ({"labels": {"Team": "a"}}, "characters"),
        ({"labels": {f"k{n}": "v" for n in range(65)}}, "64 labels"),
        ({"disk_encryption_key": {"kms_key_name": "k"}}, "Cloud KMS error"),
        ({"enable_confidential_compute": True}, "KMS key is required"),
        ({"source_snapshot": "global/snapshots/s"}, "snapshots/s"),
        ({"source_disk": "d"}, "malformed"),
        ({"storage_pool": "pool"}, "pool"),
        ({"kind": "hyperdisk-balanced", "provisioned_iops": 9_000}, "between 3000 and 5000"),
    ],
)
def test_what_compute_engine_refuses_is_refused(account: Account, fields: Any, told: str) -> None:
    with pytest.raises((BadRequest, NotFound), match=told):
        account.insert(**fields)
    assert account.fake.disks == {}


def test_unknown_fields_parameters_and_projects_are_errors(account: Account) -> None:
    path = f"/compute/v1/projects/test-project/zones/{A}/disks"
    for target, body, told in (
        (path, b'{"sizeGB": "10"}', "sizeGB"),
        (path, b'{"sizeGb": "ten"}', "ten"),
        (f"{path}?colour=red", b"{}", "colour"),
        (f"{path}/d/polish", b"{}", "not found"),
    ):
        with pytest.raises(Exception, match=told):
            parsed("POST", target, body)
    with pytest.raises(NotFound, match="projects/elsewhere"):
        account.Disks.get(project="elsewhere", zone=A, disk="d", retry=None)


def test_an_update_takes_a_field_in_each_of_its_paths_and_no_commas(account: Account) -> None:
    account.insert(kind="hyperdisk-balanced", size=100)
    account.clock.advance(2.0)
    path = f"/compute/v1/projects/test-project/zones/{A}/disks/d"
    body = b'{"name": "d", "provisionedIops": "5000", "provisionedThroughput": "300"}'

    def status(query: str) -> int:
        return account.fake.answer(HttpRequest("PATCH", f"{path}?{query}", {}, body)).status

    assert status("paths=provisionedIops%2CprovisionedThroughput") == 400
    assert status("requestId=1&requestId=2&paths=provisionedIops") == 400
    assert status("") == 400
    assert status("paths=provisionedIops&paths=provisionedThroughput") == 200
    account.clock.advance(2.0)
    (disk,) = account.fake.disks.values()
    assert (disk.iops, disk.throughput) == (5_000, 300)


def test_an_answer_that_is_no_message_of_google_is_a_bug_of_the_fake() -> None:
    with pytest.raises(ModelViolation, match=r"disks\.get"):
        METHODS["disks.get"].check_answer({"nme": "d"})


def test_a_machine_works_off_its_queue_one_by_one_and_refuses_more(account: Account) -> None:
    account.fake.behave(vm_queue=3)
    account.fake.add_instance("vm", A)
    for number in range(4):
        account.insert(f"d{number}")
    account.clock.advance(1.0)

    def attach(number: int) -> Any:
        return account.Instances.attach_disk_unary(
            project="test-project",
            zone=A,
            instance="vm",
            attached_disk_resource=message(
                "AttachedDisk", source=f"projects/test-project/zones/{A}/disks/d{number}", device_name=f"d{number}"
            ),
            retry=None,
        )

    operations = [attach(number) for number in range(3)]
    with pytest.raises(Forbidden, match="pending operations"):
        attach(3)
    account.clock.advance(2.0)
    assert [account.operation(each).status.name for each in operations] == ["DONE", "RUNNING", "PENDING"]
    account.clock.advance(4.0)
    vm = account.Instances.get(project="test-project", zone=A, instance="vm", retry=None)
    assert [disk.device_name for disk in vm.disks] == ["persistent-disk-0", "d0", "d1", "d2"]
    assert account.get("d0").last_attach_timestamp


def test_labels_need_their_fingerprint(account: Account) -> None:
    account.insert()
    account.clock.advance(1.0)
    wanted = message("ZoneSetLabelsRequest", labels={"a": "b"}, label_fingerprint="old")
    fields = {"project": "test-project", "zone": A, "resource": "d", "retry": None}
    with pytest.raises(PreconditionFailed):
        account.Disks.set_labels_unary(zone_set_labels_request_resource=wanted, **fields)
    wanted.label_fingerprint = account.get().label_fingerprint
    account.Disks.set_labels_unary(zone_set_labels_request_resource=wanted, **fields)
    assert dict(account.get().labels) == {"a": "b"}


def test_lists_have_filters_and_pages(account: Account) -> None:
    for number in range(5):
        account.insert(f"d{number}", labels={"team": "a"} if number else {})
    pager = account.Disks.list(
        message("ListDisksRequest", project="test-project", zone=A, max_results=2, filter="labels.team:*"), retry=None
    )
    assert [disk.name for disk in pager] == ["d1", "d2", "d3", "d4"]
    assert account.fake.calls["disks.list"] == 2
    some = message("ListDisksRequest", project="test-project", zone=A, filter='(name = "d0") OR (name = "d3")')
    assert [disk.name for disk in account.Disks.list(some, retry=None)] == ["d0", "d3"]
    with pytest.raises(BadRequest, match="filter"):
        list(
            account.Disks.list(
                message("ListDisksRequest", project="test-project", zone=A, filter="name ~ x"), retry=None
            )
        )


def test_an_aggregated_list_says_which_zones_it_lacks(account: Account) -> None:
    account.insert(zone=B)
    account.fake.behave(unreachable=frozenset({A}))
    request = message("AggregatedListDisksRequest", project="test-project")
    scopes = dict(account.Disks.aggregated_list(request, retry=None))
    assert scopes[f"zones/{A}"].warning.code == "UNREACHABLE"
    assert [disk.name for disk in scopes[f"zones/{B}"].disks] == ["d"]
    assert scopes["regions/europe-test1"].warning.code == "NO_RESULTS_ON_PAGE"
    account.fake.behave(partial_lists=False)
    with pytest.raises(ServiceUnavailable):
        account.Disks.aggregated_list(request, retry=None)
    with pytest.raises(ServiceUnavailable):
        account.get()


@pytest.mark.parametrize(
    ("shape", "stock_outs"), [("operation", (A,)), ("http", (A,)), ("operation", ()), ("http", ())]
)
def test_quota_and_stock_out_come_in_both_shapes(shape: str, stock_outs: tuple[str, ...]) -> None:
    account = Account(shape=shape, stock_outs=frozenset(stock_outs), ssd_gb=5)
    code = {"operation": "QUOTA_EXCEEDED", "http": "quotaExceeded"}[shape]
    if shape == "http":
        with pytest.raises(Forbidden) as raised:
            account.insert()
        assert reason(raised.value) == code
    else:
        operation = account.insert()
        account.clock.advance(1.0)
        assert account.operation(operation).error.errors[0].code == code
    assert account.fake.disks == {}


def test_a_rate_quota_begins_anew_with_every_minute() -> None:
    account = Account(calls_per_minute={**COMPUTE_QUOTAS, "mutations": 2})
    account.insert("a")
    account.insert("b")
    with pytest.raises(Forbidden) as raised:
        account.insert("c")
    assert reason(raised.value) == "rateLimitExceeded"
    account.clock.advance(60.0)
    account.insert("c")


def test_a_scripted_failure_ends_the_operation_and_undoes_it(account: Account) -> None:
    account.fake.faults.add(Fault(action="disks.insert", kind=FaultKind.FAIL, code="INTERNAL_ERROR", message="no"))
    operation = account.insert()
    account.clock.advance(1.0)
    assert account.operation(operation).error.errors[0].message == "no"
    assert account.fake.disks == {}
