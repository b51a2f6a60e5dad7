"""What options mean that kubectl has too: the namespace, and to watch."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from unit.cli.test_explain import ANSWER
from unit.cli.test_leaks import controller
from volplane.cli.controller_client import Access, shown_again
from volplane.cli.main import main


def kubeconfig(directory: Path, **namespaces: str) -> Path:
    """Contexts of these names; the first is the current one."""
    contexts = [{"name": each, "context": {"namespace": where} if where else {}} for each, where in namespaces.items()]
    file = directory / "kubeconfig"
    file.write_text(json.dumps({"contexts": contexts, "current-context": next(iter(namespaces))}))
    return file


def test_the_namespace_is_that_of_the_context_unless_another_one_or_all_are_asked_for(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path, here="team", there="other", plain="")
    assert Access(kubeconfig=file).namespace("") == "team"
    assert Access(kubeconfig=file).namespace("given") == "given"
    assert Access(kubeconfig=file).namespace("given", everywhere=True) == ""
    assert Access(kubeconfig=file, context="there").namespace("") == "other"
    assert Access(kubeconfig=file, context="plain").namespace("") == "default"
    assert Access(kubeconfig=file, context="absent").namespace("") == "default"
    assert Access(kubeconfig=tmp_path / "absent").namespace("") == "default"


@pytest.mark.real_time
def test_a_claim_is_looked_for_in_the_namespace_of_the_context(tmp_path: Path) -> None:
    asked: list[Any] = []
    file = kubeconfig(tmp_path, here="team", there="other")
    with controller({"/explain": lambda query: asked.append(dict(query)) or ANSWER}) as address:
        for options in ((), ("--context", "there"), ("--namespace", "given"), ("-n", "given")):
            assert main(["explain", "pvc", "data", "--http", address, "--kubeconfig", str(file), *options]) == 0
    assert asked == [{"claim": f"{each}/data"} for each in ("team", "other", "given", "given")]


async def test_watching_shows_what_changes_and_not_that_time_passes() -> None:
    waits = iter(["in 3.0 s again", "in 1.0 s again", "since 5 s", "bound", "bound", "gone"])
    shown: list[str] = []

    async def read() -> str:
        return next(waits, "gone")

    watching = asyncio.ensure_future(shown_again(read, shown.append, part=lambda text: text, again=True))
    await asyncio.sleep(60.0)
    watching.cancel()
    assert shown == ["in 3.0 s again", "since 5 s", "bound", "gone"]


async def test_without_watching_it_is_shown_once() -> None:
    shown: list[int] = []

    async def read() -> int:
        return 7

    assert await shown_again(read, shown.append, part=lambda number: number, again=False) == 7
    assert shown == [7]
