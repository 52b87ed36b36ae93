"""Test what the codec's bench compares with: the bound, the plainest code, the verdicts, the page."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks import Figure
from benchmarks.codec import page
from benchmarks.codec.bound import bound_bits, gaps_of, rice_bits, sign_bits
from benchmarks.codec.contenders import through_numpy
from benchmarks.codec.measure import Measured, SetResult
from benchmarks.codec.sets import Words, recorded_set, spread, uniform_words
from benchmarks.codec.verdicts import verdicts
from p2psgd.core.run_spec import RunSpec
from p2psgd.storage.update_wal import start_of
from p2psgd.wire import codec
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.update import UpdateHeader, pack_update

WORDS = (np.array([3, 4, 9, 20]) << 1 | np.array([1, 1, 0, 0])).astype(np.uint32)


def test_gaps_count_the_weights_between() -> None:
    assert gaps_of(WORDS).tolist() == [3, 0, 4, 10]


def test_the_bound_counts_all_choices_and_the_changes_of_sign() -> None:
    # One of three neighbours differs in sign: 1 bit for the first, then the entropy of one in three.
    signs = 1 + math.log2(3) + 2 * math.log2(3 / 2)
    assert sign_bits(WORDS) == pytest.approx(signs)
    assert bound_bits(WORDS, 32) == pytest.approx(math.log2(math.comb(32, 4)) + signs)


@pytest.mark.parametrize("words", [WORDS[:1], (WORDS | 1)], ids=["one", "equal signs"])
def test_signs_without_a_change_take_one_bit(words: Words) -> None:
    assert sign_bits(words) == 1


def test_one_rice_parameter_is_the_best_one() -> None:
    # k = 2: quotients 0, 0, 1, 2 in unary (7 bits), 2 bits of remainder and the sign for each of four.
    assert rice_bits(WORDS) == 7 + 4 * 3


def test_numpy_makes_the_same_words_of_gaps_and_signs() -> None:
    words = uniform_words(np.random.default_rng(1), weights=10_000, count=333)
    joint = through_numpy()
    assert (joint.decode(joint.encode(words), len(words)) == words).all()


def test_what_is_timed_is_spread_over_the_run() -> None:
    updates = [WORDS[:1] + np.uint32(2 * number) for number in range(1000)]
    numbers = [int(words[0] - WORDS[0]) // 2 for words in spread(updates, 300)]
    assert numbers == list(range(2, 1000, 4))
    assert len(spread(updates[:7], 300)) == 7


def test_a_file_of_own_updates_gives_the_updates_of_its_run(tmp_path: Path) -> None:
    path = tmp_path / "run.p2psgd"
    spec = RunSpec((("w", (32,)),), -20, "async", "", bytes(32), "stall")
    updates = [WORDS, WORDS[1:]]
    frames = [
        pack_frame(
            FrameType.UPDATE,
            pack_update(UpdateHeader(1, 1, number, 0, number, 1, len(words)), codec.encode(words, 32)),
        )
        for number, words in enumerate(updates, 1)
    ]
    path.write_bytes(start_of(spec) + b"".join(frames))
    found = recorded_set("run", path)
    assert (found.name, found.weights, found.real) == ("run", 32, True)
    assert [words.tolist() for words in found.updates] == [words.tolist() for words in updates]


def result_with(*libraries: Measured) -> SetResult:
    mine = Measured("p2psgd fast", 10, 400e6, 800e6)
    numpy = Measured("numpy", 33, 100e6, 100e6)
    return SetResult("set", True, 1, 100, 10, 10.5, 9.9, [mine, *libraries], numpy, "result 00000000")


def verdict_of(result: SetResult, name: str) -> Figure:
    (found,) = (figure for figure in verdicts(result) if figure.name.endswith(name))
    return found


@pytest.mark.parametrize(
    ("library", "count"),
    [
        (Measured("smaller", 9.9, 300e6, 700e6, library=True), 0),
        (Measured("faster", 10.1, 500e6, 900e6, library=True), 0),
        (Measured("both, one way", 9.9, 300e6, 900e6, library=True), 1),
    ],
)
def test_a_library_is_better_when_it_is_smaller_and_faster_one_way(library: Measured, count: int) -> None:
    found = verdict_of(result_with(library), "smaller and faster")
    assert found.value == count
    assert (library.name in found.note) == bool(count)


def test_the_nearest_rival_in_size_counts_by_its_faster_way() -> None:
    near = Measured("near", 10.29, 100e6, 400e6, library=True)
    far = Measured("far", 10.31, 900e6, 900e6, library=True)
    result = result_with(near, far)
    assert verdict_of(result, "alone").value == pytest.approx(2)
    # 400 and 100 M indices/s one after the other are 80.
    assert verdict_of(result, "entries to entries").value == pytest.approx(8)


def test_real_updates_are_compared_with_one_rice_parameter_and_the_bound() -> None:
    assert verdict_of(result_with(), "Rice parameter").value == pytest.approx(100 * 0.5 / 10.5)
    assert verdict_of(result_with(), "the bound").value == pytest.approx(100 * 0.1 / 9.9)


def test_the_page_keeps_what_stands_around_the_figures(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    page.write([result_with()], path)
    text = path.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| **p2psgd fast** | 10.000 | 400 | 800 | 400 | 800 |" in text


def test_a_page_without_a_place_for_figures_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("no marks")
    with pytest.raises(ValueError, match="lacks the lines"):
        page.write([result_with()], path)
    assert path.read_text() == "no marks"
