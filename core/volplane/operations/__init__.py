"""Operations: hook calls that run beside the reconciling, one at a time per asset, within the limits of their driver."""

from volplane.operations.limits import DriverLimits
from volplane.operations.registry import OperationRegistry
from volplane.operations.states import Again, Ended, OperationState, Phase

__all__ = [
    "Again",
    "DriverLimits",
    "Ended",
    "OperationRegistry",
    "OperationState",
    "Phase",
]
