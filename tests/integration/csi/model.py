"""What callers of CSI may see: a model of volumes and snapshots, and random sequences of calls that it judges.

The model holds for each name every state that agrees with all answers so far. An answer that agrees with none of them
is a violation. What a call without a certain answer asked for may have happened, or may happen later.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any, NoReturn, Protocol

from integration.csi.caller import WRITER

UNCERTAIN = frozenset({"CANCELLED", "DEADLINE_EXCEEDED", "UNAVAILABLE", "ABORTED"})
"""The codes after which every caller counts with what it asked for."""
MIB = 1 << 20
NAMES = ("data", "logs", "pvc-0b5cd3f4-7f0c-4d5e-9b3b-6f1f6d1c2a11")
SNAPSHOTS = ("snapshot-a", "snapshot-b")


class ViolationError(AssertionError):
    """An answer that the specification does not allow, or that makes a caller lose something."""


@dataclass(frozen=True, slots=True)
class Thing:
    """A volume or a snapshot that may be there."""

    demand: str
    size: int
    id: str = ""
    """"": it was not told."""
    nodes: frozenset[str] = frozenset()


State = Thing | None


@dataclass(frozen=True, slots=True)
class Call:
    """A call that changes something."""

    method: str
    name: str
    """Of the volume or the snapshot."""
    id: str = ""
    demand: str = ""
    """Of a new one: what must be equal, other than the size."""
    size: int = 0
    node: str = ""

    @property
    def makes(self) -> bool:
        return self.method in ("CreateVolume", "CreateSnapshot")

    def is_certain(self, code: str) -> bool:
        """Tell whether this code says what is there now. After other errors than of making callers call again."""
        if not self.makes:
            return code in ("OK", "NOT_FOUND", "FAILED_PRECONDITION")
        return code not in UNCERTAIN and (self.method, code) != ("CreateSnapshot", "RESOURCE_EXHAUSTED")

    def fields(self) -> dict[str, Any]:
        """Return those of the request."""
        if self.method == "CreateVolume":
            special: dict[str, Any] = {"wrong": {"parameters": {"no such parameter": "x"}}}.get(self.demand, {})
            kind, _, source = self.demand.partition(" ")
            if kind == "of":
                special = {"volume_content_source": {"snapshot": {"snapshot_id": source}}}
            mode = "MULTI_NODE_MULTI_WRITER" if kind == "multi" else "SINGLE_NODE_WRITER"
            capability = {"mount": {}, "access_mode": {"mode": mode}}
            size = {"required_bytes": self.size}
            return {"name": self.name, "capacity_range": size, "volume_capabilities": [capability], **special}
        if self.method == "CreateSnapshot":
            return {"name": self.name, "source_volume_id": self.demand}
        if self.method == "DeleteSnapshot":
            return {"snapshot_id": self.id}
        more: dict[str, Any] = {"volume_id": self.id}
        if self.method == "ControllerExpandVolume":
            more["capacity_range"] = {"required_bytes": self.size}
        elif self.method in ("ControllerPublishVolume", "ControllerUnpublishVolume"):
            more["node_id"] = self.node
        if self.method == "ControllerPublishVolume":
            more["volume_capability"] = WRITER
        return more


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. code: "OK" or one of gRPC."""

    code: str
    id: str = ""
    size: int = 0
    text: str = field(default="", compare=False)
    """Of the error."""


def _agree(there: Thing, call: Call, *, lax: bool) -> bool:
    """Tell whether an equal call made it; lax: or a compatible one, and who knows what is compatible."""
    return (lax or there.demand == call.demand) and there.size >= call.size


def effects(call: Call, state: State) -> set[State]:
    """Return what may be there once the call has been performed."""
    if call.makes:
        return {state if state is not None else Thing(call.demand, call.size)}
    if state is None or state.id not in ("", call.id):
        return {state}
    # What has the same name and was told no id may be another one, or not.
    also: set[State] = set() if state.id else {state}
    if call.method in ("DeleteVolume", "DeleteSnapshot"):
        return {None} | also
    if call.method == "ControllerExpandVolume":
        return {replace(state, size=max(state.size, call.size))} | also
    nodes = state.nodes | {call.node} if call.method == "ControllerPublishVolume" else state.nodes - {call.node}
    return {replace(state, nodes=nodes)} | also


def agreeing(call: Call, answer: Answer, state: State, *, lax: bool) -> set[State]:
    """Return what may be there after this certain answer, if that was there before; empty: it contradicts."""
    there = state is not None and state.id in ("", call.id)
    if call.makes:
        return _after_making(call, answer, state, lax=lax)
    if answer.code == "OK":
        if call.method == "ControllerExpandVolume":
            if state is None or not there or answer.size < max(call.size, state.size):
                return set()
            return {replace(state, size=answer.size, id=call.id)}
        if call.method == "ControllerPublishVolume":
            # Its only mode is for one node.
            if state is None or not there or state.nodes - {call.node}:
                return set()
            return {replace(state, nodes=frozenset({call.node}), id=call.id)}
        if call.method == "DeleteVolume" and state is not None and state.id == call.id and state.nodes and not lax:
            return set()
        return effects(call, state)
    if answer.code == "NOT_FOUND" and not call.method.startswith("Delete"):
        return set() if state is not None and state.id == call.id else {state}
    in_use = answer.code == "FAILED_PRECONDITION" and state is not None and there and state.nodes - {call.node}
    return {state} if in_use else set()


def _after_making(call: Call, answer: Answer, state: State, *, lax: bool) -> set[State]:
    if answer.code == "OK":
        new = Thing(call.demand, answer.size, answer.id)
        if state is None:
            return {new} if answer.size >= call.size else set()
        same = _agree(state, call, lax=lax) and state.id in ("", answer.id) and answer.size == state.size
        return {replace(state, id=answer.id)} if same else set()
    if answer.code == "ALREADY_EXISTS":
        other = state is not None and (lax or (state.demand, state.size) != (call.demand, call.size))
        return {state} if other else set()
    # The caller forgets what it has asked for, so nothing may be there.
    return {None} if state is None else set()


@dataclass(eq=False)
class Model:
    """All that may be there.

    exclusive: a later call about the same object waits for, or joins, what goes on. lax: not more is expected than the
    specification says: another demand may be found compatible, and what is attached may be deleted.
    """

    exclusive: bool = True
    lax: bool = False
    states: dict[str, set[State]] = field(default_factory=lambda: defaultdict(lambda: {None}))
    pending: dict[str, set[Call]] = field(default_factory=lambda: defaultdict(set))
    """Name -> calls that may still be performed."""
    told: dict[str, str] = field(default_factory=dict)
    """Id -> name."""
    deleted: set[str] = field(default_factory=set)
    """Ids of what may have been deleted."""
    history: list[str] = field(default_factory=list)

    def judge(self, batch: Sequence[tuple[Call, Answer]]) -> None:
        """Take the answers of calls that were made at once. Raises ViolationError."""
        self.history += [f"{call} -> {answer}" for call, answer in batch]
        self.deleted |= {call.id for call, _ in batch if call.method.startswith("Delete")}
        for name in {call.name: None for call, _ in batch}:
            self._judge(name, [each for each in batch if each[0].name == name])

    def _judge(self, name: str, batch: Sequence[tuple[Call, Answer]]) -> None:
        certain = [(call, answer) for call, answer in batch if call.is_certain(answer.code)]
        unknown = {call for call, answer in batch if not call.is_certain(answer.code)}
        self.pending[name] |= unknown
        found: set[State] = set()
        for order in permutations(certain):
            states = self._closed(name, self.states[name])
            for call, answer in order:
                states = self._closed(name, {new for state in states for new in self._after(call, answer, state)})
            found |= states
        if not found:
            self.fail(f"{name}: no order of {batch} agrees with {self.states[name]} and {self.pending[name]}")
        self.states[name] = found
        for call, answer in certain:
            if answer.id and self.told.setdefault(answer.id, name) != name:
                self.fail(f"id {answer.id} was told for {self.told[answer.id]} and for {name}")
            if self.exclusive:
                same = {old for old in self.pending[name] if old.makes == call.makes and old.id == call.id}
                self.pending[name] -= same - unknown

    def _after(self, call: Call, answer: Answer, state: State) -> set[State]:
        return agreeing(call, answer, state, lax=self.lax)

    def _closed(self, name: str, states: Iterable[State]) -> set[State]:
        """Return these states and those that calls that are pending may make of them."""
        found, fresh = set(states), set(states)
        while fresh:
            fresh = {new for call in self.pending[name] for state in fresh for new in effects(call, state)} - found
            found |= fresh
        return found

    def listed(self, ids: Sequence[str], names: Sequence[str]) -> None:
        """Take a list of all that is there of these names. Raises ViolationError."""
        self.history.append(f"listed {ids}")
        if len(set(ids)) != len(ids):
            self.fail(f"listed twice: {ids}")
        states = {name: self._closed(name, self.states[name]) for name in names}
        untold = sum(any(state is not None and not state.id for state in each) for each in states.values())
        possible = {state.id for each in states.values() for state in each if state is not None}
        if len(strange := set(ids) - possible) > untold:
            self.fail(f"listed are {strange}, which nobody asked for or which were called deleted or never made")
        for name, each in states.items():
            left = {state for state in each if state is None or state.id in ids or (not state.id and len(strange) > 0)}
            if not left:
                self.fail(f"{name} is not listed: {each}")
            self.states[name] = self._closed(name, left)

    def quiet(self) -> None:
        """Note that nothing goes on any more: what is pending was performed, or never will be."""
        for name in [*self.pending]:
            self.states[name] = self._closed(name, self.states[name])
            self.pending[name].clear()

    def sure(self, name: str) -> State | str:
        """Return the only state, or text if there are several."""
        states = self._closed(name, self.states[name])
        return next(iter(states)) if len(states) == 1 else f"{states}"

    def fail(self, text: str) -> NoReturn:
        """Raise ViolationError with what has come before."""
        raise ViolationError("\n".join([*self.history[-40:], text]))


# --- random sequences ---------------------------------------------------------------------------------------------


class Server(Protocol):
    """What is judged."""

    features: frozenset[str]
    """Methods that are served."""

    async def call(self, method: str, seconds: float, **fields: Any) -> tuple[str, Any]:
        """Return code and response, or text of the error. seconds: the deadline."""
        ...

    async def restart(self) -> None:
        """Kill it and start it again."""
        ...


@dataclass(eq=False)
class RandomCalls:
    """One random sequence of calls."""

    server: Server
    random: random.Random
    model: Model
    long: float = 600.0
    """Seconds that a caller waits who wants to know."""
    short: Sequence[float] = (0.001, 0.3, 2.0)
    nodes: Sequence[str] = ("node-1", "node-2")
    pause: float = 0.2
    unit: int = MIB
    """Of sizes."""
    again: bool = True
    """Names are used again after a deletion. Not where ids are names: an old snapshot is not of the new volume."""
    last: Call | None = None

    async def run(self, steps: int, *, kills: bool = True) -> None:
        """Make so many steps, then delete all. kills: of the server. Raises ViolationError."""
        for _ in range(steps):
            chance = self.random.random()
            if chance < 0.04 and kills:
                await self._kill_at_work()
            elif chance < 0.12:
                await self._list()
            else:
                calls = [self._any() for _ in range(self.random.choice((1, 1, 1, 2, 3)))]
                self.model.judge(await self._together(calls))
            await asyncio.sleep(self.random.choice((0.0, 0.0, 0.1, 1.0)) * self.pause)
        await self._end()

    # --- steps ------------------------------------------------------------------------------------------------------

    def _any(self) -> Call:
        """Return the last call again, or one with other arguments, or another one."""
        if self.last is not None and self.random.random() < 0.3:
            return self.last
        self.last = self.random.choice([*self._choices()])()
        return self.last

    def _choices(self) -> Iterator[Callable[[], Call]]:
        volumes = [(name, id_) for id_, name in self.model.told.items() if name in NAMES]
        snapshots = [(name, id_) for id_, name in self.model.told.items() if name in SNAPSHOTS]
        pick, unit = self.random.choice, self.unit
        demands = ("single", "single", "multi", "wrong")
        gone = () if self.again else [name for id_, name in self.model.told.items() if id_ in self.model.deleted]
        names = [name for name in NAMES if name not in gone]
        for _ in range(3 if names else 0):
            yield lambda: Call("CreateVolume", pick(names), demand=pick(demands), size=pick((unit, 2 * unit)))
        if volumes:
            name, id_ = pick(volumes)
            yield lambda: Call("DeleteVolume", name, id_)
            if "ControllerExpandVolume" in self.server.features:
                yield lambda: Call("ControllerExpandVolume", name, id_, size=3 * unit)
            if "ControllerPublishVolume" in self.server.features:
                yield lambda: Call("ControllerPublishVolume", name, id_, node=pick(self.nodes))
                yield lambda: Call("ControllerUnpublishVolume", name, id_, node=pick(self.nodes))
            if "CreateSnapshot" in self.server.features:
                yield lambda: Call("CreateSnapshot", pick(SNAPSHOTS), demand=id_)
        if snapshots:
            snapshot, cut = pick(snapshots)
            yield lambda: Call("DeleteSnapshot", snapshot, cut)
            if names:
                yield lambda: Call("CreateVolume", pick(names), demand=f"of {cut}", size=3 * unit)

    async def _together(self, calls: Sequence[Call]) -> list[tuple[Call, Answer]]:
        """Make the calls at once, some with little time, some by callers that are killed."""
        made = [asyncio.ensure_future(self._impatient(call)) for call in calls]
        return [*zip(calls, await asyncio.gather(*made), strict=True)]

    async def _impatient(self, call: Call) -> Answer:
        await asyncio.sleep(self.random.choice((0.0, 0.0, 0.05)) * self.pause)
        kind, seconds = self.random.random(), self.random.choice(self.short)
        if kind < 0.6:
            return await self.ask(call, self.long)
        if kind < 0.85:
            return await self.ask(call, seconds)
        caller = asyncio.ensure_future(self.ask(call, self.long))
        await asyncio.wait([caller], timeout=seconds)
        return caller.result() if caller.done() or not caller.cancel() else Answer("CANCELLED")

    async def ask(self, call: Call, seconds: float) -> Answer:
        """Return the answer to a call."""
        code, response = await self.server.call(call.method, seconds, **call.fields())
        if code != "OK":
            return Answer(code, text=str(response))
        if call.method == "CreateVolume":
            return Answer(code, response.volume.volume_id, response.volume.capacity_bytes)
        if call.method == "CreateSnapshot":
            return Answer(code, response.snapshot.snapshot_id)
        return Answer(code, size=getattr(response, "capacity_bytes", 0))

    async def _kill_at_work(self) -> None:
        calls = [self._any(), self._any()]
        made = [asyncio.ensure_future(self.ask(call, self.long)) for call in calls]
        await asyncio.sleep(self.random.choice((0.0, 0.05, 0.3)) * self.pause)
        await self.server.restart()
        self.model.judge([*zip(calls, await asyncio.gather(*made), strict=True)])

    async def _list(self) -> None:
        # The reference driver cuts its list without a token for the rest.
        most = 0 if self.model.lax else 2
        for method, names in (("ListVolumes", NAMES), ("ListSnapshots", SNAPSHOTS)):
            if method not in self.server.features:
                continue
            ids: list[str] = []
            token = ""
            while True:
                code, response = await self.server.call(method, self.long, starting_token=token, max_entries=most)
                if code != "OK":
                    return
                each = (getattr(entry, "volume", None) or entry.snapshot for entry in response.entries)
                ids += [getattr(it, "volume_id", "") or it.snapshot_id for it in each]
                if not (token := response.next_token):
                    break
            self.model.listed(ids, names)

    # --- the end ----------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """Delete all, as a caller that repeats each call until it knows. Then nothing may be there."""
        if not self.model.exclusive:
            await asyncio.sleep(self.pause * 10)
            self.model.quiet()
        for name in (*SNAPSHOTS, *NAMES):
            await self._clear(name)
        await self._list()
        for name in (*SNAPSHOTS, *NAMES):
            if self.model.sure(name) is not None:
                self.model.fail(f"{name} is left: {self.model.sure(name)}")

    async def _clear(self, name: str) -> None:
        for number in range(100):
            untold = [each for each in self.model.states[name] if each is not None and not each.id]
            makes = {call for call in self.model.pending[name] if call.makes}
            kind = "CreateSnapshot" if name in SNAPSHOTS else "CreateVolume"
            makes |= {Call(kind, name, demand=each.demand, size=each.size) for each in untold}
            if not makes and self.model.sure(name) is None:
                return
            if makes:
                await self._ask_again(sorted(makes, key=repr)[number % len(makes)])
            for id_ in [id_ for id_, told in self.model.told.items() if told == name]:
                if name in SNAPSHOTS:
                    await self._ask_again(Call("DeleteSnapshot", name, id_))
                    continue
                if "ControllerPublishVolume" in self.server.features:
                    for node in self.nodes:
                        await self._ask_again(Call("ControllerUnpublishVolume", name, id_, node=node))
                await self._ask_again(Call("DeleteVolume", name, id_))
            await asyncio.sleep(self.pause * min(number + 1, 10))
        self.model.fail(f"{name} is never gone: {self.model.sure(name)}, {self.model.pending[name]}")

    async def _ask_again(self, call: Call) -> None:
        self.model.judge([(call, await self.ask(call, self.long))])
