"""Which account a driver's calls are made with where classes choose one, and what a volume keeps of that.

An account is named by a Secret (NAMESPACE/NAME) or by what is assumed with the driver's own credentials; "" is the
driver's own. The operator lists in options what classes may name. So no template leads a class to a tenant's Secret,
and a volume can be deleted whatever becomes of its claim's namespace and of its class.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from volplane.errors import InvalidArgument, Unavailable
from volplane.schemas import Param, ParameterKind
from volplane.secret import Secret

__all__ = ["AccountOptions", "AccountParameters", "SecretKey", "accounts_of_class", "accounts_of_volume", "kept_on"]

_PREFIX: Final = "csi.storage.k8s.io/"
"""Beginning of the parameters by which classes name Secrets."""
_KEPT: Final = "volplane.dev/accounts"
"""Attribute of volumes with their accounts."""
VOLUMES: Final = ("provisioner", "controller-publish", "controller-expand", "controller-modify")
"""What calls about volumes need accounts for, as classes name it."""
SNAPSHOTS: Final = ("snapshotter", "snapshotter-list")


@dataclass(frozen=True, kw_only=True)
class AccountOptions:
    """The option of a driver whose classes may name Secrets: a base of its options beside `DiskOptions`."""

    class_secrets: Annotated[
        tuple[Secret, ...],
        Param(
            "Secrets that classes may name by csi.storage.k8s.io/provisioner-secret-name and its kin, each as "
            "secret:NAMESPACE/NAME/*. Without one of them only volumes with its account wait.",
            kind=ParameterKind.SECRETS,
        ),
    ] = ()

    def check_secrets(self) -> None:
        """Raise InvalidArgument for what is no whole Secret."""
        for each in self.class_secrets:
            if each.place != "secret" or each.key != "*":
                raise InvalidArgument(
                    f"option class_secrets: {each.reference} is no whole Secret: secret:NAMESPACE/NAME/*"
                )


@dataclass(frozen=True, kw_only=True)
class AccountParameters:
    """What names Secrets in a class: a base of the parameters of StorageClasses and VolumeSnapshotClasses."""

    secret_names: Annotated[
        Mapping[str, str] | None,
        Param(
            "Name or namespace of the Secret for calls: …provisioner-secret-name and …provisioner-secret-namespace, in "
            "the same way controller-publish, controller-expand and controller-modify; snapshotter of snapshots; "
            "secret-name for all that are not named. It is one of the option class_secrets, without templates.",
            name=_PREFIX,
            kind=ParameterKind.KEYS,
        ),
    ] = None


class SecretKey(Secret):
    """One key of a whole Secret, read for each use."""

    __slots__ = ("_whole",)

    def __init__(self, whole: Secret, key: str, *, needed: bool = True) -> None:
        """whole: secret:NAMESPACE/NAME/*. needed: without the key `reveal` raises, else it returns ""."""
        super().__init__(f"secret:{whole.where}/{key}", needed)
        self._whole = whole

    def reveal(self) -> str:
        """Return the present value. Raises Unavailable that names the Secret, the key and the keys that are there."""
        try:
            found = json.loads(self._whole.reveal())
        except Unavailable as error:
            raise Unavailable(f"key {self.key} of Secret {self.where} cannot be read: {error}") from None
        if not found.get(self.key):
            if not self.needed:
                return ""
            keys = ", ".join(sorted(found)) or "none"
            raise Unavailable(f"Secret {self.where} has no key {self.key}, which the driver needs; its keys: {keys}")
        self.give(found[self.key])
        return super().reveal()


def accounts_of_class(
    parameters: Mapping[str, Any], assumes: str, known: Collection[str], uses: Sequence[str] = VOLUMES
) -> dict[str, str]:
    """Return the accounts that a class names, by use; a use that is not in it has the driver's own.

    parameters: typed. assumes: the parameter that names what is assumed. known: all accounts that classes may name.
    Raises InvalidArgument.
    """
    given = {key.lower(): value for key, value in (parameters.get(_PREFIX) or {}).items()}
    found: dict[str, str] = {}
    rest = _ref(given, "secret")
    for use in uses:
        named = _ref(given, f"{use}-secret") or rest
        if named:
            found[use] = named
    if given:
        expected = ", ".join(f"{_PREFIX}{use}-secret-name" for use in uses)
        raise InvalidArgument(f"parameter {min(given)!r}: no such key; expected are {expected}, and -namespace of each")
    for use, named in found.items():
        if named not in known:
            raise InvalidArgument(
                f"parameter {_PREFIX}{use}-secret-name: Secret {named} is none that classes may name; add "
                f"secret:{named}/* to the driver's option class_secrets, or name another one"
            )
    role = str(parameters.get(assumes) or "")
    if role and found:
        raise InvalidArgument(
            f"parameter {assumes} is {role!r}: it is assumed with the driver's own credentials; remove one of them"
        )
    if role and role not in known:
        raise InvalidArgument(f"parameter {assumes} is {role!r}: the driver's options do not list it for classes")
    return dict.fromkeys(uses, role) if role else found


def _ref(given: dict[str, str], beginning: str) -> str:
    name, space = (given.pop(f"{_PREFIX}{beginning}-{part}", None) for part in ("name", "namespace"))
    if name is None and space is None:
        return ""
    if not name or not space:
        raise InvalidArgument(f"{_PREFIX}{beginning}-name and -namespace must be given together, and not be empty")
    if "$" in name + space:
        key, value = ("name", name) if "$" in name else ("namespace", space)
        raise InvalidArgument(f"parameter {_PREFIX}{beginning}-{key} is {value!r}: no templates here; name one Secret")
    return f"{space}/{name}"


def kept_on(accounts: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of a volume by which later calls find its accounts. They hold names, no secrets."""
    return {_KEPT: json.dumps(accounts, sort_keys=True)} if accounts else {}


def accounts_of_volume(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return what `kept_on` wrote. Raises InvalidArgument for anything else."""
    try:
        found = json.loads(attributes.get(_KEPT, "{}"))
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise InvalidArgument(f"attribute {_KEPT} of the volume is no object of texts: {attributes[_KEPT][:80]!r}")
    return found
