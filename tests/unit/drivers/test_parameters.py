"""Class parameters and driver options: what is read, what is refused, and in which words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volplane import InvalidArgument, Parameter, ParameterKind, ParameterSchema
from volplane.drivers.contract import schema_flaws
from volplane.drivers.parameters import check, class_parameters, driver_options, entries
from volplane.errors import ConfigurationError

KIND = ParameterKind


def schema(*parameters: Parameter, version: int = 1) -> ParameterSchema:
    return ParameterSchema(version=version, parameters=parameters)


def one(kind: ParameterKind = KIND.STRING, **fields: Any) -> ParameterSchema:
    return schema(Parameter(name="key", doc="A key.", kind=kind, **fields))


EBS = schema(
    Parameter(name="type", doc="Volume type.", choices=("gp3", "io2", "st1"), default="gp3"),
    Parameter(name="iops", doc="Operations a second.", kind=KIND.INTEGER, minimum=3000, maximum=16000),
    Parameter(name="iopsPerGB", doc="Instead of iops.", kind=KIND.INTEGER, minimum=1, excludes=("iops",)),
    Parameter(name="encrypted", doc="Encrypt.", kind=KIND.BOOLEAN, default=False),
)


# --- values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (KIND.STRING, " as it is ", " as it is "),
        (KIND.STRING, "", ""),
        (KIND.INTEGER, "-12", -12),
        (KIND.INTEGER, " 7 ", 7),
        (KIND.BOOLEAN, "True", True),
        (KIND.BOOLEAN, "no", False),
        (KIND.SIZE, "10Gi", 10 * 2**30),
        (KIND.SIZE, "1500m", 2),
        (KIND.SIZE, "4096", 4096),
        (KIND.OCTAL, "0770", 0o770),
        (KIND.OCTAL, "0o2775", 0o2775),
        (KIND.DURATION, "1h30m", 5400.0),
        (KIND.DURATION, "250ms", 0.25),
        (KIND.DURATION, "0", 0.0),
        (KIND.STRINGS, "a, b,,c", ("a", "b", "c")),
        (KIND.STRINGS, "", ()),
        (KIND.MAPPING, "team=storage, tier=a=b", {"team": "storage", "tier": "a=b"}),
        (KIND.MAPPING, "", {}),
    ],
)
def test_text_becomes_the_value_of_its_kind(kind: ParameterKind, text: str, value: object) -> None:
    got = class_parameters(one(kind), {"key": text}, "class c")["key"]
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (KIND.STRING, 7, "7"),
        (KIND.INTEGER, 12, 12),
        (KIND.BOOLEAN, False, False),
        (KIND.SIZE, 4096, 4096),
        (KIND.SIZE, 1.5, 2),
        (KIND.DURATION, 2.5, 2.5),
        (KIND.STRINGS, ["a", 1], ("a", "1")),
        (KIND.MAPPING, {"a": "b", "c": 1}, {"a": "b", "c": "1"}),
    ],
)
def test_options_may_also_be_values_of_yaml(kind: ParameterKind, raw: object, value: object) -> None:
    assert driver_options(one(kind), {"key": raw}, "driver d") == {"key": value}


@pytest.mark.parametrize(
    ("kind", "raw", "expected"),
    [
        (KIND.STRING, True, "text; quote it"),
        (KIND.STRING, 1.10, "text; quote it"),
        (KIND.STRING, ["a"], "text"),
        (KIND.STRING, None, "text"),
        (KIND.INTEGER, "1.0", "a whole number"),
        (KIND.INTEGER, "١٢", "a whole number"),
        (KIND.INTEGER, True, "a whole number"),
        (KIND.BOOLEAN, "maybe", "true or false"),
        (KIND.BOOLEAN, 1, "true or false"),
        (KIND.BOOLEAN, [], "true or false"),
        (KIND.SIZE, "10 GB", "a size such as 10Gi"),
        (KIND.SIZE, float("nan"), "a size such as 10Gi"),
        (KIND.SIZE, True, "a size such as 10Gi"),
        (KIND.OCTAL, "0790", 'a quoted octal mode such as "0770"'),
        (KIND.OCTAL, 770, 'a quoted octal mode such as "0770"; quote it'),
        (KIND.DURATION, "5 minutes", "a duration such as 30s, 5m or 1h"),
        (KIND.DURATION, -1, "a duration such as 30s, 5m or 1h"),
        (KIND.DURATION, float("inf"), "a duration such as 30s, 5m or 1h"),
        (KIND.STRINGS, {"a": 1}, "a comma-separated list"),
        (KIND.STRINGS, [["a"]], "a comma-separated list"),
        (KIND.MAPPING, "novalue", "a list such as key=value,key2=value2"),
        (KIND.MAPPING, "a=1,a=2", "a list such as key=value,key2=value2"),
        (KIND.MAPPING, "=1", "a list such as key=value,key2=value2"),
        (KIND.MAPPING, 5, "a list such as key=value,key2=value2"),
    ],
)
def test_a_value_that_cannot_be_read_is_named_with_what_would_be_right(
    kind: ParameterKind, raw: object, expected: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        driver_options(one(kind), {"key": raw}, "driver d")
    assert str(refused.value) == f"driver d: option 'key' is {raw!r}, expected {expected}"


@pytest.mark.parametrize(
    ("given_schema", "text", "expected"),
    [
        (one(KIND.INTEGER, minimum=1, maximum=9), "10", "a whole number, from 1 to 9"),
        (one(KIND.INTEGER, minimum=1), "0", "a whole number, at least 1"),
        (one(KIND.SIZE, maximum=2**40), "2Ti", "a size such as 10Gi, at most 1Ti"),
        (one(KIND.OCTAL, maximum=0o777), "1777", 'a quoted octal mode such as "0770", at most 0777'),
        (one(KIND.INTEGER), "9" * 30, "a whole number"),
        (one(KIND.OCTAL), "7" * 30, 'a quoted octal mode such as "0770"'),
        (one(KIND.DURATION), "99999999999h", "a duration such as 30s, 5m or 1h"),
        (one(KIND.DURATION, minimum=1), "10ms", "a duration such as 30s, 5m or 1h, at least 1s"),
        (one(choices=("xfs", "ext4")), "ext3", "one of xfs, ext4; did you mean 'ext4'?"),
        (one(choices=("xfs", "ext4")), "btrfs", "one of xfs, ext4"),
        (one(KIND.STRINGS, choices=("ro", "rw")), "ro,x", "a comma-separated list, each one of ro, rw"),
        (one(pattern="[a-z]+"), "abc1", "text that matches [a-z]+"),
        (one(KIND.STRINGS, pattern="[a-z]+"), "abc,D", "a comma-separated list that matches [a-z]+"),
    ],
)
def test_a_value_out_of_bounds_is_named_with_the_bounds(
    given_schema: ParameterSchema, text: str, expected: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        class_parameters(given_schema, {"key": text}, "class c")
    assert str(refused.value) == f"class c: parameter 'key' is {text!r}, expected {expected}"


def test_both_bounds_are_allowed() -> None:
    for value in ("3000", "16000"):
        assert class_parameters(EBS, {"iops": value}, "class c")["iops"] == int(value)


# --- keys -------------------------------------------------------------------------------------------------------


def test_absent_keys_have_their_defaults_or_none() -> None:
    assert class_parameters(EBS, {}, "class c") == {"type": "gp3", "iops": None, "iopsPerGB": None, "encrypted": False}


def test_keys_are_compared_without_case_and_come_back_as_documented() -> None:
    assert class_parameters(EBS, {"IOPSpergb": "5"}, "class c")["iopsPerGB"] == 5


def test_an_unknown_key_is_refused_with_the_nearest_valid_one() -> None:
    with pytest.raises(InvalidArgument) as refused:
        class_parameters(EBS, {"iop": "5"}, "class fast")
    assert str(refused.value) == "class fast: unknown parameter 'iop' (value '5'); did you mean 'iops'?"


def test_an_unknown_key_near_to_nothing_lists_what_there_is() -> None:
    with pytest.raises(InvalidArgument, match="; known: encrypted, iops, iopsPerGB, type"):
        class_parameters(EBS, {"zzz": "5"}, "class fast")
    with pytest.raises(InvalidArgument, match="; there are none"):
        class_parameters(schema(), {"zzz": "5"}, "class fast")


def test_a_key_given_twice_by_case_is_refused() -> None:
    with pytest.raises(InvalidArgument) as refused:
        class_parameters(EBS, {"type": "gp3", "Type": "io2"}, "class c")
    assert str(refused.value) == "class c: parameter 'Type' is given twice, also as 'type'; case does not matter"


def test_keys_that_exclude_each_other_are_refused_once() -> None:
    with pytest.raises(InvalidArgument) as refused:
        class_parameters(EBS, {"IOPS": "3000", "iopsPerGB": "5"}, "class c")
    assert str(refused.value) == "class c: parameters 'iopsPerGB' and 'IOPS' exclude each other; give one"


def test_a_default_excludes_nothing() -> None:
    parameters = schema(
        Parameter(name="a", doc="", default="x"), Parameter(name="b", doc="", default="y", excludes=("a",))
    )
    assert class_parameters(parameters, {"a": "z"}, "class c") == {"a": "z", "b": "y"}


def test_a_missing_required_key_is_named_with_what_it_takes() -> None:
    with pytest.raises(ConfigurationError) as refused:
        driver_options(one(KIND.SIZE, required=True), {}, "driver d")
    assert str(refused.value) == "driver d: option 'key' is required: a size such as 10Gi"


def test_everything_that_is_wrong_is_told_at_once() -> None:
    _values, flaws = check(EBS, {"typ": "x", "iops": "1", "encrypted": "perhaps"}, "parameter")
    assert len(flaws) == 3


def test_a_long_value_is_cut_in_the_message() -> None:
    _values, flaws = check(EBS, {"type": "x" * 10_000}, "parameter")
    assert len(flaws[0]) < 200


def test_a_class_made_for_an_older_schema_keeps_working() -> None:
    older = {"type": "io2", "iops": "5000"}
    newer = ParameterSchema(
        version=3,
        parameters=(*EBS.parameters, Parameter(name="throughput", doc="", kind=KIND.INTEGER, default=125, since=3)),
    )
    assert schema_flaws(newer) == ()
    assert class_parameters(newer, older, "class c") == {**class_parameters(EBS, older, "class c"), "throughput": 125}


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=12), max_size=5))
def test_any_class_is_read_or_refused_with_words(parameters: dict[str, str]) -> None:
    full = schema(*(Parameter(name=kind.value, doc="", kind=kind) for kind in KIND))
    values, flaws = check(full, parameters, "parameter")
    assert set(values) == {kind.value for kind in KIND}
    unknown = [key for key in parameters if key.lower() not in set(KIND)]
    assert len([flaw for flaw in flaws if flaw.startswith("unknown parameter")]) == len(unknown)


# --- the schema itself ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "flaw"),
    [
        (one(required=True, default="x"), "parameter 'key' is required and has the default 'x'"),
        (
            schema(Parameter(name="key", doc="", required=True, since=2), version=2),
            "parameter 'key' is required since version 2; older classes lack it, so it needs a default instead",
        ),
        (one(since=2), "parameter 'key' is since version 2, but the schema's version is 1"),
        (one(excludes=("kye",)), "parameter 'key' excludes 'kye', which is unknown; did you mean 'key'?"),
        (one(KIND.INTEGER, minimum=9, maximum=1), "parameter 'key' has a minimum 9 above its maximum 1"),
        (one(pattern="["), "parameter 'key' has a pattern that is no regular expression"),
        (one(choices=("a",), default="b"), "parameter 'key' has the default 'b', expected one of a"),
        (one(KIND.INTEGER, default="5"), "parameter 'key' has the default '5', expected the Python value 5"),
        (one(KIND.SIZE, default="1Gi"), "has the default '1Gi', expected the Python value 1073741824"),
        (one(KIND.BOOLEAN, default=1), "has the default 1, expected the Python value True"),
        (one(KIND.INTEGER, minimum=5, default=1), "has the default 1, expected a whole number, at least 5"),
        (
            schema(Parameter(name="key", doc=""), Parameter(name="KEY", doc="")),
            "parameter 'KEY' is declared twice, also as 'key'; case does not matter",
        ),
        ({}, "a schema of type dict, expected ParameterSchema"),
    ],
)
def test_a_wrong_schema_is_found_before_any_class_meets_it(wrong: Any, flaw: str) -> None:
    assert flaw in "; ".join(schema_flaws(wrong))


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        (KIND.STRING, "x"),
        (KIND.INTEGER, 0),
        (KIND.BOOLEAN, False),
        (KIND.SIZE, 2**30),
        (KIND.OCTAL, 0o770),
        (KIND.DURATION, 90.0),
        (KIND.DURATION, 30),
        (KIND.STRINGS, ("a", "b")),
        (KIND.STRINGS, ()),
        (KIND.MAPPING, {"a": "b"}),
    ],
)
def test_defaults_of_every_kind_are_right(kind: ParameterKind, default: object) -> None:
    assert schema_flaws(one(kind, default=default)) == ()


# --- reference --------------------------------------------------------------------------------------------------


def test_the_reference_says_what_may_be_given_and_what_is_assumed() -> None:
    newer = schema(
        *EBS.parameters,
        Parameter(name="mode", doc="Mode.", kind=KIND.OCTAL, default=0o770, since=2),
        Parameter(name="root", doc="Where.", required=True),
        version=2,
    )
    assert list(entries(newer)) == [
        ("type", "one of gp3, io2, st1", "gp3", "Volume type."),
        ("iops", "a whole number, from 3000 to 16000", "", "Operations a second."),
        ("iopsPerGB", "a whole number, at least 1", "", "Instead of iops. Not together with iops."),
        ("encrypted", "true or false", "false", "Encrypt."),
        ("mode", 'a quoted octal mode such as "0770"', "0770", "Mode. Since schema version 2."),
        ("root", "text", "required", "Where."),
    ]


# --- many keys --------------------------------------------------------------------------------------------------


TAGGED = schema(
    Parameter(name="type", doc="Type."), Parameter(name="tag", doc="Tags.", kind=KIND.KEYS, pattern="[a-z=]*")
)


def test_keys_that_begin_alike_are_one_parameter() -> None:
    values, flaws = check(TAGGED, {"tag_1": "a=b", "TAG_two": "c=d", "type": "x"}, "parameter")
    assert flaws == ()
    assert values == {"type": "x", "tag": {"tag_1": "a=b", "TAG_two": "c=d"}}
    assert check(TAGGED, {}, "parameter") == ({"type": None, "tag": None}, ())


def test_a_wrong_one_of_many_keys_is_named_as_it_was_given() -> None:
    _, flaws = check(TAGGED, {"tag_1": "A B", "tog_2": "x"}, "parameter")
    assert flaws[0].startswith("parameter 'tag_1' is 'A B', expected text, for each key that begins so")
    assert flaws[1].startswith("unknown parameter 'tog_2'")


def test_many_keys_have_no_default() -> None:
    assert "can have no default" in schema_flaws(one(KIND.KEYS, default={}), of_class=True)[0]
