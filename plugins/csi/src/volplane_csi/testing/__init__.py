"""A strict CSI driver in memory, to test against: `volplane_csi.testing:subject` for `volplane check`.

It refuses what CSI's specification forbids, which many drivers accept, and can be told to misbehave (`Behaviour`), to
be slow, and to lose calls and answers. It needs the testing kit, which the extra `volplane-csi[testing]` installs.
"""

try:
    import volplane_testing  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "volplane_testing":
        raise
    raise ModuleNotFoundError(
        'the fake CSI driver needs the testing kit of volplane: pip install "volplane-csi[testing]"', name=error.name
    ) from None


from volplane_csi.testing.behaviour import ALL_CAPABILITIES, Behaviour
from volplane_csi.testing.driver import FakeDriver, FakeSnapshot, FakeVolume
from volplane_csi.testing.serving import InProcess, served
from volplane_csi.testing.subjects import attaching_subject, subject

__all__ = [
    "ALL_CAPABILITIES",
    "Behaviour",
    "FakeDriver",
    "FakeSnapshot",
    "FakeVolume",
    "InProcess",
    "attaching_subject",
    "served",
    "subject",
]
