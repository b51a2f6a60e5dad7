"""What decisions see of a driver: plain values, and the check of class parameters against its schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from volplane.drivers.parameters import class_parameters
from volplane.errors import InvalidArgument
from volplane.schemas import DriverInfo, ParameterSchema

__all__ = ["DriverView", "serves_attachments"]

_CLASSES_REMEMBERED: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverView:
    """A driver as values that never change while the process lives. It calls no hook; `HookCalls.call` does.

    name: of the driver. backend: name of its entry point. info: what `describe` returned at load. hooks: names of the
    hooks that the backend implements. options: schema of the driver's options.
    """

    name: str
    backend: str
    info: DriverInfo
    hooks: frozenset[str]
    options: ParameterSchema = field(default_factory=ParameterSchema)
    _flaws: dict[tuple[tuple[str, str], ...], str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def supports(self, hook: str) -> bool:
        """Whether the backend implements this hook."""
        return hook in self.hooks

    def typed_parameters(self, parameters: Mapping[str, str]) -> dict[str, Any]:
        """The typed values of a class's parameters, as the backend gets them.

        Raises InvalidArgument that names each wrong key, its value and what is expected.
        """
        return class_parameters(self.info.parameters, parameters, f"driver {self.name}", self.options)

    def parameters_flaw(self, parameters: Mapping[str, str]) -> str:
        """Why `typed_parameters` refuses these, or "". The answers for the last 256 classes are cached."""
        key = tuple(parameters.items())
        flaw = self._flaws.get(key)
        if flaw is None:
            if len(self._flaws) >= _CLASSES_REMEMBERED:
                self._flaws.clear()
            flaw = self._flaws[key] = self._parameters_flaw(parameters)
        return flaw

    def _parameters_flaw(self, parameters: Mapping[str, str]) -> str:
        try:
            self.typed_parameters(parameters)
        except InvalidArgument as error:
            return str(error)
        return ""


def serves_attachments(driver: DriverView) -> bool:
    """Whether attachments of its CSI driver name are its own to serve, with hooks or by saying that none is needed."""
    return driver.info.attach_required or driver.info.csi_driver_name == driver.name
