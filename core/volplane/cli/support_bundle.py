"""`volplane support-bundle`: writes one archive for support, without secrets.

Secrets themselves are never read. A value is hidden if its name says that it is one, unless it only refers to one
(`env:`, `file:`, `secret:`). Hidden values are replaced by "***", which shows that there was one.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import platform
import re
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import yaml

from volplane.asking.leader import LeaderSilent
from volplane.cli.controller_client import Access
from volplane.cli.framework.console import Console
from volplane.cli.framework.options import ConfigFile, path_option, with_options
from volplane.errors import ApiError, ConfigurationError, VolplaneError
from volplane.kube import kinds
from volplane.kube.client import Client
from volplane.kube.events import EVENTS
from volplane.kube.kinds import Kind
from volplane.secret import HIDDEN, SECRET_NAME, redacted
from volplane.state.naming import nodes_namespace

KINDS: Final = (
    *(kinds.VOLUMES, kinds.CLAIMS, kinds.STORAGE_CLASSES, kinds.VOLUME_ATTRIBUTES_CLASSES),
    *(kinds.ATTACHMENTS, kinds.CSI_DRIVERS, kinds.CSI_NODES),
)
OF_STORAGE: Final = frozenset({"PersistentVolume", "PersistentVolumeClaim", "StorageClass"})
MOST_OBJECTS: Final = 20_000
"""Maximum objects per kind; the bundle lists what was omitted."""
LOG_LINES: Final = 10_000
ERRORS: Final = "errors.txt"
OF_NOTHING: Final = frozenset({"about.json", "configuration.json", "cluster/version.json", ERRORS})
"""Files that are there although neither a controller nor any objects could be read."""

BundleFile = Annotated[
    Path | None,
    path_option(
        "--output", "FILE", "Where to write; - is stdout. Default: volplane-TIME.tar.gz here.", "-o", allow_dash=True
    ),
]


@with_options
def support_bundle(
    access: Access,
    *,
    output: BundleFile = None,
    config: ConfigFile = None,
) -> None:
    """Write an archive for support: versions, the controller's answers, objects, events and logs.

    No Secret is read. Values whose name says that they are secret, and annotations of others, are replaced by ***.
    Names of namespaces, claims and nodes are in it. errors.txt lists what could not be read. Look at the archive before
    you send it. Exit code 1 if neither the cluster nor the controller could be read.
    """
    began = datetime.now(UTC)
    bundle = Bundle()
    about = {
        "time": began.isoformat(timespec="seconds"),
        "python": sys.version,
        "platform": platform.platform(),
        "uptime_of_machine_seconds": round(time.clock_gettime(time.CLOCK_BOOTTIME)),
        "installed": {each.metadata["Name"]: each.version for each in distributions()},
    }
    bundle.add_json("about.json", about)
    if config is not None:
        try:
            content = yaml.safe_load(config.read_text("utf-8"))
        except (yaml.YAMLError, ValueError) as error:
            raise ConfigurationError(f"{config} is no YAML: {error}") from error
        bundle.add_json("configuration.json", without_secrets(content))
    asyncio.run(_collect(bundle, access))
    if bundle.errors:
        bundle.add_text(ERRORS, "".join(f"{each}\n" for each in bundle.errors))
    path = output or Path(f"volplane-{began:%Y%m%dT%H%M%SZ}.tar.gz")
    with _target(path) as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, data in sorted(bundle.files.items()):
            member = tarfile.TarInfo(f"volplane/{name}")
            member.size, member.mode, member.mtime = len(data), 0o600, int(began.timestamp())
            archive.addfile(member, io.BytesIO(data))
    if not bundle.files.keys() - OF_NOTHING:
        raise VolplaneError(f"the bundle says nothing of the cluster: {'; '.join(bundle.errors)}")
    if str(path) != "-":
        console = Console()
        console.done(f"{path}: {len(bundle.files)} files, readable by you alone; look at them before you send them")
        for each in bundle.errors:
            console.note(f"not in it: {each}")


@dataclass(frozen=True, slots=True)
class Bundle:
    """The files of an archive, and what could not be collected."""

    files: dict[str, bytes] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def add_json(self, name: str, content: Any) -> None:
        self.add_text(name, json.dumps(content, indent=1, sort_keys=True, default=str) + "\n")

    def add_text(self, name: str, text: str) -> None:
        self.files[name] = redacted(text).encode("utf-8", "replace")


def _target(path: Path) -> AbstractContextManager[BinaryIO]:
    if str(path) == "-":
        return nullcontext(sys.stdout.buffer)
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
    except FileExistsError:
        raise ConfigurationError(f"{path} exists already; name another file with --output") from None


async def _collect(bundle: Bundle, access: Access) -> None:
    try:
        async with access.leader() as leader:
            for path in ("/status", "/leaks", "/adopt", "/metrics", "/readyz"):
                text = path in ("/metrics", "/readyz")
                try:
                    answer = await leader.ask(path, text=text)
                except VolplaneError as error:
                    if isinstance(error, LeaderSilent) and not error.status:
                        raise
                    bundle.errors.append(f"controller{path}: {error}")  # A refusal of one; others may be answered.
                else:
                    name = f"controller{path}"
                    if text:
                        bundle.add_text(f"{name}.txt", answer)
                    else:
                        bundle.add_json(f"{name}.json", without_secrets(answer))
    except VolplaneError as error:
        bundle.errors.append(f"controller: {error}")
    try:
        async with access.cluster() as (client, _):
            await _read_cluster(bundle, client, access.system_namespace)
    except VolplaneError as error:
        bundle.errors.append(f"cluster: {error}")


async def _read_cluster(bundle: Bundle, client: Client, namespace: str) -> None:
    bundle.add_json("cluster/version.json", json.loads(await client.raw("/version")))
    nodes = nodes_namespace(namespace)
    wanted: list[tuple[Kind[Any], str]] = [(kind, "") for kind in (*KINDS, EVENTS)]
    wanted += [(kind, place) for place in (namespace, nodes) for kind in (kinds.PODS, kinds.LEASES)]
    pods: list[Any] = []
    for kind, place in wanted:
        items = await _items(bundle, client, kind, place)
        if items is None:
            continue
        if kind is kinds.PODS:
            pods += items
        if kind is EVENTS:
            items = [
                each
                for each in items
                if each.get("involvedObject", {}).get("kind") in OF_STORAGE
                or each["metadata"].get("namespace") in (namespace, nodes)
            ]
        where = "-of-nodes" if place == nodes else ""
        bundle.add_json(f"cluster/{kind.plural}{where}.json", without_secrets(items))
    for pod in pods:
        name, place = pod["metadata"]["name"], pod["metadata"]["namespace"]
        try:
            log = await client.raw(f"/api/v1/namespaces/{place}/pods/{name}/log", {"tailLines": str(LOG_LINES)})
        except ApiError as error:
            bundle.errors.append(f"log of pod {name}: {error}")
            continue
        bundle.add_text(f"logs/{name}.log", log.decode("utf-8", "replace"))


async def _items(bundle: Bundle, client: Client, kind: Kind[Any], namespace: str) -> list[Any] | None:
    """Return the objects as the server sends them, at most `MOST_OBJECTS`; None if it sends no list of them."""
    try:
        answer = json.loads(await client.raw(kind.path(namespace), {"limit": str(MOST_OBJECTS)}))
    except ApiError as error:
        bundle.errors.append(f"{kind.plural}: {error}")
        return None
    items: list[Any] = answer.get("items") or []
    if answer.get("metadata", {}).get("continue"):
        bundle.errors.append(f"{kind.plural}: only the first {len(items)} are here")
    return items


_REFERENCE: Final = re.compile(r"(env|file|secret):\S+")
_OUR_ANNOTATION: Final = re.compile(r"([a-z0-9-]+\.)*(volplane\.dev|kubernetes\.io|k8s\.io)/")
_LEFT_OUT: Final = frozenset({"managedFields", "kubectl.kubernetes.io/last-applied-configuration"})
_REFERENCES: Final = frozenset({"secretRef", "secretKeyRef", "imagePullSecrets"})
"""Fields of Kubernetes objects that name a Secret and hold none."""


def without_secrets(value: Any, name: str = "", parent: str = "") -> Any:
    """Return a copy of JSON data without possible secrets. name: the key of the value. parent: the key around it."""
    # Annotations of others, and variables of containers, may hold anything.
    if (parent == "annotations" and not _OUR_ANNOTATION.match(name)) or (parent, name) == ("env", "value"):
        return HIDDEN
    if name in _REFERENCES:
        return value
    if isinstance(value, Mapping):
        return {key: without_secrets(each, str(key), name) for key, each in value.items() if key not in _LEFT_OUT}
    if isinstance(value, Sequence) and not isinstance(value, str):
        # The value of an option of a command is the next word.
        options = [each if re.match(r"-[^=]+$", str(each)) else name for each in ("", *value)]
        return [without_secrets(each, option) for each, option in zip(value, options, strict=False)]
    if not isinstance(value, str):
        return value
    # What a driver calls a key is none of a label or of a Secret.
    secret = SECRET_NAME.search(name) or (name == "key" and parent in ("volumeAttributes", "parameters", "options"))
    return HIDDEN if secret and not _REFERENCE.fullmatch(value) else redacted(value)
