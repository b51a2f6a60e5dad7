"""How a backend declares its class parameters and its driver options: as a dataclass of annotated fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields
from enum import StrEnum
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, Self, TypeVar, cast, get_args, get_origin, get_type_hints

from volplane.assets import AccessMode, VolumeMode
from volplane.errors import InvalidArgument
from volplane.secret import Secret

P = TypeVar("P")

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
    SECRETS = "secrets"
    """Such references, comma-separated or as a list; handed over as tuple[Secret, ...]."""


@dataclass(frozen=True, slots=True)
class Param:
    """What a field of a dataclass of parameters has beside its type: `uid: Annotated[int, Param("…", minimum=0)] = 0`.

    The kind follows from the type: `str`, `int`, `bool`, `float` (a duration), `tuple[str, ...]`, `Mapping[str, str]`,
    `Secret`, or a `Literal` of texts, which are its choices; each also with `| None`. A field without a default is
    required.
    """

    doc: str
    """A sentence for people, in the reference."""
    _: KW_ONLY
    name: str = ""
    """As documentation spells it; empty = the name of the field."""
    kind: ParameterKind | None = None
    """For kinds that no type stands for: SIZE and OCTAL of `int`, KEYS of `Mapping[str, str]`, SECRETS."""
    minimum: float | None = None
    """Of numbers, sizes (bytes), modes and durations (seconds); allowed itself."""
    maximum: float | None = None
    """The same."""
    choices: tuple[str, ...] = ()
    """The only legal values, as texts; empty = any."""
    pattern: str = ""
    """A regular expression that must match the whole text; empty = any."""
    excludes: tuple[str, ...] = ()
    """Documented names of parameters that may not be given together with this one."""
    since: int = 1
    """Schema version that brought it; a class made for an older version is still accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter(Param):
    """One key of a class or of a driver's options. Keys are compared without regard to case."""

    doc: str
    """A sentence for people, in the reference."""
    name: str
    """As documentation spells it."""
    kind: ParameterKind = ParameterKind.STRING
    """Its type."""
    default: object = None
    """Python value when the key is absent; required keys have none."""
    required: bool = False
    """It must be given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSchema:
    """All keys of a backend, for classes or for driver options. Unknown keys are refused with the nearest valid one."""

    version: int = 1
    """From 1; raise it with every parameter that is added."""
    parameters: tuple[Parameter, ...] = ()
    """In the order in which documentation shows them."""

    @classmethod
    def of(cls, declared: type, *, version: int = 1) -> Self:
        """Return the schema of a dataclass whose fields are annotated with `Param`, in their order.

        Raises TypeError for a field that declares no parameter.
        """
        return cls(version=version, parameters=tuple(_declared_parameters(declared).values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """The controller that a driver named `csi_driver_name` replaces; `volplane adopt` takes its volumes over.

    `list_assets` of such a driver also returns what it made, with its name as the owner's cluster id.
    """

    pods: str
    """Label selector of its pods: while one runs, nothing is taken over or given back. "" = all, with `programs`."""
    programs: tuple[str, ...] = ()
    """Only pods count that run one of these, by the end of an image's name or of a command, and whose spec names the
    driver."""
    excludes: bool = False
    """The driver does not start while such a pod runs: the two would undo each other's work."""
    unseen: str = ""
    """Where it may run without a pod in the cluster, as in "by GKE"; "" = nowhere."""
    leases: tuple[str, ...] = ()
    """Leases by which it elects leaders, as NAMESPACE/NAME: volplane works only while it holds them, too."""


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
    attaches_by: Literal["machine", "csi node"] = "machine"
    """What it knows nodes by: `NodeIdentity.instance_id`, or `csi_node_id`."""
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
    snapshot_parameters: ParameterSchema = field(default_factory=ParameterSchema)
    """The parameters of VolumeSnapshotClasses, with the hook `create_snapshot`."""
    clones: Literal["", "in place", "anywhere"] = ""
    """Whether `provision` copies an asset (`source_volume`): not at all, only to a place that the source can be reached
    from, or to any place."""
    marks: bool = True
    """False: the storage keeps no owners and finds nothing by name; a saved state leads to what is made.
    All is listed without owner, `find_snapshot` by name is `Absent`, and volumes are taken over as they are."""
    plans_first: bool = False
    """`provision` without a state (`Context.state`) makes nothing: it answers `InProgress` with the state that leads to
    the asset. So that first call is made before the intent is recorded, and one write keeps both."""
    why_no_sources: str = ""
    """Why it makes no volumes of snapshots, or of other volumes: for the people whose claims name one."""
    archives: bool = False
    """Whether it may keep what is in an asset when the volume is deleted, and `list_assets` lists that if asked to."""
    predecessor: Predecessor | None = None
    """Set if volumes of another controller can be taken over."""
    waived_rules: Mapping[str, str] = field(default_factory=dict)
    """Conformance rule -> reason, for rules that this backend cannot meet."""


_KINDS = {
    str: ParameterKind.STRING,
    int: ParameterKind.INTEGER,
    bool: ParameterKind.BOOLEAN,
    float: ParameterKind.DURATION,
    tuple: ParameterKind.STRINGS,
    Mapping: ParameterKind.MAPPING,
    dict: ParameterKind.MAPPING,
    Secret: ParameterKind.SECRET,
    Literal: ParameterKind.STRING,
}


def read_parameters(declared: type[P], values: Mapping[str, Any]) -> P:
    """Return an instance of the dataclass of which `ParameterSchema.of` made the schema.

    values: what the schema has checked, by documented name; None and absent = the field's default. Other names are
    ignored. Raises `InvalidArgument` for a required parameter that is absent, and what `__post_init__` raises.
    """
    parameters = _declared_parameters(cast("type", declared))
    given = {name: values[each.name] for name, each in parameters.items() if values.get(each.name) is not None}
    for name, parameter in parameters.items():
        if parameter.required and name not in given:
            raise InvalidArgument(f"{parameter.name!r} is required: {parameter.doc}")
    return declared(**given)


@cache
def _declared_parameters(declared: type) -> dict[str, Parameter]:
    hints = get_type_hints(declared, include_extras=True)
    result = {}
    for each in fields(declared):
        where = f"field {each.name} of {declared.__qualname__}"
        param = next((extra for extra in get_args(hints[each.name])[1:] if isinstance(extra, Param)), None)
        if get_origin(hints[each.name]) is not Annotated or param is None:
            raise TypeError(f"{where} must be annotated with a Param, as in Annotated[str, Param('What it is.')]")
        of = get_args(hints[each.name])[0]
        not_none = [option for option in get_args(of) if option is not NoneType]
        of = not_none[0] if NoneType in get_args(of) and len(not_none) == 1 else of
        kind = param.kind or _KINDS.get(get_origin(of) or of)
        if kind is None:
            raise TypeError(f"{where} has the type {of}, for which there is no kind of parameter; give Param a kind")
        default = each.default if each.default_factory is MISSING else each.default_factory()
        said: dict[str, Any] = {part.name: getattr(param, part.name) for part in fields(param)}
        said |= {"name": param.name or each.name, "kind": kind, "required": default is MISSING}
        said["default"] = None if default is MISSING else default
        if get_origin(of) is Literal:
            said["choices"] = get_args(of)
        result[each.name] = Parameter(**said)
    return result
