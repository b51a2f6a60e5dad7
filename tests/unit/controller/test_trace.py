"""Ids for log lines: of one life, and of one look."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from volplane.controller import logs
from volplane.controller.logs import new_span, trace_of, traceparent
from volplane.kube.cache import Cache
from volplane.kube.kinds import VOLUMES
from volplane.kube.objects import Claim, KubeObject, Volume, VolumeAttachment

UID = "0f8fad5b-d9cb-469f-a165-70867728950e"
TRACE = "0f8fad5bd9cb469fa16570867728950e"
OWN = "7c9e6679-7425-40de-944b-e07fc1f90ae7"


def made(kind: type[KubeObject], uid: str = OWN, **spec: Any) -> Any:
    return msgspec.convert({"metadata": {"name": "v", "uid": uid}, "spec": spec}, kind)


def test_a_claim_its_volume_and_the_attachments_of_that_have_one_trace() -> None:
    volume = made(Volume, claimRef={"namespace": "default", "name": "c", "uid": UID})
    volumes = Cache(VOLUMES)
    volumes.observe(volume)
    caches = {"persistentvolumes": volumes}
    attachment = made(VolumeAttachment, attacher="a", nodeName="n", source={"persistentVolumeName": "v"})
    assert trace_of(made(Claim, UID), caches) == TRACE
    assert trace_of(volume, caches) == TRACE
    assert trace_of(attachment, caches) == TRACE


@pytest.mark.parametrize("reference", [None, {"namespace": "default", "name": "c"}])
def test_a_volume_without_a_claim_has_its_own(reference: dict[str, str] | None) -> None:
    assert trace_of(made(Volume, claimRef=reference), {}) == OWN.replace("-", "")
    assert trace_of(made(VolumeAttachment), {}) == OWN.replace("-", "")


def test_what_is_gone_has_none() -> None:
    assert trace_of(None, {}) == ""


@pytest.mark.parametrize("uid", ["u", "0" * 32, "Z" * 32, "0f8fad5b-d9cb-469f-a165-70867728950é", "\n" * 32])
def test_a_uid_that_is_no_uuid_gives_a_trace_all_the_same(uid: str) -> None:
    assert re.fullmatch("[0-9a-f]{32}", trace_of(made(Claim, uid), {}))
    assert trace_of(made(Claim, uid), {}) == trace_of(made(Claim, uid), {}) != trace_of(made(Claim, UID), {})


def test_the_header_is_that_of_the_running_look_and_there_is_none_outside() -> None:
    assert traceparent() == ""
    with logs.bound(trace=TRACE, span=(span := new_span())):
        assert traceparent() == f"00-{TRACE}-{span}-01"
        assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-01", traceparent())
    assert traceparent() == ""


def test_no_two_looks_share_a_span() -> None:
    assert len({new_span() for _ in range(1000)}) == 1000
