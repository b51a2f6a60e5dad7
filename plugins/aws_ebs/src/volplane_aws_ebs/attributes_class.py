"""The parameters of a VolumeAttributesClass, and how a volume differs from them. Nothing here calls EC2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from volplane import InvalidArgument
from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.class_tags import SPECIFICATION, ClassTags
from volplane_aws_ebs.resources import Ec2Volume
from volplane_aws_ebs.settings import check_tags
from volplane_aws_ebs.volume_types import VOLUME_TYPES, allowed_iops

_DELETION: Final = "tagDeletion"
_KNOWN: Final = (
    "type, iops, throughput, iopsPerGB, allowAutoIOPSIncreaseOnModify, tagSpecification_1 and so on, tagDeletion_1 and "
    "so on"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributesClass:
    """What a class asks for; keys are compared without regard to case."""

    values: Mapping[str, int | str]
    """Parameters of ModifyVolume."""
    iops_per_gib: int | None
    """IOPS for each GiB."""
    increase_on_modify: bool | None
    """Growing the volume raises its IOPS; None = as before."""
    tags: ClassTags
    deletions: frozenset[str]
    """Keys of tags to remove."""

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> AttributesClass:
        """Raises InvalidArgument for an unknown parameter, or a value that cannot be."""
        given = {key.lower(): (key, text) for key, text in parameters.items()}
        if "type" in given:
            given.pop("volumetype", None)  # As the official driver does: the older name counts only alone.
        values: dict[str, int | str] = {}
        tags: dict[str, str] = {}
        deletions: dict[str, str] = {}
        for name, (key, text) in given.items():
            if name in _READERS:
                parameter, read = _READERS[name]
                values[parameter] = read(key, text)
            elif name.startswith(SPECIFICATION.lower()):
                tags[key] = text
            elif name.startswith(_DELETION.lower()):
                check_tags({text: ""}, f"parameter {key}", ownership_tags.RESERVED_IN_CLASSES)
                deletions[text] = key
            else:
                raise InvalidArgument(f"unknown parameter {key!r}; what can be changed is {_KNOWN}")
        per_gib, increase = values.pop(_PER_GIB, None), values.pop(_INCREASE, None)
        if per_gib is not None and "Iops" in values:
            raise InvalidArgument(
                f"parameters iops={values['Iops']} and iopsPerGB={per_gib} exclude each other; give one"
            )
        class_tags = ClassTags.of({}, tags)
        for tag in sorted(class_tags.keys() & deletions.keys()):
            raise InvalidArgument(
                f"parameters {class_tags.templates[tag][0]} and {deletions[tag]} set and remove the same tag, {tag!r}"
            )
        return cls(
            values=values,
            iops_per_gib=None if per_gib is None else int(per_gib),
            increase_on_modify=None if increase is None else bool(increase),
            tags=class_tags,
            deletions=frozenset(deletions),
        )

    def over(self, parameters: Mapping[str, object]) -> dict[str, object]:
        """Return the parameters of a StorageClass for a new volume with these: they win, as in the official driver."""
        names = {"VolumeType": "type", "Iops": "iops", "Throughput": "throughput"}
        wanted = {**parameters, **{names[name]: value for name, value in self.values.items()}}
        if "Iops" in self.values:
            wanted["iopsPerGB"] = None
        if self.iops_per_gib is not None:
            wanted |= {"iops": None, "iopsPerGB": self.iops_per_gib, "allowAutoIOPSPerGBIncrease": True}
        if self.increase_on_modify is not None:
            wanted["allowAutoIOPSIncreaseOnModify"] = self.increase_on_modify
        return wanted

    def values_for(self, volume: Ec2Volume) -> dict[str, int | str]:
        """Return the parameters of ModifyVolume, those that follow from the volume's size included.

        Raises InvalidArgument.
        """
        if self.iops_per_gib is None:
            return dict(self.values)
        name = str(self.values.get("VolumeType", volume.volume_type))
        if name not in VOLUME_TYPES:
            raise InvalidArgument(f"parameter iopsPerGB is {self.iops_per_gib}: type {name} is not known here")
        iops = allowed_iops(name, volume.size, per_gib=self.iops_per_gib, raise_to_minimum=True)
        return {**self.values, "Iops": iops}

    def tags_to_write(self, volume: Ec2Volume, name: str) -> dict[str, str]:
        """Return the tags that the volume lacks, or has with other values. name: of the PersistentVolume.

        Raises InvalidArgument.
        """
        wanted = self.tags.rendered(
            namespace=volume.tags.get(ownership_tags.CLAIM_NAMESPACE, ""),
            claim=volume.tags.get(ownership_tags.CLAIM_NAME, ""),
            volume=name,
        )
        if self.iops_per_gib is not None:
            wanted[ownership_tags.IOPS_PER_GIB] = str(self.iops_per_gib)
        if self.increase_on_modify is not None:
            wanted[ownership_tags.RAISE_ON_MODIFY] = str(self.increase_on_modify).lower()
        return {key: value for key, value in wanted.items() if volume.tags.get(key) != value}

    def tags_to_remove(self, volume: Ec2Volume) -> tuple[str, ...]:
        """Return the keys of tags that the volume has and should not have."""
        return tuple(sorted(self.deletions.intersection(volume.tags)))


def _volume_type(key: str, text: str) -> str:
    possible = [name for name, kind in VOLUME_TYPES.items() if kind.modifiable]
    if text not in possible:
        raise InvalidArgument(f"parameter {key} is {text!r}, expected one of {', '.join(possible)}")
    return text


def _number(key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text[:12]) == 0:
        raise InvalidArgument(f"parameter {key} is {text!r}, expected a whole number")
    return int(text[:12])


def _boolean(key: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidArgument(f"parameter {key} is {text!r}, expected true or false")
    return text.lower() == "true"


_PER_GIB: Final = "iopsPerGB"
_INCREASE: Final = "allowAutoIOPSIncreaseOnModify"
_READERS: Final[Mapping[str, tuple[str, Callable[[str, str], int | str]]]] = {
    "type": ("VolumeType", _volume_type),
    "volumetype": ("VolumeType", _volume_type),
    "iops": ("Iops", _number),
    "throughput": ("Throughput", _number),
    _PER_GIB.lower(): (_PER_GIB, _number),
    _INCREASE.lower(): (_INCREASE, _boolean),
}
"""Parameter -> its name in ModifyVolume, or ours, and what reads its value."""
