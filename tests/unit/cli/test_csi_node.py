"""`volplane csi --services node`: what it refuses before it serves anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from volplane.cli.main import main

pytest.importorskip("grpc")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--services", "nodes"), 2, "expected controller, node, or controller,node"),
        (("--services", "node"), 2, "--services node and --node-id go together"),
        (("--node-id", "node-a"), 2, "--services node and --node-id go together"),
        (
            ("--services", "node", "--node-id", "node-a", "--node-label", "zone"),
            1,
            "--node-label zone: expected KEY=VALUE",
        ),
        (("--services", "node", "--node-id", "n" * 257), 1, "--node-id is"),
        (("--services", "node", "--node-id", "node-a", "--kubelet-dir", "/nowhere"), 1, "--kubelet-dir is /nowhere"),
        (("--services", "node", "--node-id", "node-a"), 1, "plugins_registry"),
    ],
)
def test_what_no_node_can_serve_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    usual = ("csi", "--backend", "hostpath", "--cluster", "prod", "--endpoint", f"unix://{tmp_path}/csi.sock")
    options = ("-o", f"root={tmp_path}", "--kubelet-dir", str(tmp_path))
    given = (*usual, *options, *arguments) if "--kubelet-dir" not in arguments else (*usual, *options[:2], *arguments)
    assert main(given) == code
    err = " ".join(capsys.readouterr().err.split())
    assert says in err
    assert "Traceback" not in err
