"""Every call that the driver makes: the one list, from which the IAM policy follows."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Call"]


class Call(StrEnum):
    """An action of EC2, or of STS where it says so."""

    ATTACH_VOLUME = "AttachVolume"
    CREATE_SNAPSHOT = "CreateSnapshot"
    CREATE_TAGS = "CreateTags"
    CREATE_VOLUME = "CreateVolume"
    DELETE_SNAPSHOT = "DeleteSnapshot"
    DELETE_VOLUME = "DeleteVolume"
    DESCRIBE_AVAILABILITY_ZONES = "DescribeAvailabilityZones"
    DESCRIBE_INSTANCES = "DescribeInstances"
    DESCRIBE_INSTANCE_TYPES = "DescribeInstanceTypes"
    DESCRIBE_SNAPSHOTS = "DescribeSnapshots"
    DESCRIBE_VOLUMES = "DescribeVolumes"
    DESCRIBE_VOLUMES_MODIFICATIONS = "DescribeVolumesModifications"
    DETACH_VOLUME = "DetachVolume"
    MODIFY_VOLUME = "ModifyVolume"
    DECODE_AUTHORIZATION_MESSAGE = "DecodeAuthorizationMessage"
    """Of STS; without the right to it, messages stay encoded."""
    ASSUME_ROLE = "AssumeRole"
    """Of STS, with the credentials of the default chain; only with the option `role_arn`."""

    @property
    def mutates(self) -> bool:
        """Whether it changes something in EC2."""
        return not self.startswith(("Describe", "Decode", "Assume"))
