"""Each controller may run without the others: it may follow what it follows."""

from __future__ import annotations

import pytest

from volplane.cli.installation import cluster_rules, namespace_rules
from volplane.process.duties import ALL_CONTROLLERS
from volplane_testing import Cluster
from volplane_testing.memory import DRIVER, MemoryBackend


@pytest.mark.parametrize("controller", sorted(ALL_CONTROLLERS))
async def test_a_controller_alone_has_the_right_to_all_that_it_follows(controller: str) -> None:
    async with Cluster({DRIVER: MemoryBackend}, controllers=frozenset({controller})) as cluster:
        followed = {each.cache.kind for each in cluster.controllers.plane.reflectors}
    rules = (*cluster_rules([controller], "volplane-system"), *namespace_rules([controller]))
    given = {(rule.group, rule.resource, verb) for rule in rules for verb in rule.verbs}
    groups = {kind: kind.api_version.rpartition("/")[0] for kind in followed}
    wanted = {(groups[kind], kind.plural, verb) for kind in followed for verb in ("list", "watch")}
    assert wanted - given == set()
