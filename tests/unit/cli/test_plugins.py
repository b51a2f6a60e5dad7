"""`volplane plugins` over fake distributions."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from volplane.cli.main import main
from volplane.drivers import loading

GOOD = """
    from volplane import *
    from volplane import BackendSpec, Parameter, ParameterKind, ParameterSchema

    class Backend(BackendSpec):
        default_driver_name = "fake.example.com"
        options_schema = ParameterSchema(parameters=(
            Parameter(name="endpoint", doc="Where the filer is.", required={required}, pattern="https?://.+|.*example.*"),
        ))

        @hookimpl
        def describe(self, request):
            schema = ParameterSchema(parameters=(
                Parameter(name="size", kind=ParameterKind.SIZE, doc="Chunk.", minimum=1024, default=4096),
            ))
            return DriverInfo(version="7.1", parameters=schema)

        @hookimpl
        def provision(self, request): ...

        @hookimpl
        def delete(self, request): ...
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    monkeypatch.chdir(tmp_path)

    def make(name: str, module: str, source: str = GOOD, *, required: bool = False) -> None:
        info = site / f"dist_{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dist-{module}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[volplane.backends]\n{name} = {module}:Backend\n")
        (site / f"{module}.py").write_text(textwrap.dedent(source).replace("{required}", str(required)))

    yield make
    for module in [m for m in sys.modules if m.startswith("fakeplugin_")]:
        del sys.modules[module]


def row(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if re.match(rf"(backend|extension) +{name} ", line)]
    return re.split(r" {3,}", line)


def test_the_table_shows_what_is_installed_and_which_drivers_it_makes(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("fake", "fakeplugin_a")
    assert main(["plugins"]) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert row(out, "fake") == [
        "backend",
        "fake",
        "dist-fakeplugin_a 1.0",
        "ok",
        "fake.example.com",
        "delete, describe, provision",
    ]


def test_a_backend_that_needs_options_makes_no_driver_without_configuration(
    install: Install, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    install("fake", "fakeplugin_b", required=True)
    assert main(["plugins"]) == 0
    assert row(capsys.readouterr().out, "fake")[4] == "-"
    file = tmp_path / "volplane.yaml"
    file.write_text("drivers: [{name: a.example.com, backend: fake, options: {endpoint: http://filer}}]")
    assert main(["plugins", "--config", str(file)]) == 0
    assert row(capsys.readouterr().out, "fake")[4] == "a.example.com"


def test_a_driver_that_is_served_on_nodes_is_shown_too(
    install: Install, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    on_nodes = GOOD.replace("parameters=schema)", "parameters=schema, topology_keys=('kubernetes.io/hostname',))")
    install("fake", "fakeplugin_e", on_nodes)
    file = tmp_path / "volplane.yaml"
    file.write_text("drivers: [{name: local.example.com, backend: fake, distributed: true}]")
    assert main(["plugins", "--config", str(file)]) == 0
    assert row(capsys.readouterr().out, "fake")[4] == "local.example.com"


def test_what_is_broken_is_reported_once_beside_what_works(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("fake", "fakeplugin_c")
    install("bad", "fakeplugin_bad", "raise RuntimeError('no licence')")
    sloppy = GOOD.replace("def delete(self, request)", "def delete(self, volume)").replace("fake.ex", "sloppy.ex")
    install("sloppy", "fakeplugin_sloppy", sloppy)
    assert main(["plugins"]) == 1
    out, err = capsys.readouterr()
    assert [row(out, name)[3] for name in ("fake", "bad", "sloppy")] == ["ok", "broken", "broken"]
    assert sorted(line for line in err.splitlines() if line.startswith("error:")) == [
        "error: backend bad (dist-fakeplugin_bad 1.0): importing fakeplugin_bad raised RuntimeError: no licence",
        (
            "error: backend sloppy (dist-fakeplugin_sloppy 1.0): hook delete: argument 'volume' is unknown; hooks take "
            "'request'"
        ),
    ]
    assert "Traceback" not in err


def test_a_driver_that_cannot_be_made_is_reported_with_its_place_in_the_file(
    install: Install, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    install("fake", "fakeplugin_d")
    file = tmp_path / "volplane.yaml"
    file.write_text("drivers: [{name: a.example.com, backend: fake, options: {endpont: x}}]")
    assert main(["plugins", "--config", str(file)]) == 1
    out, err = capsys.readouterr()
    assert row(out, "fake")[4] == "a.example.com (broken)"
    assert "volplane.yaml: drivers[0]: driver a.example.com: unknown option 'endpont' (value 'x')" in err
    assert "did you mean 'endpoint'?" in err


def test_show_is_the_reference_of_options_and_parameters(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("fake", "fakeplugin_e", required=True)
    assert main(["plugins", "show", "fake"]) == 0
    out = capsys.readouterr().out
    assert "backend fake, from dist-fakeplugin_e 1.0" in out
    assert "endpoint: text that matches https?://.+|.*example.* [required]\n      Where the filer is." in out
    assert "Class parameters (schema version 1)\n  size: a size such as 10Gi, at least 1Ki [default 4Ki]" in out
    assert re.search(r"version +7\.1", out)


def test_show_of_what_is_not_installed_names_the_nearest(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("fakefiler", "fakeplugin_f")
    assert main(["plugins", "show", "fakefler"]) == 1
    assert capsys.readouterr().err == "error: backend 'fakefler' is not installed; did you mean 'fakefiler'?\n"


def test_show_says_when_the_parameters_cannot_be_known(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("fake", "fakeplugin_g", GOOD.replace(r'pattern="https?://.+|.*example.*"', 'pattern="x{9}"'), required=True)
    assert main(["plugins", "show", "fake"]) == 0
    assert "not known: option 'endpoint' must be configured: text that matches x{9}" in capsys.readouterr().out


def test_a_backend_that_hangs_while_it_is_made_ends_no_command_late(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "BUILD_DEADLINE", 0.1)
    source = (
        GOOD
        + "\n        def __init__(self, options):\n            import threading\n            threading.Event().wait()\n"
    )
    install("fake", "fakeplugin_hang", source)
    (tmp_path / "none.yaml").write_text("drivers: []")
    assert main(["plugins", "--config", "none.yaml"]) == 0, "no driver needs it"
    assert main(["plugins", "show", "fake"]) == 0
    assert (
        "not known: making backend fake (dist-fakeplugin_hang 1.0) did not end within 0.1 s" in capsys.readouterr().out
    )


def test_a_backend_for_a_newer_volplane_is_reported_even_if_no_driver_uses_it(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = GOOD.replace('version="7.1"', 'version="7.1", hookspec_version=2')
    install("fake", "fakeplugin_h", newer, required=True)
    assert main(["plugins"]) == 1
    out, err = capsys.readouterr()
    assert row(out, "fake")[3:5] == ["broken", "-"]
    assert err.splitlines()[1:] == [
        (
            "error: backend fake (dist-fakeplugin_h 1.0): is built for hookspec version 2, this volplane knows 1; "
            "upgrade volplane"
        )
    ]


def test_options_that_take_secrets_say_what_they_take(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    secret = GOOD.replace('pattern="https?://.+|.*example.*"', "kind=ParameterKind.SECRET")
    install("fake", "fakeplugin_i", secret, required=True)
    assert main(["plugins", "show", "fake"]) == 0
    out = capsys.readouterr().out
    assert "endpoint: where the secret is, as env:NAME, file:/PATH or secret:NAMESPACE/NAME/KEY [required]" in out
    assert re.search(r"version +7\.1", out)


def test_programs_get_lists(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("fake", "fakeplugin_json")
    assert main(["plugins", "-o", "json"]) == 0
    (fake,) = [each for each in json.loads(capsys.readouterr().out) if each["name"] == "fake"]
    assert fake["hooks"] == ["delete", "describe", "provision"]
    assert (fake["state"], fake["drivers"], fake["error"]) == ("ok", ["fake.example.com"], "")
