"""The error table, row by row, in both shapes: the reason of an HTTP error, and the code of an operation's error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from volplane import (
    BackendError,
    Done,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Throttled,
    Unavailable,
    VolumeInUse,
)
from volplane_gce_pd import errors
from volplane_gce_pd.api import NO_ANSWER, NO_CREDENTIALS, NOT_SENT, GceError
from volplane_gce_pd.testing import Behaviour
from volplane_testing.cloud import FaultKind

HTTP: list[tuple[str, int, type[BackendError], str]] = [
    ("notFound", 404, NotFound, ""),
    ("resourceInUseByAnotherResource", 400, VolumeInUse, "detach it there"),
    ("quotaExceeded", 403, ResourceExhausted, "higher quota"),
    ("regionQuotaExceeded", 403, ResourceExhausted, "higher quota"),
    ("limitExceeded", 403, ResourceExhausted, "higher quota"),
    ("rateLimitExceeded", 403, Throttled, "fewer calls"),
    ("userRateLimitExceeded", 403, Throttled, "fewer calls"),
    ("resourceOperationRateExceeded", 403, Throttled, "only what changes it waits"),
    ("strangeRate", 429, Throttled, "fewer calls"),
    ("zoneResourcePoolExhausted", 503, ResourceExhausted, "another zone"),
    ("zoneResourcePoolExhaustedWithDetails", 503, ResourceExhausted, "another zone"),
    ("stockout", 503, ResourceExhausted, "another zone"),
    ("resourceNotReady", 400, Unavailable, "another operation works on it"),
    ("conditionNotMet", 412, PermissionDenied, "policy of the organization"),
    ("invalidFingerprint", 412, Unavailable, "changed meanwhile"),
    ("strangeCondition", 412, PermissionDenied, "policy of the organization"),
    ("forbidden", 403, PermissionDenied, "disks.insert needs a permission"),
    ("accessNotConfigured", 403, PermissionDenied, "API is off"),
    ("strangeRefusal", 403, PermissionDenied, "gce-pd-roles.json"),
    ("backendError", 503, Unavailable, "looks before it goes on"),
    ("internalError", 500, Unavailable, "looks before it goes on"),
    ("strangeTrouble", 502, Unavailable, "looks before it goes on"),
    ("strangeTrouble", 504, Unavailable, "looks before it goes on"),
    ("invalid", 400, InvalidArgument, ""),
    ("invalidParameter", 400, InvalidArgument, ""),
    ("badRequest", 400, InvalidArgument, ""),
    ("unsupportedOperation", 400, InvalidArgument, ""),
    ("parseError", 400, InvalidArgument, ""),
    ("strangeRequest", 400, InvalidArgument, ""),
]
OPERATION: list[tuple[str, type[BackendError], str]] = [
    ("RESOURCE_NOT_FOUND", NotFound, ""),
    ("RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", VolumeInUse, "detach it there"),
    ("QUOTA_EXCEEDED", ResourceExhausted, "higher quota"),
    ("REGION_QUOTA_EXCEEDED", ResourceExhausted, "higher quota"),
    ("LIMIT_EXCEEDED", ResourceExhausted, "higher quota"),
    ("RATE_LIMIT_EXCEEDED", Throttled, "fewer calls"),
    ("RESOURCE_OPERATION_RATE_EXCEEDED", Throttled, "only what changes it waits"),
    ("ZONE_RESOURCE_POOL_EXHAUSTED", ResourceExhausted, "another zone"),
    ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", ResourceExhausted, "another zone"),
    ("STOCKOUT", ResourceExhausted, "another zone"),
    ("RESOURCE_NOT_READY", Unavailable, "another operation works on it"),
    ("OPERATION_CANCELED_BY_USER", Unavailable, "cancelled"),
    ("CONDITION_NOT_MET", PermissionDenied, "policy of the organization"),
    ("PERMISSIONS_ERROR", PermissionDenied, "permission"),
    ("INTERNAL_ERROR", Unavailable, "looks before it goes on"),
    ("SERVICE_UNAVAILABLE", Unavailable, "looks before it goes on"),
    ("INVALID_USAGE", InvalidArgument, ""),
    ("INVALID_FIELD_VALUE", InvalidArgument, ""),
    ("UNSUPPORTED_OPERATION", InvalidArgument, ""),
]


@pytest.mark.parametrize(("code", "status", "kind", "told"), HTTP)
def test_a_refused_call(site: Any, code: str, status: int, kind: type[BackendError], told: str) -> None:
    site.clock.advance(61.0)
    site.refuse("disks.insert", code, "It said so.", status=status)
    with pytest.raises(kind) as raised:
        site.provision()
    assert type(raised.value) is kind
    assert raised.value.code == code
    assert "It said so" in str(raised.value)
    assert told in str(raised.value)
    assert site.fake.disks == {}


@pytest.mark.parametrize(("code", "kind", "told"), OPERATION)
def test_a_failed_operation(site: Any, code: str, kind: type[BackendError], told: str) -> None:
    site.fail("disks.insert", code, "It said so.")
    with pytest.raises(kind) as raised:
        site.provision()
    assert type(raised.value) is kind
    assert (raised.value.code, raised.value.nothing_done) == (code, True)
    assert "It said so" in str(raised.value)
    assert told in str(raised.value)
    if isinstance(raised.value, ResourceExhausted):
        assert raised.value.reschedule == ("ZONE" in code or "STOCK" in code)


def test_a_condition_that_is_not_met_is_an_old_fingerprint_only_where_one_is_given(site: Any) -> None:
    asset = site.provision(context=site.context(fence="1/a/lease"))
    site.refuse("disks.setLabels", "conditionNotMet", "Labels fingerprint either invalid", status=412)
    with pytest.raises(Unavailable, match="changed meanwhile") as changed:
        site.attach(asset, site.node(site.vm()), context={"fence": "2/b/lease"})
    assert changed.value.retry_after == 1.0
    site.refuse("disks.resize", "conditionNotMet", "Constraint constraints/compute.x violated", status=412)
    with pytest.raises(PermissionDenied, match="let the policy allow it") as forbidden:
        site.expand(asset, 20 << 30)
    assert forbidden.value.retry_after == 60.0


@pytest.mark.parametrize("shape", ["refused", "failed"])
def test_what_exists_already_is_read_and_taken(site: Any, shape: str) -> None:
    if shape == "refused":
        site.fault("disks.insert", FaultKind.LIE, code="alreadyExists", status=409)
    else:
        site.fail("disks.insert", "RESOURCE_ALREADY_EXISTS")
    assert site.provision().handle.endswith("pvc-u1")
    assert len(site.fake.disks) == 1


@pytest.mark.parametrize("code", ["notFound", "strangeAbsence"])
def test_what_is_gone_is_deleted(site: Any, code: str) -> None:
    asset = site.provision()
    site.refuse("disks.delete", code, status=404)
    assert site.delete(asset) == Done()
    site.fail("disks.delete", "RESOURCE_NOT_FOUND")
    assert site.delete(asset) == Done()


@pytest.mark.parametrize(
    ("code", "status", "unknown"),
    [
        ("backendError", 503, True),
        ("strange", 502, True),
        (NO_ANSWER, 0, True),
        ("alreadyExists", 409, True),
        ("UNHEARD_OF", 200, True),
        (NOT_SENT, 0, False),
        (NO_CREDENTIALS, 0, False),
        ("rateLimitExceeded", 403, False),
        ("quotaExceeded", 403, False),
        ("forbidden", 403, False),
        ("invalid", 400, False),
        ("zoneResourcePoolExhausted", 503, False),
    ],
)
def test_a_row_says_whether_something_may_have_been_done(code: str, status: int, unknown: bool) -> None:
    assert errors.outcome_unknown(GceError("disks.insert", code, "", status)) is unknown


def test_times_of_the_next_try_are_those_of_the_table(site: Any) -> None:
    for code, seconds in (("quotaExceeded", 60.0), ("rateLimitExceeded", 5.0), ("forbidden", 60.0), ("invalid", None)):
        site.refuse("disks.insert", code)
        with pytest.raises(BackendError) as raised:
            site.provision()
        assert raised.value.retry_after == seconds


def test_a_refusal_because_of_the_rate_halves_the_rate(new_site: Any) -> None:
    site = new_site(mutations_per_second=10, mutation_burst=1)
    site.refuse("disks.insert", "rateLimitExceeded")
    with pytest.raises(Throttled):
        site.provision()
    demands = [site.demand(f"u{number}") for number in range(2, 6)]
    for demand in demands:
        site.backend.provision(demand)
    site.clock.advance(0.5)
    waits = [site.backend.provision(demand).retry_after for demand in demands]
    assert waits == pytest.approx([0.5, 0.7, 0.9, 1.1]), "a second's pause, then five a second"


@pytest.mark.parametrize("code", ["rateLimitExceeded", "resourceOperationRateExceeded"])
def test_the_full_queue_of_one_machine_slows_no_other_one(new_site: Any, code: str) -> None:
    site = new_site(Behaviour(vm_queue=0, queue_code=code), attach=True, mutations_per_second=10, mutation_burst=1)
    asset, other, vm = site.provision(), site.provision("u1b"), site.vm()
    for _ in range(4):
        with pytest.raises(Throttled, match="only what changes it waits"):
            site.attach(asset, site.node(vm))
    began = site.clock.now
    with pytest.raises(Throttled):
        site.attach(other, site.node(vm), "u1b")
    assert site.clock.now - began >= 8.0, "the pause is the machine's, whichever disk comes"
    demands = [site.demand(f"u{number}") for number in range(2, 6)]
    for demand in demands:
        site.backend.provision(demand)
    waits = [site.backend.provision(demand).retry_after for demand in demands]
    assert max(waits) < 0.8, "the rate of all changes is what it was"


def test_a_young_snapshot_makes_only_its_disk_wait(site: Any) -> None:
    one, two = site.provision("u1"), site.provision("u2")
    site.snapshot(one, "snap-1", "u1")
    with pytest.raises(Throttled, match="once in ten minutes") as raised:
        site.snapshot(one, "snap-2", "u1")
    assert raised.value.retry_after == 60.0
    assert site.snapshot(two, "snap-3", "u2").handle.endswith("/snap-3")
    assert site.expand(one, 20 << 30).capacity_bytes == 20 << 30
    site.clock.advance(600.0)
    assert site.snapshot(one, "snap-2", "u1").handle.endswith("/snap-2")


def test_a_disk_that_was_changed_lately_waits_for_minutes_not_for_seconds() -> None:
    """In the table: "resourceOperationRateExceeded of a change", "resourceOperationRateExceeded of a snapshot"."""
    for call, retry in (
        ("disks.update", 600.0),
        ("regionDisks.resize", 600.0),
        ("snapshots.insert", 60.0),
        ("instances.attachDisk", 5.0),
    ):
        error = GceError(call, "resourceOperationRateExceeded", "It was changed recently.")
        assert errors.to_backend_error(error, "change it").retry_after == retry


def test_every_code_of_the_table_stands_in_this_file() -> None:
    """A row without a test would be a guess."""
    tests = Path(__file__).read_text("utf-8")
    codes = {code.rstrip("*") for row in errors._TABLE.rows for code in row.codes}
    named = {
        code.partition(" of ")[0]
        for code in codes
        if not re.fullmatch(r"HTTP \d+", code) and code not in ("HTTP 5", "authError")
    }
    missing = {code for code in named - {NO_ANSWER, NOT_SENT, NO_CREDENTIALS, "required"} if code not in tests}
    assert missing == set()


@pytest.mark.parametrize(("shape", "code"), [("operation", "PERMISSIONS_ERROR"), ("http", "forbidden")])
def test_a_key_that_may_not_be_used_makes_no_disk_until_it_may(new_site: Any, shape: str, code: str) -> None:
    key = "projects/p/locations/europe-test1/keyRings/r/cryptoKeys/k"
    site = new_site(Behaviour(kms_keys={key: False}, shape=shape))
    with pytest.raises(PermissionDenied, match="useToEncrypt") as refused:
        site.provision(parameters={"disk-encryption-kms-key": key})
    assert (refused.value.code, site.fake.disks) == (code, {})
    site.fake.behave(kms_keys={key: True})
    site.provision(parameters={"disk-encryption-kms-key": key})
    assert site.disk.status == "READY"


@pytest.mark.parametrize(("shape", "code"), [("operation", "UNSUPPORTED_OPERATION"), ("http", "invalid")])
def test_a_machine_that_does_not_take_a_disk_says_so_by_either_code(new_site: Any, shape: str, code: str) -> None:
    site = new_site(Behaviour(shape=shape))
    asset, vm = site.provision(), site.vm(machine_type="n4-standard-4")
    with pytest.raises(InvalidArgument, match="cannot be used by n4-standard-4") as refused:
        site.attach(asset, site.node(vm))
    assert (refused.value.code, site.disk.users) == (code, {})


@pytest.mark.parametrize(("shape", "code"), [("operation", "RESOURCE_NOT_READY"), ("http", "resourceNotReady")])
def test_a_disk_that_is_not_ready_is_attached_when_it_is(new_site: Any, shape: str, code: str) -> None:
    site = new_site(Behaviour(shape=shape))
    asset, vm = site.provision(), site.vm()
    site.disk.status = "RESTORING"
    with pytest.raises(Unavailable, match="not ready") as refused:
        site.attach(asset, site.node(vm))
    assert (refused.value.code, site.disk.users) == (code, {})
    site.disk.status = "READY"
    site.clock.advance(5.0)
    assert site.attach(asset, site.node(vm))
