"""How a write is asked for: meta/v1 CreateOptions, UpdateOptions, PatchOptions, and what DeleteOptions share with them.

Checked as `k8s.io/apimachinery/pkg/apis/meta/v1/validation` does: 422 of kind `…Options`, a cause per option.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from volplane_embedded.apiserver.errors import Cause, invalid
from volplane_embedded.apiserver.requests import Query

__all__ = ["FIELD_VALIDATION", "WriteOptions", "propagation_causes", "read_dry_run", "refuse_options"]

FIELD_VALIDATION: Final = ("Ignore", "Warn", "Strict")
_PROPAGATION: Final = ("Foreground", "Background", "Orphan")
_LONGEST_MANAGER: Final = 128


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """dry_run: answer and write nothing. field_validation: what becomes of unknown fields, "" = the default."""

    dry_run: bool
    field_validation: str

    @classmethod
    def read(cls, query: Query, kind: str) -> WriteOptions:
        """kind: of the options, for the message. Raises Failure (422)."""
        asked = query.text("dryRun")
        level = query.text("fieldValidation")
        causes = [*_manager_causes(query.text("fieldManager")), *_dry_run_causes((asked,) if asked else ())]
        if level and level not in FIELD_VALIDATION:
            causes.append(Cause.unsupported("fieldValidation", level, ["", *FIELD_VALIDATION]))
        if kind == "PatchOptions" and query.text("force"):
            causes.append(Cause.forbidden("force", "may not be specified for non-apply patch"))
        refuse_options(kind, causes)
        return cls(bool(asked), level)


def read_dry_run(values: Sequence[object]) -> tuple[bool, list[Cause]]:
    """Whether a deletion only shall be tried, and what is wrong with saying so."""
    return bool(values), list(_dry_run_causes(values))


def propagation_causes(policy: str | None, orphan: bool | None) -> Iterator[Cause]:
    """What is wrong with how dependents of a deleted object shall be treated."""
    if policy is not None and orphan is not None:
        yield Cause.invalid("propagationPolicy", policy, "orphanDependents and deletionPropagation cannot be both set")
    if policy is not None and policy not in _PROPAGATION:
        yield Cause.unsupported("propagationPolicy", policy, [*_PROPAGATION, "nil"])


def refuse_options(kind: str, causes: list[Cause]) -> None:
    """Raises Failure (422) if there is a cause."""
    if causes:
        raise invalid(kind, "meta.k8s.io", "", causes)


def _dry_run_causes(values: Sequence[object]) -> Iterator[Cause]:
    if any(value != "All" for value in values):
        yield Cause.unsupported("dryRun", ", ".join(map(str, values)), ["All"])


def _manager_causes(manager: str) -> Iterator[Cause]:
    if len(manager) > _LONGEST_MANAGER:
        yield Cause("FieldValueTooLong", "fieldManager", f"Too long: may not be more than {_LONGEST_MANAGER} bytes")
    elif not manager.isprintable():
        yield Cause.invalid("fieldManager", manager, "should only contain printable characters")
