"""What is logged about one claim can be told from all else: by controllers, operations and hooks, over restarts."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scenarios.backends import OK, ScriptedBackend
from scenarios.harness import Harness
from scenarios.provisioning import ask, create_class
from scenarios.stories import DRIVER
from volplane import Asset, Context, DeleteRequest, Done, InProgress, ProvisionRequest, Unavailable, hookimpl
from volplane.controller import logs


class Telling(ScriptedBackend):
    """Logs in its hooks, keeps the trace contexts that it is given, and fails first."""

    def __init__(self, driver: str) -> None:
        super().__init__(driver, {"provision": [Unavailable("not now"), OK]})
        self.traceparents: list[str] = []

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        self.tell("making", request.context)
        return super().provision(request)

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        self.tell("deleting", request.context)
        return super().delete(request)

    def tell(self, what: str, context: Context) -> None:
        self.traceparents.append(context.traceparent)
        context.log.info(what)


@contextmanager
def logged() -> Iterator[list[dict[str, Any]]]:
    """Lines as JSON, once the block has ended."""
    root = logging.getLogger()
    levels = root.level, logging.getLogger("volplane").level
    stream, lines = io.StringIO(), list[dict[str, Any]]()
    handler = logs.configure("json", verbosity=1, stream=stream)
    try:
        yield lines
    finally:
        root.removeHandler(handler)
        root.setLevel(levels[0])
        logging.getLogger("volplane").setLevel(levels[1])
        lines += [json.loads(line) for line in stream.getvalue().splitlines()]


async def test_all_that_is_logged_about_a_claim_has_its_uid_and_each_attempt_an_id_of_its_own() -> None:
    backend = Telling(DRIVER)
    with logged() as lines:
        async with Harness(backend) as harness:
            await create_class(harness)
            await harness.start()
            uid = await ask(harness)
            await ask(harness, "other")
            await harness.settle()
            await harness.restart()
            await harness.delete("claims", "c")
            await harness.settle()
    trace = uid.replace("-", "")
    ours = [line for line in lines if line.get("trace") == trace]
    hooks = [line for line in ours if line["logger"].startswith("volplane.driver.")]
    assert [line["message"] for line in hooks] == ["making", "making", "deleting"]
    assert [each for each in backend.traceparents if trace in each] == [
        f"00-{trace}-{line['span']}-01" for line in hooks
    ]
    assert len({line["span"] for line in hooks}) == 3, "each attempt is a look of its own"
    said = [[each["message"] for each in ours if each["span"] == line["span"]] for line in hooks]
    assert any("failed (1 in a row), next try" in message for message in said[0]), "how an attempt ends has its id"
    assert "released under policy Delete" in said[2], "and so has the step that led to it"
    about = [line for line in lines if line.get("object") in ("default/c", f"pvc-{uid}")]
    assert {line["controller"] for line in about} == {"claims", "volumes"}
    assert {line["trace"] for line in about} == {trace}


async def test_what_was_logged_about_an_object_that_is_gone_is_not_taken_for_the_next_one() -> None:
    with logged() as lines:
        async with Harness(ScriptedBackend(DRIVER)) as harness:
            await create_class(harness)
            await harness.start()
            uids = [await ask(harness)]
            await harness.settle()
            await harness.delete("claims", "c")
            await harness.settle()
            uids.append(await ask(harness))
            await harness.settle()
    traces = [line["trace"] for line in lines if line.get("object") == "default/c" and "trace" in line]
    assert list(dict.fromkeys(traces)) == [uid.replace("-", "") for uid in uids]


async def test_explain_names_the_trace_of_a_claim_and_of_its_volume() -> None:
    async with Harness(ScriptedBackend(DRIVER)) as harness:
        await create_class(harness)
        await harness.start()
        uid = await ask(harness)
        await harness.settle()
        told = harness.plane.explain("claim", "default/c"), harness.plane.explain("volume", f"pvc-{uid}")
    for each in told:
        assert each.logs == (f"the trace {uid.replace('-', '')}, of all lines as JSON",)
