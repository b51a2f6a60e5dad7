"""`volplane manifests`: prints all objects that run the controllers in a cluster, as YAML for `kubectl apply -f -`."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import typer
import yaml

from volplane._messages import nearest
from volplane._templates import text_of
from volplane.cli.framework.options import with_options
from volplane.cli.installation import NAME, Installation, documents
from volplane.controller.config import parse_configuration, read_text
from volplane.drivers.discovery import InstalledPlugins
from volplane.drivers.loading import options_schema
from volplane.drivers.parameters import driver_options
from volplane.errors import ConfigurationError

MOST_REPLICAS = 10
MOUNT = r"(/[A-Za-z0-9._-]+)+"
TAKEN = ("/etc", "/usr", "/opt/volplane", "/tmp", "/proc", "/sys", "/dev", "/bin", "/lib")  # noqa: S108 - of the container
"""Where the container has files of its own."""


@with_options
def manifests(wanted: Installation) -> None:
    """Print namespace, accounts, roles, configuration, network policies, Deployment and classes of the controllers.

    The account gets the least rights that the controllers need; of Secrets it may read those that options of the
    configuration file name, also in other namespaces. If a driver is distributed, a DaemonSet with namespace and
    account of its own runs a process on every node.

    Two replicas or more get a PodDisruptionBudget, which lets a drain evict one at a time. A ResourceQuota without
    an effective limit allows the pods their priority class in clusters that keep those of the system to kube-system.
    """
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,55}[a-z0-9])?", wanted.namespace):
        text = "it must be a DNS label of at most 57 letters, such as volplane-system"
        raise ConfigurationError(f'--namespace is "{wanted.namespace}"; {text}')
    if not 1 <= wanted.replicas <= MOST_REPLICAS:
        text = f"it must be 1 to {MOST_REPLICAS}: one works, the others wait to take over"
        raise ConfigurationError(f"--replicas is {wanted.replicas}; {text}")
    configuration = _configuration(wanted.config)
    _check_mounts(wanted.mounts or [], as_root=wanted.as_root)
    wanted = replace(wanted, image=wanted.image or f"{NAME}:{version('volplane')}")
    layout: dict[str, Any] = {"sort_keys": False, "explicit_start": True, "default_flow_style": None, "width": 120}
    typer.echo(yaml.dump_all(documents(wanted, configuration), Dumper=Dumper, **layout), nl=False)


def _check_mounts(paths: list[str], *, as_root: bool) -> None:
    """Raise ConfigurationError for a path that no pod can mount."""
    if as_root and not paths:
        raise ConfigurationError("--as-root needs --mount: nothing else that a process does needs root")
    for path in paths:
        if not re.fullmatch(MOUNT, path) or {".", ".."} & set(path.split("/")):
            raise ConfigurationError(
                f'--mount is "{path}"; it must be the absolute path of a directory of the nodes, such as /srv/volumes'
            )
        if paths.count(path) > 1:
            raise ConfigurationError(f"--mount {path} is given twice; once is enough")
        if path in TAKEN or path.startswith(tuple(f"{taken}/" for taken in TAKEN)):
            raise ConfigurationError(f"--mount {path}: the pods have something else there; mount the disk elsewhere")


def _configuration(path: Path | None) -> str:
    """Return the text of the file. Raises ConfigurationError if it cannot be used."""
    if path is None:
        return text_of("volplane.cli", "default_configuration.yaml")
    text = read_text(path, f"--config {path}")
    installed = InstalledPlugins()
    known = installed.names("backend")
    for driver in parse_configuration(text, str(path)).drivers or ():
        # The image must have the backend too; only an installed one can show that a name or an option is misspelt.
        if driver.backend not in known:
            raise ConfigurationError(
                f"{driver.where}.backend: {driver.backend!r} is not installed here{nearest(driver.backend, known)}; "
                "install what the image has, so that the configuration can be checked"
            )
        schema = options_schema(installed.load("backend", driver.backend))
        driver_options(schema, driver.options, f"{driver.where}.options")
    return text


class Dumper(yaml.SafeDumper):
    """Writes texts of several lines as block scalars, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_TEXT = "tag:yaml.org,2002:str"
Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar(_TEXT, text, style="|" if "\n" in text else None)
)
