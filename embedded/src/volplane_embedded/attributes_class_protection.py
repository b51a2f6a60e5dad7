"""`kubernetes.io/vac-protection`: a VolumeAttributesClass stays while a claim or a volume names it.

The API server puts the finalizer on a class as it is made. On a real cluster this is a controller of
kube-controller-manager. As there, no live list precedes the removal: a claim that names the class at that very moment
waits until somebody makes it again.
Source: pkg/controller/volume/vacprotection/vac_protection_controller.go; KEP-3751.
"""

from __future__ import annotations

from typing import Final

from volplane.controller.actions import Action, LiveReads, Patch, Recorder, Settled, Wait
from volplane.controller.runner import Runner
from volplane.kube.client import Client
from volplane.kube.kinds import VOLUME_ATTRIBUTES_CLASSES
from volplane.kube.objects import Claim, Volume, VolumeAttributesClass
from volplane_embedded.informers import Informers, unsubscribing

FINALIZER: Final = "kubernetes.io/vac-protection"


class AttributesClassProtection:
    """The controller."""

    def __init__(self, client: Client, informers: Informers, *, recorder: Recorder) -> None:
        self._informers = informers
        self._runner = Runner(
            "vac-protection",
            self._decide,
            kind=VOLUME_ATTRIBUTES_CLASSES,
            caches=informers.caches,
            client=client,
            recorder=recorder,
            workers=1,
        )

    async def run(self) -> None:
        """Run until cancelled."""
        classes = self._informers.attributes_classes
        with unsubscribing(
            classes.subscribe(self._class_changed),
            self._informers.claims.subscribe(self._claim_changed),
            self._informers.volumes.subscribe(self._volume_changed),
        ):
            for each in classes.values():
                self._runner.enqueue(each.name)
            await self._runner.run()

    def _class_changed(self, _old: VolumeAttributesClass | None, new: VolumeAttributesClass | None) -> None:
        if new is not None and new.terminating == new.has_finalizer(FINALIZER):
            self._runner.enqueue(new.name)

    def _claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        self._dropped(_named_by_claim(old) - _named_by_claim(new))

    def _volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        self._dropped(_named_by_volume(old) - _named_by_volume(new))

    def _dropped(self, names: set[str]) -> None:
        for name in names:
            found = self._informers.attributes_classes.get(name)
            if found is not None and found.terminating:
                self._runner.enqueue(name)

    def _decide(self, name: str, _reads: LiveReads) -> Action:
        found = self._informers.attributes_classes.get(name)
        if found is None or found.terminating != found.has_finalizer(FINALIZER):
            return Settled()
        held = found.metadata.finalizers or []
        kept = [each for each in held if each != FINALIZER] or None
        finalizers = kept if found.terminating else [*held, FINALIZER]
        if found.terminating and (user := self._user(name)):
            return Wait(reason=f"{user} names it")
        why = "nothing names it" if found.terminating else "protect it while it is named"
        body = {"metadata": {"finalizers": finalizers}}
        return Patch(kind=VOLUME_ATTRIBUTES_CLASSES, target=found, body=body, why=why)

    def _user(self, name: str) -> str:
        """Return a claim or volume that names the class; "" if there is none."""
        for claim in self._informers.claims.values():
            if name in _named_by_claim(claim):
                return f"claim {claim.key}"
        for volume in self._informers.volumes.values():
            if name in _named_by_volume(volume):
                return f"volume {volume.name}"
        return ""


def _named_by_claim(claim: Claim | None) -> set[str]:
    """Return the classes that the claim asks for, has, and is being changed to."""
    if claim is None:
        return set()
    changing = claim.status.modify_volume_status
    target = changing.target_volume_attributes_class_name if changing is not None else ""
    named = (claim.spec.volume_attributes_class_name, claim.status.current_volume_attributes_class_name, target)
    return {name for name in named if name}


def _named_by_volume(volume: Volume | None) -> set[str]:
    name = volume.spec.volume_attributes_class_name if volume is not None else None
    return {name} if name else set()
