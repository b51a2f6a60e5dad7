"""What an external storage has attached to the machines of the cluster, as the storage itself knows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from volplane.requests import NodeIdentity
from volplane_testing.conformance import Subject
from volplane_testing.simulation.attachments import Attachments

__all__ = ["AttachedStorage", "Machines"]


class Machines(Protocol):
    """Where the machines of nodes come from."""

    def machine_for(self, node: str) -> str:
        """Return the id of another machine for the node, as in `spec.providerID`; "" if there are no more."""

    def csi_ids(self, machine: str) -> Mapping[str, str]:
        """Return the ids that the node plugins of CSI drivers give the machine, by driver."""


class AttachedStorage:
    """Follows `Subject.attachments`, and gives the machines of the subject to the nodes, each once."""

    def __init__(self, subject: Subject, attachments: Attachments, key_of: Callable[[str], str]) -> None:
        """key_of: `source_key` of an asset by its handle, "" for one that is not known yet."""
        self._subject = subject
        self._attachments = attachments
        self._key_of = key_of
        self._left = [each.instance_id for each in reversed(subject.nodes)]
        self._nodes: dict[str, str] = {}
        """Id of a machine -> the node that it is or was."""
        self._seen: set[tuple[str, str]] = set()

    def machine_for(self, node: str) -> str:
        if not self._left:
            return ""
        machine = self._left.pop()
        self._nodes[machine] = node
        return machine

    def csi_ids(self, machine: str) -> Mapping[str, str]:
        ids = {each.instance_id: each.csi_node_id for each in self._subject.nodes if each.csi_node_id}
        return {self._subject.driver_name: ids[machine]} if machine in ids else {}

    def nodes_of(self, handle: str) -> list[NodeIdentity]:
        """Return the machines to which an asset is attached now."""
        machines = self._subject.attachments().get(handle, ()) if self._subject.attachments is not None else ()
        return [each for each in self._subject.nodes if each.instance_id in machines]

    def look(self) -> None:
        """Report what has been attached and detached since the last look."""
        if self._subject.attachments is None:
            return
        now: set[tuple[str, str]] = set()
        for handle, machines in self._subject.attachments().items():
            key = self._key_of(handle)
            now |= {(key, self._nodes[machine]) for machine in machines if key and machine in self._nodes}
        for gone in sorted(self._seen - now):
            self._attachments.detached(*gone)
        for made in sorted(now - self._seen):
            self._attachments.attached(*made)
        self._seen = now
