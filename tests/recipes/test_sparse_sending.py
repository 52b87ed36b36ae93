"""A gradient becomes an update at the learning rate, and what waits stays a sum of gradients."""

import numpy as np
import pytest

from p2psgd.recipes.gradients import SparseSending
from p2psgd.recipes.model import Activation, Shape
from p2psgd.recipes.recipe import RunTable, parse_recipe
from tests.recipes.fake_link import FakeLink, FakeNet, as_link

SHAPE = Shape(inputs=2, hidden=(), classes=2, activation=Activation.RELU)
RECIPE = parse_recipe(
    {"name": "x", "data": "digits", "hidden": [], "batch": 1, "epochs": 1, "learning_rate": 1, "tau": 0.5},
    where="recipe",
)


@pytest.fixture
def link() -> FakeLink:
    initial = {name: np.zeros(shape, np.float32) for name, shape in SHAPE.tensors}
    return FakeNet(initial, RECIPE.quantum, 1).links[0]


def test_what_exceeds_the_step_is_sent_against_the_gradient(link: FakeLink) -> None:
    sending = SparseSending(RECIPE, SHAPE, as_link(link))
    sending.send(np.array([1, -1, 0.25, 0, 0, 0], np.float32), rate=1.0)
    assert link.weights.tolist() == [-0.5, 0.5, 0, 0, 0, 0]
    assert link.thresholds == [0.5 / RECIPE.quantum]
    assert (sending.rate, sending.tau) == (1.0, 0.5)


def test_the_residual_changes_with_the_rate(link: FakeLink) -> None:
    sending = SparseSending(RECIPE, SHAPE, as_link(link))
    gradient = np.array([0.25, 0, 0, 0, 0, 0], np.float32)
    sending.send(gradient.copy(), rate=1.0)
    assert link.residual[0] == -0.25
    sending.send(gradient.copy(), rate=0.5)
    assert link.residual[0] == -0.25  # two such gradients at the new rate
    assert link.thresholds[1] == 0.25 / RECIPE.quantum


def test_the_own_residual_is_a_part_of_the_model_and_does_not_change_with_the_rate(link: FakeLink) -> None:
    own = RECIPE.model_copy(update={"own_residual": True})
    sending, plain = SparseSending(own, SHAPE, as_link(link)), SparseSending(RECIPE, SHAPE, as_link(link))
    sending.send(np.array([0.25, 1, 0, 0, 0, 0], np.float32), rate=1.0)
    assert sending.point.tolist() == [-0.25, -1, 0, 0, 0, 0]
    assert plain.point.tolist() == [0, -0.5, 0, 0, 0, 0]
    sending.send(np.zeros(6, np.float32), rate=0.5)
    assert sending.point.tolist() == [-0.25, -1, 0, 0, 0, 0]
    ring = own.model_copy(update={"run": RunTable(mode="ring")})
    assert SparseSending(ring, SHAPE, as_link(link)).point is link.weights
