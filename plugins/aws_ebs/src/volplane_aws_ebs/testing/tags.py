"""Tags: TagSpecifications of creating calls, CreateTags, DeleteTags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from volplane_aws_ebs.testing.faults import Refusal, invalid
from volplane_aws_ebs.testing.state import Cloud, Snapshot, Volume

__all__ = ["create_tags", "delete_tags", "shown_tags", "specified_tags"]

_MOST = 50
_LONGEST_KEY = 128
_LONGEST_VALUE = 256


def specified_tags(given: Mapping[str, Any], resource: str) -> dict[str, str]:
    """The tags that a creating call asks for. Raises what EC2 raises for bad ones."""
    tags: dict[str, str] = {}
    for specification in given.get("TagSpecifications", ()):
        kind = specification.get("ResourceType")
        if kind != resource:
            raise invalid(
                "TagSpecification", kind, f"'{kind}' is not a valid taggable resource type for this operation."
            )
        listed = specification.get("Tags", ())
        if not listed:
            raise Refusal("InvalidParameterValue", "Tag specification must have at least one tag")
        for key, value in _checked(listed):
            if key in tags:
                raise Refusal("InvalidParameterValue", f"Duplicate tag key '{key}' specified.")
            tags[key] = value
    _limit(tags)
    return tags


def _checked(tags: Iterable[Mapping[str, str]]) -> Iterable[tuple[str, str]]:
    for tag in tags:
        key, value = tag.get("Key", ""), tag.get("Value", "")
        if not key:
            raise Refusal("InvalidParameterValue", "Tag keys cannot be empty")
        if key.lower().startswith("aws:"):
            raise Refusal("InvalidParameterValue", "Tag keys starting with 'aws:' are reserved for internal use")
        if len(key) > _LONGEST_KEY:
            raise Refusal("InvalidParameterValue", f"Tag key exceeds the maximum length of {_LONGEST_KEY} characters")
        if len(value) > _LONGEST_VALUE:
            raise Refusal(
                "InvalidParameterValue", f"Tag value exceeds the maximum length of {_LONGEST_VALUE} characters"
            )
        yield key, value


def _limit(tags: Mapping[str, str]) -> None:
    if len(tags) > _MOST:
        raise Refusal("TagLimitExceeded", f"More than {_MOST} tags specified")


def shown_tags(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """As Describe calls show them."""
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]


def create_tags(cloud: Cloud, given: Mapping[str, Any]) -> dict[str, Any]:
    """CreateTags: adds or overwrites."""
    new = dict(_checked(given["Tags"]))
    targets = [_target(cloud, id_) for id_ in given["Resources"]]
    for target in targets:
        _limit({**target.tags, **new})
    for target in targets:
        _replace(cloud, target, {**target.tags, **new})
    return {}


def delete_tags(cloud: Cloud, given: Mapping[str, Any]) -> dict[str, Any]:
    """DeleteTags: by key, or by key and value; without tags all of them."""
    for target in [_target(cloud, id_) for id_ in given["Resources"]]:
        kept = dict(target.tags)
        for tag in given.get("Tags") or shown_tags(target.tags):
            if tag.get("Value") in (None, kept.get(tag["Key"])):
                kept.pop(tag["Key"], None)
        _replace(cloud, target, kept)
    return {}


def _target(cloud: Cloud, id_: str) -> Volume | Snapshot:
    if id_.startswith("snap-"):
        if id_ not in cloud.snapshots:
            raise Refusal("InvalidSnapshot.NotFound", f"The snapshot '{id_}' does not exist.")
        return cloud.snapshots[id_]
    return cloud.volume({"VolumeId": id_})


def _replace(cloud: Cloud, target: Volume | Snapshot, tags: dict[str, str]) -> None:
    if isinstance(target, Volume):
        target.old_tags, target.tagged = dict(cloud.visible_tags(target)), cloud.now
        cloud.tagged.remove(target.id, target.tags)
        cloud.tagged.add(target.id, tags)
    target.tags = tags
