"""Options that are a length of time: written in one way for all commands."""

from __future__ import annotations

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from volplane.cli.framework.options import duration_option
from volplane.cli.main import main

app = typer.Typer()


@app.command()
def wait(
    *, timeout: Annotated[float, duration_option("--timeout", says="How long.", default="5m", minimum=1)] = 300.0
) -> None:
    typer.echo(f"{timeout:g}")


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("300", 300), ("5m", 300), ("90s", 90), ("1h30m", 5400), ("1.5", 1.5), ("1500ms", 1.5), (" 2m ", 120)],
)
def test_a_duration_is_seconds_or_numbers_with_units(given: str, seconds: float) -> None:
    assert CliRunner().invoke(app, ["--timeout", given]).output == f"{seconds:g}\n"


def test_a_duration_that_is_not_given_is_the_default() -> None:
    assert CliRunner().invoke(app, []).output == "300\n"


@pytest.mark.parametrize("given", ["soon", "", "-5m", "-1", "inf", "nan", "5 m", "5M", "1e3", "m", "9" * 400, "500ms"])
def test_what_is_no_duration_or_too_short_is_an_error_of_usage(given: str) -> None:
    assert CliRunner().invoke(app, ["--timeout", given]).exit_code == 2


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("run", "--resync"),
        ("run", "--race-base-delay"),
        ("run", "--race-max-delay"),
        ("drain", "--timeout"),
        ("check", "--patience"),
        ("check", "--progress-patience"),
        ("check", "--churn"),
    ],
)
def test_a_wrong_duration_is_told_with_its_option_its_value_and_what_is_right(
    command: str, option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([command, option, "5 minutes"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"Invalid value for '{option}': it is '5 minutes', expected a duration such as 30s, 5m or 1h" in told
