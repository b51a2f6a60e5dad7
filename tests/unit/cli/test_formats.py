"""What programs get of commands that read a cluster: `-o json` and `-o yaml`."""

from __future__ import annotations

import json

import pytest
import yaml

from ports import free_port
from unit.cli.test_leaks import controller
from volplane.cli.main import main


@pytest.mark.real_time
def test_status_and_drain_are_for_programs_too(kubeconfig: str, capsys: pytest.CaptureFixture[str]) -> None:
    here = ("--kubeconfig", kubeconfig, "--http", f"127.0.0.1:{free_port()}")
    assert main(["status", *here, "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["controller"], told["claims"], told["volumes"]) == (False, {"Pending": 1}, {})
    assert told["waiting"] == [{"kind": "claim", "name": "default/data", "phase": "Pending", "reason": "-"}]

    assert main(["drain", *here, "-o", "yaml"]) == 0
    held = yaml.safe_load(capsys.readouterr().out)["held"]
    assert [(each["kind"], each["key"]) for each in held] == [("claim", "default/data")]

    assert main(["explain", "pod", "nope", *here]) == 1
    assert "there is no pod default/nope" in capsys.readouterr().out
    assert main(["explain", "volumeattachment", "nope", *here]) == 1
    assert "there is no attachment nope" in capsys.readouterr().out


@pytest.mark.real_time
def test_status_says_which_kinds_the_api_server_does_not_serve(
    kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = "volumesnapshots cannot be read: VolumeSnapshot is not served by this API server"
    answer = {"drivers": [], "operations": [], "leads": True, "missing": [missing], "reasons": {}}
    with controller({"/status": lambda _query: answer}) as address:
        here = ("--kubeconfig", kubeconfig, "--http", address)
        assert main(["status", *here]) == 0
        assert missing in " ".join(capsys.readouterr().out.split())
        assert main(["status", *here, "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["missing"] == [missing]


@pytest.mark.real_time
def test_status_counts_leaks_and_has_names_of_logs_only_for_who_asks(
    kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "provision-default/data[0123]"
    running = {
        "name": name,
        "verb": "provision",
        "key": "default/data",
        "driver": "d",
        "phase": "running",
        "error": None,
    }
    answer = {
        "drivers": [],
        "operations": [running],
        "leads": True,
        "missing": [],
        "reasons": {"claims": {"default/data": "no room"}},
        "leaks": {"orphan": 2, "ghost": 1},
    }
    with controller({"/status": lambda _query: answer}) as address:
        here = ("--kubeconfig", kubeconfig, "--http", address)
        assert main(["status", *here]) == 0
        shown = capsys.readouterr().out
        assert "the leak check has found: 1 ghost, 2 orphan; `volplane leaks` shows them" in " ".join(shown.split())
        assert "provision default/data" in shown
        assert name not in shown
        assert main(["status", *here, "-v"]) == 0
        assert name in capsys.readouterr().out
