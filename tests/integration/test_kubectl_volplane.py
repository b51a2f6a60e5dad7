"""`kubectl volplane` by the kubectl that is installed: as a tenant, from a machine on which no controller runs."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest

from integration.led_cluster import led_cluster, may_ask
from volplane.cli.controller_client import Access
from volplane_embedded.apiserver.users import Access as Wanted

KUBECTL = shutil.which("kubectl")
PLUGIN = Path(sys.executable).with_name("kubectl-volplane")
pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(KUBECTL is None or not PLUGIN.exists(), reason="kubectl is not installed, or volplane is not"),
]


async def kubectl(access: Access, *arguments: str) -> tuple[int, str, str]:
    assert KUBECTL is not None
    environment = {**os.environ, "KUBECONFIG": str(access.kubeconfig), "PATH": f"{PLUGIN.parent}:{os.environ['PATH']}"}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(KUBECTL, *arguments, stdout=pipe, stderr=pipe, env=environment)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, out.decode(), err.decode()


def of_team(wanted: Wanted) -> bool:
    """May ask, and read the claims of the namespace `team`."""
    own = wanted.namespace == "team" and wanted.resource == "persistentvolumeclaims" and wanted.verb in ("get", "list")
    return own or may_ask(wanted)


async def words(access: Access, *arguments: str) -> list[str]:
    """What kubectl completes the last word to."""
    code, out, err = await kubectl(access, "__complete", "volplane", *arguments)
    assert code == 0, err
    *found, directive = out.split()
    assert directive == ":4"
    return found


async def test_a_tenant_asks_about_the_own_namespace_and_is_answered_by_the_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led_cluster(tmp_path, monkeypatch) as led:
        await led.make_claim("team", "own", storageClassName="absent")
        await led.make_claim("other", "secret", storageClassName="hidden")
        await led.known("team/own", "other/secret")
        tenant = led.user("tenant", of_team, namespace="team")
        explained, status, named = await asyncio.gather(
            kubectl(tenant, "volplane", "explain", "pvc", "own"),
            kubectl(tenant, "volplane", "status"),
            words(tenant, "explain", "pvc", ""),
        )
        assert "its class absent does not exist" in explained[1], explained
        assert "told by volplane-7d9f-x2x4z_12ab, which leads, at " in explained[1]
        assert (status[0], "own" in status[1], "secret" in status[1]) == (0, True, False)
        assert "volumes are not shown: " in status[1]
        assert named == ["own"]


@pytest.mark.soak
async def test_everything_is_completed_and_what_may_not_be_read_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led_cluster(tmp_path, monkeypatch) as led:
        await led.make_claim("team", "own", storageClassName="absent")
        tenant = led.user("tenant", of_team, namespace="team")
        assert await words(tenant, "snap") == ["snapshot"]
        assert await words(tenant, "explain", "volumeg") == ["volumegroupsnapshot"]
        assert await words(tenant, "status", "--context", "t") == ["tenant"]
        assert await words(tenant, "explain", "pv", "") == []
        assert await words(led.admin(), "status", "-n", "te") == ["team"]
        assert await words(led.admin(), "explain", "pvc", "--namespace", "team", "") == ["own"]
        code, _, err = await kubectl(tenant, "volplane", "status", "-A")
        assert (code, "forbids it (403)" in err) == (1, True)
        await led.rewrite_lease(spec={"holderIdentity": "other"})
        code, out, _ = await kubectl(tenant, "volplane", "explain", "pvc", "own")
        assert "claim team/own is Pending" in out
        assert "other leads, and its lease volplane-system/volplane does not say where it can be asked" in out
