"""Pods that really run: their files, rights, logs, deadlines, restarts."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from integration.node_bodies import in_cluster, no_files_left
from integration.node_cluster import host_path, pod, state_of, why_no_sandbox
from volplane_embedded.objects import PODS


@pytest.fixture(scope="module", autouse=True)
def _namespaces(tmp_path_factory: pytest.TempPathFactory) -> None:
    if message := why_no_sandbox(tmp_path_factory.mktemp("probe")):
        pytest.skip(message)


@pytest.mark.real_time
async def test_a_pod_writes_into_its_volume_and_nowhere_else(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()

    async with in_cluster(tmp_path) as cluster:
        script = "echo hello > /data/file; echo x > /etc/x; echo y > /usr/y; echo $? && rm /etc/hostname; ls /data"
        await cluster.run("writer", script, **host_path(volume, "/data"))
        found = await cluster.ended("writer")
        assert found["status"]["phase"] == "Succeeded"
        assert (volume / "file").read_text() == "hello\n"
        assert (volume / "file").stat().st_uid == os.geteuid()
        log = await cluster.log("writer")
        assert log.count("Read-only file system") == 3
        assert log.endswith("file\n")
    assert not Path("/etc/x").exists()


@pytest.mark.real_time
async def test_a_volume_can_be_mounted_where_the_host_has_nothing(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    entries = len(list(Path("/usr/share").iterdir()))

    async with in_cluster(tmp_path) as cluster:
        at = "/usr/share/volplane-test/deep/html"
        await cluster.run("nested", f"touch {at}/file && ls /usr/share | wc -l", **host_path(volume, at))
        found = await cluster.ended("nested")
        assert found["status"]["phase"] == "Succeeded", await cluster.log("nested")
        assert (volume / "file").exists()
        assert int(await cluster.log("nested")) == entries + 1
    assert not Path("/usr/share/volplane-test").exists()


@pytest.mark.real_time
async def test_a_read_only_mount_refuses_writes(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()

    async with in_cluster(tmp_path) as cluster:
        await cluster.run("reader", "touch /data/file", **host_path(volume, "/data", readOnly=True))
        assert (await cluster.ended("reader"))["status"]["phase"] == "Failed"
        assert "Read-only file system" in await cluster.log("reader")
    assert list(volume.iterdir()) == []


@pytest.mark.real_time
async def test_a_sub_path_may_not_lead_over_a_symlink(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    (volume / "real").mkdir(parents=True)
    (volume / "link").symlink_to("/etc")

    async with in_cluster(tmp_path) as cluster:
        await cluster.run("good", "touch /data/file", **host_path(volume, "/data", subPath="real/new"))
        await cluster.run("bad", "ls /data", **host_path(volume, "/data", subPath="link"))
        assert (await cluster.ended("good"))["status"]["phase"] == "Succeeded"
        found = await cluster.until("bad", lambda it: state_of(it).get("waiting", {}).get("message", "") != "")
        assert "symlink" in state_of(found)["waiting"]["message"]
    assert (volume / "real/new/file").exists()


@pytest.mark.real_time
async def test_exit_codes_signals_and_unknown_commands_are_told_apart(tmp_path: Path) -> None:
    async with in_cluster(tmp_path) as cluster:
        await cluster.run("three", "echo bye > /dev/termination-log; exit 3")
        await cluster.run("killed", "kill -9 $$$$")  # Kubernetes makes one $ of two
        await cluster.run("unknown", "", container={"command": ["/no/such/program"]})
        three = state_of(await cluster.ended("three"))["terminated"]
        assert (three["exitCode"], three["reason"], three["message"]) == (3, "Error", "bye\n")
        killed = state_of(await cluster.ended("killed"))["terminated"]
        assert (killed["exitCode"], killed["signal"]) == (137, 9)
        unknown = state_of(await cluster.ended("unknown"))["terminated"]
        assert (unknown["exitCode"], unknown["reason"]) == (128, "StartError")
        assert "/no/such/program" in unknown["message"]


@pytest.mark.real_time
async def test_a_container_without_a_command_fails_and_says_that_images_are_not_supported(tmp_path: Path) -> None:
    async with in_cluster(tmp_path) as cluster:
        body = pod("image", "")
        del body["spec"]["containers"][0]["command"]
        await cluster.client.create(PODS, body)
        status = (await cluster.ended("image"))["status"]
        assert status["reason"] == "ImagesNotSupported"
        assert "images are not pulled" in status["message"]


@pytest.mark.real_time
@pytest.mark.skipif(os.geteuid() != 0, reason="files of other users can only be made by root")
async def test_dac_override_and_fowner_are_what_it_takes_to_remove_the_files_of_others(tmp_path: Path) -> None:
    volumes = [tmp_path / name for name in ("with", "without")]
    for volume in volumes:
        (volume / "theirs").mkdir(parents=True)
        (volume / "theirs" / "file").touch()
        os.chown(volume / "theirs" / "file", 1234, 1234)
        os.chown(volume / "theirs", 1234, 1234)
        (volume / "theirs").chmod(0o700)

    def scrubber(volume: Path, *added: str) -> dict[str, Any]:
        fields = host_path(volume, "/scrub")
        capabilities = {"drop": ["ALL"], "add": list(added)}
        fields["container"]["securityContext"] = {
            "capabilities": capabilities,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
        }
        return fields

    async with in_cluster(tmp_path) as cluster:
        script = 'rm -r /scrub/theirs; grep CapEff /proc/self/status; test -z "$(ls /scrub)" && touch /tmp/x'
        await cluster.run("with", script, **scrubber(volumes[0], "DAC_OVERRIDE", "FOWNER"))
        await cluster.run("without", script, **scrubber(volumes[1]))
        await cluster.ended("with")
        await cluster.ended("without")
        assert "CapEff:\t000000000000000a" in await cluster.log("with")
        assert "/tmp/x': Read-only" in await cluster.log("with")
        assert "CapEff:\t0000000000000000" in await cluster.log("without")
        assert "Permission denied" in await cluster.log("without")
    assert list(volumes[0].iterdir()) == []
    assert (volumes[1] / "theirs" / "file").exists()


@pytest.mark.real_time
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a pod as another user")
async def test_files_on_disk_have_the_user_and_group_that_the_pod_asks_for(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o777)

    async with in_cluster(tmp_path) as cluster:
        context = {"runAsUser": 1500, "runAsGroup": 1600, "fsGroup": 1700}
        script = "touch /data/file /empty/file; id; ls -lnd /empty"
        fields = host_path(volume, "/data")
        fields["volumes"].append({"name": "empty", "emptyDir": {}})
        fields["container"]["volumeMounts"].append({"name": "empty", "mountPath": "/empty"})
        await cluster.run("user", script, securityContext=context, **fields)
        assert (await cluster.ended("user"))["status"]["phase"] == "Succeeded"
        log = await cluster.log("user")
        assert "uid=1500 gid=1600 groups=1600,1700" in log
        assert "drwxrwsrwx 2 0 1700" in log
    found = (volume / "file").stat()
    assert (found.st_uid, found.st_gid) == (1500, 1600)


@pytest.mark.real_time
async def test_a_pod_sees_no_other_process_and_its_children_end_with_it(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()

    async with in_cluster(tmp_path) as cluster:
        script = "(while :; do touch /data/beat; sleep 0.02; done) & ls /proc | grep -c '^[0-9]'; sleep 0.1"
        await cluster.run("parent", script, **host_path(volume, "/data"))
        assert (await cluster.ended("parent"))["status"]["phase"] == "Succeeded"
        assert int((await cluster.log("parent")).splitlines()[0]) < 10
        (volume / "beat").unlink()
        await asyncio.sleep(0.1)
        assert not (volume / "beat").exists()


@pytest.mark.real_time
async def test_logs_can_be_followed_and_cut(tmp_path: Path) -> None:
    go = tmp_path / "volume"
    go.mkdir()

    async with in_cluster(tmp_path) as cluster:
        script = "echo one; echo two; until test -e /data/go; do sleep 0.02; done; echo three"
        await cluster.run("talker", script, **host_path(go, "/data"))
        await cluster.running("talker")
        following = asyncio.create_task(cluster.log("talker", follow="true"))
        while "two" not in await cluster.log("talker"):
            await asyncio.sleep(0.01)
        assert await cluster.log("talker", tailLines="1") == "two\n"
        assert await cluster.log("talker", limitBytes="5") == "one\nt"
        (go / "go").touch()
        assert await following == "one\ntwo\nthree\n"
        await cluster.ended("talker")
        stamped = await cluster.log("talker", timestamps="true", tailLines="1")
        assert stamped.endswith("Z three\n")
        assert await cluster.log("talker", previous="true") == (
            'previous terminated container "main" in pod "talker" not found'
        )


@pytest.mark.real_time
async def test_a_pod_past_its_deadline_fails(tmp_path: Path) -> None:
    async with in_cluster(tmp_path) as cluster:
        await cluster.run("late", "sleep 60")
        await cluster.running("late")
        await cluster.client.patch(PODS, "default/late", {"spec": {"activeDeadlineSeconds": 1}})
        status = (await cluster.ended("late"))["status"]
        assert status["reason"] == "DeadlineExceeded"
        assert state_of({"status": status})["terminated"]["exitCode"] == 143


@pytest.mark.real_time
async def test_a_deleted_pod_may_end_by_itself_and_is_killed_when_it_does_not(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()

    async with in_cluster(tmp_path) as cluster:
        polite = "trap 'echo bye > /data/polite; exit 0' TERM; echo ready; while :; do sleep 0.02; done"
        stubborn = "trap '' TERM; echo ready; while :; do sleep 0.02; done"
        await cluster.run("polite", polite, terminationGracePeriodSeconds=30, **host_path(volume, "/data"))
        await cluster.run("stubborn", stubborn)
        for name in ("polite", "stubborn"):
            await cluster.running(name)
            while await cluster.log(name) != "ready\n":
                await asyncio.sleep(0.01)
        begun = time.monotonic()
        await cluster.client.delete(PODS, "default/polite")
        await cluster.client.delete(PODS, "default/stubborn")
        await cluster.gone("polite")
        assert (volume / "polite").read_text() == "bye\n"
        await cluster.gone("stubborn")
        assert 1.0 <= time.monotonic() - begun < 30.0
        await no_files_left(cluster)


@pytest.mark.real_time
async def test_a_gated_pod_starts_when_its_gate_is_lifted(tmp_path: Path) -> None:
    async with in_cluster(tmp_path) as cluster:
        await cluster.run("gated", "echo free", schedulingGates=[{"name": "volplane.dev/scrub"}])
        await cluster.run("other", "exit 0")
        await cluster.ended("other")
        found = cluster.get("/api/v1/namespaces/default/pods/gated")
        assert "nodeName" not in found["spec"]
        assert found["status"]["conditions"][0]["reason"] == "SchedulingGated"
        await cluster.client.patch(PODS, "default/gated", {"spec": {"schedulingGates": None}})
        assert (await cluster.ended("gated"))["status"]["phase"] == "Succeeded"


@pytest.mark.real_time
async def test_init_containers_run_in_order_and_their_failure_is_the_pods(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()

    def steps(*scripts: str) -> dict[str, Any]:
        fields = host_path(volume, "/data")
        mounts = fields["container"]["volumeMounts"]
        fields["initContainers"] = [
            {"name": f"init-{n}", "image": "host", "command": ["/bin/sh", "-c", script], "volumeMounts": mounts}
            for n, script in enumerate(scripts)
        ]
        return fields

    async with in_cluster(tmp_path) as cluster:
        await cluster.run("good", "cat /data/steps", **steps("echo 1 >> /data/steps", "echo 2 >> /data/steps"))
        assert (await cluster.ended("good"))["status"]["phase"] == "Succeeded"
        assert await cluster.log("good", container="main") == "1\n2\n"
        await cluster.run("bad", "touch /data/main", **steps("exit 7", "touch /data/second"))
        found = await cluster.ended("bad")
        assert found["status"]["phase"] == "Failed"
        assert state_of(found, "init-0")["terminated"]["exitCode"] == 7
        assert sorted(path.name for path in volume.iterdir()) == ["steps"]


@pytest.mark.real_time
async def test_a_crashing_container_is_restarted_and_then_backs_off(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()

    async with in_cluster(tmp_path) as cluster:
        await cluster.run("crash", "echo x >> /data/runs; exit 1", restartPolicy="Always", **host_path(volume, "/data"))
        found = await cluster.until(
            "crash", lambda it: state_of(it).get("waiting", {}).get("reason") == "CrashLoopBackOff"
        )
        assert found["status"]["phase"] == "Running"
        assert found["status"]["containerStatuses"][0]["restartCount"] == 1
        assert found["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1
        assert (volume / "runs").read_text() == "x\nx\n"
        assert "Back-off restarting failed container main" in await cluster.event("crash", "BackOff")
        assert await cluster.log("crash", previous="true") == ""


@pytest.mark.real_time
async def test_configuration_reaches_a_pod_as_files_and_variables(tmp_path: Path) -> None:
    async with in_cluster(tmp_path) as cluster:
        handle = cluster.server.handle
        body = b'{"metadata":{"name":"settings"},"data":{"colour":"green"}}'
        handle("POST", "/api/v1/namespaces/default/configmaps", {}, {}, body)
        fields = {
            "volumes": [
                {"name": "c", "configMap": {"name": "settings"}},
                {"name": "s", "secret": {"secretName": "key"}},
            ],
            "container": {
                "volumeMounts": [{"name": "c", "mountPath": "/etc/settings"}, {"name": "s", "mountPath": "/key"}],
                "env": [
                    {"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "colour"}}},
                    {"name": "BOTH", "value": "$(WHO)-$(COLOUR)"},
                ],
            },
        }
        await cluster.run("configured", "cat /etc/settings/colour /key/token; echo $BOTH; env | wc -l", **fields)
        assert 'secret "key" not found' in await cluster.event("configured", "FailedMount")
        body = b'{"metadata":{"name":"key"},"stringData":{"token":"hush"}}'
        handle("POST", "/api/v1/namespaces/default/secrets", {}, {}, body)
        assert (await cluster.ended("configured"))["status"]["phase"] == "Succeeded"
        log = await cluster.log("configured")
        assert log.startswith("greenhushconfigured-green\n")
