"""The list of what is in the image, as a CycloneDX 1.6 document. Source: the specification of CycloneDX."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterable
from datetime import UTC, datetime
from email.parser import Parser
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

from tools.image.debian import DebianPackage

__all__ = ["sbom"]


def sbom(packages: Iterable[DebianPackage], wheels: Iterable[Path], epoch: int) -> str:
    """The document, with the same text for the same packages."""
    components = [*map(_of_debian, packages), *map(_of_wheel, wheels)]
    digest = hashlib.sha256(json.dumps(components, sort_keys=True).encode()).hexdigest()
    version = next(each["version"] for each in components if each["name"] == "volplane")
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, digest)}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {"type": "container", "name": "volplane", "version": version},
        },
        "components": components,
    }
    return json.dumps(document, indent=1) + "\n"


def _of_debian(package: DebianPackage) -> dict[str, Any]:
    purl = f"pkg:deb/debian/{quote(package.name)}@{quote(package.version)}?arch=amd64&distro=debian-12"
    return _component(package.name, package.version, purl, package.sha256)


def _of_wheel(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as wheel:
        (name,) = (each for each in wheel.namelist() if each.endswith(".dist-info/METADATA") and each.count("/") == 1)
        metadata = Parser().parsestr(wheel.read(name).decode())
    named, version = str(metadata["Name"]).lower().replace("_", "-"), str(metadata["Version"])
    made = _component(named, version, f"pkg:pypi/{named}@{version}", hashlib.sha256(path.read_bytes()).hexdigest())
    if expression := metadata["License-Expression"]:
        made["licenses"] = [{"expression": expression}]
    elif (text := metadata["License"]) and "\n" not in text:
        made["licenses"] = [{"license": {"name": text}}]
    return made


def _component(name: str, version: str, purl: str, sha256: str) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": sha256}],
    }
