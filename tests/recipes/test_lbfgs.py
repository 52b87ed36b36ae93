"""L-BFGS: known minima, the formulas against their definitions, and a state that goes on with its bits."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.ipc.script_state import pack_state, unpack_state
from p2psgd.recipes.lbfgs import (
    BLOCK,
    SEARCH_EVALUATIONS_MAX,
    Lbfgs,
    NoProgress,
    Vector,
    dot,
)
from p2psgd.recipes.line_search import CURVATURE, DECREASE, LineSearch, Place, cubic_share

NO_GRADIENT = np.zeros(0)


def rosenbrock(x: Vector) -> tuple[float, Vector]:
    """The valley of Rosenbrock in pairs of numbers, whose minimum is 0, where all are 1."""
    odd, even = x[::2], x[1::2]
    gradient = np.empty_like(x)
    gradient[::2] = -400 * odd * (even - odd**2) - 2 * (1 - odd)
    gradient[1::2] = 200 * (even - odd**2)
    return float(np.sum(100 * (even - odd**2) ** 2 + (1 - odd) ** 2)), gradient


def quadratic(seed: int, size: int) -> tuple[Callable[[Vector], tuple[float, Vector]], Vector, Vector]:
    """A convex quadratic, its matrix, and where its minimum is."""
    random = np.random.default_rng(seed)
    root = random.normal(size=(size, size))
    matrix, at = root @ root.T + 0.1 * np.eye(size), random.normal(size=size)
    return lambda x: (0.5 * float((x - at) @ matrix @ (x - at)), matrix @ (x - at)), matrix, at


def minimized(method: Lbfgs, gradient_max: float = 1e-9, iterations: int = 300) -> Lbfgs:
    while method.gradient_max > gradient_max and method.iterations < iterations:
        method.iterate()
    return method


@pytest.mark.parametrize("size", [2, 10, 1000])
def test_the_valley_of_rosenbrock_leads_to_its_minimum(size: int) -> None:
    method = minimized(Lbfgs(rosenbrock, np.tile([-1.2, 1.0], size // 2)))
    np.testing.assert_allclose(method.point, 1.0, rtol=0, atol=1e-8)
    assert method.iterations < 80
    assert method.evaluations < 2 * method.iterations


def test_a_quadratic_is_minimized() -> None:
    function, _, at = quadratic(1, 30)
    method = minimized(Lbfgs(function, np.zeros(30)))
    np.testing.assert_allclose(method.point, at, atol=1e-8)


def test_each_step_meets_the_strong_wolfe_conditions() -> None:
    method = Lbfgs(rosenbrock, np.tile([-1.2, 1.0], 5))
    while method.gradient_max > 1e-6:
        point, loss, gradient = method.point, method.loss, method.gradient
        method.iterate()
        s = method.point - point
        assert method.loss <= loss + DECREASE * dot(gradient, s)
        assert abs(dot(method.gradient, s)) <= CURVATURE * abs(dot(gradient, s))


def test_the_two_loops_give_the_direction_of_bfgs() -> None:
    function, _, _ = quadratic(3, 8)
    method = Lbfgs(function, np.ones(8), history=4)
    points, gradients = [method.point], [method.gradient]
    for _ in range(6):
        method.iterate()
        points.append(method.point)
        gradients.append(method.gradient)
    pairs = [
        (points[k + 1] - points[k], gradients[k + 1] - gradients[k]) for k in range(2, 6)
    ]  # the last four
    s, y = pairs[-1]
    inverse = (s @ y) / (y @ y) * np.eye(8)  # [NW 7.20]
    for s, y in pairs:  # [NW 7.16]
        v = np.eye(8) - np.outer(y, s) / (y @ s)
        inverse = v.T @ inverse @ v + np.outer(s, s) / (y @ s)
    np.testing.assert_allclose(method._direction(), -inverse @ method.gradient, rtol=1e-6)


def test_a_cubic_is_minimized_at_once() -> None:
    def cubic(x: float) -> Place:
        return Place(x, 2 * x**3 - 3 * x**2 - 12 * x + 5, 6 * x**2 - 6 * x - 12, NO_GRADIENT)

    for one, other in ((0.0, 3.0), (3.0, 0.0), (1.0, 5.0), (-0.5, 1.0)):
        share = cubic_share(cubic(one), cubic(other))
        assert one + share * (other - one) == pytest.approx(2.0)
    rises = Place(0.0, 0.0, 1.0, NO_GRADIENT), Place(1.0, 2.0, 4.0, NO_GRADIENT)  # x^3 + x
    assert cubic_share(*rises) == math.inf


@pytest.mark.parametrize("seed", range(40))
def test_it_tries_the_steps_of_scipy(seed: int) -> None:
    dcsrch = pytest.importorskip("scipy.optimize._dcsrch")
    random = np.random.default_rng(seed)
    waves, sizes = random.normal(size=(2, 5)) * 3
    sizes = -np.copysign(sizes, waves)  # so that the loss falls at first

    def at(step: float) -> Place:
        loss = float(np.sum(sizes * np.sin(waves * step)) + 0.1 * step**2 - 2.0 * step)
        slope = float(np.sum(sizes * waves * np.cos(waves * step)) + 0.2 * step - 2.0)
        return Place(step, loss, slope, NO_GRADIENT)

    start, step = at(0.0), float(10.0 ** random.uniform(-3, 1))
    own = LineSearch(start, step)
    theirs = dcsrch.DCSRCH(None, None, DECREASE, CURVATURE, 0.1, 0.0, 1e10)
    step, _, _, task = theirs._iterate(step, start.loss, start.slope, b"START")
    while task[:2] == b"FG":
        assert own.step == pytest.approx(step, rel=1e-9)
        place = at(own.step)
        accepted = own.accepts(place)
        goes_on = accepted or own.advance(place)
        step, _, _, task = theirs._iterate(step, place.loss, place.slope, task)
        assert accepted == (task[:4] == b"CONV")
        if not goes_on:
            assert own.best.step == pytest.approx(step, rel=1e-9)
            break


def test_a_state_goes_on_with_the_same_bits() -> None:
    start = np.tile([-1.2, 1.0], 10)
    whole = Lbfgs(rosenbrock, start, history=5)
    for _ in range(9):
        whole.iterate()
    state = unpack_state(np.concatenate(pack_state(whole.state)))
    again = Lbfgs.resume(rosenbrock, state, history=5)
    for _ in range(9):
        whole.iterate()
        again.iterate()
    assert again.point.tobytes() == whole.point.tobytes()
    assert (again.iterations, again.evaluations, again.loss) == (18, whole.evaluations, whole.loss)


def test_the_state_is_that_of_the_last_iteration_while_one_is_under_way() -> None:
    states = []

    def function(x: Vector) -> tuple[float, Vector]:
        if method is not None:
            states.append(method.state)
        return rosenbrock(x)

    method: Lbfgs | None = None
    method = Lbfgs(function, np.tile([-1.2, 1.0], 2))
    for number in range(5):
        before, count = method.state, len(states)
        method.iterate()
        for state in states[count:]:
            assert state["iterations"] == number
            assert state["evaluations"] == before["evaluations"]
            assert state["point"].tobytes() == before["point"].tobytes()


def test_infinite_losses_are_stepped_back_from() -> None:
    def wall(x: Vector) -> tuple[float, Vector]:
        return (np.inf if x[0] > 1.5 else float(-x[0] + 1e-3 * x[0] ** 2)), np.array([-1.0 + 2e-3 * x[0]])

    method = Lbfgs(wall, np.array([0.0]))
    method.iterate()
    assert 1.4 < method.point[0] <= 1.5


def test_a_loss_that_cannot_fall_ends_it() -> None:
    calls = 0

    def lying(x: Vector) -> tuple[float, Vector]:
        nonlocal calls
        calls += 1
        return 1.0, np.ones(2)

    method = Lbfgs(lying, np.zeros(2))
    with pytest.raises(NoProgress):
        method.iterate()
    assert not method.point.any()
    assert calls == 1 + SEARCH_EVALUATIONS_MAX
    with pytest.raises(NoProgress):
        Lbfgs(lambda x: (0.0, np.zeros(2)), np.zeros(2)).iterate()


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, 2 * BLOCK + 7])
def test_an_inner_product_is_the_sum_of_its_blocks(size: int) -> None:
    random = np.random.default_rng(size)
    one, other = random.normal(size=(2, size))
    assert dot(one, other) == pytest.approx(math.fsum(one * other), rel=1e-12, abs=1e-10)


def softmax_regression(seed: int) -> tuple[Callable[[Vector], tuple[float, Vector]], NDArray[np.float64]]:
    random = np.random.default_rng(seed)
    inputs, labels = random.normal(size=(200, 8)), random.integers(0, 3, 200)

    def function(x: Vector) -> tuple[float, Vector]:
        weights = x.reshape(3, 8)
        logits = inputs @ weights.T
        logits -= logits.max(axis=1, keepdims=True)
        chances = np.exp(logits)
        chances /= chances.sum(axis=1, keepdims=True)
        loss = -np.log(chances[np.arange(200), labels]).mean() + 0.5e-3 * float(x @ x)
        chances[np.arange(200), labels] -= 1
        return float(loss), (chances.T @ inputs / 200).ravel() + 1e-3 * x

    return function, np.zeros(24)


def test_it_ends_where_that_of_scipy_does() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    function, start = softmax_regression(5)
    method = Lbfgs(function, start)
    while method.gradient_max > 1e-5:
        method.iterate()
    found = optimize.minimize(
        function, start, jac=True, method="L-BFGS-B", options={"ftol": 0.0, "gtol": 1e-5}
    )
    assert method.loss == pytest.approx(found.fun, rel=1e-6)
    assert method.iterations <= 1.3 * found.nit
