"""What is refused when objects are read."""

from __future__ import annotations

import msgspec
import pytest

from volplane.kube.objects import Claim, Volume


@pytest.mark.parametrize("size", ["1Qi", "", "x", "--1", "1e", "1 Gi"])
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Volume, '{"spec":{"capacity":{"storage":"%s"}}}'),
        (Claim, '{"spec":{"resources":{"requests":{"storage":"%s"}}}}'),
        (Claim, '{"status":{"capacity":{"storage":"%s"}}}'),
    ],
)
def test_an_object_whose_size_is_none_does_not_decode(kind: type, body: str, size: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode((body % size).encode(), type=kind)


@pytest.mark.parametrize("size", ["0.5", "1e3", "1E3", "0", "-1", "16Ei", "1e300", "100m", "1n"])
def test_odd_sizes_are_sizes(size: str) -> None:
    volume = msgspec.json.decode(f'{{"spec":{{"capacity":{{"storage":"{size}"}}}}}}'.encode(), type=Volume)
    assert volume.spec.capacity == {"storage": size}
