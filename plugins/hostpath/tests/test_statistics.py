"""The use of volumes as metrics, from their project quotas."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import Metric

from volplane import StopRequest
from volplane._shared import USED_BYTES, USED_INODES
from volplane_hostpath.testing import FakeQuotas

LIMITED = {"quota": "required"}


def shown(gauge: Any) -> dict[str, float]:
    family: Metric
    [family] = gauge.collect()
    return {each.labels["persistentvolume"]: each.value for each in family.samples}


@pytest.fixture
def measuring(site: Any) -> Iterator[Any]:
    site.quotas = FakeQuotas()
    site = site.again(volume_statistics=True).start()
    yield site
    site.backend.stop(StopRequest(context=site.context()))
    assert shown(USED_BYTES) == shown(USED_INODES) == {}


def test_the_use_of_volumes_with_a_limit_is_shown_and_that_of_others_is_not_known(measuring: Any) -> None:
    asset = measuring.provision(parameters=LIMITED)
    measuring.provision("u2")
    (measuring.path(asset) / "file").write_bytes(bytes(1000))
    measuring.probe()
    assert shown(USED_BYTES) == {"pvc-u1": 1000}
    assert shown(USED_INODES) == {"pvc-u1": 2}


def test_it_is_off_unless_it_is_asked_for(measuring: Any) -> None:
    plain = measuring.again(volume_statistics=False).start()
    plain.provision(parameters=LIMITED)
    plain.probe()
    assert shown(USED_BYTES) == {}


def test_quotas_that_fail_are_told_once_and_stop_no_probe(measuring: Any, caplog: pytest.LogCaptureFixture) -> None:
    measuring.provision(parameters=LIMITED)
    (measuring.root / ".volplane" / "volumes" / "pvc-junk.json").write_text("{")
    measuring.quotas.fails = errno.EIO
    measuring.probe()
    measuring.again().start().probe()
    assert [each.message for each in caplog.records if "measuring" in each.message] != []
