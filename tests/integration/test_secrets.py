"""A driver whose password is in a Kubernetes Secret: from the Secret to the hook, and into nothing else."""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends import Filer
from integration.controller_process import Asked, Site, running_process
from volplane import hookimpl
from volplane.cli.installation import cluster_rules, named_secrets, namespace_rules, secret_rule
from volplane.controller import logs
from volplane.controller.config import Configuration, DriverSettings
from volplane.controller.controller import Rule
from volplane.drivers.contract import Plugin
from volplane.errors import ApiNotFound, Unavailable
from volplane.kube.kinds import CLAIMS, SECRETS, STORAGE_CLASSES, VOLUMES
from volplane.kube.transport import Request, Response
from volplane.process.duties import ALL_CONTROLLERS

OURS = "volplane-system"
FILER = Filer.default_driver_name
PASSWORD = "s3cr3t-in-the-cluster"
EVERYTHING = frozenset(ALL_CONTROLLERS)


class Guarded(Filer):
    """Lets in who knows the password."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.log_in = self._admit

    def _admit(self, password: str) -> None:
        if password != PASSWORD:
            raise Unavailable(f"the filer does not let in {password}")

    @hookimpl
    def provision(self, request: Any) -> Any:
        made = super().provision(request)
        request.context.log.warning("logged in with %s", self.password.reveal())
        return made


def configuration(reference: object) -> Configuration:
    driver = DriverSettings(name=FILER, backend="filer", options={"password": reference})
    return replace(Configuration(), drivers=(driver,))


@asynccontextmanager
async def site_with(directory: Path, reference: str) -> AsyncIterator[Site]:
    plugin = Plugin(kind="backend", name="filer", factory=Guarded)
    configured = configuration(reference)
    async with running_process(directory, EVERYTHING, configuration=configured, plugins=[plugin]) as site:
        yield site


async def put_secret(site: Site, key: str, **data: str) -> None:
    namespace, _, name = key.partition("/")
    encoded = {each: base64.b64encode(value.encode()).decode() for each, value in data.items()}
    body = SECRETS.body(metadata={"name": name, "namespace": namespace}, type="Opaque", data=encoded)
    try:
        await site.client.get(SECRETS, key)
    except ApiNotFound:
        await site.client.create(SECRETS, body)
    else:
        await site.client.patch(SECRETS, key, {"data": encoded})


async def everything(site: Site) -> str:
    """Every object that anybody but the readers of Secrets can see, as text."""
    paths = (CLAIMS.path(), VOLUMES.path(), STORAGE_CLASSES.path(), "/api/v1/events", "/api/v1/pods")
    texts = []
    for path in paths:
        answer: Response = await site.transport.send(Request(path=path, seconds=10.0))
        texts.append(answer.body.decode())
    return "\n".join(texts)


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """The log of the process."""
    stream, level = io.StringIO(), logging.getLogger().level
    handler = logs.configure("json", stream=stream)
    yield stream
    logging.getLogger().removeHandler(handler)
    logging.getLogger().setLevel(level)
    logging.getLogger("volplane").setLevel(logging.NOTSET)


@pytest.mark.real_time
async def test_the_password_goes_from_the_secret_to_the_hook_and_nowhere_else(
    tmp_path: Path, logged: io.StringIO
) -> None:
    async with site_with(tmp_path, "secret:volplane-system/filer/password") as site:
        driver = site.process.plane.drivers  # type: ignore[union-attr]
        _, ready = await site.get("/readyz")
        assert "start failed: option password: Secret volplane-system/filer does not exist" in ready
        await put_secret(site, "volplane-system/filer", password="wrong-password", user="root")
        await site.until("the driver has started", lambda: driver.get(FILER))
        body = STORAGE_CLASSES.body(metadata={"name": "filer"}, provisioner=FILER)
        await site.client.create(STORAGE_CLASSES, body)
        await site.make_claim("data", "filer")

        async def refused() -> bool:
            return "the filer does not let in ***" in await everything(site)

        await site.until("the claim says why it waits", refused)
        await put_secret(site, "volplane-system/filer", password=PASSWORD)
        assert await driver.probe(FILER) == ""
        await site.bound("data")
        shown = [await everything(site)]
        pages = ("/readyz", "/metrics", "/explain?claim=default/data", "/leaks", "/status")
        shown.extend([(await site.get(page))[1] for page in pages])

    text = "\n".join(shown) + logged.getvalue()
    assert "pvc-" in text
    assert "logged in with ***" in text
    assert PASSWORD not in text
    assert "wrong-password" not in text
    secrets = {each for each in site.asked if each.resource == "secrets" and each.name == "filer"}
    assert secrets == {Asked("get", "", "secrets", OURS, "filer")}


def test_the_manifests_let_the_account_read_the_named_secrets_and_no_others() -> None:
    assert named_secrets(configuration("secret:volplane-system/filer/password")) == {OURS: {"filer"}}
    [reading] = [r for r in namespace_rules(ALL_CONTROLLERS) if r.resource == "secrets" and "get" in r.verbs]
    assert reading == Rule("", "secrets", ("get",), ("volplane-seal",))
    assert not [rule for rule in cluster_rules(ALL_CONTROLLERS, OURS) if rule.resource == "secrets"]
    assert named_secrets(configuration("env:PASSWORD")) == {}
    assert named_secrets(configuration("secret:team-a/keys/a")) == {"team-a": {"keys"}}
    for several in ("secret:team-a/one/*, secret:team-b/two/*", ["secret:team-a/one/*", "secret:team-b/two/*"]):
        assert named_secrets(configuration(several)) == {"team-a": {"one"}, "team-b": {"two"}}, several
    assert secret_rule({"keys"}).body() == {
        "apiGroups": [""],
        "resources": ["secrets"],
        "verbs": ["get"],
        "resourceNames": ["keys"],
    }
