"""The description of a part of a model: in the label of its run, in names of its tensors, in directories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psgd.ipc.part import (
    LABEL_MAX,
    NOTHING,
    Part,
    check_all_there,
    combine_digests,
    is_stage,
    label_of,
    name_block,
    parse_block,
    parse_part,
    part_directories,
    part_directory,
    part_of,
    put_together,
)


def test_a_part_is_written_as_it_is_read() -> None:
    assert parse_part("0/2") == Part(0, 2)
    assert str(parse_part("7/8")) == "7/8"


@pytest.mark.parametrize("text", ["", "2", "2/2", "-1/2", "1/x", "0/1025", "0/2/3", "½/2"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not k/K"):
        parse_part(text)


@given(st.text(max_size=300), st.integers(0, 1023), st.text(max_size=300))
def test_the_label_of_a_part_says_which_it_is_whatever_stands_before_and_behind(
    label: str, index: int, cut: str
) -> None:
    made = label_of(label, Part(index, 1024), cut)
    assert len(made) <= LABEL_MAX
    assert part_of(made) == Part(index, 1024)


def test_labels_of_other_cuts_differ_also_where_they_are_shortened() -> None:
    one, other = (label_of("digits", Part(0, 2), "x" * 300 + ending) for ending in "ab")
    assert one != other
    assert one.startswith("digits; part 0/2, xxx")


def test_the_label_of_a_stage_says_that_it_is_one() -> None:
    assert is_stage(label_of("", Part(0, 2), "a stage of 3 tensors"))
    assert is_stage(label_of("part 1/3, a", Part(0, 2), "a stage of 3 tensors"))
    assert not is_stage(label_of("a stage of 3 tensors", Part(0, 2), "cut over 2 ranks"))
    assert not is_stage("a stage of 3 tensors")
    assert is_stage(label_of("x" * 200, Part(0, 1024), "a stage of 3 tensors"))


@pytest.mark.parametrize("label", ["", "digits", "part of it", "part 0/2", "a part 0/2, b"])
def test_a_whole_model_has_a_label_without_a_part(label: str) -> None:
    assert part_of(label) is None


def test_a_block_has_the_name_of_its_tensor_and_its_place_there() -> None:
    assert name_block("a.weight", ((0, 4), (0, 3)), (4, 3)) == "a.weight"
    text = name_block("a.weight", ((2, 4), (0, 3)), (4, 3))
    assert text == "a.weight[2:4, 0:3 of 4x3]"
    assert parse_block(text) == ("a.weight", ((2, 4), (0, 3)), (4, 3))


@pytest.mark.parametrize("text", ["a", "a[0:1]", "a[0:5 of 4]", "a[3:2 of 4]", "a[0:1 of 4x4]", "a[x of 4]"])
def test_other_names_are_those_of_whole_tensors(text: str) -> None:
    assert parse_block(text) is None


def test_all_blocks_together_are_the_tensor() -> None:
    whole = np.arange(15, dtype=np.float32).reshape(5, 3)
    parts = [
        {name_block("w", ((0, 3), (0, 3)), (5, 3)): whole[:3], "norm": whole[0]},
        {name_block("w", ((3, 5), (0, 3)), (5, 3)): whole[3:]},
        {NOTHING: np.zeros(1, np.float32)},
    ]
    made = put_together(parts)
    assert sorted(made) == ["norm", "w"]
    np.testing.assert_array_equal(made["w"], whole)


def test_whole_tensors_of_one_name_in_several_parts_are_told_apart_by_their_parts() -> None:
    parts = [{"0.weight": np.zeros(2)}, {"0.weight": np.ones(3), "1.weight": np.ones(1)}]
    assert sorted(put_together(parts)) == ["1.weight", "part-0.0.weight", "part-1.0.weight"]


def test_blocks_that_do_not_make_up_a_tensor_are_refused() -> None:
    half = {name_block("w", ((0, 2),), (4,)): np.zeros(2)}
    with pytest.raises(ValueError, match=r"tensor 'w' has 4 numbers, and the parts hold 2"):
        put_together([half])
    other = {name_block("w", ((2, 6),), (6,)): np.zeros(4)}
    with pytest.raises(ValueError, match="part 1 has a block of tensor 'w' that does not fit"):
        put_together([half, other])


def test_a_block_that_two_parts_have_is_refused_though_the_count_is_right() -> None:
    half = {name_block("w", ((0, 2),), (4,)): np.zeros(2)}
    with pytest.raises(ValueError, match="part 1 has a block of tensor 'w' that another part has as well"):
        put_together([half, half])


def test_all_parts_of_one_model_are_there_or_named() -> None:
    check_all_there([Part(0, 2), Part(1, 2)])
    for parts in ([Part(0, 2)], [Part(1, 2), Part(0, 2)], [Part(0, 2), Part(1, 2), Part(2, 4), Part(3, 4)]):
        with pytest.raises(ValueError, match="a model in 2 parts needs each of them, and here are"):
            check_all_there(parts)


def test_the_digest_of_all_parts_depends_on_each_and_on_their_order() -> None:
    digests = {combine_digests(each) for each in (["a", "b"], ["b", "a"], ["a", "c"], ["a"])}
    assert len(digests) == 4
    assert all(len(each) == 16 for each in digests)


def test_the_directories_of_parts_are_found_in_their_order(tmp_path: Path) -> None:
    for index in (10, 2, 0):
        part_directory(tmp_path, index).mkdir()
    (tmp_path / "part-x").mkdir()
    (tmp_path / "part-3").write_text("")
    assert [path.name for path in part_directories(tmp_path)] == ["part-0", "part-2", "part-10"]
    assert part_directories(tmp_path / "missing") == []


def test_blocks_that_overlap_are_refused_even_if_their_sizes_make_up_the_tensor() -> None:
    parts = [{"w[0:2 of 4]": np.ones(2, np.float32)}, {"w[1:3 of 4]": np.ones(2, np.float32)}]
    with pytest.raises(ValueError, match="part 1 has a block of tensor 'w' that another part has as well"):
        put_together(parts)


def test_a_name_with_numbers_of_any_length_is_no_block() -> None:
    assert parse_block(f"w[0:1 of {'9' * 5000}]") is None
