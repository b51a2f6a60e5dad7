"""Copy the events about a scrubber pod (of scheduler, kubelet, image puller) to the volume that it erases.

Source: pkg/volume/util/recyclerclient of Kubernetes, reason `RecyclerPod`.
"""

from __future__ import annotations

import msgspec

from volplane.controller.actions import EventRecord, Recorder
from volplane.kube.cache import Cache
from volplane.kube.kinds import VOLUMES, Kind
from volplane.kube.objects import KubeObject, ObjectReference
from volplane.reclaim.scrub_pod import pod_name
from volplane.state.cluster_state import SCRUB_VOLUME, ClusterState

__all__ = ["POD_EVENTS", "POD_EVENTS_SELECTOR", "PodEvent", "ScrubEvents"]


class PodEvent(KubeObject):
    """Has the fields of a core/v1 Event that are copied."""

    involved_object: ObjectReference = msgspec.field(default_factory=ObjectReference)
    type: str = "Normal"
    message: str = ""


POD_EVENTS: Kind[PodEvent] = Kind("v1", "Event", "events", True, PodEvent)
POD_EVENTS_SELECTOR = "involvedObject.kind=Pod"


class ScrubEvents:
    """Listens to a cache of the events about pods in our namespace."""

    def __init__(self, events: Cache[PodEvent], cluster: ClusterState, recorder: Recorder) -> None:
        self._events = events
        self._cluster = cluster
        self._recorder = recorder
        events.subscribe(self.event_changed)

    def event_changed(self, old: PodEvent | None, new: PodEvent | None) -> None:
        """Copy a new event. The previous process has copied those of the first list; a repeated one is copied once."""
        if new is None or old is not None or not self._events.synced:
            return
        about = new.involved_object
        pod = self._cluster.pods.get(f"{about.namespace}/{about.name}")
        volume = self._cluster.volumes.get(pod.annotation(SCRUB_VOLUME) or "") if pod is not None else None
        if volume is not None and about.name == pod_name(volume):
            message = f"Recycler pod: {new.message}"
            self._recorder.record(EventRecord(VOLUMES, volume, new.type, "RecyclerPod", message))
