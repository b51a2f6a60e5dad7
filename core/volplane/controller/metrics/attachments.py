"""What is attached where, under the names of the attach-detach controller."""

from __future__ import annotations

from collections.abc import Mapping

from volplane.controller.metrics.families import Families, MetricsPart

__all__ = ["AttachmentMetrics"]


class AttachmentMetrics(MetricsPart):
    """Methods are named after what happened."""

    def __init__(self, make: Families) -> None:
        self._forced_detaches = make.gauge(
            "attach_detach_controller_attachdetach_controller_forced_detaches",
            "Volumes detached though their node may use them, since the start; reason: timeout, out-of-service",
            "reason",
        )
        self._attached_volumes = make.gauge(
            "attachdetach_controller_total_volumes",
            "Volumes on nodes, by what wants them (desired_state_of_world) and what has them (actual_state_of_world)",
            "plugin_name",
            "state",
        )
        self._attachable_in_use = make.gauge(
            "storage_count_attachable_volumes_in_use",
            "Volumes of pods that need attaching, by node",
            "node",
            "volume_plugin",
        )
        for reason in ("timeout", "out-of-service"):
            self._forced_detaches[(reason,)].set(0)
        super().__init__(make)

    def detach_forced(self, reason: str) -> None:
        """A volume was detached though its node may use it. reason: "timeout" or "out-of-service"."""
        self._forced_detaches[(reason,)].inc()

    def volumes_on_nodes(self, worlds: Mapping[tuple[str, str], int], in_use: Mapping[tuple[str, str], int]) -> None:
        """Present numbers, by plugin and state, and by node and plugin; others than these there are none."""
        for gauge, counts in ((self._attached_volumes, worlds), (self._attachable_in_use, in_use)):
            gauge.forget()
            for labels, count in counts.items():
                gauge[labels].set(count)
