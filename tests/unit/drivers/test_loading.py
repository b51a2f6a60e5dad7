"""From a configuration to drivers, with everything that can go wrong reported beside what works."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from typing import Any

import pytest

from volplane import BackendSpec, Declined, DriverInfo, Parameter, ParameterSchema, hookimpl
from volplane.controller.config import Configuration, DriverSettings, ExtensionSettings
from volplane.drivers import loading
from volplane.drivers.contract import Plugin
from volplane.drivers.loading import load_drivers
from volplane.operations.operation import DriverLimits
from volplane_testing.given_plugins import GivenPlugins


def settings(name: str, backend: str = "memory", **fields: Any) -> DriverSettings:
    return DriverSettings(name=name, backend=backend, where=f"v.yaml: {name}", **fields)


@pytest.fixture
def soon_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the deadline of what `hangs` be over at once, and that of others never."""
    real = loading.within

    def within(_seconds: float, what: str, job: Any, *given: Any) -> Any:
        plugin = next((each for each in given if isinstance(each, Plugin)), None)
        hangs = plugin is not None and plugin.name in ("hang", "forbid")
        return real(0.05 if hangs else 30.0, what, job, *given)

    monkeypatch.setattr(loading, "within", within)


@pytest.fixture
def last_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the grace of drivers end when the last one of them is made, however long that takes."""
    monkeypatch.setattr(loading, "wait", lambda made, **_: wait([*made][-1:], timeout=30.0))


def test_configured_drivers_are_made_with_their_limits(kit: Any) -> None:
    configuration = Configuration(
        drivers=(
            settings("a.example.com", options={"limit": "5Gi"}),
            settings("b.example.com", concurrency=3, rate=2.0, timeout=60.0),
        )
    )
    loaded = load_drivers(configuration, GivenPlugins([kit.backend(kit.Memory)]))
    assert [d.name for d in loaded.drivers] == ["a.example.com", "b.example.com"]
    assert loaded.broken == ()
    assert loaded.limits == {
        "a.example.com": DriverLimits(),
        "b.example.com": DriverLimits(concurrency=3, rate=2.0, timeout=60.0),
    }


def test_a_broken_driver_keeps_its_reason_and_the_others_run(kit: Any) -> None:
    def explode(options: Any) -> Any:
        raise OSError("no route")

    plugins = GivenPlugins([kit.backend(kit.Memory), kit.backend(explode, "bad")])
    configuration = Configuration(
        drivers=(
            settings("good"),
            settings("bad", "bad"),
            settings("gone", "memry"),
            settings("Wrong"),
            settings("options", options={"limt": 1}),
        )
    )
    loaded = load_drivers(configuration, plugins)
    assert [d.name for d in loaded.drivers] == ["good"]
    errors = {b.name: b.error for b in loaded.broken}
    assert errors == {
        "bad": "v.yaml: bad: backend bad (volplane-bad 1.0): cannot be made: OSError: no route",
        "gone": "v.yaml: gone: backend 'memry' is not there; did you mean 'memory'?",
        "Wrong": "v.yaml: Wrong: driver name 'Wrong' is no DNS subdomain: lower-case letters, digits, '-' and '.', "
        "as in nfs.example.com",
        "options": "v.yaml: options: driver options: unknown option 'limt' (value 1); did you mean 'limit'?",
    }


@pytest.mark.usefixtures("soon_over")
def test_a_backend_that_hangs_while_it_is_made_is_reported(kit: Any) -> None:
    release = threading.Event()

    def hang(options: Any) -> Any:
        release.wait(30)

    plugins = GivenPlugins([kit.backend(kit.Memory), kit.backend(hang, "hang")])
    loaded = load_drivers(Configuration(drivers=(settings("hang", "hang"), settings("good"))), plugins)
    release.set()
    assert [d.name for d in loaded.drivers] == ["good"]
    assert loaded.broken[0].error == "v.yaml: hang: making the backend did not end within 0.05 s"


class Slow(GivenPlugins):
    """One of them cannot be imported before it is `released`."""

    def __init__(self, plugins: Any, slow: str) -> None:
        super().__init__(plugins)
        self.released = threading.Event()
        self._slow = slow

    def load(self, kind: str, name: str) -> Plugin:
        if name == self._slow:
            self.released.wait(30)
        return super().load(kind, name)


@pytest.mark.usefixtures("last_is_made")
def test_an_import_that_takes_long_leaves_its_driver_pending_and_the_others_are_made(kit: Any) -> None:
    plugins = Slow([kit.backend(kit.Memory), kit.backend(kit.Memory, "slow")], "slow")
    configuration = Configuration(drivers=(settings("slow", "slow", distributed=True), settings("good")))
    loaded = load_drivers(configuration, plugins, grace=0.2)
    assert [d.name for d in loaded.drivers] == ["good"]
    (pending,) = loaded.pending
    assert (pending.name, pending.backend, pending.doing) == ("slow", "slow", "importing the backend")
    assert loaded.on_nodes == ("slow",)
    assert set(loaded.limits) == {"slow", "good"}
    plugins.released.set()
    pending.made.result(30)
    settled = loaded.settled()
    assert settled.pending == ()
    assert [d.name for d in settled.drivers] == ["good"]
    (broken,) = settled.broken
    assert "reachable from everywhere" in broken.error


@pytest.mark.usefixtures("last_is_made")
def test_a_driver_that_is_made_late_stands_beside_the_others_then(kit: Any) -> None:
    begun, release = threading.Event(), threading.Event()

    def slow(options: Any) -> Any:
        begun.set()
        release.wait(30)
        return kit.Memory(options)

    plugins = GivenPlugins([kit.backend(kit.Memory), kit.backend(slow, "slow")])
    loaded = load_drivers(Configuration(drivers=(settings("slow", "slow"), settings("good"))), plugins, grace=0.2)
    (pending,) = loaded.pending
    assert begun.wait(30)
    assert pending.doing == "making the backend"
    release.set()
    pending.made.result(30)
    assert [d.name for d in loaded.settled().drivers] == ["good", "slow"]


def test_an_import_that_takes_the_time_of_another_driver_leaves_it_its_own(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deadlines of a driver begin when it is its turn, whatever the others do."""
    plugins = Slow([kit.backend(kit.Memory), kit.backend(kit.Memory, "slow")], "slow")
    begun: list[tuple[str, bool]] = []
    real = loading.within

    def within(seconds: float, what: str, *job: Any) -> Any:
        begun.append((what, plugins.released.is_set()))
        if what == "making the backend":
            plugins.released.set()  # The other one is made first.
        return real(seconds, what, *job)

    monkeypatch.setattr(loading, "within", within)
    loaded = load_drivers(Configuration(drivers=(settings("slow", "slow"), settings("good"))), plugins)
    assert [d.name for d in loaded.drivers] == ["slow", "good"]
    assert [released for what, released in begun if what == "making the backend"] == [False, True]


@pytest.mark.usefixtures("soon_over")
def test_an_extension_that_hangs_while_it_is_made_breaks_all_drivers_in_time(kit: Any) -> None:
    release = threading.Event()
    plugins = GivenPlugins([kit.backend(kit.Memory), kit.extension(lambda _options: release.wait(30), "forbid")])
    configuration = Configuration(drivers=(settings("a"),), extensions=(ExtensionSettings(name="forbid"),))
    loaded = load_drivers(configuration, plugins)
    release.set()
    assert loaded.drivers == ()
    assert [b.error for b in loaded.broken] == [
        "making extension forbid (volplane-forbid 1.0) did not end within 0.05 s"
    ]


def test_what_holds_up_all_drivers_is_logged(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = Slow([kit.backend(kit.Memory), kit.backend(kit.Memory, "slow")], "slow")
    told: list[str] = []

    def warning(text: str, *given: object) -> None:
        told.append(text % given)
        plugins.released.set()

    monkeypatch.setattr(loading.log, "warning", warning)
    load_drivers(Configuration(), plugins, grace=0.2)
    assert "all drivers wait until these plugins are loaded: " in told[0]
    assert "slow; their drivers have no names before" in told[0]


def test_without_configuration_every_backend_that_needs_no_options_is_a_driver(kit: Any) -> None:
    class Needy(kit.Memory):  # type: ignore[misc, name-defined]
        options_schema = ParameterSchema(parameters=(Parameter(name="server", doc="", required=True),))
        default_driver_name = "needy.example.com"

    class Nameless(kit.Memory):  # type: ignore[misc, name-defined]
        default_driver_name = ""

    plugins = GivenPlugins([kit.backend(kit.Memory), kit.backend(Needy, "needy"), kit.backend(Nameless, "nameless")])
    loaded = load_drivers(Configuration(), plugins)
    assert [d.name for d in loaded.drivers] == ["memory.example.com"]
    assert loaded.broken == ()


def test_an_empty_list_of_drivers_makes_none(kit: Any) -> None:
    loaded = load_drivers(Configuration(drivers=()), GivenPlugins([kit.backend(kit.Memory)]))
    assert (loaded.drivers, loaded.broken) == ((), ())


def test_two_backends_with_one_default_name_are_both_refused(kit: Any) -> None:
    plugins = GivenPlugins([kit.backend(kit.Memory), kit.backend(kit.Memory, "twin")])
    loaded = load_drivers(Configuration(), plugins)
    assert loaded.drivers == ()
    assert [b.error for b in loaded.broken] == [
        "backends memory and twin have the same default driver name 'memory.example.com'; configure drivers"
    ]


def test_a_default_backend_that_is_wrong_is_reported_under_its_name(kit: Any) -> None:
    class Wrong(BackendSpec):
        options_schema = {}  # type: ignore[assignment]  # noqa: RUF012

    loaded = load_drivers(Configuration(), GivenPlugins([kit.backend(kit.Memory), kit.backend(Wrong, "wrong")]))
    assert [d.name for d in loaded.drivers] == ["memory.example.com"]
    assert [(b.name, b.error) for b in loaded.broken] == [
        ("wrong", "backend wrong (volplane-wrong 1.0): options_schema: a schema of type dict, expected ParameterSchema")
    ]


class Forbid:
    def __init__(self, options: Any) -> None: ...

    @hookimpl(wrapper=True)
    def provision(self, request: Any) -> Any:
        raise Declined("no")
        yield


def test_configured_extensions_wrap_every_driver(kit: Any) -> None:
    plugins = GivenPlugins([kit.backend(kit.Memory), kit.extension(Forbid, "forbid")])
    configuration = Configuration(
        drivers=(settings("a"), settings("b")), extensions=(ExtensionSettings(name="forbid"),)
    )
    for driver in load_drivers(configuration, plugins).drivers:
        with pytest.raises(Declined):
            driver.call(kit.demand())


def test_an_extension_that_is_installed_but_not_configured_wraps_nothing(kit: Any) -> None:
    plugins = GivenPlugins([kit.backend(kit.Memory), kit.extension(Forbid, "forbid")])
    (driver,) = load_drivers(Configuration(drivers=(settings("a"),)), plugins).drivers
    assert driver.call(kit.demand())


def test_a_broken_extension_breaks_all_drivers_because_it_may_be_what_protects_them(kit: Any) -> None:
    extensions = (ExtensionSettings(name="dry_rn", where="v.yaml: extensions[0]"),)
    plugins = GivenPlugins([kit.backend(kit.Memory), kit.extension(Forbid, "dry_run")])
    loaded = load_drivers(Configuration(drivers=(settings("a"), settings("b")), extensions=extensions), plugins)
    assert loaded.drivers == ()
    assert {b.name: b.error for b in loaded.broken} == dict.fromkeys(
        ("a", "b"), "v.yaml: extensions[0]: extension 'dry_rn' is not there; did you mean 'dry_run'?"
    )


def test_a_backend_whose_describe_asks_for_a_newer_volplane_leaves_the_others_running(kit: Any) -> None:
    class Newer(kit.Memory):  # type: ignore[misc, name-defined]
        @hookimpl
        def describe(self, request: Any) -> DriverInfo:
            return DriverInfo(version="9", hookspec_version=9)

    plugins = GivenPlugins([kit.backend(kit.Memory), kit.backend(Newer, "newer")])
    loaded = load_drivers(Configuration(drivers=(settings("a"), settings("n", "newer"))), plugins)
    assert [d.name for d in loaded.drivers] == ["a"]
    assert "is built for hookspec version 9" in loaded.broken[0].error
