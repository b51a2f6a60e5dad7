"""For authors of cloud backends: what every driver of a cloud needs beside the cloud's own calls.

Rate limits that learn, one shared poller of states, turns of long work, error tables, batches that one bad id does not
spoil, the zones of a region, ownership marks and fences. Nothing here does I/O or knows a cloud. See
docs/how-to/write-a-cloud-backend.md.
"""

from volplane.cloud.batches import chunks, read_without_bad_ids
from volplane.cloud.board import Board, Observation
from volplane.cloud.call_metrics import measured
from volplane.cloud.error_table import CloudError, ErrorRow, ErrorTable
from volplane.cloud.marks import LABELS, TAGS, Fences, Marks, label_text
from volplane.cloud.rates import RateLimiter, TokenBucket
from volplane.cloud.turns import BoundedCache, HookCall, RetryLater, StateAges, in_turns
from volplane.cloud.zones import Zones, ZoneStates

__all__ = [
    "LABELS",
    "TAGS",
    "Board",
    "BoundedCache",
    "CloudError",
    "ErrorRow",
    "ErrorTable",
    "Fences",
    "HookCall",
    "Marks",
    "Observation",
    "RateLimiter",
    "RetryLater",
    "StateAges",
    "TokenBucket",
    "ZoneStates",
    "Zones",
    "chunks",
    "in_turns",
    "label_text",
    "measured",
    "read_without_bad_ids",
]
