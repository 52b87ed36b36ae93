"""Evaluations of a script by itself: what it gets, and what is refused in one sentence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import p2psgd
from p2psgd.base.errors import TrainerError
from p2psgd.client.alone import OwnDaemon
from p2psgd.client.evaluate import Portioned
from p2psgd.client.link import Link

ROWS = np.random.default_rng(1).normal(size=(300, 7))
X = np.arange(6.0)


def loss_and_gradient(x: NDArray[np.float64], rows: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    residual = rows[:, :-1] @ x - rows[:, -1]
    return 0.5 * float(residual @ residual), rows[:, :-1].T @ residual


@pytest.fixture(scope="module")
def link() -> Iterator[Link]:
    with p2psgd.attach(
        {"a": np.zeros(4, np.float32), "b": np.zeros(2, np.float32)}, mode="closure", alone=True
    ) as link:
        yield link


def test_an_evaluation_is_the_sum_over_all_samples(link: Link) -> None:
    value, gradient = link.evaluate(loss_and_gradient, X, ROWS)
    exact, exact_gradient = loss_and_gradient(X, ROWS)
    assert value == pytest.approx(exact, rel=1e-12)
    np.testing.assert_allclose(gradient, exact_gradient, rtol=1e-11)


def test_it_does_not_depend_on_how_the_data_comes(link: Link) -> None:
    class Lazy:
        def __len__(self) -> int:
            return len(ROWS)

        def __getitem__(self, part: slice) -> NDArray[np.float64]:
            return ROWS[part]

    def of_two(x: NDArray[Any], part: Any) -> Any:
        return loss_and_gradient(x, np.column_stack(part))

    def of_numbers(x: NDArray[Any], part: range) -> Any:
        return loss_and_gradient(x, ROWS[part.start : part.stop])

    value, gradient = loss_and_gradient(X, ROWS)
    for found, found_gradient in (
        link.evaluate(loss_and_gradient, X, ROWS, portions=9),
        link.evaluate(loss_and_gradient, X, Lazy(), portions=9),
        link.evaluate(of_two, X, (ROWS[:, :-1], ROWS[:, -1:]), portions=9),
        link.evaluate(of_numbers, X, len(ROWS), portions=9),
    ):
        assert found == pytest.approx(value, rel=1e-12)
        np.testing.assert_allclose(found_gradient, gradient, rtol=1e-11)


def test_numbers_of_any_size_are_summed_up(link: Link) -> None:
    for size in (1e-280, 1e280, 1.0):
        numbers = size, np.full(6, -size)
        value, gradient = link.evaluate(lambda x, part, numbers=numbers: numbers, X, 10)  # type: ignore[misc]
        assert value == pytest.approx(10 * size, rel=1e-9)
        np.testing.assert_allclose(gradient, -10 * size, rtol=1e-9)
    value, gradient = link.evaluate(lambda x, part: (0, np.zeros(6)), X, 10)
    assert value == 0.0
    assert not gradient.any()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x, part: (float("nan"), x), "the loss is nan, not finite"),
        (
            lambda x, part: (1.0, x / np.array([1, 1, 0, 1, 1, 1.0])),
            "number 2 of the gradient is inf, not finite",
        ),
        (lambda x, part: (1.0, x[:5]), r"the gradient is float64 \(5,\); it must hold 6 floats"),
        (lambda x, part: (x, x), r"the loss is float64 \(6,\), not one number"),
        (lambda x, part: 1.0, "the function returned float, not a loss and a gradient"),
        (lambda x, part: part["rows"], "TypeError: range indices must be integers"),
    ],
)
def test_a_function_that_gives_no_sum_ends_the_evaluation(
    link: Link, function: Callable[..., Any], words: str
) -> None:
    with np.errstate(all="ignore"), pytest.raises(TrainerError, match=words) as caught:
        link.evaluate(function, X, 10, portions=2)
    assert "of evaluation" in str(caught.value)
    assert "samples 0 to 4" in str(caught.value)
    assert link.evaluate(lambda x, part: (1, x), X, 10)[0] == 10


def test_sums_beyond_float64_are_infinite(link: Link) -> None:
    value, gradient = link.evaluate(lambda x, part: (1e308, np.full(6, -1e308)), X, 10)
    assert value == np.inf
    assert (gradient == -np.inf).all()


@pytest.mark.parametrize("portion", [1, 4, 5, 9])
def test_an_evaluation_that_was_broken_off_is_made_again(link: Link, portion: int) -> None:
    calls = 0

    def breaks_off(x: NDArray[np.float64], part: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > portion:
            raise KeyboardInterrupt
        return 1000.0, x

    with pytest.raises(KeyboardInterrupt):
        link.evaluate(breaks_off, X, 10)
    assert link.evaluate(lambda x, part: (1, x), X, 10)[0] == 10


def test_a_function_that_draws_numbers_is_refused() -> None:
    chance = np.random.default_rng()
    with p2psgd.attach(np.zeros(6, np.float32), mode="closure", alone=True) as link:
        with pytest.raises(TrainerError, match="gave two results at one point"):
            link.evaluate(lambda x, part: (chance.random(), x), X, 10)
        assert link.evaluate(lambda x, part: (1, x), X, 10)[0] == 10


@pytest.mark.parametrize(
    ("data", "portions", "words"),
    [
        (0, None, "no samples"),
        (ROWS[:0], None, "no samples"),
        ((ROWS, ROWS[1:]), None, r"have \[299, 300\] samples"),
        (ROWS, 301, "300 samples cannot be cut into 301 portions"),
        (10**6, 4097, "portions 4097 is refused: 1 to 4096"),
        (10, 0, "portions 0 is refused"),
    ],
)
def test_data_that_cannot_be_cut_is_refused(data: Any, portions: int | None, words: str) -> None:
    with pytest.raises(TrainerError, match=words):
        Portioned(data, portions)


def test_portions_cover_all_samples_once() -> None:
    for samples, portions in ((10, None), (1000, None), (1000, 7), (5, 5)):
        cut = Portioned(samples, portions)
        ranges = [cut.range(portion) for portion in range(cut.portions)]
        assert [begin for begin, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
        assert ranges[-1][1] == samples
        assert all(begin < end for begin, end in ranges)


def test_a_point_of_another_size_or_kind_is_refused(link: Link) -> None:
    for point in (np.zeros(5), np.zeros(6, np.int64)):
        with pytest.raises(TrainerError, match="it must hold 6 numbers, float32"):
            link.evaluate(loss_and_gradient, point, ROWS)


def test_the_point_cannot_be_written_to(link: Link) -> None:
    def writes(x: NDArray[np.float64], part: Any) -> Any:
        x[0] = 1.0
        return 1.0, x

    with pytest.raises(TrainerError, match="read-only"):
        link.evaluate(writes, X, 10)


def test_there_is_nothing_to_send_or_receive(link: Link) -> None:
    with pytest.raises(TrainerError, match="call evaluate"):
        link.receive()
    with pytest.raises(TrainerError, match="call evaluate"):
        link.send(np.zeros(6, np.float32), 10)


def test_evaluate_is_for_mode_closure() -> None:
    with (
        p2psgd.attach(np.zeros(6, np.float32), alone=True) as link,
        pytest.raises(TrainerError, match="mode='closure'"),
    ):
        link.evaluate(loss_and_gradient, X, ROWS)


class OneAtATime:
    """Samples of which no two portions may be read at once, as of a file that is sought and then read."""

    def __init__(self) -> None:
        self.reading = False
        self.overlaps = 0
        self.threads: set[int] = set()

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, part: slice) -> NDArray[np.float64]:
        self.overlaps += self.reading
        self.reading = True
        self.threads.add(threading.get_ident())
        time.sleep(0.01)
        self.reading = False
        return ROWS[part]


def test_no_two_portions_are_read_at_once(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """The portion that is read ahead is never the one that is wanted next, as if another node had it."""
    evaluations, data = link._evaluations, OneAtATime()
    assert evaluations is not None
    exchange = evaluations._exchange

    def with_another_portion_ahead(request: Any) -> Any:
        answer = exchange(request)
        wrong = (answer.compute + 5) % 9 if answer.compute >= 0 else -1
        return answer.model_copy(update={"prefetch": wrong})

    def breaks_off(x: NDArray[Any], rows: NDArray[Any]) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluations, "_exchange", with_another_portion_ahead)
    value, _ = loss_and_gradient(X, ROWS)
    for _ in range(2):
        found, _ = link.evaluate(loss_and_gradient, X, data, portions=9)
        assert found == pytest.approx(value, rel=1e-12)
        assert not data.reading
        with pytest.raises(KeyboardInterrupt):
            link.evaluate(breaks_off, X, data, portions=9)
    assert not data.overlaps
    assert len(data.threads) == 2


def test_what_is_read_ahead_is_read_once(link: Link) -> None:
    read: list[int] = []

    class Noting(OneAtATime):
        def __getitem__(self, part: slice) -> NDArray[np.float64]:
            read.append(part.start)
            return ROWS[part]

    link.evaluate(loss_and_gradient, X, Noting(), portions=9)
    link.evaluate(loss_and_gradient, X, Noting(), portions=9)
    assert len(read) == 18


FROM_THE_LOG = "from the log of the run, and not computed anew"


def test_results_of_the_log_are_said_to_be_that(capsys: pytest.CaptureFixture[str]) -> None:
    """Three trainers of one daemon, of which the second and the third run a script that was changed."""

    def counted(link: Link, loss: float, evaluations: int) -> str:
        for number in range(evaluations):
            found, _ = link.evaluate(lambda x, part: (loss, x), X + number, 10)
            assert found == (10 if number < 3 else 10 * loss)
        return capsys.readouterr().err

    daemon = OwnDaemon()
    try:
        with p2psgd.attach(np.zeros(6, np.float32), mode="closure", control=daemon.state) as link:
            assert FROM_THE_LOG not in counted(link, 1.0, 3)
        assert FROM_THE_LOG not in capsys.readouterr().err
        with p2psgd.attach(np.zeros(6, np.float32), mode="closure", control=daemon.state) as link:
            assert FROM_THE_LOG not in counted(link, 2.0, 3)
        assert f"evaluations 1 to 3 are {FROM_THE_LOG}" in capsys.readouterr().err
        with p2psgd.attach(np.zeros(6, np.float32), mode="closure", control=daemon.state) as link:
            assert f"evaluations 1 to 3 are {FROM_THE_LOG}" in counted(link, 2.0, 5)
        assert FROM_THE_LOG not in capsys.readouterr().err
    finally:
        daemon.close()


def test_a_function_for_scipy_evaluates_at_its_point() -> None:
    with p2psgd.scipy_fun(loss_and_gradient, X, ROWS, alone=True) as fun:
        value, gradient = fun(X)
    exact, exact_gradient = loss_and_gradient(X, ROWS)
    assert value == pytest.approx(exact, rel=1e-12)
    np.testing.assert_allclose(gradient, exact_gradient, rtol=1e-11)
