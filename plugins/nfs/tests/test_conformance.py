"""The promises that every backend makes, judged on a server in memory and on a real NFS-Ganesha in both modes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from volplane_nfs import listing, snapshots
from volplane_nfs.testing import GaneshaServer, subject, subject_on
from volplane_nfs.testing.subjects import export_options
from volplane_testing import BackendConformance, Subject


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE", 3)
    monkeypatch.setattr(snapshots, "PAGE", 3)


class TestOnTheModel(BackendConformance):
    @pytest.fixture
    def backend(self) -> Iterator[Subject]:
        with subject() as made:
            yield made


class TestOnGanesha(BackendConformance):
    @pytest.fixture
    def backend(self, ganesha: GaneshaServer) -> Subject:
        return subject_on(ganesha.share, real_crashes=True)


class TestExportsOfGanesha(BackendConformance):
    @pytest.fixture
    def backend(self, ganesha: GaneshaServer) -> Subject:
        return subject_on(ganesha.share, real_crashes=True, **export_options(ganesha))
