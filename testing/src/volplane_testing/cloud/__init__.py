"""The scaffold of fake clouds, for tests of cloud backends: what is the same whatever the cloud.

A clock that is injected, planned events, scripted faults and lost answers, throttling, readers that see changes late,
pages, and an HTTP face. See docs/how-to/write-a-cloud-backend.md.
"""

from volplane_testing.cloud.contents import DiskContents, MemoryContents
from volplane_testing.cloud.fake import FakeCloud, Reply
from volplane_testing.cloud.faults import CloudFailure, Fault, FaultKind, RandomFaults, Script
from volplane_testing.cloud.paging import page_of
from volplane_testing.cloud.server import FakeCloudServer, HttpRequest, HttpResponse
from volplane_testing.cloud.serving import ServedFake
from volplane_testing.cloud.throttling import Rate, Throttle
from volplane_testing.cloud.timeline import Former, SteppedClock, Timeline

__all__ = [
    "CloudFailure",
    "DiskContents",
    "FakeCloud",
    "FakeCloudServer",
    "Fault",
    "FaultKind",
    "Former",
    "HttpRequest",
    "HttpResponse",
    "MemoryContents",
    "RandomFaults",
    "Rate",
    "Reply",
    "Script",
    "ServedFake",
    "SteppedClock",
    "Throttle",
    "Timeline",
    "page_of",
]
