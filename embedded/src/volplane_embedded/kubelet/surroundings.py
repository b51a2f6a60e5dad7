"""What everything that runs a pod has in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from volplane.controller.runner import Recorder
from volplane.controller.steps import Steps
from volplane.kube.client import Client
from volplane_embedded.informers import Now, Sight
from volplane_embedded.kubelet.sandboxes import Sandboxes
from volplane_embedded.kubelet.volume_manager import Volumes

__all__ = ["Surroundings"]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all workers share. root: directory of the pods' files. hidden: directories and files that no container sees."""

    client: Client
    sight: Sight
    steps: Steps
    recorder: Recorder
    now: Now
    sandboxes: Sandboxes
    volumes: Volumes
    root: Path
    hidden: Sequence[Path]
