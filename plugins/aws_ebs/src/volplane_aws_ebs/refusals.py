"""What AWS answers instead of a result, before anybody has judged what it means."""

from __future__ import annotations

from volplane_aws_ebs.calls import Call

__all__ = ["NOT_SENT", "NO_ANSWER", "NO_CREDENTIALS", "AwsRefusal"]

NO_ANSWER = "NoAnswer"
"""Code of our own: the request was sent and no usable answer came; it may have been done."""
NOT_SENT = "NotSent"
"""Code of our own: no connection; the request cannot have been done."""
NO_CREDENTIALS = "NoCredentials"
"""Code of our own: the default chain has no credentials, or the role cannot be assumed."""


class AwsRefusal(Exception):
    """A call that gave no result. code, message: AWS's own, or one of the codes of this module."""

    def __init__(self, call: Call, code: str, message: str) -> None:
        super().__init__(f"{call}: {code}: {message}")
        self.call = call
        self.code = code
        self.message = message
