"""What follows from a list of controllers."""

from __future__ import annotations

from typing import Any

from volplane.controller.actions import Settled
from volplane.controller.controller import Controller, Watch
from volplane.kube.cache import Cache
from volplane.kube.kinds import CLAIMS, PODS, VOLUMES
from volplane.process.assembly import watches_of


def controller(cache: Cache[Any], *watches: Watch) -> Controller:
    return Controller(queue="q", cache=cache, decide=lambda _key, _reads: Settled(), watches=watches)


def test_what_keys_name_is_watched_once() -> None:
    claims, volumes = Cache(CLAIMS), Cache(VOLUMES)
    found = watches_of([controller(claims, Watch(cache=volumes)), controller(volumes, Watch(cache=claims))])
    assert [each.cache for each in found.values()] == [claims, volumes]


def test_of_two_watches_the_one_of_all_namespaces_wins() -> None:
    claims, pods = Cache(CLAIMS), Cache(PODS)
    ours, everywhere = Watch(cache=pods, namespace="ours"), Watch(cache=pods)
    for both in ((ours, everywhere), (everywhere, ours)):
        assert watches_of([controller(claims, each) for each in both])["pods"] is everywhere
    assert watches_of([controller(claims, ours)])["pods"] is ours


def test_a_watch_of_what_keys_name_may_be_narrower() -> None:
    pods = Cache(PODS)
    ours = Watch(cache=pods, namespace="ours")
    assert watches_of([controller(pods, ours)])["pods"] is ours


def test_what_nothing_waits_for_comes_last() -> None:
    claims, volumes, pods = Cache(CLAIMS), Cache(VOLUMES), Cache(PODS)
    found = watches_of([controller(claims, Watch(cache=pods, required=False), Watch(cache=volumes))])
    assert [*found] == ["persistentvolumeclaims", "persistentvolumes", "pods"]
