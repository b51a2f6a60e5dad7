"""In any order of asking, growing, refusing and crashing a claim gets what it asks for in the end, in few steps.

The node is a stock kubelet: it grows file systems to `allocatedResources`, whatever the volume has, or refuses.
"""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from unit.binding.objects import claim, volume
from unit.deciding import DRIVER, HOOKS, decide_resize, disk, state_with
from volplane.controller.actions import Patch, Run
from volplane.expand.resize import expansion_target, recorded_target, wants_more
from volplane.kube.kinds import VOLUMES
from volplane.kube.objects import Claim, Volume
from volplane.kube.quantity import format_bytes, parse
from volplane.state.progress import Changed, Refused, Untouched

GIB = 2**30
MOST = 8 * GIB
"""The largest asset of the backend."""
Json = dict[str, Any]


def merged(target: Json, patch: Json) -> Json:
    """RFC 7396."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = merged(dict(target.get(key) or {}), value) if isinstance(value, dict) else value
    return target


class Schedule:
    """A claim, its volume, a backend that rounds sizes up, and who works on them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.node_grows = self.random.random() < 0.7
        self.rounds_to = self.random.choice([1, GIB, 4 * GIB])
        item = claim("c", size="1Gi", volumeName="v", status={"phase": "Bound", "capacity": {"storage": "1Gi"}})
        made_by = {"pv.kubernetes.io/provisioned-by": DRIVER}
        source = {"driver": DRIVER, "volumeHandle": "h"}
        held = volume("v", claim=item, size="1Gi", csi=source, hostPath=None, annotations=made_by)
        self.claim: Json = msgspec.to_builtins(item)
        self.volume: Json = msgspec.to_builtins(held)
        self.driver = disk(hooks=HOOKS | {"expand"}, node_expansion_required=self.node_grows)
        self.asset = GIB
        self.step: Any = None

    @property
    def asked(self) -> int:
        return parse(self.claim["spec"]["resources"]["requests"]["storage"]).as_bytes()

    @property
    def has(self) -> int:
        return parse(self.claim["status"]["capacity"]["storage"]).as_bytes()

    @property
    def state(self) -> str:
        told: str = (self.claim["status"].get("allocatedResourceStatuses") or {}).get("storage", "")
        return told

    def ask(self, size: int) -> None:
        """As far as the API server allows it."""
        if size >= self.asked or size > self.has:
            self.claim["spec"]["resources"]["requests"]["storage"] = format_bytes(size)

    def controller(self, *, trouble: bool) -> bool:
        """One step; whether there was one."""
        item, held = msgspec.convert(self.claim, Claim), msgspec.convert(self.volume, Volume)
        state = state_with(item, held, drivers=(self.driver,))
        if self.step is not None:
            state.progress.changes.track((held.uid, "expand")).step = self.step
        action = decide_resize(item.key, state)
        if isinstance(action, Patch):
            target = self.volume if action.kind is VOLUMES else self.claim
            merged(target, json.loads(json.dumps(action.body)))
            self._forget()
            return True
        size = expansion_target(item, held)
        if not isinstance(action, Run) or size is None or recorded_target(item) != size:
            return False
        if size > MOST:
            self.step = Refused(str(size), "at most 8Gi")
            return self.state != "ControllerResizeInfeasible"
        happens = self.random.choice(["done"] * 6 + ["nothing", "unknown", "answer lost"]) if trouble else "done"
        if happens in {"done", "answer lost"}:
            self.asset = max(self.asset, -(-size // self.rounds_to) * self.rounds_to)
        self.step = {"done": Changed(str(size), self.asset), "nothing": Untouched(str(size))}.get(happens)
        return True

    def kubelet(self, *, grows: bool) -> bool:
        if self.state not in {"NodeResizePending", "NodeResizeInProgress"}:
            return False
        status = self.claim["status"]
        if grows:
            gone = {"allocatedResourceStatuses": None, "conditions": None}
            merged(status, {"capacity": status["allocatedResources"], **gone})
            self._forget()
        else:
            failed = {"type": "NodeResizeError", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
            merged(status, {"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}, "conditions": [failed]})
        return True

    def _forget(self) -> None:
        """What the event handlers do once the claim has what it asks for."""
        if not wants_more(msgspec.convert(self.claim, Claim)):
            self.step = None

    def something_happens(self) -> None:
        before = self.has
        match self.random.choice(["ask"] * 3 + ["controller"] * 6 + ["kubelet"] * 3 + ["crash"]):
            case "ask":
                self.ask(self.random.randrange(3, 26) * GIB // 2)
            case "controller":
                self.controller(trouble=True)
            case "kubelet":
                self.kubelet(grows=self.random.random() < 0.6)
            case _:
                self.step = None
        assert self.has >= before

    def calms_down(self) -> int:
        """Everybody works until nothing is left to do. How many rounds that took, at most 60."""
        for rounds in range(60):
            if not self.controller(trouble=False) and not self.kubelet(grows=True):
                return rounds
        return 60


@pytest.mark.parametrize("seed", range(150))
def test_a_claim_gets_what_it_asks_for_in_the_end(seed: int) -> None:
    schedule = Schedule(seed)
    for _ in range(schedule.random.randint(3, 40)):
        schedule.something_happens()
    schedule.ask(min(schedule.asked, MOST))
    assert schedule.calms_down() < 30
    assert schedule.has >= min(schedule.asked, MOST)
    if schedule.asked > MOST:
        assert schedule.state == "ControllerResizeInfeasible", "what it has cannot be taken back"
        return
    assert schedule.asset >= schedule.has
    assert not schedule.state
    assert not schedule.claim["status"].get("conditions")
