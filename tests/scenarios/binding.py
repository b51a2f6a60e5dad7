"""What the tests of binding share."""

from __future__ import annotations

from scenarios.backends import ScriptedBackend
from scenarios.laboratory import Laboratory
from scenarios.stories import DRIVER

BY_CONTROLLER = {"pv.kubernetes.io/bound-by-controller": "yes"}


def plain() -> Laboratory:
    return Laboratory(ScriptedBackend(DRIVER))
