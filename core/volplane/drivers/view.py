"""The plain values of a driver that decisions see, and the check of class parameters against its schema."""

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
    """The values of a driver, which never change while the process lives. Hooks are called by `HookCalls.call`."""

    name: str
    backend: str
    """Name of the backend's entry point."""
    info: DriverInfo
    """The result of `describe` at load."""
    hooks: frozenset[str]
    """Names of the hooks that the backend implements."""
    options: ParameterSchema = field(default_factory=ParameterSchema)
    """Schema of the driver's options."""
    _flaws: dict[tuple[tuple[str, str], ...], str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def supports(self, hook: str) -> bool:
        """Tell whether the backend implements this hook."""
        return hook in self.hooks

    def typed_parameters(self, parameters: Mapping[str, str]) -> dict[str, Any]:
        """Return the typed values of a class's parameters, as the backend gets them.

        Raises InvalidArgument that names each wrong key, its value and what is expected.
        """
        return class_parameters(self.info.parameters, parameters, f"driver {self.name}", self.options)

    def parameters_flaw(self, parameters: Mapping[str, str]) -> str:
        """Explain why `typed_parameters` refuses these; "": it does not. Caches the answers for 256 classes."""
        key = tuple(parameters.items())
        flaw = self._flaws.get(key)
        if flaw is None:
            if len(self._flaws) >= _CLASSES_REMEMBERED:
                self._flaws.clear()
            try:
                self.typed_parameters(parameters)
                flaw = ""
            except InvalidArgument as error:
                flaw = str(error)
            self._flaws[key] = flaw
        return flaw


def serves_attachments(driver: DriverView) -> bool:
    """Tell whether the driver serves the attachments of its CSI driver name: by hooks, or because none is needed."""
    return driver.info.attach_required or driver.info.csi_driver_name == driver.name
