"""The parameters of a class that are for the assigner; backends do not see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from volplane.drivers.parameters import check
from volplane.kube import names
from volplane.kube.objects import StorageClass
from volplane.placement.choose import DEFAULT_STRATEGY, STRATEGIES
from volplane.schemas import Param, ParameterSchema
from volplane.schemas import read_parameters as read_values

__all__ = ["CLASS_PARAMETERS", "PlacementParameters", "read_parameters"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementParameters:
    """What a class says to the assigner."""

    strategy: Annotated[
        str,
        Param(
            "How a node is chosen for claims that bind immediately: by free space, the most of it, or in turn.",
            name=names.PLACEMENT,
            choices=STRATEGIES,
        ),
    ] = DEFAULT_STRATEGY
    gone_after: Annotated[
        float,
        Param(
            "How long a node may be gone, not ready or silent until claims without a volume leave it.",
            name=names.NODE_GONE_AFTER,
            minimum=0,
        ),
    ] = 300.0


CLASS_PARAMETERS: Final = ParameterSchema.of(PlacementParameters)


def read_parameters(storage_class: StorageClass | None) -> tuple[PlacementParameters, str]:
    """Return the values, and what is wrong with those that are replaced by their defaults, or ""."""
    given = storage_class.parameters if storage_class is not None else None
    ours = {parameter.name for parameter in CLASS_PARAMETERS.parameters}
    values, flaws = check(CLASS_PARAMETERS, {k: v for k, v in (given or {}).items() if k in ours}, "parameter")
    return read_values(PlacementParameters, values), "; ".join(flaws)
