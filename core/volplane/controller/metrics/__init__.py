"""What a process counts, for Prometheus."""

from volplane.controller.metrics.process import Metrics

__all__ = ["Metrics"]
