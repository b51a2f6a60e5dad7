from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volplane.kube.quantity import Quantity, format_bytes, parse

WRONG_FORMAT = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0", "0"),
        ("0Gi", "0"),
        ("-0", "0"),
        ("1", "1"),
        ("1000", "1k"),
        ("1001", "1001"),
        ("20000G", "20T"),
        ("1024Mi", "1Gi"),
        ("1025Mi", "1025Mi"),
        ("1024", "1024"),
        ("0.5Gi", "512Mi"),
        ("1.5Gi", "1536Mi"),
        ("1.3Gi", "1395864371200m"),
        ("0.1Ki", "102400m"),
        ("1Ki", "1Ki"),
        ("-1.5Gi", "-1536Mi"),
        ("1e3", "1e3"),
        ("1E3", "1e3"),
        ("1e-3", "1e-3"),
        ("12e6", "12e6"),
        ("1500e1", "15e3"),
        ("1E", "1E"),
        ("1000E", "1e21"),
        ("100m", "100m"),
        ("1500m", "1500m"),
        ("2000m", "2"),
        ("100u", "100u"),
        ("1n", "1n"),
        ("0.0000000001", "1n"),
        ("1.", "1"),
        (".5", "500m"),
        ("+5", "5"),
        ("005", "5"),
        (" 5Gi\t", "5Gi"),
    ],
)
def test_a_quantity_is_shown_in_its_canonical_form(text: str, shown: str) -> None:
    assert str(parse(text)) == shown
    assert str(parse(shown)) == shown


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1Gi", 2**30),
        ("1G", 10**9),
        ("1.5Ki", 1536),
        ("100m", 1),
        ("1e3", 1000),
        ("-1m", -1),
        ("1Ei", 2**60),
        ("9E", 9 * 10**18),
    ],
)
def test_bytes_are_whole_and_never_less_than_the_quantity(text: str, amount: int) -> None:
    assert parse(text).as_bytes() == amount


@pytest.mark.parametrize(("number", "shown"), [(5, "5"), (1000, "1k"), (1.5, "1500m"), (1e30, "1e30"), (-3, "-3")])
def test_numbers_stand_for_their_text(number: float, shown: str) -> None:
    assert str(parse(number)) == shown


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", WRONG_FORMAT),
        ("  ", WRONG_FORMAT),
        ("lots", WRONG_FORMAT),
        ("1x", WRONG_FORMAT),
        ("1 Gi", WRONG_FORMAT),
        ("1.2.3", WRONG_FORMAT),
        ("--1", "unable to parse quantity's suffix"),
        ("1e", "unable to parse quantity's suffix"),
        ("1gi", WRONG_FORMAT),
        ("1KI", WRONG_FORMAT),
        ("1kM", "unable to parse quantity's suffix"),
        ("1Gi5", "unable to parse quantity's suffix"),
        (".", "unable to parse numeric part of quantity"),
        ("1e99999999999999", "unable to parse quantity's suffix"),
        ("\u0661Gi", WRONG_FORMAT),
        (True, WRONG_FORMAT),
    ],
)
def test_what_is_no_quantity_is_refused_in_the_words_of_the_server(text: str, why: str) -> None:
    with pytest.raises(ValueError, match="quantit") as refused:
        parse(text)
    assert str(refused.value) == why


def test_amounts_compare_exactly_whatever_their_notation() -> None:
    assert parse("1Gi") == parse("1024Mi") == parse("1073741824")
    assert hash(parse("1Gi")) == hash(parse("1024Mi"))
    assert parse("1G") < parse("1Gi")
    assert parse("1Gi") > parse("1073741823999m")
    assert parse("1Gi") >= parse("1Gi")
    assert parse("1Gi") <= parse("1Gi")
    assert parse("1Gi") != "1Gi"


@pytest.mark.parametrize(
    "text",
    ["1e4096", "1e5000", "9e4100", "1e999999999", "9" * 5000, "9" * 5000 + "n", "0.1e2147483647", "1" + "0" * 9000],
)
def test_what_no_field_can_hold_is_a_number_that_can_be_written_and_read(text: str) -> None:
    """API servers take such texts: what cannot be read would hide the object."""
    assert parse(text) == parse("1e4096") > parse("1e4095")
    assert parse(str(parse(text))) == parse(text)
    assert parse("-" + text) < parse("-1e4095")


@pytest.mark.parametrize(
    "text", ["1e-5000", "0." + "0" * 5000 + "1", "0." + "0" * 40 + "1" * 5000, "1e-2147483648"[:-1] + "7"]
)
def test_what_is_next_to_nothing_is_a_billionth(text: str) -> None:
    assert parse(text) == parse("1n")


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("1" + "0" * 5000 + "e-4999", "10"),
        ("0" * 5000 + "5Gi", "5Gi"),
        ("1." + "0" * 5000, "1"),
        ("1." + "0" * 4999 + "1", "1000000001n"),
        ("0." + "0" * 18 + "9" * 5000 + "Ei", "1152921505n"),
    ],
)
def test_long_texts_are_read_exactly(text: str, same: str) -> None:
    assert parse(text) == parse(same)


@pytest.mark.parametrize("amount", [2**63 - 1, 2**63, 2**64, 10**30, 3 * 2**80])
def test_a_size_is_read_back_as_it_was_written(amount: int) -> None:
    assert parse(format_bytes(amount)).as_bytes() == amount


def test_amounts_beyond_64_bits_compare() -> None:
    assert parse("100000E") > parse("10000E")
    assert parse("1e100") > parse("9E")
    assert parse("100000Ei") == parse(str(2**63 - 1)), "binary amounts are capped, as in the original"


def test_bytes_are_written_in_binary_notation() -> None:
    assert [format_bytes(n) for n in (0, 1000, 1024, 3 * 2**30, 2**30 + 1)] == ["0", "1k", "1Ki", "3Gi", "1073741825"]


def test_truth_is_being_more_or_less_than_nothing() -> None:
    assert parse("1n")
    assert not parse("0Ei")


amounts = st.decimals(min_value=Decimal("-1e18"), max_value=Decimal("1e18"), places=9)
suffixes = st.sampled_from(["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "e3", "e-3", "E6"])


@given(amounts, suffixes)
def test_the_canonical_form_means_the_same_and_is_its_own_canonical_form(number: Decimal, suffix: str) -> None:
    read = parse(f"{number:f}{suffix}")
    again = parse(str(read))
    assert again == read
    assert str(again) == str(read)


@given(st.integers(min_value=-(2**62), max_value=2**62), st.sampled_from(["", "k", "Ki", "Mi", "m", "e3"]))
def test_whole_numbers_are_read_exactly(number: int, suffix: str) -> None:
    factor = {"": 1, "k": 1000, "Ki": 1024, "Mi": 2**20, "m": Fraction(1, 1000), "e3": 1000}[suffix]
    wanted = number * Fraction(factor)
    if suffix.endswith("i"):
        limit = Fraction(2**63 - 1)
        wanted = max(-limit, min(limit, wanted))
    assert Fraction(parse(f"{number}{suffix}").nanos, 10**9) == wanted


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused_with_a_value_error(text: str) -> None:
    try:
        assert isinstance(parse(text), Quantity)
    except ValueError as why:
        assert "quantit" in str(why)  # noqa: PT017 - whichever it is
