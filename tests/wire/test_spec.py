"""The five pages of the specification tell the truth: their examples, values and limits are the code's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

import p2psgd
from p2psgd.core.closure import scales
from p2psgd.core.frontier import INCARNATION_MAX, TOLD_MAX
from p2psgd.core.owners.owners import (
    AHEAD,
    PENDING_BYTES_MAX,
    PENDING_MAX,
    PUBLISH_MIN_S,
    PUBLISH_S,
    REDEALT_BYTES_MAX,
)
from p2psgd.wire import codec, fixed_point, messages
from p2psgd.wire.cover import NUMBER_MAX, NUMBERS_MAX
from p2psgd.wire.evaluation import ATTEMPTS_MAX
from p2psgd.wire.frames import COVER_BYTES_MAX, EVALUATION_NUMBERS_MAX, ORIGINS_MAX, FrameType, link_limits
from p2psgd.wire.messages import MESSAGES, TEXT_MAX
from p2psgd.wire.mode import PAYLOADS as PAYLOAD_WORDS
from p2psgd.wire.mode import Mode
from p2psgd.wire.reject import RejectCode
from tests.wire import reference, spec_example

SPEC, VIEWS, RINGS, OWNERS, EVALUATIONS = (path.read_text() for path in spec_example.SPECIFICATION)
EXAMPLES = {
    name: bytes.fromhex(digits)
    for name, digits in re.findall(r"```hex (\S+)\n([^`]*)```", SPEC + VIEWS + RINGS + OWNERS + EVALUATIONS)
}


@pytest.mark.parametrize(("name", "content"), spec_example.blocks().items())
def test_an_example_is_what_the_code_makes(name: str, content: bytes) -> None:
    assert EXAMPLES[name] == content


def test_there_is_no_example_that_the_code_does_not_make() -> None:
    assert EXAMPLES.keys() == spec_example.blocks().keys()


def test_the_hash_has_the_values_in_the_table() -> None:
    rows = re.findall(
        r"^\| (0|[0-9a-f]{16}) \| ([0-9a-f]{16}) \| ([0-9a-f]{16}) \| ([0-9a-f]{16}) \|$", SPEC, re.M
    )
    assert len(rows) == 2
    for key, *hashes in rows:
        assert [int(value, 16) for value in hashes] == [
            reference.index_hash(i, int(key, 16)) for i in range(3)
        ]
    last = re.findall(r"With key 2\^64 - 1, h\(2\^31 - 1\) is ([0-9a-f]{16})\.", SPEC)
    assert [int(value, 16) for value in last] == [reference.index_hash(2**31 - 1, 2**64 - 1)]


PAYLOADS = {
    FrameType.UPDATE,
    FrameType.SNAPSHOT_TAIL,
    FrameType.RING_UPDATE,
    FrameType.CONTRIBUTION,
}


@pytest.mark.parametrize("frame_type", list(FrameType))
def test_every_frame_is_in_the_table_with_its_limit(frame_type: FrameType) -> None:
    found = re.search(
        rf"^\| {frame_type:d} \| {frame_type.name} \| [^|]+ \| ([0-9,]+(?: \+ [^|]+)?) \|", SPEC, re.M
    )
    assert found
    limit = link_limits(10**6).get(frame_type, 4096)
    first, _, rest = found.group(1).partition(" + ")
    assert bool(rest) == (frame_type in PAYLOADS)
    if rest:
        assert rest.startswith("`payload_bytes_max(indices_max(C))`")
        limit -= codec.payload_bytes_max(codec.indices_max(10**6))
    assert int(first.replace(",", "")) == limit


@pytest.mark.parametrize("frame_type", list(MESSAGES))
def test_every_field_of_a_message_is_described(frame_type: FrameType) -> None:
    sections = (
        SPEC[SPEC.index("## 5 ") : SPEC.index("## 6 ")],
        VIEWS[VIEWS.index("## 16 ") : VIEWS.index("## 17 ")],
        RINGS[RINGS.index("## 26 ") : RINGS.index("## 27 ")],
        EVALUATIONS[EVALUATIONS.index("## 40 ") : EVALUATIONS.index("## 41 ")],
    )
    later = sum(
        frame_type >= first
        for first in (FrameType.PREPARE, FrameType.RING_BEGIN, FrameType.EVALUATION_REPORT)
    )
    section = sections[0 if frame_type is FrameType.PEERS else later]
    for field in MESSAGES[frame_type].model_fields:
        assert re.search(rf"\| {field} \|", section), f"{frame_type.name}.{field}"


PACKAGE: Final = Path(p2psgd.__file__).parent


def test_the_codes_of_reject_are_those_of_the_table() -> None:
    table = SPEC[SPEC.index("**Codes.**") : SPEC.index("**Silence.**")]
    listed = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", table, re.M)
    assert [(int(number), name) for number, name in listed] == [(code, code.name) for code in RejectCode]


def test_every_code_of_reject_but_the_unknown_one_is_sent() -> None:
    sources = "".join(path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "reject.py")
    used = set(re.findall(r"\bRejectCode\.([A-Z_]+)\b", sources))
    assert used == {code.name for code in RejectCode} - {"OTHER"}


def test_the_limits_of_an_incarnation_are_the_codes() -> None:
    assert (INCARNATION_MAX, TOLD_MAX) == (2**61, 2**60)
    assert "| incarnation | 2^61 |" in SPEC
    assert "| incarnation that is believed of REJECT | 2^60 |" in SPEC


def test_a_table_is_as_long_as_the_specification_says() -> None:
    lengths = {
        "frontier": messages.ROW_BYTES * messages.ORIGINS_MAX,
        "confirmed": messages.CONFIRMED_BYTES * messages.MEMBERS_MAX,
        "members": messages.MEMBER_BYTES * messages.MEMBERS_MAX,
        "forbidden": messages.NODE_BYTES * messages.MEMBERS_MAX,
        "evict_requests": messages.NODE_BYTES * messages.MEMBERS_MAX,
    }
    for name, most in lengths.items():
        found = re.findall(rf"\| {name} \| bin of (?:24|up) to ([0-9,]+) bytes \|", SPEC + VIEWS + RINGS)
        assert found
        assert {int(each.replace(",", "")) for each in found} == {most}
    assert f"| details | str of 0 to {TEXT_MAX} |" in SPEC
    assert f"| reason | str of 0 to {TEXT_MAX} |" in VIEWS


def test_the_sections_are_numbered_through() -> None:
    contents = " ".join(SPEC[: SPEC.index("## 1 ")].split()) + " "
    for text, first in ((SPEC, 1), (VIEWS, 15), (RINGS, 25), (OWNERS, 31), (EVALUATIONS, 39)):
        titles = re.findall(r"^## (\d+) (.*)$", text, re.M)
        assert [int(number) for number, _ in titles] == list(range(first, first + len(titles)))
        for number, title in titles:
            assert re.search(rf"\b{number} {title}[\s.·]", contents)


def test_the_limits_of_owners_are_the_codes() -> None:
    assert f"| cover of an update | {COVER_BYTES_MAX:,} bytes |" in SPEC
    assert f"| contributors to one incarnation of an owner | {ORIGINS_MAX:,} |" in SPEC
    assert "| number of a contribution | 1 to 2^63 - 1 |" in SPEC
    assert (NUMBER_MAX, NUMBERS_MAX) == (2**63 - 1, 4099)
    assert f"one array of 1 to {NUMBERS_MAX:,} integers" in OWNERS
    assert f"{PENDING_MAX} contributions to one owner, or {PENDING_BYTES_MAX // 2**20} MiB in all" in OWNERS
    assert f"{REDEALT_BYTES_MAX // 2**20} MiB" in OWNERS
    assert f"not twice within {1000 * PUBLISH_MIN_S:.0f} ms" in OWNERS
    assert f"when {AHEAD} of one contributor are not covered" in OWNERS
    assert f"whatever has come {1000 * PUBLISH_S:.0f} ms after the last publication" in OWNERS


def test_every_mode_is_in_the_table_of_the_run() -> None:
    [row] = re.findall(r"^\| mode \| str \| `async`.*$", SPEC, re.M)
    assert re.findall(r"`([a-z0-9-]+)`", row) == [
        "async",
        "owners",
        "owners-rounds",
        "owners-rounds-ternary",
        *(Mode(each).word for each in PAYLOAD_WORDS),
        "closure",
    ]


def test_the_formulas_of_the_limits_are_the_codes() -> None:
    assert "floor((ceil(n / 512) x 190 + 26 x n + 135) / 8)" in SPEC
    for count in (1, 7, 512, 513, 17_176, 2**18):
        assert codec.payload_bytes_max(count) == (-(-count // 512) * 190 + 26 * count + 135) // 8
    assert "| min(C, 2^18) |" in SPEC
    for weights in (1, 1000, 5000, 10**6, 2**31):
        assert codec.indices_max(weights) == reference.indices_max(weights)


def test_the_limits_of_evaluations_are_the_codes() -> None:
    assert (fixed_point.PORTIONS_MAX, fixed_point.SUM_BITS, fixed_point.NOTHING) == (4096, 62, -2000)
    assert (fixed_point.EXPONENT_MIN, fixed_point.EXPONENT_MAX) == (-1080, 1024)
    assert f"1 to {fixed_point.PORTIONS_MAX:,}, numbered from 0" in EVALUATIONS
    assert f"G = min(T, {fixed_point.GROUPS_MAX - 1}) + 1" in EVALUATIONS
    assert f"each limit is {scales.FIRST}." in EVALUATIONS
    assert f"min(E + {scales.HEADROOM}, 1,024)" in EVALUATIONS
    assert f"E < L - {scales.SLACK} unless" in EVALUATIONS
    assert f"An attempt has a number of at most {ATTEMPTS_MAX}." in EVALUATIONS
    assert f"pieces of {EVALUATION_NUMBERS_MAX:,} from the owner's first" in EVALUATIONS
