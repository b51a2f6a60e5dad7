"""volplane backend `aws_ebs`: volumes of Amazon EBS."""

from volplane_aws_ebs.backend import AwsEbsBackend

__all__ = ["AwsEbsBackend"]
