"""Who answers on the socket, and whether the options fit."""

from __future__ import annotations

from typing import Any

import pytest

from volplane import DescribeRequest, Done, InvalidArgument, ProbeRequest, StartRequest, Unavailable, Unsupported
from volplane.errors import ConfigurationError
from volplane_csi.testing import ALL_CAPABILITIES, Behaviour
from volplane_testing.cloud import FaultKind

ZONE = "topology.example.com/zone"


@pytest.mark.parametrize(
    ("behaviour", "options", "why"),
    [
        (Behaviour(name="other.csi.example.com"), {}, "socket /run/csi.sock is of CSI driver 'other.csi.example.com'"),
        (Behaviour(capabilities=ALL_CAPABILITIES - {"PUBLISH_UNPUBLISH_VOLUME"}), {}, "set the option attach to false"),
        (Behaviour(zones=("a",)), {}, "set the option topology_keys"),
        (Behaviour(), {"topology_keys": ZONE}, "remove the option topology_keys"),
        (Behaviour(ready=False), {}, "is not ready yet"),
    ],
)
def test_a_driver_that_does_not_fit_the_options_is_not_started(
    new_world: Any, behaviour: Behaviour, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(Unavailable, match=why):
        new_world(behaviour, **options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"socket": "tcp://storage:9000"}, "socket"),
        ({"socket": f"/{'x' * 200}"}, "more than 107 bytes"),
        ({"timeout": "0s"}, "timeout"),
        ({"csi_driver_name": "a b"}, "csi_driver_name"),
    ],
)
def test_options_that_cannot_be_are_named(new_world: Any, options: dict[str, Any], why: str) -> None:
    with pytest.raises((ConfigurationError, InvalidArgument), match=why):
        new_world(**options)


def test_it_describes_itself_without_the_driver(new_world: Any) -> None:
    world = new_world(Behaviour(zones=("a",)), topology_keys=ZONE, csi_driver_name="fake.csi.example.com")
    asked = len(world.fake.requests)
    info = world.backend.describe(DescribeRequest(context=world.context(driver="mine.example.com")))
    assert (info.csi_driver_name, info.topology_keys) == ("fake.csi.example.com", (ZONE,))
    assert len(world.fake.requests) == asked


def test_an_upgrade_is_noticed_by_the_next_probe(world: Any) -> None:
    probe = ProbeRequest(context=world.context())
    asset = world.provision()
    world.fake.behave(capabilities=ALL_CAPABILITIES - {"MODIFY_VOLUME"})
    assert world.backend.probe(probe) == Done()
    with pytest.raises(Unsupported, match="MODIFY_VOLUME"):
        world.modify(asset, iops="1")
    world.fake.behave(ready=False)
    with pytest.raises(Unavailable):
        world.backend.probe(probe)


def test_a_capability_that_is_gone_is_forgotten_with_the_first_refusal(world: Any) -> None:
    asset = world.provision()
    world.fake.behave(capabilities=ALL_CAPABILITIES - {"MODIFY_VOLUME"})
    for _ in range(2):
        with pytest.raises(Unsupported, match=r"MODIFY_VOLUME|not implemented"):
            world.modify(asset, iops="1")
    assert len([1 for method, _ in world.fake.requests if method == "GetPluginInfo"]) == 2


def test_a_driver_without_a_probe_is_ready_and_one_that_cannot_work_says_why(world: Any) -> None:
    start = StartRequest(context=world.context())
    world.refuse("Probe", "UNIMPLEMENTED")
    assert world.backend.start(start) == Done()
    world.refuse("Probe", "FAILED_PRECONDITION", "the kernel module is missing")
    with pytest.raises(Unavailable, match="the kernel module is missing"):
        world.backend.start(start)
    world.fault("GetPluginInfo", FaultKind.CLOSE)
    with pytest.raises(Unavailable, match=r"cannot reach the CSI driver at /run/csi\.sock"):
        world.backend.start(start)
