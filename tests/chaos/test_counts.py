from __future__ import annotations

import numpy as np

from tests.chaos.counts import (
    LENGTH,
    NODES,
    PIECES,
    STEP,
    STRETCHES,
    Stretch,
    Sums,
    counted,
    initial,
    is_net,
    miscounted,
    places,
    read,
    sums,
)

NET = {"weights": np.arange(1, 601, dtype=np.float32).reshape(20, 30), "bias": np.full(7, 9, np.float32)}
COUNTS = NODES * STRETCHES


def test_the_net_keeps_its_order_between_the_counts() -> None:
    tensors = initial(NET)
    flat = np.concatenate(list(tensors.values()))
    assert len(tensors) == 2 * PIECES
    assert len(flat) == 607 + COUNTS
    assert flat[is_net(len(flat))].tolist() == [*range(1, 601), *[9] * 7]
    assert not flat[~is_net(len(flat))].any()


def test_each_stretch_of_each_node_has_a_weight_of_its_own_and_each_sixth_has_some_of_every_node() -> None:
    found = places(607 + COUNTS)
    assert sorted(found.ravel().tolist()) == np.flatnonzero(~is_net(607 + COUNTS)).tolist()
    owners = found * 6 // (607 + COUNTS)
    assert all(set(row) == set(range(6)) for row in owners.tolist())


def test_a_replica_tells_how_many_mini_batches_count() -> None:
    coordinates = np.zeros(607 + COUNTS, np.int32)
    coordinates[places(len(coordinates))[3, 17]] = 5 * STEP // 2
    found = counted(coordinates)
    assert found[3, 17] == 2.5
    assert np.count_nonzero(found) == 1


def test_notes_are_read_without_the_line_that_a_kill_has_torn() -> None:
    notes = ["begun 0", "ended 0", "12.3456", "begun 0", "begun 1", "ended 1", "en"]
    assert read(notes) == {0: Stretch(2, 1), 1: Stretch(1, 1)}


def test_what_counts_too_often_or_not_is_named_beyond_what_may_be_under_way() -> None:
    whole = Stretch(LENGTH, LENGTH)
    for under_way in (0, 3):
        least, most = LENGTH - under_way, LENGTH + under_way
        for right in (least, most):
            assert not miscounted({0: whole}, {0: right}, under_way=under_way, lossy=False)
        for wrong in (least - 1, most + 1):
            (words,) = miscounted({4: whole}, {4: wrong}, under_way=under_way, lossy=False)
            assert words == f"50 mini-batches begun and 50 ended in stretch 4 count {wrong} times"


def test_a_mini_batch_in_which_the_trainer_was_killed_counts_or_not_and_a_killed_daemon_may_lose_more() -> (
    None
):
    torn = {0: Stretch(9, 8)}
    for right in (8, 9):
        assert not miscounted(torn, {0: right}, under_way=0, lossy=False)
    for wrong in (7, 10):
        assert miscounted(torn, {0: wrong}, under_way=0, lossy=False)
    assert not miscounted(torn, {0: 2}, under_way=0, lossy=True)
    assert miscounted(torn, {0: 10}, under_way=0, lossy=True)
    assert miscounted(torn, {0: -1}, under_way=0, lossy=True)


def test_what_misses_in_one_stretch_does_not_hide_what_is_too_often_in_another() -> None:
    found = np.zeros((NODES, STRETCHES))
    found[1, 0], found[1, 1], found[2, 0] = 48.5, 4, 51
    noted = {1: {0: Stretch(50, 50), 1: Stretch(5, 4)}, 2: {0: Stretch(50, 50)}}
    assert sums(noted, found) == Sums(begun=105, ended=104, missing=1.5, surplus=1.0)
