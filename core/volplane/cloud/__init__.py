"""For authors of cloud backends: what every driver of a cloud needs beside the cloud's own calls.

Rate limits that learn, one shared poller of states, turns of long work, error tables, batches that one bad id does not
spoil, the zones of a region, ownership marks and fences, and the hooks of disks. Nothing here does I/O or knows a
cloud. See docs/how-to/write-a-cloud-backend.md.
"""

from volplane.cloud.accounts import AccountOptions, AccountParameters, SecretKey
from volplane.cloud.calls import NO_ANSWER, NO_CREDENTIALS, NOT_SENT, CloudError, ErrorRow, ErrorTable, measured
from volplane.cloud.disks import (
    GIB,
    CsiDriverName,
    DiskAccount,
    DiskBackend,
    DiskOperations,
    DiskOptions,
    NodeNames,
    csi_asset,
    csi_source,
    pod_scrub,
    size_in_gib,
)
from volplane.cloud.marks import LABELS, TAGS, Fences, Marks, OfficialDriver, label_text
from volplane.cloud.polling import Observation, StatePoller, chunks, read_without_bad_ids
from volplane.cloud.rates import RateLimiter, Refusal, TokenBucket
from volplane.cloud.snapshots import SnapshotLooks, refuse_other_snapshot, refuse_smaller, refuse_unusable
from volplane.cloud.turns import BoundedCache, HookCall, RetryLater, StateAges, in_turns
from volplane.cloud.zones import Zones, ZoneStates, refuse_other_zone, zones_for

__all__ = [
    "GIB",
    "LABELS",
    "NOT_SENT",
    "NO_ANSWER",
    "NO_CREDENTIALS",
    "TAGS",
    "AccountOptions",
    "AccountParameters",
    "BoundedCache",
    "CloudError",
    "CsiDriverName",
    "DiskAccount",
    "DiskBackend",
    "DiskOperations",
    "DiskOptions",
    "ErrorRow",
    "ErrorTable",
    "Fences",
    "HookCall",
    "Marks",
    "NodeNames",
    "Observation",
    "OfficialDriver",
    "RateLimiter",
    "Refusal",
    "RetryLater",
    "SecretKey",
    "SnapshotLooks",
    "StateAges",
    "StatePoller",
    "TokenBucket",
    "ZoneStates",
    "Zones",
    "chunks",
    "csi_asset",
    "csi_source",
    "in_turns",
    "label_text",
    "measured",
    "pod_scrub",
    "read_without_bad_ids",
    "refuse_other_snapshot",
    "refuse_other_zone",
    "refuse_smaller",
    "refuse_unusable",
    "size_in_gib",
    "zones_for",
]
