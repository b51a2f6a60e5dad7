"""What is kept of a claim whose record and finalizer a tenant has removed."""

from __future__ import annotations

import msgspec

from unit.binding.objects import claim
from volplane.state.handlers import without_record


def test_what_a_tenant_writes_at_length_is_not_kept() -> None:
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u" * 100_000}]
    kept = without_record(claim("c", annotations={"note": "x" * 100_000}, ownerReferences=owners))
    assert (kept.key, kept.uid) == ("default/c", "uid-c")
    assert len(msgspec.json.encode(kept)) < 5_000


def test_its_record_is_not_kept_and_its_other_annotations_are() -> None:
    kept = without_record(claim("c", annotations={"volplane.dev/intent": "{}", "note": "x"}))
    assert kept.metadata.annotations == {"note": "x"}
