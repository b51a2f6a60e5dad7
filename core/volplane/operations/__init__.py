"""Operations: hook calls that run beside the reconciling, one at a time per asset, within the limits of their driver."""

from volplane.operations.dispatcher import Dispatcher, Handler
from volplane.operations.entries import Work
from volplane.operations.limits import DriverLimits
from volplane.operations.registry import OperationRegistry
from volplane.operations.states import Again, Ended, OperationState, Phase

__all__ = [
    "Again",
    "Dispatcher",
    "DriverLimits",
    "Ended",
    "Handler",
    "OperationRegistry",
    "OperationState",
    "Phase",
    "Work",
]
