"""The image: pinned, the same bytes each time, little, and able to run without a shell or a place to write."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tools.image.__main__ import NAMES, build, context
from tools.image.debian import DebianPackage, fetch, read_lock, root_archive
from tools.sbom import of_image

from volplane.cli.installation import PORT, USER

REPOSITORY = Path(__file__).resolve().parents[2]
CONTAINERFILE = (REPOSITORY / "deploy" / "Containerfile").read_text("utf-8")
EPOCH = 1_700_000_000
needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")


def test_every_package_of_the_image_is_pinned_by_its_digest() -> None:
    packages = read_lock()
    assert [package.name for package in packages] == list(NAMES) == sorted(NAMES)
    assert all(re.fullmatch("[0-9a-f]{64}", package.sha256) for package in packages)


def test_the_last_stage_is_no_root_and_no_step_needs_a_shell_or_a_network() -> None:
    *_, last = CONTAINERFILE.split("\nFROM ")
    assert f"\nUSER {USER}:{USER}\n" in last
    assert f"\nEXPOSE {PORT}\n" in last
    assert re.findall(r"^RUN (.*)$", CONTAINERFILE, re.MULTILINE) == [
        '["/usr/bin/python3.11", "-I", "/install.py", "/wheels"]'
    ]
    assert re.findall(r"^FROM (\S+)", CONTAINERFILE, re.MULTILINE) == ["scratch", "debian", "debian"]


@needs_dpkg
def test_of_debian_packages_the_archive_has_what_processes_read_and_is_the_same_each_time(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    contents = {
        "DEBIAN/control": "Package: little\nVersion: 1\nArchitecture: all\nMaintainer: n\nDescription: d\n",
        "usr/lib/little.so": "library",
        "usr/share/doc/little/copyright": "licence",
        "usr/share/doc/little/changelog": "news",
        "usr/share/man/man1/little.1": "page",
        "usr/share/ca-certificates/mozilla/a.crt": "A\n",
        "usr/share/ca-certificates/mozilla/b.crt": "B\n",
    }
    for name, text in contents.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    package = tmp_path / "little.deb"
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", str(tree), str(package)], check=True, stdout=-3)
    for out in ("one.tar", "two.tar"):
        root_archive([package], tmp_path / out, EPOCH)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as archive:
        files = {info.name: archive.extractfile(info) for info in archive if info.isreg()}
        texts = {name: opened.read().decode() for name, opened in files.items() if opened is not None}
        assert {(info.uid, info.gid, info.mtime) for info in archive} == {(0, 0, EPOCH)}
        links = {info.name for info in archive if info.issym()}
    assert texts.pop("./etc/ssl/certs/ca-certificates.crt") == "A\nB\n"
    assert f":{USER}:{USER}:" in texts.pop("./etc/passwd")
    assert links == {"./usr/lib/ssl/cert.pem", "./usr/lib/ssl/certs"}
    assert set(texts) == {
        "./etc/group",
        "./etc/nsswitch.conf",
        "./usr/lib/little.so",
        "./usr/share/doc/little/copyright",
    }


def test_a_package_with_other_bytes_is_refused_and_not_kept(tmp_path: Path) -> None:
    (tmp_path / "little_1.deb").write_text("something else")
    with pytest.raises(ValueError, match=r"little 1 has SHA-256 [0-9a-f]{64}; the lock says 000"):
        fetch([DebianPackage("little", "1", "0" * 64)], tmp_path)
    assert not (tmp_path / "little_1.deb").exists()


def wheel(directory: Path, name: str, files: dict[str, str], metadata: str = "") -> Path:
    path = directory / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Name: {name}\nVersion: 1.0\n{metadata}\n")
        for file, text in files.items():
            archive.writestr(file, text)
    return path


def test_the_list_of_packages_names_each_with_digest_and_licence(tmp_path: Path) -> None:
    wheels = [
        wheel(tmp_path, "volplane", {}, "License-Expression: Apache-2.0"),
        wheel(tmp_path, "Other_Thing", {}, "License: MIT"),
    ]
    text = of_image([DebianPackage("libc6", "1:2+deb", "0" * 64)], wheels, EPOCH)
    assert of_image([DebianPackage("libc6", "1:2+deb", "0" * 64)], wheels, EPOCH) == text
    told = json.loads(text)
    assert (told["bomFormat"], told["specVersion"]) == ("CycloneDX", "1.6")
    assert {each["purl"]: each.get("licenses") for each in told["components"]} == {
        "pkg:deb/debian/libc6@1%3A2%2Bdeb?arch=amd64&distro=debian-12": None,
        "pkg:pypi/volplane@1.0": [{"expression": "Apache-2.0"}],
        "pkg:pypi/other-thing@1.0": [{"license": {"name": "MIT"}}],
    }
    assert all(re.fullmatch("[0-9a-f]{64}", each["hashes"][0]["content"]) for each in told["components"])


def installer(prefix: Path, standard: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """deploy/image/install.py, for a prefix and a standard library of its own."""
    spec = importlib.util.spec_from_file_location("install", REPOSITORY / "deploy" / "image" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    site = prefix / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for name, value in {"PREFIX": prefix, "SITE": site, "STANDARD": standard, "ARCHIVED": ("kubernetes",)}.items():
        monkeypatch.setattr(module, name, value)
    return module


def test_archived_packages_are_imported_as_if_they_were_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels, standard = tmp_path / "wheels", tmp_path / "standard"
    wheels.mkdir()
    standard.mkdir()
    wheel(wheels, "kubernetes", {"kubernetes/__init__.py": "from . import a", "kubernetes/a.py": "b = 7"})
    wheel(wheels, "fast", {"fast/__init__.py": "", "fast/loop.c": "int", "fast-1.0.data/scripts/fast": "#!python"})
    archives = []
    for prefix in (tmp_path / "one" / "x", tmp_path / "two" / "x"):
        installer(prefix, standard, monkeypatch).main(wheels)
        site = prefix / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        archives.append(zipfile.ZipFile(site.parent / "kubernetes.zip").namelist())
        assert not (site / "kubernetes").exists()
        assert not list(prefix.rglob("*.c"))
        told = "import kubernetes, importlib.metadata as m; print(kubernetes.a.b, m.version('kubernetes'))"
        ended = subprocess.run([prefix / "bin" / "python", "-c", told], capture_output=True, text=True, check=True)
        assert ended.stdout == "7 1.0\n"
    assert archives[0] == archives[1] == ["kubernetes/__init__.pyc", "kubernetes/a.pyc"]


def test_a_wheel_with_files_for_elsewhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(tmp_path, "odd", {"odd-1.0.data/data/etc/odd": ""})
    with pytest.raises(SystemExit, match="has files for other directories"):
        installer(tmp_path / "x", tmp_path, monkeypatch)._install(tmp_path / "odd-1.0-py3-none-any.whl")


# --- the whole image ---------------------------------------------------------------------------------------------

needs_builder = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("buildah") is None or shutil.which("apt-get") is None,
    reason="needs root, Debian's apt-get, and buildah",
)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Built with the newest Debian packages: those of the lock leave the index when they are replaced."""
    out = tmp_path_factory.mktemp("image") / "context"
    context(out, ("hostpath", "nfs"), newest=True)
    build(out, "volplane:test")
    yield out
    shutil.rmtree(out.parent)


@pytest.fixture(scope="module")
def root(image: Path) -> Path:
    """What a container of the image sees."""
    blobs, unpacked = image.parent / "blobs", image.parent / "root"
    subprocess.run(["tar", "-xf", image / "image.tar", "--one-top-level=" + str(blobs)], check=True)

    def blob(digest: str) -> Path:
        return blobs / "blobs" / digest.replace(":", "/")

    [index] = json.loads((blobs / "index.json").read_text())["manifests"]
    unpacked.mkdir()
    for layer in json.loads(blob(index["digest"]).read_text())["layers"]:
        subprocess.run(["tar", "-xzf", blob(layer["digest"]), "-C", unpacked], check=True)
    (unpacked / "dev" / "null").touch(mode=0o666)  # Of a device the runtime takes care.
    (unpacked / "dev" / "null").chmod(0o666)
    return unpacked


def inside(root: Path, *command: str) -> str:
    """Run a command as the user of the image; its output."""
    ended = subprocess.run(
        [str(shutil.which("chroot")), f"--userspec={USER}:{USER}", str(root), *command],
        env={"PATH": "/opt/volplane/bin:/usr/bin", "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.soak
@needs_builder
def test_the_image_runs_as_nobody_in_particular_and_has_its_backends(root: Path) -> None:
    told = inside(root, "/opt/volplane/bin/volplane", "plugins")
    assert re.findall(r"^backend +(\w+) .* ok ", told, re.MULTILINE) == ["hostpath", "nfs"]
    assert "V1Pod" in inside(
        root, "/opt/volplane/bin/python", "-c", "from kubernetes.client import V1Pod; print(V1Pod)"
    )
    assert "kind: Deployment" in inside(root, "/opt/volplane/bin/volplane", "manifests")
    csi = "import grpc.aio, volplane.csi.service; print(True)"
    assert inside(root, "/opt/volplane/bin/python", "-c", csi) == "True\n"
    uvloop = "import uvloop, ssl; print(len(ssl.create_default_context().get_ca_certs()) > 50)"
    assert inside(root, "/opt/volplane/bin/python", "-c", uvloop) == "True\n"


@pytest.mark.soak
@needs_builder
def test_the_image_is_small_and_has_no_shell_and_nothing_that_raises_rights(root: Path) -> None:
    files = [path for path in root.rglob("*") if not path.is_symlink()]
    sizes = sum(path.stat().st_size for path in files if path.is_file())
    assert sizes < 150_000_000, f"{sizes / 1e6:.1f} MB"
    programs = {path.name for path in root.rglob("*") if path.is_file() and path.stat().st_mode & 0o111}
    assert not programs & {"sh", "bash", "dash", "apt-get", "dpkg", "pip", "perl"}
    assert [path for path in files if path.stat().st_mode & 0o6000] == []
    assert {path.relative_to(root).as_posix() for path in files if path.stat().st_mode & 0o002} == {"tmp", "dev/null"}
    assert json.loads((root / "opt/volplane/sbom.cdx.json").read_text())["bomFormat"] == "CycloneDX"


@pytest.mark.soak
@needs_builder
def test_a_second_build_gives_the_same_bytes(image: Path) -> None:
    first = (image / "image.tar").read_bytes()
    build(image, "volplane:test")
    assert (image / "image.tar").read_bytes() == first
