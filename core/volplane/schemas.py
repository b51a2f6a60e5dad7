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
    KEYS = "keys"
    """Any number of keys that begin with the name, such as tagSpecification_1 and tagSpecification_2 for the name
    `tagSpecification`; handed over as dict[str, str] from key to value, as they were given."""
    SECRET = "secret"  # noqa: S105 - the name of a kind
    """Only of driver options: a reference (env:NAME, file:/PATH or secret:NAMESPACE/NAME/KEY) to a secret, handed over
    as `volplane.Secret`, never the secret itself. It takes no default, choices, pattern or bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One key of a class or of a driver's options. Keys are compared without regard to case."""

    name: str
    """As documentation spells it."""
    doc: str
    """A sentence for people, in the reference."""
    kind: ParameterKind = ParameterKind.STRING
    """Its type."""
    default: object = None
    """Python value when the key is absent; required keys have none."""
    required: bool = False
    """It must be given."""
    minimum: float | None = None
    """Of numbers, sizes (bytes), modes and durations (seconds); allowed itself."""
    maximum: float | None = None
    """The same."""
    choices: tuple[str, ...] = ()
    """The only legal values, as texts; empty = any."""
    pattern: str = ""
    """A regular expression that must match the whole text; empty = any."""
    excludes: tuple[str, ...] = ()
    """Names of parameters that may not be given together with this one."""
    since: int = 1
    """Schema version that brought it; a class made for an older version is still accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSchema:
    """All keys of a backend, for classes or for driver options. Unknown keys are refused with the nearest valid one."""

    version: int = 1
    """From 1; raise it with every parameter that is added."""
    parameters: tuple[Parameter, ...] = ()
    """In the order in which documentation shows them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverInfo:
    """What `describe` returns; constant for the life of the driver."""

    version: str
    """Of the backend, for people."""
    parameters: ParameterSchema = field(default_factory=ParameterSchema)
    """The parameters of classes."""
    hookspec_version: int = HOOKSPEC_VERSION
    """Version of the contract that the backend is built for; a newer one than volplane's is refused."""
    topology_keys: tuple[str, ...] = ()
    """Node labels that place an asset; empty = reachable from everywhere."""
    access_modes: frozenset[AccessMode] = frozenset({AccessMode.READ_WRITE_ONCE})
    """What its assets can do."""
    volume_modes: frozenset[VolumeMode] = frozenset({VolumeMode.FILESYSTEM})
    """How its assets can be used."""
    csi_driver_name: str | None = None
    """Set when volumes have a csi source: the driver whose node plugin mounts them."""
    attach_required: bool = False
    """VolumeAttachments are served: the hooks `attach` and `detach` are there."""
    node_expansion_required: bool = False
    """After `expand` of a volume with a file system, the node plugin of `csi_driver_name` has to grow that too."""
    supports_mount_options: bool = False
    """False refuses classes with mountOptions."""
    settle_seconds: float = 0.0
    """How long after an attempt `find` may still answer `Absent` although the asset comes to be."""
    minimum_bytes: int = 1
    """The smallest asset. The backend rounds smaller demands up."""
    maximum_bytes: int | None = None
    """The largest asset; None = not known. The backend refuses more."""
    max_attached_per_node: int | None = None
    """None = not limited, or known only per node. The backend refuses more (`ResourceExhausted`)."""
    waived_rules: Mapping[str, str] = field(default_factory=dict)
    """Conformance rule -> reason, for rules that this backend cannot meet."""
