"""Payloads that a decoder must refuse: each is one fault away from one that is right."""

from __future__ import annotations

from tests.wire import reference
from tests.wire.reference import DENSE, BlockChoice

P_MAX = 2**31

Refused = tuple[str, int, int, bytes]  # name, count, weights, payload


def remainders(parameter: int, *, count: int, last_gap: int | None = None) -> bytes:
    """A block of gaps, each as long as it can be without a quotient, or the last as given."""
    longest = 2**parameter - 1
    gaps = [longest] * (count - 1) + [longest if last_gap is None else last_gap]
    return reference.encode_block(gaps, [0] * count, BlockChoice(parameter, 0))


def refused_blocks() -> list[Refused]:
    plain = (BlockChoice(0, 0),)
    whole = reference.encode([index << 1 for index in range(9)], 100, plain)  # 00 00 00 ff 01: header,
    # two groups of one byte, nine ones
    block = [index << 1 for index in range(512)]
    return [
        ("no bytes at all", 1, 100, b""),
        ("a header alone", 1, 100, b"\x00"),
        ("values cut off", 9, 100, whole[:2]),
        ("quotients missing", 9, 100, whole[:3]),
        ("quotients cut off", 9, 100, whole[:4]),
        ("a byte too many", 9, 100, whole + b"\x00"),
        ("parameter 25", 1, 100, bytes([25]) + bytes(26) + b"\x01"),
        ("parameter 25 with coded signs", 1, 100, bytes([7 << 5 | 25]) + bytes(25) + b"\x01\xff"),
        ("parameter 31 with coded signs", 1, 100, bytes([1 << 5 | 31]) + bytes(31) + b"\x01\x03"),
        ("a dense mark for a second block", 513, 2048, reference.encode(block, 2048) + b"\x1f" + bytes(410)),
        ("padding value not zero", 9, 100, whole[:2] + b"\x80" + whole[3:]),
        ("a one in the padding of the quotients", 9, 100, whole[:-1] + b"\x03"),
        ("an index equal to weights", 2, 9, reference.encode([0, 9 << 1], 100)),
        ("an index of 2**31", 1, P_MAX, reference.encode([P_MAX << 1], 2**32)),
        ("an index far beyond 2**32", 2, P_MAX, reference.encode([0, 2**33 << 1], 2**34)),
        ("remainders that add up beyond 2**32", 512, P_MAX, remainders(24, count=512)),
        (
            "quotients that wrap around 2**32",
            1,
            P_MAX,
            reference.encode_block([2**32], [0], BlockChoice(21, 0)),
        ),
        ("remainders that wrap around 2**32", 257, P_MAX, remainders(24, count=257)),
        (
            "remainders of parameter 21, one index too far",
            512,
            2**30,
            remainders(21, count=512, last_gap=2**21),
        ),
        (
            "an index of 2**31 whose top bit is lost in a word",
            2,
            P_MAX,
            reference.encode_block([P_MAX - 1, 0], [0, 0], BlockChoice(21, 0)),
        ),
        (
            "indices between weights and 2**31, then one beyond",
            312,
            1_500_000_000,
            reference.encode_block(
                [(1_499_999_999 >> 21 << 21) - 10] + [2**21 - 1] * 311, [0] * 312, BlockChoice(21, 0)
            ),
        ),
        ("no indices", 0, 100, b""),
        ("more indices than weights", 9, 8, whole),
    ]


def refused_signs() -> list[Refused]:
    """A block of nine near words, 40 ff 01 0c: header, nine ones, and the run 9 in mode 2, bits 00110."""
    whole = bytes.fromhex("40ff010c")
    far = reference.encode_block([2] * 9, [0] * 9, BlockChoice(0, 1))  # 20, four bytes of quotients, 01 00
    fifteen = reference.encode_block([0] * 15, [0] * 15, BlockChoice(0, 1))  # 20 ff 7f 80 01
    wide = reference.encode_block([1] * 9, [0] * 9, BlockChoice(1, 1))  # 21 ff 01 ff 01 30
    return [
        ("signs missing", 9, 100, whole[:-1]),
        ("a byte after the signs", 9, 100, whole + b"\x00"),
        ("a run of ten for nine near words", 9, 100, whole[:-1] + b"\x14"),
        ("a change at the fourth, then a run of six", 9, 100, whole[:-1] + bytes([0b10110_11100 & 255, 2])),
        ("a run of zero bits beyond the near words", 9, 100, whole[:-1] + bytes(7) + b"\x80\x01"),
        ("a run of zero bits to the end", 9, 100, whole[:-1] + bytes(300)),
        ("a run that stops before its low bits", 15, 100, fifteen[:-1]),
        ("no end of the runs", 9, 100, whole[:-1] + b"\x49"),
        ("a one in the padding of the signs", 9, 100, whole[:-1] + b"\x8c"),
        ("a run where no word is near", 9, 100, far[:-2] + b"\x03\x00"),
        ("the changes of far words cut off", 9, 100, far[:-1]),
        ("a one behind the changes of far words", 9, 100, far[:-1] + b"\x08"),
        ("padding value of coded signs not zero", 9, 100, wide[:2] + b"\x03" + wide[3:]),
        ("a one in the padding of quotients before signs", 9, 100, whole[:2] + b"\x03" + whole[3:]),
    ]


def refused_dense() -> list[Refused]:
    """All of 12 weights, plus: 1f 79 79 04."""
    words = [index << 1 for index in range(12)]
    whole = reference.encode(words, 12, DENSE)
    return [
        ("dense: the mark alone", 12, 12, whole[:1]),
        ("dense: a byte too few", 12, 12, whole[:-1]),
        ("dense: a byte too many", 12, 12, whole + b"\x00"),
        ("dense: a byte of 243", 12, 12, whole[:2] + b"\xf3" + whole[3:]),
        ("dense: a byte of 255", 12, 12, b"\x1f\xff" + whole[2:]),
        ("dense: a digit beyond the last weight", 12, 12, whole[:-1] + bytes([4 + 9])),
        ("dense: a digit of 2 at the very end", 12, 12, whole[:-1] + bytes([4 + 2 * 81])),
        ("dense: an index too few", 12, 12, whole[:-1] + bytes([3])),
        ("dense: an index too many", 11, 12, whole),
        ("dense: no index", 1, 12, b"\x1f" + bytes(3)),
    ]


def cases() -> list[Refused]:
    return [*refused_blocks(), *refused_signs(), *refused_dense()]
