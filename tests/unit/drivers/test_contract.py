"""What a plugin is refused for at load, and what is said then: plugin, hook and argument are named."""

# ruff: noqa: ARG004, ARG005 - the names of arguments are the contract

from __future__ import annotations

import functools
import types
from typing import Any

import pytest

from volplane import BackendSpec, Done, DriverInfo, Parameter, ParameterSchema, hookimpl
from volplane.drivers.contract import HOOKS, driver_name_flaw
from volplane.drivers.loading import build_driver, build_extension
from volplane.errors import ConfigurationError, PluginError

NAME = "d.example.com"


def refusal(kit: Any, factory: Any, options: dict[str, Any] | None = None) -> str:
    with pytest.raises(PluginError) as refused:
        build_driver(NAME, kit.backend(factory), options or {})
    message = str(refused.value)
    assert message.startswith("backend memory (volplane-memory 1.0): ")
    assert "\n" not in message
    return message.partition("): ")[2]


def extension_refusal(kit: Any, factory: Any) -> str:
    with pytest.raises(PluginError) as refused:
        build_extension(kit.extension(factory), {})
    message = str(refused.value)
    assert message.startswith("extension watcher (volplane-watcher 1.0): ")
    return message.partition("): ")[2]


def test_every_hook_of_the_contract_is_known() -> None:
    assert len(HOOKS) == 25
    assert {"describe", "provision", "delete", "find", "owns", "recycle", "attach", "probe"} <= HOOKS


def test_a_right_backend_is_taken(kit: Any) -> None:
    driver = build_driver(NAME, kit.backend(kit.Memory), {"limit": "1Ki"})
    assert driver.name == NAME
    assert driver.view.hooks == {"describe", "provision", "delete", "owns"}


def test_a_backend_need_not_subclass_the_spec(kit: Any) -> None:
    class Plain:
        def __init__(self, options: Any) -> None:
            self.options = options

        @hookimpl
        def describe(self) -> DriverInfo:
            return DriverInfo(version="1")

        @hookimpl
        def provision(self, request: Any) -> None: ...

        @staticmethod
        @hookimpl
        def delete(request: Any) -> Done:
            return Done()

    assert build_driver(NAME, kit.backend(Plain), {}).view.hooks == {"describe", "provision", "delete"}


def test_any_callable_may_make_the_backend(kit: Any) -> None:
    def make(options: Any) -> Any:
        return kit.Memory({**options, "limit": 5})

    assert build_driver(NAME, kit.backend(make), {}).view.backend == "memory"


def test_an_unknown_hook_is_refused_with_the_nearest(kit: Any) -> None:
    class Backend(kit.Memory):  # type: ignore[misc, name-defined]
        @hookimpl
        def dettach(self, request: Any) -> Done:
            return Done()

    assert refusal(kit, Backend) == "hook dettach: is unknown; did you mean 'detach'?"


def test_an_optional_hook_that_this_version_does_not_know_is_let_be(kit: Any) -> None:
    class Backend(kit.Memory):  # type: ignore[misc, name-defined]
        @hookimpl(optionalhook=True)
        def teleport(self, request: Any) -> Done:
            return Done()

    assert not build_driver(NAME, kit.backend(Backend), {}).supports("teleport")


def test_an_unknown_argument_is_refused(kit: Any) -> None:
    class Backend(kit.Memory):  # type: ignore[misc, name-defined]
        @hookimpl
        def attach(self, request: Any, node: Any) -> Done:
            return Done()

    assert refusal(kit, Backend) == "hook attach: argument 'node' is unknown; hooks take 'request'"


def test_an_argument_with_a_default_may_be_the_authors_own(kit: Any) -> None:
    class Backend(kit.Memory):  # type: ignore[misc, name-defined]
        @hookimpl
        def probe(self, request: Any, deep: bool = False) -> Done:
            return Done()

    assert build_driver(NAME, kit.backend(Backend), {}).supports("probe")


def test_a_request_that_would_stay_unset_is_refused(kit: Any) -> None:
    class Backend(kit.Memory):  # type: ignore[misc, name-defined]
        @hookimpl
        def attach(self, request: Any = None) -> Done:
            return Done()

        @hookimpl
        def detach(self, *, request: Any) -> Done:
            return Done()

    unset = "argument 'request' must be positional and without a default, or it stays unset"
    assert refusal(kit, Backend) == f"hook attach: {unset}; hook detach: {unset}"


def test_arguments_that_are_never_filled_are_refused(kit: Any) -> None:
    class Backend(kit.Memory):  # type: ignore[misc, name-defined]
        @hookimpl
        def attach(self, *args: Any, **kwargs: Any) -> Done:
            return Done()

    assert "hook attach: argument '*args' is never filled; hooks take 'request'" in refusal(kit, Backend)


def test_a_forgotten_self_is_refused(kit: Any) -> None:
    class Backend(kit.Memory):  # type: ignore[misc, name-defined]
        @hookimpl
        def probe(request) -> Done:  # type: ignore[no-untyped-def]  # noqa: N805
            return Done()

    assert refusal(kit, Backend) == "hook probe: argument 'self' is missing before 'request'"


def test_an_override_without_the_mark_is_refused(kit: Any) -> None:
    class Backend(kit.Memory):  # type: ignore[misc, name-defined]
        def find(self, request: Any) -> Any: ...

    assert refusal(kit, Backend) == (
        "hook find: is not marked and would never be called; mark it with @hookimpl or rename it"
    )


def test_an_override_of_a_marked_hook_needs_the_mark_again(kit: Any) -> None:
    class Backend(kit.Memory):  # type: ignore[misc, name-defined]
        def provision(self, request: Any) -> Any: ...

    assert refusal(kit, Backend) == (
        "hook provision: is not marked and would never be called; mark it with @hookimpl or rename it"
    )


def test_a_missing_required_hook_is_refused(kit: Any) -> None:
    class Backend(BackendSpec):
        @hookimpl
        def describe(self, request: Any) -> DriverInfo:
            return DriverInfo(version="1")

    assert refusal(kit, Backend) == (
        "hook delete: is required and missing; implement it and mark it with @hookimpl; "
        "hook provision: is required and missing; implement it and mark it with @hookimpl"
    )


def test_a_special_method_is_no_hook(kit: Any) -> None:
    class Backend(BackendSpec):
        @hookimpl
        def describe(self, request: Any) -> DriverInfo:
            return DriverInfo(version="1")

        @hookimpl
        def delete(self, request: Any) -> Any: ...

        @hookimpl(specname="provision")
        def __call__(self, request: Any) -> Any: ...

    assert refusal(kit, Backend) == "hook provision: is required and missing; implement it and mark it with @hookimpl"


def test_an_async_hook_is_refused(kit: Any) -> None:
    class Backend(kit.Memory):  # type: ignore[misc, name-defined]
        @hookimpl
        async def attach(self, request: Any) -> Done:
            return Done()

    assert refusal(kit, Backend) == (
        "hook attach: is async; hooks are plain functions, they may block and run in worker threads"
    )


def test_a_generator_hook_is_refused(kit: Any) -> None:
    class Backend(kit.Memory):  # type: ignore[misc, name-defined]
        @hookimpl
        def attach(self, request: Any) -> Any:
            yield Done()

    assert refusal(kit, Backend) == "hook attach: is a generator; return one result instead of yielding"


@pytest.mark.parametrize("mark", [{"wrapper": True}, {"hookwrapper": True}])
def test_a_wrapper_in_a_backend_is_refused(kit: Any, mark: dict[str, bool]) -> None:
    class Backend(kit.Memory):  # type: ignore[misc, name-defined]
        @hookimpl(**mark)
        def attach(self, request: Any) -> Any:
            yield

    assert refusal(kit, Backend) == "hook attach: is a wrapper; only extensions wrap, a backend implements"


def test_a_marked_thing_that_pluggy_would_ignore_is_refused(kit: Any) -> None:
    class Backend(kit.Memory):  # type: ignore[misc, name-defined]
        attach = hookimpl(functools.lru_cache(lambda self, request: Done()))

    assert refusal(kit, Backend) == (
        "hook attach: attach is marked but is no plain function; pluggy would never call it"
    )


def test_one_hook_implemented_twice_is_refused(kit: Any) -> None:
    class Backend(kit.Memory):  # type: ignore[misc, name-defined]
        @hookimpl(specname="delete")
        def destroy(self, request: Any) -> Done:
            return Done()

    assert refusal(kit, Backend) == "hook delete: is implemented twice, by delete and destroy"


def test_all_mistakes_are_told_at_once(kit: Any) -> None:
    class Backend(kit.Memory):  # type: ignore[misc, name-defined]
        @hookimpl
        async def attach(self, request: Any) -> None: ...

        @hookimpl
        def detach(self, req: Any) -> None: ...

        def find(self, request: Any) -> None: ...

    message = refusal(kit, Backend)
    assert all(f"hook {hook}:" in message for hook in ("attach", "detach", "find"))


def test_a_backend_for_a_newer_contract_is_told_so_before_anything_else(kit: Any) -> None:
    class Backend(kit.Memory):  # type: ignore[misc, name-defined]
        @hookimpl
        def describe(self, request: Any) -> DriverInfo:
            return DriverInfo(version="1", hookspec_version=2)

        @hookimpl
        def clone(self, request: Any) -> None: ...

    assert refusal(kit, Backend) == "is built for hookspec version 2, this volplane knows 1; upgrade volplane"


def test_properties_are_not_evaluated_at_load(kit: Any) -> None:
    class Backend(kit.Memory):  # type: ignore[misc, name-defined]
        @property
        def client(self) -> object:
            raise AssertionError("this would dial the cloud")

    build_driver(NAME, kit.backend(Backend), {})


# --- describe ---------------------------------------------------------------------------------------------------


def described(kit: Any, answer: Any) -> type:
    class Backend(kit.Memory):  # type: ignore[misc, name-defined]
        @hookimpl
        def describe(self, request: Any) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

    return Backend


def test_describe_must_describe(kit: Any) -> None:
    with pytest.raises(PluginError, match="hook describe of backend memory returned None, expected DriverInfo"):
        build_driver(NAME, kit.backend(described(kit, None)), {})
    with pytest.raises(PluginError, match=r"of backend memory raised KeyError \(line \d+ of test_contract.py\): 'x'"):
        build_driver(NAME, kit.backend(described(kit, KeyError("x"))), {})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attach_required": True}, "attach_required is set, but hook attach is missing"),
        ({"csi_driver_name": "EBS"}, "csi_driver_name 'EBS' is no DNS subdomain"),
        ({"access_modes": frozenset()}, "access_modes is empty, expected some of ReadWriteOnce, ReadOnlyMany"),
        ({"access_modes": frozenset({"RWO"})}, "access_modes holds 'RWO', expected some of ReadWriteOnce"),
        ({"volume_modes": frozenset({"File"})}, "volume_modes holds 'File', expected some of Filesystem, Block"),
        ({"settle_seconds": -1.0}, "settle_seconds is -1.0, expected seconds"),
        ({"minimum_bytes": 5, "maximum_bytes": 4}, "maximum_bytes 4 is below minimum_bytes 5"),
        ({"parameters": {}}, "a schema of type dict, expected ParameterSchema"),
        (
            {"parameters": ParameterSchema(parameters=(Parameter(name="a", doc=""), Parameter(name="A", doc="")))},
            "parameter 'A' is declared twice, also as 'a'",
        ),
        (
            {"snapshot_parameters": ParameterSchema(parameters=(Parameter(name="b", doc="", since=2),))},
            "snapshot_parameters: parameter 'b' is since version 2, but the schema's version is 1",
        ),
        ({"snapshot_parameters": None}, "snapshot_parameters: a schema of type NoneType, expected ParameterSchema"),
        ({"archives": True}, "archives is set, but hook list_assets is missing"),
        ({"clones": "everywhere"}, "clones is 'everywhere', expected one of '', 'in place', 'anywhere'"),
    ],
)
def test_a_description_that_contradicts_itself_is_refused(kit: Any, fields: dict[str, Any], message: str) -> None:
    answer = DriverInfo(version="1", **fields)
    assert f"hook describe: {message}" in refusal(kit, described(kit, answer))


@pytest.mark.parametrize("missing", ["delete_snapshot", "find_snapshot"])
def test_who_makes_snapshots_also_finds_and_deletes_them(kit: Any, missing: str) -> None:
    def marked(hook: str) -> Any:
        def answer(self: Any, request: Any) -> None: ...

        return hookimpl(specname=hook)(answer)

    hooks = {"create_snapshot", "delete_snapshot", "find_snapshot"} - {missing}
    factory = type("Cuts", (kit.Memory,), {hook: marked(hook) for hook in hooks})
    assert f"hook describe: create_snapshot is there, but hook {missing} is missing" in refusal(kit, factory)


# --- options and names ------------------------------------------------------------------------------------------


def test_bad_options_are_refused_by_key_and_value(kit: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        build_driver(NAME, kit.backend(kit.Memory), {"limt": 3})
    assert str(refused.value) == "driver d.example.com: unknown option 'limt' (value 3); did you mean 'limit'?"


def test_a_wrong_options_schema_is_refused(kit: Any) -> None:
    class Backend(kit.Memory):  # type: ignore[misc, name-defined]
        options_schema = ParameterSchema(parameters=(Parameter(name="a", doc="", required=True, default="x"),))

    assert refusal(kit, Backend) == (
        "options_schema: parameter 'a' is required and has the default 'x'; it can only be one of them"
    )


@pytest.mark.parametrize(
    "name", ["", "Fast", "a_b", "-a", "a.", "a..b", "a/b", "ä.example.com", "a" * 64, ".".join(["a" * 60] * 5), "a\n"]
)
def test_a_driver_name_that_is_no_dns_subdomain_is_refused(kit: Any, name: str) -> None:
    with pytest.raises(ConfigurationError, match="is no DNS subdomain: lower-case letters, digits"):
        build_driver(name, kit.backend(kit.Memory), {})


@pytest.mark.parametrize("name", ["hostpath", "nfs.volplane.dev", "0-1.a-b.c", "kubernetes.io/host-path"])
def test_dns_subdomains_and_in_tree_names_are_driver_names(name: str) -> None:
    assert driver_name_flaw(name) is None


def test_a_backend_that_cannot_be_made_says_why(kit: Any) -> None:
    def explode(options: Any) -> Any:
        raise OSError("no\nroute")

    assert refusal(kit, explode) == "cannot be made: OSError: no route"


def test_a_backend_that_knows_what_is_wrong_with_its_options_may_say_it(kit: Any) -> None:
    def picky(options: Any) -> Any:
        raise ConfigurationError("option 'root' is '/': choose a directory")

    with pytest.raises(ConfigurationError, match="choose a directory"):
        build_driver(NAME, kit.backend(picky), {})


@pytest.mark.parametrize("made", [None, dict])
def test_an_entry_point_that_gives_no_instance_is_refused(kit: Any, made: Any) -> None:
    assert "expected an instance with hooks" in refusal(kit, lambda _options: made)


# --- extensions -------------------------------------------------------------------------------------------------


def test_a_right_extension_is_taken(kit: Any) -> None:
    class Watcher:
        def __init__(self, options: Any) -> None: ...

        @hookimpl(wrapper=True)
        def provision(self, request: Any) -> Any:
            return (yield)

    assert isinstance(build_extension(kit.extension(Watcher), {}).instance, Watcher)


def test_an_extension_may_be_a_module(kit: Any) -> None:
    module = types.ModuleType("watcher")

    @hookimpl(wrapper=True)
    def provision(request: Any) -> Any:
        return (yield)

    module.provision = provision  # type: ignore[attr-defined]
    assert build_extension(kit.extension(lambda _options: module), {}).instance is module


def test_an_extension_that_implements_instead_of_wrapping_is_refused(kit: Any) -> None:
    class Watcher:
        def __init__(self, options: Any) -> None: ...

        @hookimpl
        def provision(self, request: Any) -> Any: ...

    assert extension_refusal(kit, Watcher) == (
        "hook provision: an extension may only wrap; mark it with @hookimpl(wrapper=True)"
    )


def test_an_old_style_wrapper_is_refused(kit: Any) -> None:
    class Watcher:
        def __init__(self, options: Any) -> None: ...

        @hookimpl(hookwrapper=True)
        def provision(self, request: Any) -> Any:
            yield

    assert "mark it with @hookimpl(wrapper=True)" in extension_refusal(kit, Watcher)


def test_a_wrapper_that_does_not_yield_is_refused(kit: Any) -> None:
    class Watcher:
        def __init__(self, options: Any) -> None: ...

        @hookimpl(wrapper=True)
        def provision(self, request: Any) -> Any: ...

    assert extension_refusal(kit, Watcher) == (
        "hook provision: a wrapper is a generator: 'result = yield', then 'return result'"
    )


def test_an_extension_that_wraps_nothing_is_refused(kit: Any) -> None:
    class Watcher:
        def __init__(self, options: Any) -> None: ...

    assert extension_refusal(kit, Watcher).startswith("wraps no hook; mark a generator function named after one")


def test_an_extension_with_an_unknown_hook_is_refused(kit: Any) -> None:
    class Watcher:
        def __init__(self, options: Any) -> None: ...

        @hookimpl(wrapper=True)
        def provison(self, request: Any) -> Any:
            yield

    assert extension_refusal(kit, Watcher) == "hook provison: is unknown; did you mean 'provision'?"
