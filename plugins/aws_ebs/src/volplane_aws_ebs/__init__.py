"""volplane backend `aws_ebs`: persistent volumes on Amazon EBS.

`AwsEbsBackend` implements volplane's hooks with calls of EC2: it creates, deletes, attaches, modifies and snapshots
volumes, and finds them by tags that name their owner. volplane loads it by its entry point; `volplane_aws_ebs.testing`
is a mock of EC2 for tests. It imports only public names of `volplane`. It never mounts a volume, never talks to the
Kubernetes API, and never changes a volume whose tags name another owner.
"""

from volplane_aws_ebs.backend import AwsEbsBackend

__all__ = ["AwsEbsBackend"]
