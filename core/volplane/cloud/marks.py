"""Marks that name the owner of an asset, as tags or labels of a cloud, and the mark that fences off former leaders."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from volplane.assets import Ownership, SnapshotOwnership
from volplane.cloud.turns import BoundedCache
from volplane.errors import AlreadyExists, Fenced, Unsupported
from volplane.requests import AdoptRequest, Context, DeleteSnapshotRequest, Fence

__all__ = ["LABELS", "TAGS", "Fences", "Marks", "OfficialDriver", "label_text"]

_LONGEST_LABEL = 63
_PLAIN = re.compile(r"[a-z0-9-]")
_ENCODED = re.compile(r"_([0-9a-f]{1,6})_")
_CUT = re.compile(r"_x[0-9a-f]{24}_$")
_GENERATION = re.compile(r"[0-9]{1,9}")
_SNAPSHOT, _CONTENT = "snapshot-", "snapcontent-"
"""What stands before the uid of a VolumeSnapshot in the names of its snapshot and its content."""


def label_text(text: str) -> str:
    """Return any text as the value of a label of lower-case letters, digits, _ and -, at most 63 characters.

    The characters of UUIDs and of the names of volumes stay as they are, others become their code between two _. A text
    that is then too long is cut and ends with a hash. Different texts have different values.
    """
    encoded = "".join(letter if _PLAIN.fullmatch(letter) else f"_{ord(letter):x}_" for letter in text)
    if len(encoded) <= _LONGEST_LABEL:
        return encoded
    return f"{encoded[: _LONGEST_LABEL - 27]}_x{hashlib.sha256(text.encode()).hexdigest()[:24]}_"


def _label_read(value: str) -> str:
    """Return the text of a value; a value that was cut, and codes of no character, stay as they are."""
    return value if _CUT.search(value) else _ENCODED.sub(_character, value)


def _character(match: re.Match[str]) -> str:
    code = int(match[1], 16)
    return chr(code) if code < 0xD800 or 0xDFFF < code <= 0x10FFFF else match[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfficialDriver:
    """How the CSI driver of a cloud marks the disks that it makes, so that its volumes can be taken over.

    A driver of ours that has its name stands for its controller. What that one made belongs to the name, in the place
    of a cluster's id, until `adopt` writes marks; to give a disk back is to write the name as its cluster again.
    """

    name: str
    """As in `spec.csi.driver`."""
    volume: str
    """Key of the mark that has the name of the PersistentVolume, `pvc-<claim uid>`."""
    snapshot: str = ""
    """Key of the mark that has the name of a snapshot, `snapshot-<VolumeSnapshot uid>`."""

    def owner(self, marks: Mapping[str, str]) -> Ownership | None:
        """Return the owner of what it made; None if it did not."""
        name = marks.get(self.volume)
        if not name:
            return None
        return Ownership(cluster_id=self.name, claim_uid=name.removeprefix("pvc-"), volume_name=name)

    def replaced_by(self, context: Context) -> OfficialDriver | None:
        """Return itself if the calling driver has its name, and so stands for its controller; else None."""
        return self if context.driver == self.name else None

    def snapshot_owner(self, marks: Mapping[str, str]) -> SnapshotOwnership | None:
        """Return the owner of a snapshot that it made; None if it did not, or gave it another name."""
        uid = marks.get(self.snapshot, "").removeprefix(_SNAPSHOT)
        if not uid or not marks[self.snapshot].startswith(_SNAPSHOT):
            return None
        return SnapshotOwnership(cluster_id=self.name, snapshot_uid=uid, content_name=_CONTENT + uid)


class Marks:
    """How the owner of an asset is written to its tags or labels, and read from them.

    key: the key of a mark from its name, such as `"volplane.dev/{}".format`. encode, decode: for values.
    """

    def __init__(
        self, key: Callable[[str], str], encode: Callable[[str], str] = str, decode: Callable[[str], str] = str
    ) -> None:
        self.cluster, self.claim, self.volume = key("cluster"), key("claim-uid"), key("volume")
        self.generation, self.demand, self.fence = key("generation"), key("demand"), key("fence")
        self.snapshot, self.content = key("snapshot-uid"), key("content")
        self.encode = encode
        self._decode = decode

    def of(self, owner: Ownership) -> dict[str, str]:
        """Return the marks of an owner."""
        return {
            self.cluster: self.encode(owner.cluster_id),
            self.claim: self.encode(owner.claim_uid),
            self.volume: self.encode(owner.volume_name),
            self.generation: str(owner.generation),
        }

    def owner(
        self, marks: Mapping[str, str], cluster_id: str = "", *, official: OfficialDriver | None = None
    ) -> Ownership | None:
        """Return the owner that the marks name; None if one is missing or cannot be read.

        cluster_id: of the caller. A mark of it is read as it, also where the encoding has cut it. official: whose marks
        count on what has none of ours.
        """
        if official is not None and self.cluster not in marks:
            return official.owner(marks)
        cluster, claim, name = marks.get(self.cluster), marks.get(self.claim), marks.get(self.volume)
        generation = marks.get(self.generation, "")
        if not cluster or not claim or not name or not _GENERATION.fullmatch(generation):
            return None
        own = bool(cluster_id) and cluster == self.encode(cluster_id)
        return Ownership(
            cluster_id=cluster_id if own else self._decode(cluster),
            claim_uid=self._decode(claim),
            volume_name=self._decode(name),
            generation=int(generation),
        )

    def of_term(self, context: Context) -> dict[str, str]:
        """Return the mark of the term in which the call is made, as `{transitions}//{lease}`; empty without an
        election.
        """
        fence = Fence.parse(context.fence)
        return {self.fence: self.encode(str(replace(fence, holder="")))} if fence is not None else {}

    def term(self, marks: Mapping[str, str]) -> Fence | None:
        """Return the term in which the asset was changed last, without its holder; None if there is no such mark."""
        return Fence.parse(self._decode(marks.get(self.fence, "")))

    def recorded_demand(self, marks: Mapping[str, str]) -> str:
        """Return the digest of the demand that the asset was made for, "" if there is no such mark."""
        return marks.get(self.demand, "")

    def belongs(self, marks: Mapping[str, str], owner: Ownership) -> bool:
        """Return whether the marks name this owner; the generation is not compared."""
        wanted = self.of(owner)
        del wanted[self.generation]
        return self.owner(marks) is not None and all(marks.get(key) == value for key, value in wanted.items())

    def refuse_foreign(
        self, handle: str, marks: Mapping[str, str], expected: Ownership | None, *, others: tuple[str, ...] = ()
    ) -> None:
        """Raise AlreadyExists unless the marks name `expected`. None = a static volume: raise if they name any owner.

        others: keys by which other drivers mark what they make. The generation is not compared.
        """
        if expected is None:
            foreign = next((key for key in (self.cluster, self.volume, *others) if key in marks), None)
            if foreign is not None:
                raise AlreadyExists(
                    f"{handle} carries the mark {foreign}={marks[foreign]!r}: it was made by a driver, not by a "
                    "person, and is not touched"
                )
            return
        owner = self.owner(marks)
        if owner is None:
            raise AlreadyExists(
                f"{handle} carries no marks of volplane, so it cannot be {expected.volume_name}'s: it is not touched"
            )
        if not self.belongs(marks, expected):
            raise AlreadyExists(
                f"{handle} belongs to {owner.volume_name} of claim {owner.claim_uid} in cluster {owner.cluster_id!r}, "
                f"not to {expected.volume_name} of cluster {expected.cluster_id!r}: it is not touched"
            )

    # --- snapshots ----------------------------------------------------------------------------------------------

    def of_snapshot(self, owner: SnapshotOwnership) -> dict[str, str]:
        """Return the marks of the owner of a snapshot."""
        return {
            self.cluster: self.encode(owner.cluster_id),
            self.snapshot: self.encode(owner.snapshot_uid),
            self.content: self.encode(owner.content_name),
        }

    def snapshot_owner(
        self, marks: Mapping[str, str], cluster_id: str = "", *, official: OfficialDriver | None = None
    ) -> SnapshotOwnership | None:
        """Return the owner of a snapshot, as `owner` does of an asset."""
        cluster, uid, content = (marks.get(key) for key in (self.cluster, self.snapshot, self.content))
        if official is not None and not cluster:
            return official.snapshot_owner(marks)
        if not cluster or not uid or not content:
            return None
        own = bool(cluster_id) and cluster == self.encode(cluster_id)
        usual = _CONTENT + self._decode(uid)  # Also where the encoding has cut it.
        return SnapshotOwnership(
            cluster_id=cluster_id if own else self._decode(cluster),
            snapshot_uid=self._decode(uid),
            content_name=usual if content == self.encode(usual) else self._decode(content),
        )

    def snapshot_belongs(
        self, marks: Mapping[str, str], owner: SnapshotOwnership, *, official: OfficialDriver | None = None
    ) -> bool:
        """Return whether the marks name this owner. official: whose snapshot of the same VolumeSnapshot is its, too."""
        if self.of_snapshot(owner).items() <= marks.items():
            return True
        found = official.snapshot_owner(marks) if official is not None and self.cluster not in marks else None
        return found is not None and found.snapshot_uid == owner.snapshot_uid

    def refuse_foreign_snapshot(
        self,
        handle: str,
        marks: Mapping[str, str],
        request: DeleteSnapshotRequest,
        *,
        official: OfficialDriver | None = None,
    ) -> None:
        """Raise AlreadyExists unless the snapshot may be deleted: its marks name `request.owner`.

        Without one, for a content that a person wrote, it must carry no cluster's mark, or that of the caller's
        cluster. official: the driver for which the caller stands, whose snapshots are known by their names.
        """
        expected, cluster = request.owner, request.context.cluster_id
        if expected is None:
            if marks.get(self.cluster) in (None, self.encode(cluster)):
                return
            raise AlreadyExists(
                f"{handle} was made in cluster {self._decode(marks[self.cluster])!r}, not in {cluster!r}: it is not "
                "touched; set the content's deletionPolicy to Retain"
            )
        if self.snapshot_belongs(marks, expected, official=official):
            return
        owner = self.snapshot_owner(marks, cluster, official=official)
        whose = f"{owner.content_name} of cluster {owner.cluster_id!r}" if owner else "no owner that volplane knows"
        raise AlreadyExists(
            f"{handle} belongs to {whose}, not to {expected.content_name} of cluster {expected.cluster_id!r}: it is "
            "not touched"
        )


TAGS = Marks("volplane.dev/{}".format)
"""Marks as tags, for clouds that allow any text there (Amazon EC2)."""
LABELS = Marks("volplane-{}".format, label_text, _label_read)
"""Marks as labels of lower-case letters, digits, _ and -, at most 63 characters (Google Cloud, "Labels overview")."""


class Fences:
    """Refuses late calls of a former leader by comparing the terms of calls per asset. Safe for threads.

    The driver writes the term to the asset as a mark before it is changed, so that other processes see it too. Most
    clouds have no conditional writes: a call that starts between the read and the change is not refused. Neither is one
    under a Lease that was made again since: terms of two Leases cannot be compared.
    """

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._newest: BoundedCache[str, Fence] = BoundedCache()

    def refuse_former_leader(self, asset: str, marks: Mapping[str, str], context: Context) -> None:
        """Raise Fenced if a newer leader has changed this asset. marks: as they are on the asset now."""
        fence = Fence.parse(context.fence)
        if fence is None:
            return
        for newest in (self._newest.get(asset), self._marks.term(marks)):
            if newest is not None and newest.outdates(fence):
                raise Fenced(
                    f"{asset} is in the hands of the leader of term {newest.transitions}; this call belongs to the "
                    f"former leader {fence.holder} of term {fence.transitions} and does nothing",
                    fence=str(newest),
                )
        self._newest.put(asset, fence)

    def mark_to_write(self, marks: Mapping[str, str], context: Context) -> dict[str, str]:
        """Return the mark that an asset of the caller's cluster needs before this leader changes it; empty if it has
        it. Others carry no term of ours.
        """
        wanted = self._marks.of_term(context)
        ours = marks.get(self._marks.cluster) == self._marks.encode(context.cluster_id)
        return wanted if ours and not wanted.items() <= marks.items() else {}

    def marks_to_adopt(
        self, asset: str, marks: Mapping[str, str], request: AdoptRequest, *, official: OfficialDriver | None = None
    ) -> dict[str, str]:
        """Return the marks that `adopt` writes to the asset; empty if they are the new owner's already.

        official: whose volumes can be taken over, too. The term becomes that of the new owner's leader: terms of two
        clusters cannot be compared. Raises AlreadyExists if the marks are neither owner's, Fenced, and Unsupported for
        a static volume.
        """
        owner, former = request.volume.owner, request.former
        if owner is None:
            raise Unsupported(f"{request.volume.name} was not made by this driver: it carries no marks")
        found = self._marks.owner(marks, owner.cluster_id, official=official)
        if found == owner:
            return {}
        if found is None or self._marks.of(found) != self._marks.of(former):
            whose = f"{found.volume_name} of cluster {found.cluster_id!r}" if found else "no owner that volplane knows"
            raise AlreadyExists(f"{asset} belongs to {whose}, not to cluster {former.cluster_id!r}: it is not touched")
        if former.cluster_id == owner.cluster_id:
            self.refuse_former_leader(asset, marks, request.context)
        return {**self._marks.of(owner), **self._marks.of_term(request.context)}

    def forget(self, asset: str) -> None:
        """Drop what this process knows of the asset's leaders: its mark has a new term."""
        self._newest.drop(asset)
