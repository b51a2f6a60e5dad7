"""Lists of packages (SBOM) as CycloneDX 1.6 documents. Source: the specification of CycloneDX."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import zipfile
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tools.dist.distributions import CONSTRAINTS, pins
from tools.image.debian import DebianPackage

__all__ = ["of_image", "of_wheels"]


def of_image(packages: Iterable[DebianPackage], wheels: Iterable[Path], epoch: int) -> str:
    """What is in the image."""
    return _document("container", [*map(_of_debian, packages), *map(_of_wheel, wheels)], epoch)


def of_wheels(wheels: Sequence[Path], epoch: int) -> str:
    """Our distributions, and what they need with all their extras, in the versions of the constraints."""
    return _document("application", [*map(_of_wheel, wheels), *_pinned(wheels)], epoch)


def _document(kind: Literal["application", "container"], components: list[dict[str, Any]], epoch: int) -> str:
    """The same text for the same packages."""
    digest = hashlib.sha256(json.dumps(components, sort_keys=True).encode()).hexdigest()
    version = next(each["version"] for each in components if each["name"] == "volplane")
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, digest)}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {"type": kind, "name": "volplane", "version": version},
        },
        "components": components,
    }
    return json.dumps(document, indent=1) + "\n"


def _pinned(wheels: Iterable[Path]) -> list[dict[str, Any]]:
    """What the wheels need, on any platform. Who needs what, tells the metadata of this environment, which has the
    versions of constraints.txt; what constraints-google.txt pins may be absent from it, and is all needed.
    """
    versions = {
        canonicalize_name(name): version for name, version in (each.split("==") for each in pins(CONSTRAINTS[0]))
    }
    google = {canonicalize_name(name): version for name, version in (each.split("==") for each in pins(CONSTRAINTS[1]))}
    queue = [text for wheel in wheels for text in _metadata(wheel).get_all("Requires-Dist", [])]
    needed, seen = set(google), set[str]()
    while queue:
        requirement = Requirement(text := queue.pop())
        name = canonicalize_name(requirement.name)
        if text in seen or name not in versions:
            continue  # ours, or for a platform or Python that is not supported
        seen.add(text)
        needed.add(name)
        try:
            queue += [each for each in importlib.metadata.requires(name) or () if _wanted(each, requirement.extras)]
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform
    pinned = google | versions
    return [_component(name, pinned[name], f"pkg:pypi/{name}@{pinned[name]}") for name in sorted(needed)]


def _wanted(requirement: str, extras: Iterable[str]) -> bool:
    """Return whether a requirement is not of an extra, or of one of these."""
    marker = Requirement(requirement).marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def _of_debian(package: DebianPackage) -> dict[str, Any]:
    purl = f"pkg:deb/debian/{quote(package.name)}@{quote(package.version)}?arch=amd64&distro=debian-12"
    return _component(package.name, package.version, purl, package.sha256)


def _of_wheel(path: Path) -> dict[str, Any]:
    metadata = _metadata(path)
    named, version = str(metadata["Name"]).lower().replace("_", "-"), str(metadata["Version"])
    made = _component(named, version, f"pkg:pypi/{named}@{version}", hashlib.sha256(path.read_bytes()).hexdigest())
    if expression := metadata["License-Expression"]:
        made["licenses"] = [{"expression": expression}]
    elif (text := metadata["License"]) and "\n" not in text:
        made["licenses"] = [{"license": {"name": text}}]
    return made


def _metadata(path: Path) -> Message:
    with zipfile.ZipFile(path) as wheel:
        (name,) = (each for each in wheel.namelist() if each.endswith(".dist-info/METADATA") and each.count("/") == 1)
        return Parser().parsestr(wheel.read(name).decode())


def _component(name: str, version: str, purl: str, sha256: str = "") -> dict[str, Any]:
    """sha256: of the one file that it comes from."""
    made = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    return made if not sha256 else {**made, "hashes": [{"alg": "SHA-256", "content": sha256}]}
