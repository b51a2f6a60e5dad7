"""Faults between a control plane and the server, in the words of the scenarios: failures, crashes, hidden objects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from volplane.errors import ApiUnavailable
from volplane.kube.transport import Response
from volplane_testing.transport import ApiCall, Ask, Behaviour, FaultScript, refusal


@dataclass(frozen=True)
class Call:
    """One request, in the words of the scenarios: `update persistentvolumes/status`."""

    verb: str
    resource: str
    namespace: str
    name: str
    body: Any = None
    status: int = 0

    @property
    def what(self) -> str:
        return f"{self.verb} {self.resource}"


def call_of(call: ApiCall) -> Call:
    verb = "update" if call.verb == "patch" else call.verb
    body = json.loads(call.request.body) if call.request.body else None
    return Call(verb, call.resource, call.namespace, call.name, body, call.status)


def refusing(status: int, reason: str, message: str) -> Callable[[Call], Response]:
    return lambda _call: refusal(status, message, reason=reason)


class Rules(FaultScript):
    """The script of the transports of all control planes of a scenario."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: set[tuple[str, str]] = set()
        """(resource, namespace/name) of objects that watches and lists of all namespaces do not show; see `hide`."""
        self.absent: set[tuple[str, str]] = set()
        """The same for reads of one object."""

    def fault(
        self,
        matches: Callable[[Call], bool],
        *,
        times: int = 1,
        before: Callable[[Call], Response] | None = None,
        after: Callable[[Call], bool] = lambda _call: False,
        skip: int = 0,
    ) -> None:
        """What happens to the next `times` calls that match, after the first `skip` of them.

        before: answer instead of the server. after: called once the server has acted; the answer is lost if it returns
        True.
        """
        behaviour = _after(after) if before is None else _before(before)
        self.add(lambda call: call.verb != "watch" and matches(call_of(call)), behaviour, times=times, skip=skip)

    def take(self, call: ApiCall) -> Behaviour | None:
        behaviour = super().take(call)
        key = (call.resource, f"{call.namespace}/{call.name}".lstrip("/"))
        if behaviour is None and call.verb == "get" and key in self.absent:
            return _absent
        return behaviour

    def hide(self, resource: str, key: str) -> None:
        """Show it no more. key: namespace/name, or * for all."""
        self.hidden.add((resource, key))
        self.shows = self._shows

    def _shows(self, call: ApiCall, item: Mapping[str, Any]) -> bool:
        meta = item["metadata"]
        key = f"{meta.get('namespace', '')}/{meta['name']}".lstrip("/")
        return not self.hidden.intersection({(call.resource, key), (call.resource, "*")})

    @property
    def calls(self) -> list[Call]:
        """What was called so far, in order; without watches."""
        return [call_of(each) for each in self.requests if each.verb != "watch"]

    def reads(self) -> list[str]:
        """Live reads and lists of one namespace so far; not the lists that fill caches."""
        reads = (c for c in self.calls if c.resource != "events")
        return [c.what for c in reads if c.verb == "get" or (c.verb == "list" and c.namespace)]

    def conflicts(self) -> int:
        return sum(each.status == 409 for each in self.requests)

    def writes(self) -> list[str]:
        """What was written so far, in order."""
        return [c.what for c in self.calls if c.verb in {"create", "update", "delete"} and c.status < 300]


def _before(answer: Callable[[Call], Response]) -> Behaviour:
    async def behaviour(call: ApiCall, _ask: Ask) -> Response:
        await asyncio.sleep(0)
        return answer(call_of(call))

    return behaviour


def _after(act: Callable[[Call], bool]) -> Behaviour:
    async def behaviour(call: ApiCall, ask: Ask) -> Response:
        answer = await ask()
        if answer.status < 300 and act(call_of(call)):
            raise ApiUnavailable("the answer was lost", status=0)
        return answer

    return behaviour


async def _absent(call: ApiCall, _ask: Ask) -> Response:
    return refusal(404, f"{call.name} not found", kind=call.resource, name=call.name)
