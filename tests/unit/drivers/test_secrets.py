"""Secrets of drivers: named by options, refused in classes, read late, shown nowhere, whatever a backend does with
them.
"""

from __future__ import annotations

import base64
import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backends import Filer, start_all
from volplane import (
    Asset,
    DriverInfo,
    InProgress,
    Parameter,
    ParameterKind,
    ParameterSchema,
    Secret,
    Unavailable,
    VolumeSource,
    hookimpl,
)
from volplane.controller import logs
from volplane.controller.config import parse_configuration
from volplane.drivers.contract import schema_flaws
from volplane.drivers.driver import Driver, DriverState, LoadedDrivers
from volplane.drivers.executor import HookCalls
from volplane.drivers.loading import build_driver, build_extension
from volplane.drivers.registry import DriverRegistry, refresh_secrets
from volplane.errors import (
    ApiError,
    ApiNotFound,
    ApiUnavailable,
    BackendError,
    ConfigurationError,
    InvalidArgument,
    OutcomeUnknown,
    PermissionDenied,
    PluginError,
)
from volplane.extensions.call_log import CallLog
from volplane.requests import Context, StartRequest
from volplane_testing.clock import run
from volplane_testing.executor import InlineExecutor

PASSWORD = "s3cr3t-of-the-filer"
VARIABLE = "VOLPLANE_TEST_FILER"
NAME = Filer.default_driver_name
CREDENTIALS = Filer.options_schema
START = StartRequest(context=Context(driver=NAME, cluster_id="c"))


@pytest.fixture(autouse=True)
def _in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, PASSWORD)


@pytest.fixture
def filer(kit: Any) -> tuple[Driver, Filer]:
    made: list[Filer] = []

    class Kept(Filer):
        def __init__(self, options: Any) -> None:
            super().__init__(options)
            made.append(self)

    return build_driver(NAME, kit.backend(Kept), {"password": f"env:{VARIABLE}"}), made[0]


def refusal(kit: Any, options: dict[str, Any]) -> str:
    with pytest.raises(ConfigurationError) as refused:
        build_driver(NAME, kit.backend(Filer), options)
    return str(refused.value)


# --- options ----------------------------------------------------------------------------------------------------


def test_a_backend_gets_a_secret_that_it_reads_when_it_needs_it(
    kit: Any, filer: tuple[Driver, Filer], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, backend = filer
    assert backend.password == Secret(f"env:{VARIABLE}")
    read: list[str] = []
    backend.log_in = read.append
    driver.call(kit.demand())
    monkeypatch.setenv(VARIABLE, "rotated since")
    driver.call(kit.demand())
    assert read == [PASSWORD, "rotated since"]


@pytest.mark.parametrize("literal", [PASSWORD, f"env:{PASSWORD}", f" {PASSWORD}\n", 12345678, ["12345678"], None])
def test_an_option_that_holds_the_secret_itself_is_refused_and_not_repeated(kit: Any, literal: object) -> None:
    message = refusal(kit, {"password": literal})
    assert message == (
        f"driver {NAME}: option 'password' cannot be used, expected where the secret is, as env:NAME, file:/PATH or "
        "secret:NAMESPACE/NAME/KEY"
    )


@pytest.mark.parametrize("key", ["pasword", "filerPassword", "api-key", "clientSecret", "token", "private_key"])
def test_the_value_of_a_misspelt_option_is_not_repeated_either(kit: Any, key: str) -> None:
    message = refusal(kit, {"password": f"env:{VARIABLE}", key: PASSWORD})
    assert f"unknown option {key!r} (value ***)" in message
    assert PASSWORD not in message


def test_a_configuration_whose_options_are_a_literal_does_not_repeat_it() -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_configuration(f"drivers: [{{name: a, backend: b, options: {PASSWORD}}}]", "v.yaml")
    assert str(refused.value) == "v.yaml: drivers[0].options: is str, expected a mapping (key: value)"


def test_a_missing_secret_is_named_with_what_it_takes(kit: Any) -> None:
    assert "option 'password' is required: where the secret is, as env:NAME" in refusal(kit, {})


@pytest.mark.parametrize(
    "rules", [{"default": "env:A"}, {"choices": ("a",)}, {"pattern": "a"}, {"minimum": 1}, {"maximum": 1}]
)
def test_a_schema_can_say_nothing_of_a_secret_but_its_name(rules: dict[str, Any]) -> None:
    parameter = Parameter(name="password", doc="", kind=ParameterKind.SECRET, **rules)
    assert schema_flaws(ParameterSchema(parameters=(parameter,))) == (
        "parameter 'password' is a secret and can have no default, choices, pattern or bounds",
    )


# --- classes ----------------------------------------------------------------------------------------------------


def test_a_backend_whose_classes_would_hold_secrets_is_refused(kit: Any) -> None:
    class Backend(kit.Memory):  # type: ignore[misc, name-defined]
        @hookimpl
        def describe(self, request: Any) -> DriverInfo:
            return DriverInfo(version="1", parameters=CREDENTIALS)

    with pytest.raises(PluginError) as refused:
        build_driver(NAME, kit.backend(Backend), {})
    assert str(refused.value).endswith(
        "hook describe: parameter 'password' is a secret; make it an option of the driver"
    )


@pytest.mark.parametrize("key", ["password", "Password"])
def test_a_secret_in_a_class_is_refused_and_not_repeated(filer: tuple[Driver, Filer], key: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        filer[0].view.typed_parameters({key: PASSWORD})
    assert str(refused.value) == (
        f"driver {NAME}: parameter {key!r} must not stand in a class, which many may read: secrets are options of the "
        "driver, by reference"
    )


# --- whatever a backend does ------------------------------------------------------------------------------------


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What the process logs, in both forms, tracebacks included."""
    stream = io.StringIO()
    level = logging.getLogger().level
    ours = logging.getLogger("volplane").level
    handlers = [logs.configure(form, verbosity=2, stream=stream) for form in ("text", "json")]  # type: ignore[arg-type]
    yield stream
    for handler in handlers:
        logging.getLogger().removeHandler(handler)
    logging.getLogger().setLevel(level)
    logging.getLogger("volplane").setLevel(ours)


def raising(error: type[Exception]) -> Callable[[str], Any]:
    def act(password: str) -> Any:
        raise error(f"login as root:{password} failed")

    return act


@pytest.mark.parametrize("error", [Unavailable, KeyError, OSError])
def test_an_error_with_the_secret_in_it_does_not_show_it(
    kit: Any, filer: tuple[Driver, Filer], error: type[Exception], logged: io.StringIO
) -> None:
    driver, backend = filer
    backend.log_in = raising(error)
    with pytest.raises(BackendError) as raised:
        driver.call(kit.demand())
    assert "login as root:*** failed" in str(raised.value)
    assert PASSWORD not in repr(raised.value) + repr(raised.value.args) + raised.value.message
    assert PASSWORD not in logged.getvalue()


@pytest.mark.parametrize(
    "careless",
    [
        lambda p: Asset(handle=p, source=VolumeSource(kind="nfs", fields={}), capacity_bytes=1),
        lambda p: Asset(
            handle="a", source=VolumeSource(kind="nfs", fields={"options": [f"password={p}"]}), capacity_bytes=1
        ),
        lambda p: Asset(
            handle="a", source=VolumeSource(kind="nfs", fields={}), capacity_bytes=1, attributes={"url": f"x://a:{p}@b"}
        ),
        lambda p: InProgress(retry_after=1, state={"session": p}),
    ],
)
def test_a_result_with_the_secret_in_it_reaches_no_object(
    kit: Any, filer: tuple[Driver, Filer], careless: Callable[[str], Any]
) -> None:
    driver, backend = filer
    backend.log_in = careless
    with pytest.raises(OutcomeUnknown, match="with the secret of option password in it; many may read") as raised:
        driver.call(kit.demand())
    assert PASSWORD not in str(raised.value)


def test_a_description_with_the_secret_in_it_is_refused(kit: Any) -> None:
    class Backend(Filer):
        @hookimpl
        def describe(self, request: Any) -> DriverInfo:
            return DriverInfo(version="1", topology_keys=(self.password.reveal(),))

    with pytest.raises(PluginError, match="hook describe of backend memory returned DriverInfo with the secret"):
        build_driver(NAME, kit.backend(Backend), {"password": f"env:{VARIABLE}"})


def test_a_backend_that_cannot_be_made_does_not_show_it(kit: Any, logged: io.StringIO) -> None:
    for error in (KeyError, ConfigurationError):

        class Backend(Filer):
            def __init__(self, options: Any) -> None:
                raise error(f"no filer with {options['password'].reveal()}")  # noqa: B023 - called at once

        with pytest.raises(PluginError, match=r"cannot be made: .*no filer with \*\*\*") as refused:
            build_driver(NAME, kit.backend(Backend), {"password": f"env:{VARIABLE}"})
        assert PASSWORD not in str(refused.value)
    assert PASSWORD not in logged.getvalue()


def test_what_a_backend_logs_does_not_show_it(kit: Any, filer: tuple[Driver, Filer], logged: io.StringIO) -> None:
    driver, backend = filer
    request = kit.demand()

    def act(password: str) -> None:
        with logs.bound(object=password):
            request.context.log.warning("connecting with %s", password)
            logging.getLogger("somebody.else").error("its %r", {"password": password})
            request.context.log.error("failed", exc_info=OSError(password))

    backend.log_in = act
    driver.call(request)
    text = logged.getvalue()
    assert PASSWORD not in text
    assert "connecting with ***" in text
    assert [json.loads(line)["object"] for line in text.splitlines() if '"failed"' in line] == ["***"]


def test_a_call_log_does_not_show_it(kit: Any, tmp_path: Path) -> None:
    class Careless(Filer):
        @hookimpl
        def provision(self, request: Any) -> Any:
            raise Unavailable(f"login with {self.password.reveal()}")

    extension = build_extension(kit.extension(CallLog), {"path": str(tmp_path / "calls")})
    driver = build_driver(NAME, kit.backend(Careless), {"password": f"env:{VARIABLE}"}, [extension])
    with pytest.raises(Unavailable):
        driver.call(kit.demand())
    assert json.loads((tmp_path / "calls").read_text())["message"] == "login with ***"


# --- starting ---------------------------------------------------------------------------------------------------


def test_a_driver_does_not_start_without_its_secret(
    filer: tuple[Driver, Filer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(Unavailable, match=rf"^option password: environment variable {VARIABLE} is not set$"):
        filer[0].call(START)
    monkeypatch.setenv(VARIABLE, "there")
    filer[0].call(START)


def test_an_extension_may_have_secrets_too_and_is_named(kit: Any, tmp_path: Path) -> None:
    class Watcher:
        options_schema = CREDENTIALS

        def __init__(self, options: Any) -> None:
            self.password = options["password"]

        @hookimpl(wrapper=True)
        def provision(self, request: Any) -> Any:
            return (yield)

    extension = build_extension(kit.extension(Watcher), {"password": f"file:{tmp_path}/none"})
    driver = build_driver(NAME, kit.backend(kit.Memory), {}, [extension])
    with pytest.raises(
        Unavailable,
        match=r"^option password of extension watcher \(volplane-watcher 1\.0\): file .*none cannot be read",
    ):
        driver.call(START)


class ApiOfSecrets:
    """The reads that `refresh_secrets` makes of a client."""

    def __init__(self, **data: dict[str, str]) -> None:
        self.data = {key.replace("__", "/"): value for key, value in data.items()}
        self.reads: list[str] = []
        self.error: ApiError | None = None

    async def get(self, _kind: Any, key: str) -> Any:
        self.reads.append(key)
        if self.error is not None:
            raise self.error
        if key not in self.data:
            raise ApiNotFound("gone", status=404)
        return SimpleNamespace(data={k: base64.b64encode(v.encode()).decode() for k, v in self.data[key].items()})


def refreshed(api: ApiOfSecrets, **named: str) -> dict[str, Secret]:
    secrets = {f"option {name}": Secret(reference) for name, reference in named.items()}

    async def main() -> None:
        await refresh_secrets(api, secrets)  # type: ignore[arg-type]

    run(main())
    return secrets


def test_kubernetes_secrets_are_read_once_each_and_others_not_at_all() -> None:
    api = ApiOfSecrets(ns__filer={"user": "root", "password": PASSWORD + "\n"})
    secrets = refreshed(api, a="secret:ns/filer/user", b="secret:ns/filer/password", c=f"env:{VARIABLE}")
    assert [secret.reveal() for secret in secrets.values()] == ["root", PASSWORD, PASSWORD]
    assert api.reads == ["ns/filer"]


def test_an_asterisk_stands_for_all_keys_as_a_json_object() -> None:
    api = ApiOfSecrets(ns__ceph={"adminID": "admin", "adminKey": PASSWORD}, ns__empty={})
    secrets = refreshed(api, a="secret:ns/ceph/*", b="secret:ns/ceph/adminID", c="secret:ns/empty/*")
    assert [secret.reveal() for secret in secrets.values()] == [
        f'{{"adminID": "admin", "adminKey": "{PASSWORD}"}}',
        "admin",
        "{}",
    ]


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (None, Unavailable, "option a: Secret ns/none does not exist; create it with the key password"),
        (
            ApiError("no", status=403),
            PermissionDenied,
            "option a: Secret ns/none may not be read; `volplane manifests --config` prints the Role that allows it",
        ),
        (ApiUnavailable("no answer", status=0), Unavailable, "option a: Secret ns/none cannot be read: no answer"),
    ],
)
def test_a_kubernetes_secret_that_cannot_be_read_is_named(
    error: ApiError | None, kind: type[BackendError], said: str
) -> None:
    api = ApiOfSecrets()
    api.error = error
    with pytest.raises(kind) as raised:
        refreshed(api, a="secret:ns/none/password")
    assert str(raised.value) == said


def test_a_key_that_is_missing_is_named_with_those_that_are_there() -> None:
    with pytest.raises(Unavailable, match=r"^option a: Secret ns/filer has no key pass; its keys: password, user$"):
        refreshed(ApiOfSecrets(ns__filer={"user": "u", "password": PASSWORD}), a="secret:ns/filer/pass")


def test_a_secret_that_is_missing_keeps_no_other_one_from_its_new_value() -> None:
    api = ApiOfSecrets(ns__filer={"password": PASSWORD})
    gone, there = Secret("secret:ns/gone/key"), Secret("secret:ns/filer/password")

    async def main() -> None:
        with pytest.raises(Unavailable, match=r"^option a: Secret ns/gone does not exist; create it with the key key$"):
            await refresh_secrets(api, {"option a": gone, "option b": there})  # type: ignore[arg-type]

    run(main())
    assert there.reveal() == PASSWORD


class Accounts(Filer):
    """Logs in by one of several Secrets: that whose name the class gives."""

    options_schema = ParameterSchema(
        parameters=(Parameter(name="accounts", doc="Which.", kind=ParameterKind.SECRETS, default=()),)
    )

    def __init__(self, options: Any) -> None:
        super().__init__({"password": Secret(f"env:{VARIABLE}")})
        self.accounts: tuple[Secret, ...] = options["accounts"]


@pytest.mark.parametrize("as_list", [False, True], ids=["comma-separated", "a list"])
async def test_a_driver_starts_without_one_of_several_secrets_tells_it_and_takes_it_in(kit: Any, as_list: bool) -> None:
    api = ApiOfSecrets(ns__two={"key": "first-of-two"})
    listed = ["secret:ns/one/*", "secret:ns/two/*"]
    made: list[Accounts] = []

    class Kept(Accounts):
        def __init__(self, options: Any) -> None:
            super().__init__(options)
            made.append(self)

    driver = build_driver(NAME, kit.backend(Kept), {"accounts": listed if as_list else ", ".join(listed)})
    loaded = LoadedDrivers(drivers=(driver,))
    drivers = DriverRegistry(loaded, HookCalls(loaded, InlineExecutor()), client=api)  # type: ignore[arg-type]
    await start_all(drivers)
    missing = "Secret ns/one does not exist; create it with its keys"
    [status] = drivers.status()
    assert (status.state, status.healthy) == (DriverState.READY, True)
    assert status.error == f"option accounts (secret:ns/one/*): {missing}"
    one, two = made[0].accounts
    assert two.reveal() == '{"key": "first-of-two"}'
    with pytest.raises(Unavailable, match=missing):
        one.reveal()

    api.data["ns/two"] = {"key": "second-of-two"}
    assert await drivers.probe(NAME) == ""
    assert two.reveal() == '{"key": "second-of-two"}'

    api.data["ns/one"] = {"key": "late"}
    assert await drivers.probe(NAME) == ""
    assert one.reveal() == '{"key": "late"}'
    assert [each.error for each in drivers.status()] == [""]


async def test_a_driver_waits_for_its_secret_follows_its_rotation_and_outlives_its_loss(kit: Any) -> None:
    api = ApiOfSecrets()
    driver = build_driver(NAME, kit.backend(Filer), {"password": "secret:ns/filer/password"})
    loaded = LoadedDrivers(drivers=(driver,))
    drivers = DriverRegistry(loaded, HookCalls(loaded, InlineExecutor()), client=api)  # type: ignore[arg-type]
    await start_all(drivers)
    [status] = drivers.status()
    assert (status.state, status.healthy) == (DriverState.UNAVAILABLE, False)
    assert (
        status.error == "start failed: option password: Secret ns/filer does not exist; create it with the key password"
    )

    api.data["ns/filer"] = {"password": PASSWORD}
    await drivers._start(drivers._entries[NAME])
    secret = driver.secrets["option password"]
    assert secret.reveal() == PASSWORD
    assert drivers.get(NAME) is driver.view

    api.data["ns/filer"] = {"password": "rotated"}
    assert await drivers.probe(NAME) == ""
    assert secret.reveal() == "rotated"

    del api.data["ns/filer"]
    assert await drivers.probe(NAME) == (
        "probe failed: option password: Secret ns/filer does not exist; create it with the key password"
    )
    assert drivers.get(NAME) is driver.view, "what runs goes on with the last value"
    assert secret.reveal() == "rotated"
