"""What csi-sanity asks, asked of every backend."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from clocks import SteppedClock
from integration.csi.caller import bridged
from integration.csi.specifications import SPECIFICATIONS, Specification
from volplane_testing.conformance import Subject
from volplane_testing.conformance.subject import opened
from volplane_testing.memory import MemoryBackend
from volplane_testing.memory_storage import MemoryStorage


def memory() -> Subject:
    clock = SteppedClock()
    storage = MemoryStorage(page=2, clock=clock, now=clock, most_attached=2)
    return Subject(
        lambda options: MemoryBackend(options, storage=storage),
        driver_name="memory.volplane.dev",
        mutable_parameters={"colour": "blue"},
        advance=clock.advance,
    )


@contextmanager
def of_plugin(module: str, subject: str = "subject", **options: Any) -> Iterator[Subject]:
    try:
        make = getattr(importlib.import_module(module), subject)
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")
    with opened(lambda: make(**options)) as made:
        yield made


BACKENDS: dict[str, Callable[[], Any]] = {
    "memory": memory,
    "hostpath": lambda: of_plugin("volplane_hostpath.testing", shared=False),
    "nfs": lambda: of_plugin("volplane_nfs.testing"),
    "aws_ebs": lambda: of_plugin("volplane_aws_ebs.testing", attach_limit=3),
    "gce_pd": lambda: of_plugin("volplane_gce_pd.testing", hyperdisks=True),
}


OF_ARGUMENTS = [each for each in SPECIFICATIONS if "_needs_" in each.__name__]
"""What is refused before a backend is asked, so that all answer alike."""
CASES = [
    (backend, each)
    for backend in BACKENDS
    for each in SPECIFICATIONS
    if backend == "memory" or each not in OF_ARGUMENTS
]


@pytest.mark.parametrize(("backend", "specification"), CASES, ids=lambda each: getattr(each, "__name__", each))
async def test_a_backend_meets_what_csi_sanity_asks(backend: str, specification: Specification) -> None:
    with opened(BACKENDS[backend]) as subject:
        async with bridged(subject) as csi:
            await specification(csi)
