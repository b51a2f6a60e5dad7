"""The running control plane of the leak check's tests, for what is counted around it."""

from unit.leaks.conftest import cluster, hooks, shelf

__all__ = ["cluster", "hooks", "shelf"]
