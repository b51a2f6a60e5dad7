"""Whether the controller whose place a driver takes runs in a pod."""

from __future__ import annotations

import json
import re

from volplane.kube.client import Client
from volplane.kube.kinds import WHOLE_PODS
from volplane.kube.objects import WholePod
from volplane.schemas import Predecessor


async def pod_of_predecessor(client: Client, predecessor: Predecessor, driver: str) -> str:
    """Return the key of a pod in which the former controller of this driver runs; "": none is seen. Raises ApiError."""
    async for page in client.pages(WHOLE_PODS, label_selector=predecessor.pods):
        for pod in page.items:
            if pod.status.phase not in ("Succeeded", "Failed") and _is_of(pod, predecessor, driver):
                return pod.key
    return ""


def _is_of(pod: WholePod, predecessor: Predecessor, driver: str) -> bool:
    if not predecessor.programs:
        return True
    containers = [*(pod.spec.get("containers") or ()), *(pod.spec.get("initContainers") or ())]
    images = [str(each.get("image")).rpartition("/")[2].partition("@")[0].partition(":")[0] for each in containers]
    commands = [str(each["command"][0]) for each in containers if each.get("command")]
    named = rf"(?<![\w.-]){re.escape(driver)}(?![\w.-])"
    runs = any(each.endswith(predecessor.programs) for each in (*images, *commands))
    return runs and re.search(named, json.dumps(pod.spec)) is not None
