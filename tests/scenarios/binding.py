"""What the tests of binding share."""

from __future__ import annotations

from scenarios.backends import ScriptedBackend
from scenarios.harness import Harness
from scenarios.stories import DRIVER

BY_CONTROLLER = {"pv.kubernetes.io/bound-by-controller": "yes"}


def plain() -> Harness:
    return Harness(ScriptedBackend(DRIVER))
