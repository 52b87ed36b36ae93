from __future__ import annotations

import pytest

from p2psgd.base import formatting


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (9_999, "9999"),
        (9_999.7, "10.0k"),
        (12_345, "12.3k"),
        (999_400, "999k"),
        (999_600, "1.00M"),
        (4_560_000, "4.56M"),
        (2e12, "2e+12"),
    ],
)
def test_short_fits_a_cell(value: float | None, text: str) -> None:
    assert formatting.short(value) == text
    assert len(text) <= 5


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (-1, "0 s"), (7.6, "8 s"), (185, "3 min 5 s"), (8_040, "2 h 14 min"), (273_700, "3 d 4 h")],
)
def test_durations_name_two_units(seconds: float | None, text: str) -> None:
    assert formatting.duration(seconds) == text


def test_sizes_are_decimal() -> None:
    sizes = (None, 812, 4_100, 1_230_000, 5e9)
    assert [formatting.size(value) for value in sizes] == ["-", "812 B", "4.1 kB", "1.2 MB", "5.0 GB"]


def test_ratios_keep_three_digits() -> None:
    assert [formatting.times(value) for value in (None, 3.14, 412.4, 12_970)] == [
        "-",
        "3.1x",
        "412x",
        "13.0k" + "x",
    ]


def test_counts_agree_in_number() -> None:
    assert [formatting.counted(count, "peer") for count in (0, 1, 2_000)] == [
        "0 peers",
        "1 peer",
        "2,000 peers",
    ]
    assert formatting.counted(2, "index", "indices") == "2 indices"


def test_lists_read_as_sentences() -> None:
    assert [formatting.listed(list(names)) for names in ("", "a", "ab", "abc")] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]


def test_unknown_numbers_are_a_dash() -> None:
    assert {formatting.grouped(None), formatting.decimals(None, 2), formatting.percent(None)} == {"-"}
    assert formatting.percent(0.5234) == "52.34 %"
