"""Asking the process that leads, from anywhere: how it is found, and what it answers to whom.

`leader` finds it by its Lease and asks, through the API server by `forward`; `callers` reviews for it who asks; `seen`
is for those whom it does not answer. docs/explanation/trust.md says why so.
"""

from typing import Final

AUDIENCE: Final = "volplane"
"""Of tokens that are of no use but here, such as those that commands request which have only a certificate."""
