"""`volplane manifests`: prints all objects that run the controllers in a cluster, as YAML for `kubectl apply -f -`."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from typer import Option

from volplane._messages import nearest
from volplane._templates import text_of
from volplane.cli.framework.options import path_option
from volplane.cli.installation import NAME, Installation, documents
from volplane.controller.config import parse_configuration, read_text
from volplane.drivers.discovery import InstalledPlugins
from volplane.drivers.loading import options_schema
from volplane.drivers.parameters import driver_options
from volplane.errors import ConfigurationError
from volplane.process.duties import ALL_CONTROLLERS, DEFAULT_CONTROLLERS, parse_controllers

MOST_REPLICAS = 10
MOUNT = r"(/[A-Za-z0-9._-]+)+"
TAKEN = ("/etc", "/usr", "/opt/volplane", "/tmp", "/proc", "/sys", "/dev", "/bin", "/lib")  # noqa: S108 - of the container
"""Where the container has files of its own."""


def manifests(
    *,
    namespace: Annotated[str, Option(metavar="NAME", help="Where it runs.")] = "volplane-system",
    controllers: Annotated[
        str, Option(metavar="LIST", help=f"As of `volplane run`: some of {', '.join(ALL_CONTROLLERS)}, or all.")
    ] = DEFAULT_CONTROLLERS,
    image: Annotated[
        str, Option(metavar="IMAGE", help="Image with volplane and the backends; default volplane:VERSION.")
    ] = "",
    config: Annotated[
        Path | None, path_option("--config", "FILE", "Configuration file to put into the ConfigMap.")
    ] = None,
    replicas: Annotated[
        int, Option(metavar="N", help="Of the Deployment: one works, the others wait for its lease.")
    ] = 2,
    monitoring: Annotated[
        bool, Option("--monitoring", help="Add a PodMonitor, for clusters with the Prometheus operator.")
    ] = False,
    network_policies: Annotated[
        bool, Option(help="Who reaches the pods, and that scrubber pods reach nothing.")
    ] = True,
    admission_policy: Annotated[
        bool, Option(help="That a process of a node writes what concerns that node alone, for distributed drivers.")
    ] = True,
    storage_classes: Annotated[
        bool, Option(help="A class of each driver of the file: late binding, reclaim policy Delete.")
    ] = True,
    mounts: Annotated[
        list[str] | None,
        Option(
            "--mount",
            metavar="PATH",
            help="A directory of the nodes that a backend works in, mounted under its path: in the DaemonSet if there"
            " is one, else in the Deployment; repeatable.",
        ),
    ] = None,
    as_root: Annotated[
        bool,
        Option(
            "--as-root",
            help="What mounts directories runs as root, and may give files to users and remove those of any user;"
            " else as user 65532, who must own the directories.",
        ),
    ] = False,
) -> None:
    """Print namespace, accounts, roles, configuration, network policies, Deployment and classes of the controllers.

    The account gets the least rights that the controllers need; of Secrets it may read those that options of the
    configuration file name, also in other namespaces. If a driver is distributed, a DaemonSet with namespace and
    account of its own runs a process on every node.

    Two replicas or more get a PodDisruptionBudget, which lets a drain evict one at a time. A ResourceQuota without
    an effective limit allows the pods their priority class in clusters that keep those of the system to kube-system.
    """
    chosen = parse_controllers(controllers)
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,55}[a-z0-9])?", namespace):
        text = f'--namespace is "{namespace}"; it must be a DNS label of at most 57 letters, such as volplane-system'
        raise ConfigurationError(text)
    if not 1 <= replicas <= MOST_REPLICAS:
        text = f"--replicas is {replicas}; it must be 1 to {MOST_REPLICAS}: one works, the others wait to take over"
        raise ConfigurationError(text)
    wanted = Installation(
        namespace=namespace,
        option=controllers,
        controllers=chosen,
        image=image or f"{NAME}:{version('volplane')}",
        configuration=_configuration(config),
        replicas=replicas,
        monitoring=monitoring,
        network_policies=network_policies,
        storage_classes=storage_classes,
        mounts=_mounts(mounts or [], as_root=as_root),
        as_root=as_root,
        admission_policy=admission_policy,
    )
    layout: dict[str, Any] = {"sort_keys": False, "explicit_start": True, "default_flow_style": None, "width": 120}
    typer.echo(yaml.dump_all(documents(wanted), Dumper=Dumper, **layout), nl=False)


def _mounts(paths: list[str], *, as_root: bool) -> list[str]:
    """Return the paths. Raises ConfigurationError for one that no pod can mount."""
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
    return paths


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
