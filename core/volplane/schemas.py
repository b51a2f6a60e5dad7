"""How a backend declares its class parameters and its driver options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from volplane.assets import AccessMode, VolumeMode

__all__ = ["HOOKSPEC_VERSION", "DriverInfo", "Parameter", "ParameterKind", "ParameterSchema"]

HOOKSPEC_VERSION = 1
"""Version of the contract in `volplane.hookspecs`; raised when a hook changes incompatibly."""


class ParameterKind(StrEnum):
    """The type of a parameter. In a StorageClass all values are strings; the backend gets the Python value."""

    STRING = "string"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    SIZE = "size"
    """A Kubernetes quantity, handed over as int bytes."""
    OCTAL = "octal"
    """File mode such as "0770", handed over as int."""
    DURATION = "duration"
    """"30s", "5m", "1h", handed over as float seconds."""
    STRINGS = "strings"
    """Comma-separated, handed over as tuple[str, ...]."""
    MAPPING = "mapping"
    """"k=v,k2=v2", handed over as dict[str, str]."""
    SECRET = "secret"  # noqa: S105 - the name of a kind
    """Only of driver options: a reference (env:NAME, file:/PATH or secret:NAMESPACE/NAME/KEY) to a secret, handed over as
    `volplane.Secret`, never the secret itself. It takes no default, choices, pattern or bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One key. Keys are compared without regard to case; `name` is how documentation spells it.

    default: Python value when the key is absent; required keys have none.
    minimum, maximum: bounds of numbers, both allowed. choices: the only legal values. pattern: a regular expression
    that must match the whole string. excludes: names of parameters that may not be given together with this one.
    since: schema version that brought it; a class made for an older version is still accepted.
    """

    name: str
    doc: str
    kind: ParameterKind = ParameterKind.STRING
    default: object = None
    required: bool = False
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    pattern: str = ""
    excludes: tuple[str, ...] = ()
    since: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSchema:
    """All keys of a backend, for classes or for driver options. Unknown keys are refused with the nearest valid one."""

    version: int = 1
    parameters: tuple[Parameter, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverInfo:
    """What `describe` returns; constant for the life of the driver.

    settle_seconds: how long after an attempt `find` may still answer `Absent` although the asset comes to be.
    csi_driver_name: set when volumes have a csi source. attach_required: VolumeAttachments are served.
    topology_keys: node labels that place an asset; empty = reachable from everywhere.
    supports_mount_options: False refuses classes with mountOptions.
    waived_rules: conformance rule -> reason, for rules this backend cannot meet.
    """

    version: str
    parameters: ParameterSchema = field(default_factory=ParameterSchema)
    hookspec_version: int = HOOKSPEC_VERSION
    topology_keys: tuple[str, ...] = ()
    access_modes: frozenset[AccessMode] = frozenset({AccessMode.READ_WRITE_ONCE})
    volume_modes: frozenset[VolumeMode] = frozenset({VolumeMode.FILESYSTEM})
    csi_driver_name: str | None = None
    attach_required: bool = False
    supports_mount_options: bool = False
    settle_seconds: float = 0.0
    minimum_bytes: int = 1
    maximum_bytes: int | None = None
    max_attached_per_node: int | None = None
    waived_rules: Mapping[str, str] = field(default_factory=dict)
