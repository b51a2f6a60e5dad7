"""What the tests of claims' decisions share."""

from __future__ import annotations

from typing import Any

from scenarios.backends import ScriptedBackend
from unit.binding.objects import claim
from unit.lifecycle.decisions import world
from volplane.controller.actions import Reads, Wait
from volplane.kube.objects import Claim, KubeObject
from volplane.reconcile.claims import decide_claim

DRIVER = "disk.example.com"


def disk(**info: Any) -> ScriptedBackend:
    return ScriptedBackend(DRIVER, info=info)


def decided(item: Claim, *others: KubeObject, reads: Reads | None = None, **more: Any) -> Any:
    return decide_claim(item.key, world(item, *others, **more), reads or Reads())


def told(action: Any) -> tuple[str, str, str]:
    assert isinstance(action, Wait), action
    (notice,) = action.notices
    return notice.type, notice.reason, notice.message


def fast(**fields: Any) -> Claim:
    return claim(storageClassName="fast", **fields)
