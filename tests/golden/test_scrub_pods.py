"""A scrubber pod that an earlier release has made is recognised, and made again with the same name, labels and seal."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from volplane.controller.config import ScrubberSettings
from volplane.kube.objects import Pod, Volume
from volplane.reclaim.scrub_pod import belongs, pod_body, sealed_spec
from volplane.state.records import RecycleIntent, ScrubPlan, Sealer, read_intent

GOLDEN = json.loads((Path(__file__).parent / "scrub_pods.json").read_text("utf-8"))
SEALER = Sealer(bytes.fromhex(GOLDEN["key"]), "volplane-system")
SPEC = "volplane.dev/scrub-spec"

each = pytest.mark.parametrize("row", GOLDEN["pods"], ids=lambda row: row["what"])


def settings(given: dict[str, Any]) -> ScrubberSettings:
    """Options of the pod, by their names in the configuration."""
    names = {"baseDeadline": "base_deadline", "deadlinePerGib": "deadline_per_gib"}
    return ScrubberSettings(
        **{names.get(key, key): tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    )


def pod_of(row: dict[str, Any], **annotations: str) -> Pod:
    """The pod as it was made. annotations: others instead of its own."""
    made = {**row["made"], "annotations": {**row["made"]["annotations"], **annotations}}
    body = {"metadata": {"uid": "5d4c-pod", "resourceVersion": "1", "namespace": "volplane-system", **made}}
    return msgspec.convert({**body, "spec": json.loads(row["made"]["annotations"][SPEC])}, Pod)


@each
def test_the_pod_of_an_earlier_release_is_ours(row: dict[str, Any]) -> None:
    intent = read_intent(RecycleIntent, row["intent"])
    assert intent is not None
    pod, volume = pod_of(row), msgspec.convert(row["volume"], Volume)
    assert belongs(pod, volume, intent)
    assert sealed_spec(pod, SEALER) == json.loads(row["made"]["annotations"][SPEC])


@each
@pytest.mark.parametrize("name", [*GOLDEN["pods"][0]["made"]["annotations"]])
def test_a_pod_with_another_value_of_one_annotation_is_not_ours(row: dict[str, Any], name: str) -> None:
    assert sealed_spec(pod_of(row, **{name: row["made"]["annotations"][name] + "0"}), SEALER) is None


@each
def test_the_same_pod_is_made_today(row: dict[str, Any]) -> None:
    intent = read_intent(RecycleIntent, row["intent"])
    assert intent is not None
    body = pod_body(
        msgspec.convert(row["volume"], Volume),
        intent,
        ScrubPlan(row["plan"]["volume"], row["plan"]["subPath"]),
        settings(row["scrubber"]),
        namespace="volplane-system",
        sealer=SEALER,
    )
    metadata = body["metadata"]
    assert {key: metadata[key] for key in ("labels", "name", "annotations")} == row["made"]
    assert body["spec"] == json.loads(metadata["annotations"][SPEC])
