"""The configuration file: what it means, and what is said of mistakes in it."""

from pathlib import Path

import pytest

from volplane.controller.config import (
    Configuration,
    DriverSettings,
    ExtensionSettings,
    ScrubberSettings,
    parse_configuration,
    read_configuration,
)
from volplane.errors import ConfigurationError

FULL = """
clusterId: 6b1c
drivers:
  - name: fast.example.com
    backend: hostpath
    options: {root: /srv/volumes, reserve: 1Gi}
    concurrency: 4
    rate: 5
    timeout: 90
  - {name: slow.example.com, backend: nfs}
extensions:
  - name: call_log
    options: {path: /var/log/calls.jsonl}
scrubber:
  image: registry.example.com/scrub:1
  command: [/bin/scrub, /scrub]
  resources: {limits: {memory: 64Mi}}
  tolerations: [{operator: Exists}]
  attempts: 5
  baseDeadline: 60
  deadlinePerGiB: 1.5
  allowUnsafe: true
"""


def refused(text: str) -> str:
    with pytest.raises(ConfigurationError) as refusal:
        parse_configuration(text, "v.yaml")
    return str(refusal.value)


def test_everything_that_can_be_said_is_read() -> None:
    assert parse_configuration(FULL, "v.yaml") == Configuration(
        cluster_id="6b1c",
        drivers=(
            DriverSettings(
                name="fast.example.com",
                backend="hostpath",
                options={"root": "/srv/volumes", "reserve": "1Gi"},
                concurrency=4,
                rate=5.0,
                timeout=90.0,
            ),
            DriverSettings(name="slow.example.com", backend="nfs"),
        ),
        extensions=(ExtensionSettings(name="call_log", options={"path": "/var/log/calls.jsonl"}),),
        scrubber=ScrubberSettings(
            image="registry.example.com/scrub:1",
            command=("/bin/scrub", "/scrub"),
            resources={"limits": {"memory": "64Mi"}},
            tolerations=({"operator": "Exists"},),
            attempts=5,
            base_deadline=60.0,
            deadline_per_gib=1.5,
            allow_unsafe=True,
        ),
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "drivers:\n"])
def test_what_is_left_out_has_its_default(text: str) -> None:
    assert parse_configuration(text, "v.yaml") == Configuration()


def test_an_empty_list_of_drivers_means_none_while_no_list_means_the_defaults() -> None:
    assert parse_configuration("drivers: []", "v.yaml").drivers == ()
    assert parse_configuration("scrubber: {}", "v.yaml").drivers is None


def test_each_driver_knows_where_it_stands_for_later_messages() -> None:
    drivers = parse_configuration(FULL, "v.yaml").drivers
    assert drivers is not None
    assert [d.where for d in drivers] == ["v.yaml: drivers[0]", "v.yaml: drivers[1]"]


def test_options_are_not_in_the_repr_because_they_may_name_secrets() -> None:
    assert "hunter2" not in repr(parse_configuration("drivers: [{name: a, backend: b, options: {p: hunter2}}]", "f"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("driver: []", "v.yaml: driver: unknown key; did you mean 'drivers'?"),
        ("xyz: 1", "v.yaml: xyz: unknown key; known: clusterId, drivers, extensions, scrubber"),
        ("clusterId: prod/csi", 'v.yaml: clusterId: "prod/csi" ends with /csi, as the marks of `volplane csi` do'),
        (
            "drivers: [{name: a, backend: b, optons: {}}]",
            "v.yaml: drivers[0].optons: unknown key; did you mean 'options'?",
        ),
        ("drivers: [{nam: a, backend: b}]", "v.yaml: drivers[0].nam: unknown key; did you mean 'name'?"),
        ("scrubber: {allowunsafe: true}", "v.yaml: scrubber.allowunsafe: unknown key; did you mean 'allowUnsafe'?"),
        ("extensions: [{name: a, opts: {}}]", "v.yaml: extensions[0].opts: unknown key; did you mean 'options'?"),
        ("drivers: [{backend: b}]", "v.yaml: drivers[0].name: is required"),
        ("drivers: [{name: a}]", "v.yaml: drivers[0].backend: is required"),
        ("drivers: {name: a}", "v.yaml: drivers: is {'name': 'a'}, expected a list (- item)"),
        ("drivers: [hostpath]", "v.yaml: drivers[0]: is 'hostpath', expected a mapping (key: value)"),
        ("drivers: [{name: 7, backend: b}]", "v.yaml: drivers[0].name: is 7, expected text; quote it"),
        ("drivers: [{name: '', backend: b}]", "v.yaml: drivers[0].name: is '', expected text"),
        (
            "drivers: [{name: a, backend: b, concurrency: 0}]",
            "v.yaml: drivers[0].concurrency: is 0, expected a whole number, 1 to 1000",
        ),
        (
            "drivers: [{name: a, backend: b, concurrency: true}]",
            "v.yaml: drivers[0].concurrency: is True, expected a whole number, 1 to 1000",
        ),
        (
            "drivers: [{name: a, backend: b, rate: fast}]",
            "v.yaml: drivers[0].rate: is 'fast', expected a number above 0",
        ),
        (
            "drivers: [{name: a, backend: b, timeout: .inf}]",
            "v.yaml: drivers[0].timeout: is inf, expected a number above 0",
        ),
        (
            "drivers: [{name: a, backend: b, options: [1]}]",
            "v.yaml: drivers[0].options: is list, expected a mapping (key: value)",
        ),
        (
            "drivers: [{name: a, backend: b, options: {1: x}}]",
            "v.yaml: drivers[0].options.1: is 1, expected text as a key; quote it",
        ),
        (
            "drivers: [{name: a, backend: b}, {name: a, backend: c}]",
            "v.yaml: drivers[1].name: driver 'a' stands at v.yaml: drivers[0] already",
        ),
        ("scrubber: {command: rm}", "v.yaml: scrubber.command: is 'rm', expected a list (- item)"),
        ("scrubber: {command: [sh, 1]}", "v.yaml: scrubber.command[1]: is 1, expected text; quote it"),
        ("scrubber: {tolerations: [x]}", "v.yaml: scrubber.tolerations[0]: is 'x', expected a mapping (key: value)"),
        ("scrubber: {allowUnsafe: 'yes'}", "v.yaml: scrubber.allowUnsafe: is 'yes', expected true or false"),
        ("- drivers", "v.yaml: is ['drivers'], expected a mapping (key: value)"),
        ("drivers: [", "v.yaml:1:11: is no valid YAML"),
        ("drivers: []\ndrivers: []", "v.yaml:2:1: is no valid YAML: key 'drivers' is given twice"),
        ("a: !!python/object:os.system {}", "is no valid YAML: could not determine a constructor"),
        ("a: \x00", "v.yaml: is no valid YAML"),
        ("a: 2001-99-99", "v.yaml: is no valid YAML: month must be in 1..12"),
        ("? [a]\n: 1", "v.yaml:1:3: is no valid YAML: found unhashable key"),
    ],
)
def test_a_mistake_is_named_by_file_place_value_and_what_would_be_right(text: str, message: str) -> None:
    assert message in refused(text)


def test_a_long_value_is_cut_in_the_message() -> None:
    assert len(refused(f"clusterId: [{'x' * 5000}]")) < 150


def test_a_file_is_read_from_disk(tmp_path: Path) -> None:
    file = tmp_path / "volplane.yaml"
    file.write_text(FULL)
    assert read_configuration(file) == parse_configuration(FULL, str(file))


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.yaml: cannot be read: No such file or directory"):
        read_configuration(tmp_path / "none.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"drivers: \xff")
    with pytest.raises(ConfigurationError, match=r"binary\.yaml: is not UTF-8 text"):
        read_configuration(binary)


ENDLESS = [
    *("9" * 18, "9" * 400, "9" * 5000, "0x" + "f" * 5000, "0" + "7" * 5000, "9_" * 5000, "1" + ":59" * 3000),
    *("1e308", ".inf", ".nan", "-1"),
]


@pytest.mark.parametrize("key", ["concurrency", "rate", "timeout"])
@pytest.mark.parametrize("number", ENDLESS)
def test_a_number_that_no_clock_or_machine_can_take_is_refused_by_its_place(key: str, number: str) -> None:
    told = refused(f"drivers:\n- {{name: a.example.com, backend: b, {key}: {number}}}\n")
    assert told.startswith("v.yaml:")
    assert f"drivers[0].{key}: is" in told
    assert len(told) < 300


@pytest.mark.parametrize("key", ["clusterId", "drivers", "extensions", "scrubber"])
def test_a_number_of_thousands_of_digits_is_no_text_list_or_mapping(key: str) -> None:
    """Python shows no number of more than 4,300 digits, and reads one of any length in hexadecimal."""
    assert f"v.yaml: {key}: is " in refused(f"{key}: 0x{'f' * 5000}\n")


@pytest.mark.parametrize("key", ["attempts", "baseDeadline", "deadlinePerGiB"])
def test_a_scrubber_has_no_endless_numbers(key: str) -> None:
    assert f"scrubber.{key}: is 9999999999999, expected a " in refused(f"scrubber: {{{key}: 9999999999999}}")
