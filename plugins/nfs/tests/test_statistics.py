"""The use of volumes as metrics, as far as the server counts it by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from volplane._shared import USED_BYTES, USED_INODES
from volplane_nfs.testing import ModelServer
from volplane_nfs.testing.model.state import Node

from .conftest import MIB, MODEL, Site


def shown(gauge: Any) -> dict[str, float]:
    [family] = gauge.collect()
    return {each.labels["persistentvolume"]: each.value for each in family.samples}


@pytest.fixture
def measuring(model: ModelServer) -> Iterator[Site]:
    site = Site(MODEL, model.dial, volume_statistics=True).start()
    yield site
    site.stop()
    assert shown(USED_BYTES) == shown(USED_INODES) == {}


def directories(model: ModelServer) -> dict[bytes, Node]:
    return dict(model.share.children[b"default"].children)


def test_what_the_server_counts_of_a_volume_is_shown(measuring: Site, model: ModelServer) -> None:
    for uid in ("u1", "u2", "u3"):
        measuring.provision(measuring.demand(uid))
    first, second, _ = sorted(directories(model).items())
    first[1].limit, first[1].used, first[1].files = 4 * MIB, MIB, (1000, 990)
    second[1].quota = (3 * MIB, 7)
    measuring.probe()
    assert sorted(shown(USED_BYTES).values()) == [7, MIB], "of the third nothing is known"
    assert list(shown(USED_INODES).values()) == [10]


def test_a_full_share_tells_nothing_of_what_its_volumes_use(measuring: Site, model: ModelServer) -> None:
    measuring.provision()
    (node,) = directories(model).values()
    node.limit, model.available = 4 * MIB, MIB
    measuring.probe()
    assert shown(USED_BYTES) == {}


def test_it_is_off_unless_it_is_asked_for(site: Site, model: ModelServer) -> None:
    site.provision()
    (node,) = directories(model).values()
    node.limit = 4 * MIB
    site.probe()
    assert shown(USED_BYTES) == {}
