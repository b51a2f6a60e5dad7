"""What a planted bug is: a change of the production code that lasts as long as a stack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

__all__ = ["Plant", "by_name", "planted", "replace"]

Plant = Callable[[ExitStack], None]


def replace(stack: ExitStack, target: object, name: str, new: object) -> None:
    """Replace an attribute until the stack ends."""
    stack.enter_context(patch.object(target, name, new))


def by_name(*plants: Plant) -> Mapping[str, Plant]:
    """Plants by the names of their functions."""
    return {plant.__name__: plant for plant in plants}


@contextmanager
def planted(plant: Plant) -> Iterator[None]:
    """Run with the bug."""
    with ExitStack() as stack:
        plant(stack)
        yield
