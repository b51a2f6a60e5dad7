"""Who asks the leader from anywhere gets what they may read anyway, of the leader alone, and gives their token away to
nobody else.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from integration.led_cluster import ADMIN, OURS, POD, led_cluster, may_ask
from volplane.asking.leader import LeaderSilent
from volplane.cli.controller_client import Access
from volplane.controller.http import Pages, serve_pages
from volplane.controller.http_access import HttpAddress
from volplane.kube.kinds import CLAIMS, LEASES, PODS, VOLUMES
from volplane.kube.names import ENDPOINT
from volplane.snapshots.groups_objects import GROUPS
from volplane.snapshots.objects import VOLUME_SNAPSHOT_CONTENTS, VOLUME_SNAPSHOTS
from volplane_embedded.apiserver.users import Access as Wanted

pytestmark = pytest.mark.real_time


async def asked(access: Access, path: str, query: dict[str, str] | None = None, *, method: str = "GET") -> Any:
    async with access.leader() as leader:
        return await leader.ask(path, query, method=method)


async def silence(access: Access, path: str, query: dict[str, str] | None = None, *, method: str = "GET") -> str:
    with pytest.raises(LeaderSilent) as silent:
        await asked(access, path, query, method=method)
    return str(silent.value)


def of_team(wanted: Wanted) -> bool:
    """May ask, and read the claims of the namespace `team`."""
    own = wanted.namespace == "team" and wanted.resource == "persistentvolumeclaims" and wanted.verb in ("get", "list")
    return own or may_ask(wanted)


def everything_but_ours(wanted: Wanted) -> bool:
    return wanted.namespace != OURS or may_ask(wanted)


async def test_the_lease_alone_leads_to_the_leader_on_the_same_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led_cluster(tmp_path, monkeypatch, in_pod=False) as led, led.admin().leader() as leader:
        assert (await leader.ask("/status"))["leads"]
        assert leader.by == f"{POD}_12ab"
        assert led.forwarded == []


async def test_from_elsewhere_the_api_server_leads_to_it_and_it_answers_to_the_rights_of_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led_cluster(tmp_path, monkeypatch) as led:
        await led.make_claim("team", "own", storageClassName="absent")
        await led.make_claim("other", "secret", storageClassName="hidden")
        await led.make_claim("default", "taker", storageClassName="")
        volume = {"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
        claim = await led.site.client.get(CLAIMS, "default/taker")
        reference = {"namespace": "default", "name": "taker", "uid": claim.uid}
        body = VOLUMES.body(metadata={"name": "theirs"}, spec={**volume, "claimRef": reference})
        await led.site.client.create(VOLUMES, body)
        await led.make_claim("team", "prying", storageClassName="", volumeName="theirs")
        await led.known("team/own", "other/secret", "team/prying")
        tenant = led.user("tenant", of_team)

        async with led.admin().leader() as leader:
            assert "other/secret" in (await leader.ask("/status"))["reasons"]["claims"]
            assert leader.by == f"{POD}_12ab"
        assert led.forwarded == [(OURS, POD, led.port)]
        assert (await asked(tenant, "/explain", {"claim": "team/own"}))["found"]
        for query in (
            {"claim": "other/secret"},
            {"claim": "other/not-there"},
            {"claim": "team/prying"},
            {"volume": "theirs"},
            {"class": "hidden"},
            {"snapshot": "team/s"},
            {"claim": "team/own", "volume": "theirs"},
        ):
            assert "tenant may not get" in await silence(tenant, "/explain", query)
        assert "tenant may not list persistentvolumeclaims" in await silence(tenant, "/status")
        for path in ("/leaks", "/adopt"):
            assert "tenant may not list" in await silence(tenant, path)
        for path in ("/leaks/fix", "/leaks/check", "/adopt", "/adopt/plan", "/archives"):
            assert "tenant may not" in await silence(tenant, path, {"from": "x"}, method="POST")
        async with tenant.leader() as leader:
            status = await leader.status("team")
            assert [*status["reasons"]["claims"]] == ["team/own", "team/prying"]
            assert "other" not in json.dumps(status["reasons"])
            assert status["drivers"] == []
            with pytest.raises(LeaderSilent):
                await leader.status("other")
            # A refusal is no reason to look for the leader elsewhere.
            assert (await leader.status("team"))["namespace"] == "team"


async def test_a_snapshot_that_pretends_to_be_a_member_of_a_group_tells_nothing_of_the_content_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content of a member has the name of the member, which its owner chooses."""
    async with led_cluster(tmp_path, monkeypatch) as led:
        reference = {"namespace": "other", "name": "theirs", "uid": "u1"}
        source, driver = {"snapshotHandle": "secret-handle"}, "absent.example.com"
        spec = {"volumeSnapshotRef": reference, "driver": driver, "deletionPolicy": "Retain", "source": source}
        body = VOLUME_SNAPSHOT_CONTENTS.body(metadata={"name": "snapcontent-u1"}, spec=spec)
        await led.site.client.create(VOLUME_SNAPSHOT_CONTENTS, body)
        group = {"apiVersion": GROUPS.api_version, "kind": GROUPS.kind, "name": "g", "uid": "any"}
        metadata = {"name": "snapshot-u1", "namespace": "default", "ownerReferences": [group]}
        body = VOLUME_SNAPSHOTS.body(metadata=metadata, spec={"source": {"persistentVolumeClaimName": "own"}})
        await led.site.client.create(VOLUME_SNAPSHOTS, body)
        tenant = led.user("tenant", lambda wanted: may_ask(wanted) or wanted.namespace == "default")
        query = {"snapshot": "default/snapshot-u1"}
        while not (told := await asked(led.admin(), "/explain", query))["found"]:
            await asyncio.sleep(0.01)
        assert "secret-handle" in json.dumps(told)
        text = await silence(tenant, "/explain", query)
        assert "tenant may not get volumesnapshotcontents snapcontent-u1" in text


async def test_who_reads_everything_may_change_nothing_on_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led_cluster(tmp_path, monkeypatch) as led:
        reader = led.user("reader", lambda wanted: may_ask(wanted) or wanted.verb in ("get", "list"))
        assert (await asked(reader, "/leaks"))["findings"] == []
        assert "may not delete persistentvolumes" in await silence(reader, "/leaks/fix", method="POST")
        assert "may not patch persistentvolumes" in await silence(reader, "/adopt", {"from": "x"}, method="POST")
        assert (await asked(led.admin(), "/leaks/fix", method="POST"))["repairs"] == []


async def test_a_port_forward_without_a_token_of_the_cluster_leads_to_health_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port itself, as every container of the pod reaches it."""
    async with led_cluster(tmp_path, monkeypatch) as led, aiohttp.ClientSession() as session:
        for header in ("", "Bearer forged", "Bearer ", "Basic eDp5", f"Bearer {ADMIN}x"):
            async with session.get(f"{led.site.url}/status", headers={"Authorization": header}) as answer:
                assert answer.status == 401
        # A web page in a browser may have the address under a name of its own.
        headers = {"Authorization": f"Bearer {ADMIN}", "Host": "attacker.example.com"}
        async with session.get(f"{led.site.url}/status", headers=headers) as answer:
            assert answer.status == 401


async def test_who_may_not_find_the_leader_or_forward_its_port_is_told_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led_cluster(tmp_path, monkeypatch) as led:
        nobody = led.user("nobody", lambda _: False)
        assert f"the lease {OURS}/volplane, which says who leads, cannot be read" in await silence(nobody, "/status")
        finder = led.user("finder", lambda wanted: wanted.resource in ("leases", "pods"))
        assert "the rights to get and create pods/portforward" in await silence(finder, "/status")
        half = led.user("half", lambda wanted: may_ask(wanted) and wanted.verb == "get")
        assert "the rights to get and create pods/portforward" in await silence(half, "/status")
        assert led.forwarded == []


async def test_a_certificate_gets_a_token_that_is_of_use_with_the_leader_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led_cluster(tmp_path, monkeypatch) as led:
        admin = led.certified("admin", lambda _: True)
        assert (await asked(admin, "/status"))["leads"]
        users = led.site.server.users
        [(token, account)] = [each for each in users.by_token.items() if each[1].name.startswith("system:service")]
        assert (account.name, account.audiences) == (f"system:serviceaccount:{OURS}:volplane", ("volplane",))
        async with aiohttp.ClientSession() as session:
            headers = {"Authorization": f"Bearer {token}"}
            async with session.get(f"{led.url}/api/v1/namespaces", headers=headers, ssl=False) as answer:
                assert answer.status == 401
        other = led.certified("other", everything_but_ours)
        assert f"create serviceaccounts/token of {OURS}/volplane" in await silence(other, "/status")


async def test_who_acts_as_another_is_not_answered_with_the_rights_of_who_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led_cluster(tmp_path, monkeypatch) as led:
        acting = led.access("acting", {"token": ADMIN, "as": "tenant"})
        assert "you act as somebody else" in await silence(acting, "/status")


HOSTILE: list[dict[str, Any]] = [
    {"pod": "evil"},
    {"namespace": "team", "pod": "evil"},
    {"port": 22},
    {"pod": "../../team/pods/evil"},
    {"pod": "evil.example.com", "namespace": ""},
]


async def test_a_lease_that_somebody_else_has_written_leads_no_token_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led_cluster(tmp_path, monkeypatch) as led:
        await led.make_claim("team", "any")
        listening, silent = {"ports": [{"containerPort": led.port}]}, {"ports": [{"containerPort": 1}]}
        for namespace, ports in (("team", listening), (OURS, silent)):
            spec = {"containers": [{"name": "c", "image": "i", **ports}]}
            body = PODS.body(metadata={"name": "evil", "namespace": namespace}, spec=spec)
            await led.site.client.create(PODS, body)
        admin, root = led.admin(), led.certified("root", lambda _: True)
        before = len(led.site.server.users.by_token)
        for change in HOSTILE:
            holder = f"{change.get('pod', POD)}_34cd"  # Its own name would give the real one the Lease again.
            told = {"holder": holder, "namespace": OURS, "pod": POD, "port": led.port, **change}
            annotations = {"annotations": {ENDPOINT: json.dumps(told)}}
            await led.rewrite_lease(metadata=annotations, spec={"holderIdentity": holder})
            assert "nothing is sent there" in await silence(admin, "/status"), change
            assert "nothing is sent there" in await silence(root, "/status"), change
        assert (led.forwarded, len(led.site.server.users.by_token)) == ([], before)


async def test_a_lease_that_says_nonsense_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with led_cluster(tmp_path, monkeypatch) as led:
        for text in ("", "{", "null", '{"holder": "x", "port": 1}', '{"port": "a"}', '{"holder": 1}'):
            await led.rewrite_lease(metadata={"annotations": {ENDPOINT: text}})
            assert "does not say where it can be asked" in await silence(led.admin(), "/status"), text


async def test_a_process_that_does_not_lead_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with led_cluster(tmp_path, monkeypatch) as led:
        # Another one has taken over, and says that it is at the same place.
        lease = await led.site.client.get(LEASES, f"{OURS}/volplane")
        told = json.loads(lease.annotation(ENDPOINT) or "") | {"holder": f"{POD}_other"}
        spec = {"holderIdentity": f"{POD}_other"}
        await led.rewrite_lease(metadata={"annotations": {ENDPOINT: json.dumps(told)}}, spec=spec)
        assert "does not lead any more" in await silence(led.admin(), "/status")
        assert led.forwarded == [(OURS, POD, led.port)]


async def test_what_answers_in_the_leaders_place_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def status(_query: object) -> dict[str, Any]:
        return {"leads": True}

    async with led_cluster(tmp_path, monkeypatch, in_pod=False) as led:
        pages = Pages(unready=tuple, metrics=bytes, answers={"/status": status})
        async with serve_pages(HttpAddress("127.0.0.1", 0), pages) as url:
            lease = await led.site.client.get(LEASES, f"{OURS}/volplane")
            told = json.loads(lease.annotation(ENDPOINT) or "") | {"port": int(url.rpartition(":")[2])}
            await led.rewrite_lease(metadata={"annotations": {ENDPOINT: json.dumps(told)}})
            assert "in no pod" in await silence(led.admin(), "/status")


async def test_reviews_are_few_and_a_right_that_is_taken_is_soon_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led_cluster(tmp_path, monkeypatch) as led:
        allowed = [True]
        reader = led.user("reader", lambda wanted: may_ask(wanted) or allowed[0])

        def reviews() -> int:
            return sum("reviews" in each.request.path for each in led.site.transport.script.requests)

        await asyncio.gather(*(asked(reader, "/leaks") for _ in range(3)))
        first = reviews()
        await asked(reader, "/leaks")
        assert reviews() == first
        allowed[0] = False
        monkeypatch.setattr("volplane.asking.callers._KEPT", 0.0)
        stranger = led.user("stranger", may_ask)
        assert "may not" in await silence(stranger, "/leaks")
        assert reviews() > first
