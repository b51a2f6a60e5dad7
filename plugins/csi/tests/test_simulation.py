"""Some seeds of `volplane sim --backend volplane_csi.testing:subject`, and of `attaching_subject` with `--scenario
attach`.
"""

from __future__ import annotations

from typing import Any

import pytest

from volplane import InProgress
from volplane_csi.saved import SavedRequest
from volplane_csi.testing import attaching_subject, subject
from volplane_csi.volumes import Volumes
from volplane_testing import run_seed


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(each, marks=pytest.mark.soak) for each in range(3, 500))])
def test_nothing_breaks_whatever_happens(seed: int) -> None:
    report = run_seed(seed, subject)
    assert report.passed, str(report)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 200))])
def test_no_volume_is_attached_to_two_nodes_or_taken_from_a_pod(seed: int) -> None:
    report = run_seed(seed, attaching_subject, scenario="attach")
    assert report.passed, str(report)


@pytest.mark.soak
def test_what_is_not_saved_before_it_is_sent_is_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeds above prove something: without the first answer a volume is lost."""
    saving = Volumes.provision

    def at_once(self: Volumes, request: Any) -> Any:
        answer = saving(self, request)
        if isinstance(answer, InProgress):
            return self._send(request, SavedRequest.read(answer.state))
        return answer

    monkeypatch.setattr(Volumes, "provision", at_once)
    assert not all(run_seed(seed, subject).passed for seed in range(150))
