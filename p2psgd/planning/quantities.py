"""Quantities as people write them: 14.6M weights, or 14,600,000, 1Gbit, 150ms, 1/850. ValueError says what
would do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

_NUMBER: Final = re.compile(r"\s*((?:[1-9]\d{0,2}(?:[,_]\d{3})+|\d+)(?:\.\d*)?|\.\d+)\s*([a-zA-Z%/]*)\s*")
_COUNT: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}
_BITS: Final = {
    prefix + unit: scale
    for prefix, scale in {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}.items()
    for unit in ("bit", "bits", "bit/s", "bits/s", "bps", "b", "b/s")
}
_TIMES: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def parse_count(text: str) -> int:
    """A whole number: `14600000`, `14,600,000`, `14.6M`, `800k`, `1.5G`."""
    value = _scaled(text, _COUNT, "a number such as 800k or 14.6M")
    if value != round(value):
        raise ValueError(f"{text!r} is no whole number")
    return round(value)


def parse_bandwidth(text: str) -> float:
    """Bits per second: `1Gbit`, `70Mbit/s`, `10Gbps`, `1Gb`; a large B is a byte."""
    if re.search(r"byte|B(?!it|IT)", text):
        raise ValueError(f"{text!r} is in bytes: give bits per second, such as 100Mbit or 1Gbit")
    return _scaled(text, _BITS, "bits per second, such as 100Mbit or 1Gbit")


def parse_time(text: str) -> float:
    """Seconds: `150ms`, `2s`, `80us`."""
    return _scaled(text, _TIMES, "a time with its unit, such as 150ms or 1.2s")


def parse_density(text: str) -> float:
    """A part of the weights: `1/850`, `0.12%`, `0.0012`."""
    over, slash, under = text.partition("/")
    if slash:
        divisor = _scaled(under, {"": 1.0}, "a part such as 1/850")
        if not divisor:
            raise ValueError(f"{text!r} divides by nothing: give a part such as 1/850")
        return _scaled(over, {"": 1.0}, "a part such as 1/850") / divisor
    return _scaled(text, {"": 1.0, "%": 0.01}, "a part of the weights such as 1/850, 0.12% or 0.0012")


def _scaled(text: str, units: Mapping[str, float], wanted: str) -> float:
    found = _NUMBER.fullmatch(text)
    scale = None if found is None else units.get(found[2].lower())
    if found is None or scale is None:
        raise ValueError(f"{text!r} is not {wanted}")
    value = float(re.sub("[,_]", "", found[1])) * scale
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]!r}... is beyond all numbers: give {wanted}")
    nearest = round(value)  # 14.6 x 1e6 is 14.6 million, whatever floats make of it
    return float(nearest) if math.isclose(value, nearest, rel_tol=1e-12) else value
