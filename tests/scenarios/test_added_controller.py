"""A controller that is added is a package and a line: its name, rights, metrics and reasons follow from these."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.backends import ScriptedBackend
from scenarios.harness import Harness
from scenarios.stories import claim, storage_class
from scenarios.version_labels import LABEL, VERSION_LABELS
from volplane.cli.installation import cluster_rules
from volplane.controller.controller import Duty, Rule
from volplane.drivers.driver import BrokenDriver
from volplane.errors import ConfigurationError
from volplane.kube.names import PROVISIONED_BY
from volplane.process import duties

DRIVER = "fast.example.com"
QUEUE = "labelled-volumes"
PACKAGE = Path(__file__).parent / "version_labels" / "__init__.py"
CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Duty:
    """The line."""
    monkeypatch.setattr(duties, "DUTIES", [*duties.DUTIES, VERSION_LABELS])
    return VERSION_LABELS


def made_by(driver: str, *, name: str = "v") -> dict[str, object]:
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/v"}}
    return {"metadata": {"name": name, "annotations": {PROVISIONED_BY: driver}}, "spec": spec}


@pytest.mark.usefixtures("added")
async def test_it_labels_the_volumes_of_a_driver() -> None:
    backend = ScriptedBackend(DRIVER, info={"version": "7"})
    async with Harness(backend, controllers=frozenset({"version-labels"})) as harness:
        await harness.create("classes", storage_class(provisioner=DRIVER))
        await harness.create("claims", claim("c", storageClassName="fast"))
        await harness.start()
        await harness.settle()
        (volume,) = await harness.everything("volumes")
        assert volume["metadata"]["labels"][LABEL] == "7"
        assert b'workqueue_adds_total{name="labelled-volumes"}' in harness.metrics.exposition()


@pytest.mark.usefixtures("added")
async def test_explain_gives_its_reasons() -> None:
    async with Harness(controllers=frozenset({"version-labels"})) as harness:
        harness.broken = (BrokenDriver(name=DRIVER, backend="disk", error="no such disk"),)
        await harness.create("volumes", made_by(DRIVER))
        await harness.start()
        await harness.settle()
        why = f"driver {DRIVER} cannot say its version"
        assert harness.plane.reasons()[QUEUE] == {"v": why}
        assert f"nothing until something changes: {why}" in harness.plane.explain("volume", "v").next


@pytest.mark.usefixtures("added")
async def test_it_leaves_volumes_of_others_and_odd_versions_alone() -> None:
    backend = ScriptedBackend(DRIVER, info={"version": "7+git"})
    async with Harness(backend, controllers=frozenset({"version-labels"})) as harness:
        await harness.create("volumes", made_by("ebs.csi.aws.com"))
        await harness.create("volumes", made_by(DRIVER, name="w"))
        await harness.start()
        await harness.settle()
        volumes = await harness.everything("volumes")
        assert [each["metadata"].get("labels") for each in volumes] == [None, None]
        why = f"the version '7+git' of driver {DRIVER} cannot be a label"
        assert harness.plane.reasons()[QUEUE] == {"w": why}


@pytest.mark.usefixtures("added")
async def test_what_is_gone_waits_for_nothing() -> None:
    async with Harness(controllers=frozenset({"version-labels"})) as harness:
        harness.broken = (BrokenDriver(name=DRIVER, backend="disk", error="no such disk"),)
        await harness.create("volumes", made_by(DRIVER))
        await harness.start()
        await harness.settle()
        await harness.delete("volumes", "v")
        await harness.settle()
        assert harness.plane.reasons()[QUEUE] == {}


@pytest.mark.usefixtures("added")
async def test_without_its_name_it_does_not_run() -> None:
    async with Harness(ScriptedBackend(DRIVER)) as harness:
        await harness.start()
        assert QUEUE not in harness.plane.controllers


def test_its_name_is_a_value_of_the_option(added: Duty) -> None:
    assert duties.parse_controllers(f"binder,{added.option}") == {"binder", added.option}
    assert added.option in duties.parse_controllers("all")


def test_its_name_is_unknown_without_the_line() -> None:
    with pytest.raises(ConfigurationError, match="is no controller"):
        duties.parse_controllers(VERSION_LABELS.option)


@pytest.mark.usefixtures("added")
def test_its_rights_are_granted() -> None:
    rules = cluster_rules({"version-labels"}, "ours")
    assert Rule("", "persistentvolumes", ("get", "list", "watch", "patch")) in rules
    assert Rule("", "persistentvolumes", ("get", "list", "watch")) in cluster_rules((), "ours")


def test_the_guide_for_contributors_shows_it() -> None:
    [shown] = [part for part in CONTRIBUTING.read_text("utf-8").split("```") if "VERSION_LABELS: Final" in part]
    assert shown.removeprefix("python\n") == PACKAGE.read_text("utf-8")
