"""`volplane run` is killed again and again while claims come and go; in the end nothing is leaked, lost or stuck."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest
from tests.e2e.processes import Command, kubectl, objects, running, until

BATCH = 10

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")

CLASS = """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast}
provisioner: hostpath.volplane.dev
"""


def claims_of(batch: int) -> str:
    return "---".join(
        f"""
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: c-{batch}-{number}, namespace: default}}
spec: {{storageClassName: fast, accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Mi}}}}}}
"""
        for number in range(BATCH)
    )


@pytest.mark.parametrize(
    ("kills_due", "cycles"),
    [pytest.param(4, 30, marks=pytest.mark.more), pytest.param(30, 300, marks=pytest.mark.soak)],
)
def test_nothing_is_leaked_or_stuck_when_the_controllers_are_killed_at_random_moments(
    tmp_path: Path, kills_due: int, cycles: int
) -> None:
    root, kubeconfig, configuration = tmp_path / "root", tmp_path / "kubeconfig", tmp_path / "config.yaml"
    configuration.write_text(
        "drivers:\n- {name: hostpath.volplane.dev, backend: hostpath, options: "
        f"{{root: {root}, create_root: true, node_name: node-1}}}}\n"
    )
    chance = random.Random(7)
    with running(tmp_path / "server.log", "apiserver", "--port", "0", "--kubeconfig-out", str(kubeconfig)) as server:
        until("the server is up", kubeconfig.exists, said=server.said)
        kubectl(kubeconfig, "apply", "-f", "-", given=CLASS)

        def start() -> Command:
            arguments = ("--kubeconfig", str(kubeconfig), "--config", str(configuration), "--controllers", "all")
            return Command(tmp_path / "run.log", "run", *arguments, "--no-leader-elect", "--http", "127.0.0.1:0")

        controllers = start()
        try:
            kills = 0
            for batch in range(cycles // BATCH):
                kubectl(kubeconfig, "apply", "-f", "-", given=claims_of(batch))
                while kills < kills_due * (2 * batch + 1) // (2 * (cycles // BATCH)):
                    controllers = killed(controllers, chance, start)
                    kills += 1
                names = [f"pvc/c-{batch}-{number}" for number in range(BATCH)]
                kubectl(kubeconfig, "delete", "-n", "default", "--wait=false", *names)
                while kills < kills_due * (2 * batch + 2) // (2 * (cycles // BATCH)):
                    controllers = killed(controllers, chance, start)
                    kills += 1
            until(
                "every claim and volume is gone",
                lambda: not objects(kubeconfig, "pvc", "pv"),
                90,
                said=controllers.said,
            )
            left = [path for path in root.rglob("pvc-*") if path.is_dir()]
            assert not left, f"leaked: {left}"
            assert not list((root / ".volplane").glob("volumes/pvc-*"))
            assert not [path for path in root.iterdir() if path.name not in (".volplane", "default")]
            until("the last ones have started", lambda: "is ready" in controllers.said_itself(), said=controllers.said)
            assert controllers.stop() == 0
            assert "Traceback" not in controllers.said()
        finally:
            if controllers.alive:
                controllers.kill()


def killed(controllers: Command, chance: random.Random, start: object) -> Command:
    """Let them work for a random moment, then kill them and start others."""
    time.sleep(chance.uniform(0.0, 2.0))
    controllers.kill()
    assert callable(start)
    fresh = start()
    assert isinstance(fresh, Command)
    return fresh
