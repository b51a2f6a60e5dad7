"""TagSpecifications of creating actions, and the actions CreateTags and DeleteTags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from volplane_aws_ebs.testing.faults import EC2Error, invalid
from volplane_aws_ebs.testing.state import AccountState, Snapshot, Volume
from volplane_testing.cloud import Former

_MAX_TAGS = 50
_LONGEST_KEY = 128
_LONGEST_VALUE = 256


def tags_from_specification(params: Mapping[str, Any], resource: str) -> dict[str, str]:
    """Return the tags in TagSpecifications. Raises EC2Error for tags that EC2 refuses."""
    tags: dict[str, str] = {}
    for specification in params.get("TagSpecifications", ()):
        kind = specification.get("ResourceType")
        if kind != resource:
            raise invalid(
                "TagSpecification", kind, f"'{kind}' is not a valid taggable resource type for this operation."
            )
        listed = specification.get("Tags", ())
        if not listed:
            raise EC2Error("InvalidParameterValue", "Tag specification must have at least one tag")
        for key, value in _checked(listed):
            if key in tags:
                raise EC2Error("InvalidParameterValue", f"Duplicate tag key '{key}' specified.")
            tags[key] = value
    _limit(tags)
    return tags


def _checked(tags: Iterable[Mapping[str, str]]) -> Iterable[tuple[str, str]]:
    for tag in tags:
        key, value = tag.get("Key", ""), tag.get("Value", "")
        if not key:
            raise EC2Error("InvalidParameterValue", "Tag keys cannot be empty")
        if key.lower().startswith("aws:"):
            raise EC2Error("InvalidParameterValue", "Tag keys starting with 'aws:' are reserved for internal use")
        if len(key) > _LONGEST_KEY:
            raise EC2Error("InvalidParameterValue", f"Tag key exceeds the maximum length of {_LONGEST_KEY} characters")
        if len(value) > _LONGEST_VALUE:
            raise EC2Error(
                "InvalidParameterValue", f"Tag value exceeds the maximum length of {_LONGEST_VALUE} characters"
            )
        yield key, value


def _limit(tags: Mapping[str, str]) -> None:
    if len(tags) > _MAX_TAGS:
        raise EC2Error("TagLimitExceeded", f"More than {_MAX_TAGS} tags specified")


def tags_output(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the tags as in responses."""
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]


def create_tags(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """CreateTags: adds or overwrites tags."""
    new = dict(_checked(params["Tags"]))
    targets = [_target(account, id_) for id_ in params["Resources"]]
    _alone(account, targets)
    for target in targets:
        _limit({**target.tags, **new})
    for target in targets:
        _replace(account, target, {**target.tags, **new})
    return {}


def delete_tags(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """DeleteTags: by key, or by key and value; without tags all of them."""
    targets = [_target(account, id_) for id_ in params["Resources"]]
    _alone(account, targets)
    for target in targets:
        kept = dict(target.tags)
        for tag in params.get("Tags") or tags_output(target.tags):
            if tag.get("Value") in (None, kept.get(tag["Key"])):
                kept.pop(tag["Key"], None)
        _replace(account, target, kept)
    return {}


def _alone(account: AccountState, targets: Iterable[Volume | Snapshot]) -> None:
    """Raise ConcurrentTagAccess for a resource whose tags are being changed."""
    for each in targets:
        if account.now < account.tags_busy.get(each.id, account.now):
            raise EC2Error("ConcurrentTagAccess", f"The tags of '{each.id}' are being changed by another request.")
        account.tags_busy[each.id] = account.now + account.behaviour.tag_seconds


def _target(account: AccountState, id_: str) -> Volume | Snapshot:
    if id_.startswith("snap-"):
        if id_ not in account.snapshots:
            raise EC2Error("InvalidSnapshot.NotFound", f"The snapshot '{id_}' does not exist.")
        return account.snapshots[id_]
    return account.volume({"VolumeId": id_})


def _replace(account: AccountState, target: Volume | Snapshot, tags: dict[str, str]) -> None:
    if isinstance(target, Volume):
        target.former_tags = Former(dict(account.visible_tags(target)), account.now)
        account.tagged.remove(target.id, target.tags)
        account.tagged.add(target.id, tags)
    target.tags = tags
