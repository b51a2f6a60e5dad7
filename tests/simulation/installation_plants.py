"""Known bugs of two installations that serve one driver name."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from typing import Any

from simulation.planting import by_name, replace
from volplane._delays import RECORD_OF_OTHERS
from volplane.controller.actions import Wait
from volplane.intents import record


def write_over_others(stack: ExitStack) -> None:
    """Take a record that somebody else has sealed for a damaged one, each time anew."""

    def never(*_: Any) -> Wait | None:
        return None

    replace(stack, record, "claim_conflict", never)


def leave_records_to_others_for_good(stack: ExitStack) -> None:
    """Believe that an installation whose record stands on a claim is at work, however long it has been silent."""
    replace(stack, record, "RECORD_OF_OTHERS", dataclasses.replace(RECORD_OF_OTHERS, first=1e9, ceiling=1e9))


INSTALLATION_PLANTS = by_name(write_over_others, leave_records_to_others_for_good)
