"""`volplane explain`: which object is meant, and how the controller's answer is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from unit.cli.test_leaks import controller
from volplane.cli.main import main

ANSWER = {
    "kind": "claim",
    "name": "team/data",
    "found": True,
    "situation": ["claim team/data is Pending"],
    "tried": [],
    "next": ["in 3.0 s again: no volume"],
    "logs": ["the trace 0123"],
}


@pytest.mark.real_time
@pytest.mark.parametrize(
    "arguments",
    [
        ("pvc", "team/data"),
        ("pvc/team/data",),
        ("pvc/data", "-n", "team"),
        ("claim", "data", "-n", "team"),
        ("persistentvolumeclaims", "team/data", "-n", "team"),
    ],
)
def test_a_claim_is_named_as_kubectl_names_it(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Any] = []
    with controller({"/explain": lambda query: asked.append(dict(query)) or ANSWER}) as address:
        assert main(["explain", *arguments, "--http", address]) == 0
    assert asked == [{"claim": "team/data"}]
    assert "  in 3.0 s again: no volume" in capsys.readouterr().out


@pytest.mark.real_time
def test_names_of_logs_are_shown_to_who_asks_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    with controller({"/explain": lambda _: ANSWER}) as address:
        assert main(["explain", "pvc/data", "--http", address]) == 0
        assert "trace" not in capsys.readouterr().out
        assert main(["explain", "pvc/data", "--http", address, "-v"]) == 0
    assert capsys.readouterr().out.endswith("In logs\n  the trace 0123\n")


@pytest.mark.real_time
@pytest.mark.parametrize(("kind", "asks"), [("pv", "volume"), ("class", "class"), ("storageclasses", "class")])
def test_volumes_and_classes_have_no_namespace(kind: str, asks: str) -> None:
    asked: list[Any] = []
    with controller({"/explain": lambda query: asked.append(dict(query)) or ANSWER}) as address:
        assert main(["explain", kind, "x", "--http", address]) == 0
    assert asked == [{asks: "x"}]


@pytest.mark.real_time
def test_what_does_not_exist_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    absent = {**ANSWER, "found": False, "situation": ["there is no claim team/data"]}
    with controller({"/explain": lambda _: absent}) as address:
        assert main(["explain", "pvc", "team/data", "--http", address]) == 1
    assert "there is no claim team/data" in capsys.readouterr().out


@pytest.mark.real_time
def test_programs_get_json_or_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    with controller({"/explain": lambda _: ANSWER}) as address:
        assert main(["explain", "pvc/data", "-o", "json", "--http", address]) == 0
        assert json.loads(capsys.readouterr().out) == ANSWER
        assert main(["explain", "pvc/data", "-o", "yaml", "--http", address]) == 0
        assert yaml.safe_load(capsys.readouterr().out) == ANSWER


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("pcv", "x"), 1, "did you mean 'pv'?"),
        (("secret", "x"), 1, "known: class, pod, pv, pvc, volumeattachment"),
        (("pvc",), 2, "which one?"),
        (("pvc", "a/b", "-n", "c"), 2, "contradicts"),
    ],
)
def test_what_cannot_be_explained_is_said(
    arguments: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *arguments]) == code
    assert said in capsys.readouterr().err
