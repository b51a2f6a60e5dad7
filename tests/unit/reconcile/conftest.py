"""The running control plane of the leak check's tests, for what is counted around it."""

from unit.leaks.conftest import cluster, shelf

__all__ = ["cluster", "shelf"]
