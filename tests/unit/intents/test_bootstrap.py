"""What a process makes before its first decision."""

from __future__ import annotations

import asyncio
import math
from random import Random

import pytest

from volplane.errors import ConfigurationError
from volplane.intents.bootstrap import SEAL_SECRET, Bootstrap, ensure_namespace, find_sealer
from volplane.kube.client import Client
from volplane.kube.kinds import NAMESPACES, SECRETS
from volplane.process.duties import namespace_labels
from volplane.state.records import INTENT_VERSION, ClaimIntent
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing.clock import now
from volplane_testing.transport import FaultScript, FaultTransport, refuse, requests

ENFORCE = "pod-security.kubernetes.io/enforce"


@pytest.mark.parametrize(
    ("controllers", "level"), [({"provisioner", "reclaimer"}, "privileged"), ({"provisioner"}, "restricted")]
)
async def test_a_namespace_that_is_made_admits_the_scrubber_pods_and_no_more_than_needed(
    controllers: set[str], level: str
) -> None:
    client = Client(InProcessTransport(ApiServer(now=now, random=Random(1))))
    await ensure_namespace(client, "ours", namespace_labels(controllers))
    made = await client.get(NAMESPACES, "ours")
    assert (made.metadata.labels or {})[ENFORCE] == level


async def test_the_labels_of_a_namespace_that_exists_stay_as_somebody_set_them() -> None:
    client = Client(InProcessTransport(ApiServer(now=now, random=Random(1))))
    await client.create(NAMESPACES, NAMESPACES.body(metadata={"name": "ours", "labels": {ENFORCE: "baseline"}}))
    await ensure_namespace(client, "ours", namespace_labels({"reclaimer"}))
    kept = await client.get(NAMESPACES, "ours")
    assert (kept.metadata.labels or {})[ENFORCE] == "baseline"


# --- the sealing key ----------------------------------------------------------------------------------------------


async def with_namespace() -> tuple[Client, FaultScript]:
    server, script = ApiServer(now=now, random=Random(1)), FaultScript()
    client = Client(FaultTransport(InProcessTransport(server), script))
    for name in ("kube-system", "ours"):
        await client.find(NAMESPACES, name) or await client.create(NAMESPACES, NAMESPACES.body(metadata={"name": name}))
    return client, script


async def put_key(client: Client, data: dict[str, str] | None) -> None:
    body = SECRETS.body(metadata={"name": SEAL_SECRET, "namespace": "ours"})
    await client.create(SECRETS, body if data is None else body | {"data": data})


async def test_processes_that_start_at_once_have_one_key_and_name_their_namespace() -> None:
    client, _ = await with_namespace()
    sealers = await asyncio.gather(*(find_sealer(client, "ours", make=True) for _ in range(3)))
    found = [each for each in sealers if each is not None]
    record = found[0].seal("uid", ClaimIntent(v=INTENT_VERSION, driver="d"))
    assert all(each.open("uid", record) is not None for each in found)
    assert [each.installation for each in found] == ["ours"] * 3


@pytest.mark.parametrize("data", [None, {}, {"key": ""}, {"key": "YWJj"}, {"other": "a" * 44}])
@pytest.mark.parametrize("make", [True, False])
async def test_a_secret_without_a_usable_key_is_an_error_that_says_what_to_do(
    data: dict[str, str] | None, make: bool
) -> None:
    """Another key, made in its place, would void every open record without a word."""
    client, _ = await with_namespace()
    await put_key(client, data)
    with pytest.raises(ConfigurationError) as caught:
        await find_sealer(client, "ours", make=make)
    assert str(caught.value).startswith('secret ours/volplane-seal: data["key"] must be at least 16 bytes in base64; ')
    assert "restore it, or delete the secret" in str(caught.value)


@pytest.mark.parametrize("verb", ["get", "create"])
async def test_a_process_that_may_not_read_or_make_the_key_ends_with_an_error(verb: str) -> None:
    client, script = await with_namespace()
    script.add(requests(verb, "secrets"), refuse(403), times=math.inf)
    with pytest.raises(ConfigurationError) as caught:
        await Bootstrap(client, namespace="ours").run()
    assert "403" in str(caught.value) or "forbidden" in str(caught.value).lower()


@pytest.mark.parametrize("verb", ["get", "create"])
async def test_a_process_waits_for_a_server_that_does_not_answer_about_the_key(verb: str) -> None:
    client, script = await with_namespace()
    script.add(requests(verb, "secrets"), refuse(503), times=3)
    bootstrap = Bootstrap(client, namespace="ours")
    _, sealer = await bootstrap.run()
    assert (sealer.installation, bootstrap.trouble) == ("ours", "")


async def test_a_key_that_may_only_be_read_is_enough() -> None:
    client, script = await with_namespace()
    await put_key(client, {"key": "a" * 44})
    for verb in ("create", "update", "patch", "delete"):
        script.add(requests(verb, "secrets"), refuse(403), times=math.inf)
    assert (await Bootstrap(client, namespace="ours").run())[1].installation == "ours"


async def test_the_process_of_a_node_waits_for_the_key_that_the_central_one_makes() -> None:
    """An account that may create Secrets could be first, and then know the key of all nodes for ever."""
    client, script = await with_namespace()
    bootstrap = Bootstrap(client, namespace="ours", on_node=True)
    starting = asyncio.ensure_future(bootstrap.run())
    await asyncio.sleep(60)
    assert not starting.done()
    assert bootstrap.trouble == "the central process has not made Secret ours/volplane-seal yet"
    assert not [each for each in script.requests if (each.verb, each.resource) == ("create", "secrets")]
    await put_key(client, {"key": "a" * 44})
    assert (await starting)[1].installation == "ours"
