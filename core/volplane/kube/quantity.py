"""Amounts as Kubernetes writes them: `k8s.io/apimachinery/pkg/api/resource.Quantity`, exactly.

A quantity is a decimal number with a suffix: binary (`Ki` to `Ei`), decimal (`n` to `E`) or an exponent (`e3`).
Values are exact; below a billionth they are rounded away from zero, as the original does. What is larger than any
field can hold counts as 10**4096, so that a text which the API server takes is always a number here.
"""

import functools
import re
from dataclasses import dataclass, field
from typing import Final, Literal

Format = Literal["BinarySI", "DecimalSI", "DecimalExponent"]

WRONG_FORMAT: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
WRONG_NUMBER: Final = "unable to parse numeric part of quantity"
WRONG_SUFFIX: Final = "unable to parse quantity's suffix"

_SHAPE: Final = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)", re.ASCII)
_EXPONENT: Final = re.compile(r"[eE]([-+]?[0-9]+)", re.ASCII)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_SUFFIX: Final = {power: suffix for suffix, power in _DECIMAL.items()}
_BINARY_SUFFIX: Final = {power // 10: suffix for suffix, power in _BINARY.items()}
LARGEST_SIZE: Final = 2**63 - 1
"""Bytes: API servers cap binary quantities at this, and CSI's fields hold no more."""
_LARGEST_EXPONENT: Final = 2**31 - 1
_MOST_DIGITS: Final = 4096
"""Of a whole number: Python writes and reads integers of at most 4,300."""
_PLACES: Final = 40
"""Decimal places after which only matters whether there are further ones: rounding to nanos of `Ei` needs 28."""
_LONGEST_CACHED: Final = 64


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """An exact amount. Equal amounts compare equal whatever their notation."""

    nanos: int
    """The amount times 10**9."""
    format: Format = field(compare=False)

    def as_bytes(self) -> int:
        """Return the amount as a whole number, rounded up (away from zero when negative)."""
        return _round_away(self.nanos, 10**9)

    def __str__(self) -> str:
        nanos, power = self.nanos, -9
        if not nanos:
            return "0"
        if self.format == "BinarySI" and abs(nanos) >= 1024 * 10**9 and not nanos % 10**9:
            whole, times = nanos // 10**9, 0
            while whole % 1024 == 0 and times < 6:
                whole //= 1024
                times += 1
            return f"{whole}{_BINARY_SUFFIX[times]}" if times else str(whole)
        while nanos % 1000 == 0:
            nanos //= 1000
            power += 3
        if self.format != "DecimalExponent" and (suffix := _DECIMAL_SUFFIX.get(power)) is not None:
            return f"{nanos}{suffix}"
        return f"{nanos}e{power}" if power else str(nanos)

    def __bool__(self) -> bool:
        return self.nanos != 0


def parse(text: str | float) -> Quantity:
    """Read a quantity; numbers stand for their JSON text. Raises ValueError in the words of the API server."""
    if isinstance(text, str):
        # Tenants write texts of any length, which are not kept.
        return _parse(text) if len(text) <= _LONGEST_CACHED else _parse.__wrapped__(text)
    if isinstance(text, bool):
        raise ValueError(WRONG_FORMAT)  # noqa: TRY004 - callers catch one error for every wrong value
    return _parse(repr(text))


def format_bytes(amount: int) -> str:
    """Return a whole number of bytes in binary notation, if that can hold it: 1073741824 is `1Gi`, 1000 is `1k`."""
    return str(Quantity(amount * 10**9, "BinarySI" if amount <= LARGEST_SIZE else "DecimalSI"))


@functools.lru_cache(maxsize=8192)
def _parse(text: str) -> Quantity:
    match = _SHAPE.fullmatch(text.strip(" \t\r\n"))
    if match is None or not text.strip(" \t\r\n"):
        raise ValueError(WRONG_FORMAT)
    sign, whole, fraction, suffix = match.groups()
    if not whole and not fraction:
        raise ValueError(WRONG_SUFFIX if suffix and suffix not in _DECIMAL else WRONG_NUMBER)
    factor, power = 1, _DECIMAL.get(suffix)
    form: Format = "DecimalSI"
    if suffix in _BINARY:
        factor, power, form = 1 << _BINARY[suffix], 0, "BinarySI"
    elif power is None:
        match = _EXPONENT.fullmatch(suffix)
        if match is None or len(match[1]) > 12 or abs(int(match[1])) > _LARGEST_EXPONENT:
            raise ValueError(WRONG_SUFFIX)
        form, power = "DecimalExponent", int(match[1])
    nanos = _nanos(f"{whole}{fraction or ''}", power - len(fraction or ""), factor)
    if form == "BinarySI":
        nanos = min(nanos, LARGEST_SIZE * 10**9)
        if nanos < 10**9:
            form = "DecimalSI"
    return Quantity(-nanos if sign == "-" else nanos, form)


def _nanos(written: str, power: int, factor: int) -> int:
    """Return 10**9 times digits * factor * 10**power, rounded up."""
    digits = written.rstrip("0")
    power += len(written) - len(digits)
    if not (digits := digits.lstrip("0")):
        return 0
    if len(digits) + power > _MOST_DIGITS:
        digits, power = "1", _MOST_DIGITS
    elif power < -_PLACES:
        digits, power = f"{digits[: max(len(digits) + power + _PLACES, 0)]}1", -_PLACES - 1
    return _round_away(int(digits) * factor * 10 ** max(power + 9, 0), 10 ** max(-power - 9, 0))


def _round_away(numerator: int, denominator: int) -> int:
    size = -(-abs(numerator) // denominator)
    return size if numerator >= 0 else -size
