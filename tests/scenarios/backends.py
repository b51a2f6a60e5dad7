"""A backend whose answers are written down beforehand, and that counts what it was asked.

It has only the hooks below, since the controllers act by the hooks that a backend has; its assets are in a
`MemoryBackend`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from volplane import (
    Absent,
    AccessMode,
    Asset,
    AssetPage,
    Attachment,
    BackendError,
    BackendSpec,
    Done,
    DriverInfo,
    Erased,
    InProgress,
    ListedAsset,
    PodScrub,
    Unsupported,
    VolumeInUse,
    VolumeMode,
    VolumeSource,
    hookimpl,
)
from volplane.drivers.contract import Plugin
from volplane.drivers.driver import Driver
from volplane.requests import (
    AttachRequest,
    DeleteRequest,
    DescribeRequest,
    DetachRequest,
    ExpandRequest,
    FindRequest,
    ListRequest,
    ModifyRequest,
    OwnsRequest,
    ProvisionRequest,
    RecycleRequest,
)
from volplane.schemas import Parameter, ParameterSchema
from volplane_testing.memory import MemoryBackend
from volplane_testing.memory_storage import MemoryAsset

OK = "ok"
Answer = Any
"""`"ok"`, an error text, an exception to raise, or the result itself. A text that starts with `in-use:` is
VolumeInUse."""


class Paths(MemoryBackend):
    """The handle of an asset is its path."""

    def handle_of(self, name: str) -> str:
        return f"/assets/{name}"

    def source_of(self, asset: MemoryAsset) -> VolumeSource:
        return VolumeSource(kind="hostPath", fields={"path": asset.handle})


class ScriptedBackend(BackendSpec):
    """Answers each hook with the next entry of its script; the last one is repeated. It remembers the assets it made.

    recycler_pod: scrub with a pod. Without that `recycle` answers by its script.
    """

    def __init__(
        self,
        name: str,
        script: Mapping[str, Sequence[Answer]] | None = None,
        *,
        recycler_pod: bool = False,
        parameters: Sequence[str] = (),
        info: Mapping[str, Any] | None = None,
        owns: Callable[[VolumeSource], bool] = lambda _source: True,
    ) -> None:
        super().__init__({})
        self.name = name
        self.memory: MemoryBackend = Paths()
        self.calls: Counter[str] = Counter()
        self.requests: list[Any] = []
        self.complaints: list[str] = []
        self.after: Callable[[str], None] = lambda _hook: None
        self._script = {hook: list(answers) for hook, answers in (script or {}).items()}
        self._pod = recycler_pod
        self._parameters = tuple(parameters)
        self._info = dict(info or {})
        self._owns = owns

    @property
    def assets(self) -> dict[str, MemoryAsset]:
        """By name."""
        return self.memory.storage.assets

    def driver(self) -> Driver:
        plugin = Plugin(kind="backend", name="scripted", factory=lambda _options: self, distribution="tests")
        return Driver(self.name, plugin, self)

    def script(self, hook: str, *answers: Answer) -> None:
        """Replace what is left of a hook's script."""
        self._script[hook] = list(answers)

    def _next(self, hook: str, request: Any) -> Answer:
        self.calls[hook] += 1
        self.requests.append(request)
        answers = self._script.get(hook, [OK])
        if not answers:
            self.complaints.append(f"{hook} was called")
            raise BackendError(f"the plugin cannot {hook} at all")
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Mapping):
            expected = dict(answer.get("parameters", {}))
            if expected != dict(request.parameters):
                self.complaints.append(f"{hook} got parameters {dict(request.parameters)}, expected {expected}")
            answer = answer["result"]
        return answer

    def _play(self, hook: str, request: Any, effect: Callable[[], Any]) -> Any:
        answer = self._next(hook, request)
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, str) and answer != OK:
            text = answer.removeprefix("in-use:").strip()
            raise VolumeInUse(text) if answer.startswith("in-use:") else BackendError(text)
        if not isinstance(answer, str):
            return answer
        result = effect()
        self.after(hook)
        return result

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        keys = tuple(Parameter(name=key, doc="a parameter of the scenario") for key in self._parameters)
        info = DriverInfo(
            version="1",
            parameters=ParameterSchema(parameters=keys),
            access_modes=frozenset(AccessMode),
            volume_modes=frozenset(VolumeMode),
        )
        return dataclasses.replace(info, **self._info)

    @hookimpl
    def owns(self, request: OwnsRequest) -> bool:
        return self._owns(request.source)

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        result: Asset | InProgress = self._play("provision", request, lambda: self.memory.provision(request))
        return result

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        result: Done | InProgress = self._play("delete", request, lambda: self.memory.delete(request))
        return result

    @hookimpl
    def recycle(self, request: RecycleRequest) -> PodScrub | Erased | InProgress:
        result: PodScrub | Erased | InProgress = self._play(
            "recycle", request, lambda: PodScrub() if self._pod else Erased()
        )
        return result


class SearchableBackend(ScriptedBackend):
    """One that can look its assets up."""

    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        result: Asset | Absent = self._play("find", request, lambda: self.memory.find(request))
        return result


class AttachingBackend(BackendSpec):
    """Attaches volumes of the CSI driver that has its name, and counts the calls. Volumes are static.

    failing: (hook, node) of calls that fail. attached: (handle, node).
    """

    def __init__(self, name: str) -> None:
        super().__init__({})
        self.name = name
        self.calls: Counter[str] = Counter()
        self.attached: set[tuple[str, str]] = set()
        self.failing: set[tuple[str, str]] = set()

    def driver(self) -> Driver:
        plugin = Plugin(kind="backend", name="attaching", factory=lambda _options: self, distribution="tests")
        return Driver(self.name, plugin, self)

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        return DriverInfo(
            version="1",
            access_modes=frozenset(AccessMode),
            volume_modes=frozenset(VolumeMode),
            csi_driver_name=self.name,
            attach_required=True,
        )

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset:
        raise Unsupported("volumes of this driver are made by people")

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done:
        raise Unsupported("volumes of this driver are deleted by people")

    @hookimpl
    def attach(self, request: AttachRequest) -> Attachment:
        self._count("attach", request.node.name)
        self.attached.add((request.volume.handle, request.node.name))
        return Attachment()

    @hookimpl
    def detach(self, request: DetachRequest) -> Done:
        self._count("detach", request.node.name)
        self.attached.discard((request.volume.handle, request.node.name))
        return Done()

    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        """What is attached."""
        handles = sorted({handle for handle, _ in self.attached})
        return AssetPage(assets=tuple(self._listed(handle) for handle in handles))

    def _listed(self, handle: str) -> ListedAsset:
        nodes = tuple(sorted(node for held, node in self.attached if held == handle))
        return ListedAsset(handle=handle, name=handle, capacity_bytes=1, owner=None, attached_to=nodes)

    def _count(self, hook: str, node: str) -> None:
        self.calls[hook] += 1
        if (hook, node) in self.failing:
            raise BackendError(f"{hook} fails by the scenario")


class GrowingBackend(ScriptedBackend):
    """One whose assets grow and change. csi: its volumes have a csi source, which alone may name attributes."""

    def __init__(self, name: str, script: Mapping[str, Sequence[Answer]] | None = None, *, csi: bool = False) -> None:
        super().__init__(name, script)
        if csi:
            self.memory = MemoryBackend({})

    @hookimpl
    def expand(self, request: ExpandRequest) -> Asset | InProgress:
        result: Asset | InProgress = self._play("expand", request, lambda: self.memory.expand(request))
        return result

    @hookimpl
    def modify(self, request: ModifyRequest) -> Done | InProgress:
        result: Done | InProgress = self._play("modify", request, lambda: self.memory.modify(request))
        return result
