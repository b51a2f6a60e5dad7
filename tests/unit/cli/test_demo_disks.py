"""The demo without the distributions that its mocked cloud needs."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from volplane_embedded.cli.demo_disks import NotInstalled, demo_cloud


@pytest.mark.parametrize("missing", ["module", "distribution"])
def test_what_is_not_installed_is_said_with_the_way_to_have_it(
    tmp_path: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "module":
        monkeypatch.setitem(sys.modules, "volplane_aws_ebs.testing", None)
    else:
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    with pytest.raises(NotInstalled, match=r'pip install "volplane\[aws-ebs,testing\]"'), demo_cloud(tmp_path):
        pass
