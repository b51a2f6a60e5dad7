"""The parameters of a class that are for the assigner; backends do not see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from volplane.drivers.parameters import check
from volplane.kube import names
from volplane.kube.objects import StorageClass
from volplane.placement.choose import DEFAULT_STRATEGY, STRATEGIES
from volplane.schemas import Parameter, ParameterKind, ParameterSchema

__all__ = ["CLASS_PARAMETERS", "PlacementParameters", "read_parameters"]

CLASS_PARAMETERS: Final = ParameterSchema(
    parameters=(
        Parameter(
            name=names.PLACEMENT,
            doc="How a node is chosen for claims that bind immediately: by free space, the most of it, or in turn.",
            default=DEFAULT_STRATEGY,
            choices=STRATEGIES,
        ),
        Parameter(
            name=names.NODE_GONE_AFTER,
            doc="How long a node may be gone, not ready or silent until claims without a volume leave it.",
            kind=ParameterKind.DURATION,
            default=300.0,
            minimum=0,
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementParameters:
    """gone_after: seconds."""

    strategy: str = DEFAULT_STRATEGY
    gone_after: float = 300.0


def read_parameters(storage_class: StorageClass | None) -> tuple[PlacementParameters, str]:
    """The values, and what is wrong with those that are replaced by their defaults, or ""."""
    given = storage_class.parameters if storage_class is not None else None
    ours = {parameter.name for parameter in CLASS_PARAMETERS.parameters}
    values, flaws = check(CLASS_PARAMETERS, {k: v for k, v in (given or {}).items() if k in ours}, "parameter")
    defaults = PlacementParameters()
    read = PlacementParameters(
        strategy=str(values.get(names.PLACEMENT) or defaults.strategy),
        gone_after=float(values.get(names.NODE_GONE_AFTER, defaults.gone_after)),
    )
    return read, "; ".join(flaws)
