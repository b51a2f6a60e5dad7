"""Schemas of annotated dataclasses, and how values are read into them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from volplane import InvalidArgument, Param, Parameter, ParameterKind, ParameterSchema, Secret, read_parameters
from volplane.drivers.contract import schema_flaws
from volplane.drivers.parameters import class_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    root: Annotated[str, Param("Where.", pattern="/.+")]
    password: Annotated[Secret | None, Param("Secret.")] = None
    fs_type: Annotated[Literal["ext4", "xfs"], Param("File system.", name="fsType")] = "ext4"
    mode: Annotated[int, Param("Mode.", kind=ParameterKind.OCTAL, minimum=0o700)] = 0o770
    size: Annotated[int | None, Param("Size.", kind=ParameterKind.SIZE, excludes=("wait",))] = None
    count: Annotated[int, Param("Count.", minimum=1, maximum=9)] = 1
    sparse: Annotated[bool, Param("Sparse.")] = False
    wait: Annotated[float | None, Param("Wait.")] = None
    zones: Annotated[tuple[str, ...], Param("Zones.", since=2)] = ()
    tags: Annotated[Mapping[str, str], Param("Tags.")] = field(default_factory=dict)
    labels: Annotated[Mapping[str, str] | None, Param("Labels.", name="label_", kind=ParameterKind.KEYS)] = None
    plain: Annotated[str, Param("Text.", choices=("a", "b"))] = "a"

    def __post_init__(self) -> None:
        if self.count > 1 and self.sparse:
            raise InvalidArgument("option count: 1 with sparse")


def test_each_field_is_a_parameter_of_the_kind_of_its_type() -> None:
    assert ParameterSchema.of(Options, version=2) == ParameterSchema(
        version=2,
        parameters=(
            Parameter(name="root", doc="Where.", required=True, pattern="/.+"),
            Parameter(name="password", doc="Secret.", kind=ParameterKind.SECRET),
            Parameter(name="fsType", doc="File system.", choices=("ext4", "xfs"), default="ext4"),
            Parameter(name="mode", doc="Mode.", kind=ParameterKind.OCTAL, minimum=0o700, default=0o770),
            Parameter(name="size", doc="Size.", kind=ParameterKind.SIZE, excludes=("wait",)),
            Parameter(name="count", doc="Count.", kind=ParameterKind.INTEGER, minimum=1, maximum=9, default=1),
            Parameter(name="sparse", doc="Sparse.", kind=ParameterKind.BOOLEAN, default=False),
            Parameter(name="wait", doc="Wait.", kind=ParameterKind.DURATION),
            Parameter(name="zones", doc="Zones.", kind=ParameterKind.STRINGS, default=(), since=2),
            Parameter(name="tags", doc="Tags.", kind=ParameterKind.MAPPING, default={}),
            Parameter(name="label_", doc="Labels.", kind=ParameterKind.KEYS),
            Parameter(name="plain", doc="Text.", choices=("a", "b"), default="a"),
        ),
    )
    assert schema_flaws(ParameterSchema.of(Options, version=2)) == ()


def test_checked_values_become_an_instance() -> None:
    schema = ParameterSchema(
        parameters=tuple(each for each in ParameterSchema.of(Options).parameters if each.name != "password")
    )
    given = {"root": "/srv", "FSTYPE": "xfs", "size": "1Ki", "zones": "a,b", "label_1": "x", "count": "3"}
    assert read_parameters(Options, class_parameters(schema, given, "class fast")) == Options(
        root="/srv", fs_type="xfs", size=1024, zones=("a", "b"), labels={"label_1": "x"}, count=3
    )


def test_values_that_are_absent_or_none_leave_the_default_and_other_names_are_ignored() -> None:
    read = read_parameters(Options, {"root": "/srv", "mode": None, "sparse": False, "elsewhere": 1})
    assert read == Options(root="/srv")
    assert read.tags is not read_parameters(Options, {"root": "/srv"}).tags


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "'root' is required: Where."),
        ({"root": "/srv", "count": 2, "sparse": True}, "option count: 1 with sparse"),
    ],
)
def test_what_cannot_be_read_is_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_parameters(Options, values)
    assert str(caught.value) == told


@dataclass
class WithoutParam:
    name: str = ""


@dataclass
class OfAnyType:
    name: Annotated[object, Param("Anything.")] = None


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        (WithoutParam, "field name of WithoutParam must be annotated with a Param"),
        (OfAnyType, "field name of OfAnyType has the type <class 'object'>, for which there is no kind of parameter"),
    ],
)
def test_a_field_that_declares_no_parameter_is_refused(declared: type, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        ParameterSchema.of(declared)
