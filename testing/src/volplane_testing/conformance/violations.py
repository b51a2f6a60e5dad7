"""What the judging of a backend may end with, besides a rule that is kept."""

from __future__ import annotations

__all__ = ["HungCall", "Interrupted", "NotApplicable", "Violation"]


class Violation(AssertionError):
    """The backend breaks the rule; the message says what was asked, what came, and what would be right."""


class HungCall(Violation):
    """A call of the backend did not return in time. Its thread stays in the backend, perhaps with locks of it."""

    def __init__(self, what: str, message: str) -> None:
        """what: the call that hangs."""
        super().__init__(message)
        self.what = what


class Interrupted(KeyboardInterrupt):
    """Somebody ended the judging. left: what may still be on the storage, with the reason where that is known."""

    def __init__(self, left: tuple[str, ...]) -> None:
        super().__init__("interrupted")
        self.left = left


class NotApplicable(Exception):
    """The rule says nothing about this backend, for the reason given: it, or its subject, lacks what the rule needs."""
