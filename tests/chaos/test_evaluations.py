from __future__ import annotations

import numpy as np

from tests.chaos.evaluations import BEGAN, behind, differing, note, read

GRADIENT = np.array([0.5, -0.25])


def lines(*numbers: int, loss: float = 1.0) -> list[str]:
    """Notes of evaluations whose loss is their number, times `loss`."""
    return [note(number, loss * number, GRADIENT) for number in numbers]


def test_a_trainer_that_was_started_again_is_as_far_as_its_last_life() -> None:
    read_back = read([BEGAN, *lines(1, 2, 3), BEGAN, *lines(1, 2)])
    assert read_back.last == 2
    assert sorted(read_back.digests) == [1, 2, 3]


def test_a_torn_line_and_the_times_of_mini_batches_are_passed_over() -> None:
    read_back = read([BEGAN, *lines(1), "12.3456", lines(2)[0][:-1]])
    assert read_back.last == 1


def test_equal_results_are_no_finding_and_another_bit_of_the_gradient_is() -> None:
    same = {"a": read(lines(1, 2, 3)), "b": read(lines(1, 2))}
    assert not differing(same)
    other = note(2, 2.0, np.nextafter(GRADIENT, 1.0))
    (finding,) = differing({**same, "c": read([*lines(1), other])})
    assert finding.startswith("evaluation 2 gave ")
    assert "on a, b" in finding
    assert "on c" in finding


def test_two_lives_of_one_node_that_differ_are_a_finding() -> None:
    (finding,) = differing({"a": read([BEGAN, *lines(1, 2), BEGAN, *lines(1), *lines(2, loss=2.0)])})
    assert finding.startswith("evaluation 2 gave ")


def test_a_run_that_differs_everywhere_names_three_evaluations() -> None:
    found = differing({"a": read(lines(*range(1, 9))), "b": read(lines(*range(1, 9), loss=2.0))})
    assert [finding.split()[1] for finding in found] == ["1", "2", "3"]


def test_who_is_behind_is_named() -> None:
    by_node = {"a": read(lines(1, 2)), "b": read(lines(1))}
    assert behind(by_node, 2) == ["the trainer of b has evaluated 1 times, and not 2"]
    assert not behind(by_node, 1)
