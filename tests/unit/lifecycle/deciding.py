"""What the tests of claims' decisions share."""

from __future__ import annotations

from typing import Any

from scenarios.backends import ScriptedBackend
from unit.binding.objects import claim
from unit.lifecycle.decisions import world
from volplane.controller.actions import LiveReads, Wait
from volplane.kube.objects import Claim, KubeObject
from volplane.reconcile.claims import decide_claim

DRIVER = "disk.example.com"


def disk(**info: Any) -> ScriptedBackend:
    return ScriptedBackend(DRIVER, info=info)


def decided(item: Claim, *others: KubeObject, reads: LiveReads | None = None, **more: Any) -> Any:
    return decide_claim(item.key, world(item, *others, **more), reads or LiveReads())


def told(action: Any) -> tuple[str, str, str]:
    assert isinstance(action, Wait), action
    (event,) = action.events
    return event.type, event.reason, event.message


def fast(**fields: Any) -> Claim:
    return claim(storageClassName="fast", **fields)
