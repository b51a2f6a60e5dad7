"""The promises that every backend makes, judged on a mocked EC2 in virtual time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from volplane_aws_ebs.testing import Behaviour, subject
from volplane_testing import BackendConformance, Subject
from volplane_testing.conformance import RULES

SECRET = "known-to-two-accounts"


LATE = tuple(
    rule
    for rule in RULES
    if rule.check.__module__.rpartition(".")[2]
    in ("provisioning", "deleting", "crashes", "concurrency", "attaching", "snapshots", "groups")
    # It takes what an earlier demand made, and what becomes visible only now, for something that a crash has left.
    and rule.name != "a-crash-in-the-middle-of-provision-leaves-nothing-unseen"
)
"""Rules that hold or break by when things happen."""


def with_secret(behaviour: Behaviour, **more: Any) -> Subject:
    role = "arn:aws:iam::123456789012:role/storage"
    return replace(subject(behaviour, role_arn=role, role_external_id=SECRET, **more), secrets=(SECRET,))


class TestAwsEbs(BackendConformance):
    @pytest.fixture
    def backend(self) -> Subject:
        return with_secret(Behaviour(max_results=5))


@pytest.mark.more
class TestAwsEbsSeenLate(BackendConformance):
    """What was made or tagged is not seen by Describe calls for a while."""

    rules = LATE

    @pytest.fixture
    def backend(self) -> Subject:
        return with_secret(Behaviour(max_results=5, visible_after=3.0), crash_points=8)


@pytest.mark.more
class TestAwsEbsSlowAndFew(BackendConformance):
    """Slow changes, and one call a second of each kind."""

    rules = LATE

    @pytest.fixture
    def backend(self) -> Subject:
        behaviour = Behaviour(max_results=5, create_seconds=6.0, attach_seconds=3.0, delete_seconds=12.0)
        return with_secret(behaviour, crash_points=8, mutations_per_second=1, mutation_burst=1)
