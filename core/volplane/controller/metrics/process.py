"""All Prometheus metrics of a process.

What client-go, the external provisioner or the reference binder counts too has their name here.

One `Metrics` per process, in the registry that is passed in or one of its own, never the global one. What the
simulation counts too is written against the protocols `ApiMetrics` and `ControllerMetrics`, which it implements.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from volplane._cloud_metrics import COLLECTORS
from volplane.controller.metrics.attachments import AttachmentMetrics
from volplane.controller.metrics.client import ClientMetrics
from volplane.controller.metrics.families import Description, Families
from volplane.controller.metrics.hooks import HookMetrics
from volplane.controller.metrics.losses import LossMetrics
from volplane.controller.metrics.queues import QueueMetrics
from volplane.controller.metrics.volumes import VolumeMetrics

__all__ = ["Metrics"]


class Metrics(ClientMetrics, QueueMetrics, HookMetrics, VolumeMetrics, AttachmentMetrics, LossMetrics):
    """All metrics of a process."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        make = Families(self.registry)
        for metric, labels in COLLECTORS:
            make.shared(metric, labels)
        super().__init__(make)
        self._leading = make.gauge("volplane_leading", "1: this process holds the lease and works", "lease")
        self.descriptions: tuple[Description, ...] = tuple(make.descriptions)
        """Every metric, for the documentation."""

    def exposition(self) -> bytes:
        """Everything in the text format of Prometheus."""
        return generate_latest(self.registry)

    def leading(self, lease: str, leading: bool) -> None:
        self._leading[(lease,)].set(leading)
