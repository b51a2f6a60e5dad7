"""What is used of volumes of directories, as metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from volplane.controller.metrics import Metrics
from volplane.directory import Usage, UsageReport

DRIVER = "usage.example.com"


class Site:
    """Volumes of a made-up storage, where measuring each takes a tenth of a second; and the metrics of a process."""

    def __init__(self, most: int = 5_000) -> None:
        self.now = 1_000.0
        self.volumes: dict[str, Usage] = {}
        self.measured: list[str] = []
        self.metrics = Metrics()
        self.report = UsageReport(most=most, now=lambda: self.now)

    def probe(self, part: str = "share") -> None:
        self.report.work(DRIVER, part, lambda: list(self.volumes), self._measure)

    def round(self, part: str = "share") -> None:
        self.now += 60.0
        for _ in range(100):
            self.probe(part)

    def _measure(self, names: Sequence[str]) -> dict[str, Usage]:
        self.now += 0.1 * len(names)
        self.measured += names
        return {name: self.volumes[name] for name in names if name in self.volumes}

    def shown(self, metric: str = "volplane_volume_used_bytes") -> dict[str, float]:
        [family] = [each for each in self.metrics.registry.collect() if each.name == metric]
        samples = [each for each in family.samples if each.labels["driver"] == DRIVER]
        return {each.labels["persistentvolume"]: each.value for each in samples}


@pytest.fixture
def site() -> Iterator[Site]:
    """The gauges are those of the process, so that it must leave none behind."""
    site = Site()
    yield site
    site.report.close()
    assert site.shown() == {}


def test_bytes_and_inodes_of_volumes_are_shown_until_they_are_gone(site: Site) -> None:
    site.volumes = {"pv-1": Usage(5, 2), "pv-2": Usage(7)}
    site.round()
    assert site.shown() == {"pv-1": 5, "pv-2": 7}
    assert site.shown("volplane_volume_used_inodes") == {"pv-1": 2}
    site.volumes = {"pv-1": Usage(6)}
    site.round()
    assert site.shown() == {"pv-1": 6}
    assert site.shown("volplane_volume_used_inodes") == {}


def test_the_volumes_that_use_most_have_series_and_the_others_one_together(site: Site) -> None:
    site.report = UsageReport(most=2, now=lambda: site.now)
    site.volumes = {f"pv-{number}": Usage(number, 1) for number in range(1, 6)}
    site.round()
    assert site.shown() == {"pv-5": 5, "pv-4": 4, "(other)": 6}
    assert site.shown("volplane_volume_used_inodes") == {"pv-5": 1, "pv-4": 1, "(other)": 3}


def test_a_probe_measures_for_half_a_second_and_the_next_goes_on(site: Site) -> None:
    site.volumes = {f"pv-{number:03}": Usage(1) for number in range(250)}
    for measured in (100, 200, 250):
        assert site.shown() == {}, "a round that is not over tells of no volume that it is smaller or gone"
        site.probe()
        assert len(site.measured) == measured
    assert len(site.shown()) == 250
    site.now = 1_059.0
    site.probe()
    assert len(site.measured) == 250, "one round a minute"
    site.now = 1_060.0
    site.probe()
    assert len(site.measured) == 350


def test_a_share_that_cannot_be_measured_keeps_its_figures_and_stops_no_other(site: Site) -> None:
    site.volumes = {"pv-1": Usage(1)}
    site.round("a")
    site.volumes = {"pv-2": Usage(2)}
    site.round("b")
    assert site.shown() == {"pv-1": 1, "pv-2": 2}

    def fail(_names: Sequence[str]) -> dict[str, Usage]:
        raise OSError("it is away")

    site.now += 60.0
    with pytest.raises(OSError, match="away"):
        site.report.work(DRIVER, "a", lambda: ["pv-1"], fail)
    site.volumes = {"pv-2": Usage(3)}
    site.round("b")
    assert site.shown() == {"pv-1": 1, "pv-2": 3}
