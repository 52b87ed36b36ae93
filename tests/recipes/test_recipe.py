"""What a recipe is and what is refused, each with one sentence."""

import re
from pathlib import Path
from typing import Any

import pytest

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.recipes.model import Activation
from p2psgd.recipes.recipe import (
    Recipe,
    Told,
    built_in_recipe_text,
    built_in_recipes,
    load_recipe,
    parse_recipe,
)

KEYS: dict[str, Any] = {
    "name": "mine",
    "data": "digits",
    "hidden": [8],
    "batch": 4,
    "epochs": 2,
    "learning_rate": 0.1,
    "tau": 0.1,
}


def recipe(**changes: object) -> Recipe:
    keys = {key: value for key, value in {**KEYS, **changes}.items() if value is not None}
    return parse_recipe(keys, where="recipe mine.toml")


def test_the_built_in_recipes_load() -> None:
    assert built_in_recipes() == ["digits", "speech"]
    for name in built_in_recipes():
        assert load_recipe(name).name == name
    speech = load_recipe("speech")
    assert (speech.hidden, speech.activation, speech.quantum) == ((512, 512, 512), Activation.RELU, 2.0**-20)


def test_a_relative_data_path_counts_from_the_recipes_folder(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\ndata = "sets/a.npz"\nhidden = [8]\nbatch = 4\n'
        "epochs = 2\nlearning_rate = 1\ndensity = 0.01\n"
    )
    loaded = load_recipe(path)
    assert loaded.data == str(tmp_path / "sets" / "a.npz")
    assert loaded.learning_rate == 1.0
    path.write_text(path.read_text().replace("sets/a.npz", "/sets/a.npz"))
    assert load_recipe(str(path)).data == "/sets/a.npz"


def test_the_label_stands_for_all_that_nodes_must_agree_on() -> None:
    label = recipe().label
    assert re.fullmatch("mine-[0-9a-f]{8}", label)
    assert recipe().label == label
    assert recipe(learning_rate=0.1, seed=1).label == label
    for changes in ({"seed": 2}, {"tau": 0.2}, {"batch": 8}, {"hidden": [8, 8]}, {"activation": "sigmoid"}):
        assert recipe(**changes).label != label
    assert recipe(data="/here/a.npz").label == recipe(data="/there/b.npz").label != label
    assert recipe(device="cuda:1", own_residual=True).label == label


def test_an_unknown_key_is_refused_with_the_nearest_and_all_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        recipe(learning_rat=1.0)
    assert str(caught.value).startswith(
        "recipe mine.toml: unknown key 'learning_rat': do you mean 'learning_rate'? "
        "the known ones are name, data, seed, "
    )
    assert caught.value.exit_code is ExitCode.CONFIGURATION
    with pytest.raises(UsageError, match=r"unknown key 'zzz': the known ones are name"):
        recipe(zzz=1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", ""),
        ("name", "a b"),
        ("name", 1),
        ("data", ""),
        ("seed", -1),
        ("seed", 2**32),
        ("seed", True),
        ("hidden", 8),
        ("hidden", [0]),
        ("hidden", [8.5]),
        ("hidden", [65_537]),
        ("hidden", [8] * 17),
        ("activation", "tanh"),
        ("batch", 0),
        ("batch", 65_537),
        ("batch", "4"),
        ("epochs", 0),
        ("epochs", 1.5),
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("learning_rate", float("inf")),
        ("hold_epochs", -1.0),
        ("halve_every_epochs", 0.0),
        ("warm_start", 0.6),
        ("tau", 0.0),
        ("tau", -1.0),
        ("device", "gpu"),
        ("device", "cuda:x"),
        ("device", 0),
        ("quantum_log2", 1),
        ("quantum_log2", -31),
        ("run", "stall"),
    ],
)
def test_a_value_out_of_range_is_refused_with_key_value_and_range(key: str, value: object) -> None:
    wanted = Recipe.model_fields[key].description
    assert wanted is not None
    with pytest.raises(UsageError) as caught:
        recipe(**{key: value})
    assert re.match(
        rf"recipe mine.toml: {key} = .+ is refused: it must be {re.escape(wanted)}$", str(caught.value)
    )


@pytest.mark.parametrize(
    ("below", "words"),
    [
        (
            {"two_nodes": "both"},
            "two_nodes = \"both\" below [run] is refused: input should be 'stall' or 'lower-id'",
        ),
        ({"mode": "owners", "rule": 3}, "rule = 3 below [run] is refused: input should be a valid string"),
        (
            {"mode": "owners", "rounds": "yes"},
            'rounds = "yes" below [run] is refused: input should be a valid',
        ),
        ({"two_node": "stall"}, "unknown key 'two_node' below [run], which is a table with two_nodes"),
    ],
)
def test_a_value_in_a_table_is_refused_by_its_own_name(below: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"recipe mine.toml: {words}")):
        recipe(run=below)


@pytest.mark.parametrize("density", [0.0, 0.3])
def test_a_density_out_of_range_is_refused(density: float) -> None:
    with pytest.raises(
        UsageError, match=r"density = 0\..+ is refused: it must be a number above 0 and at most 0\.25"
    ):
        recipe(tau=None, density=density)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(UsageError, match=r"the key 'batch' is missing; it is a whole number from 1 to 65536"):
        recipe(batch=None)


def test_either_tau_or_density_must_be_given() -> None:
    with pytest.raises(UsageError, match="one of tau and density, not both"):
        recipe(density=0.1)
    with pytest.raises(UsageError, match="one of tau and density, such as"):
        recipe(tau=None)


def test_a_step_that_is_no_number_of_quanta_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"moves a weight by 0 quanta of 2\^0, which must be 1 to 1048576: lower quantum"
    ):
        recipe(quantum_log2=0)
    with pytest.raises(
        UsageError, match=r"by 10737418240 quanta of 2\^-30.+: raise quantum_log2, or change tau"
    ):
        recipe(tau=100.0, quantum_log2=-30)


def test_a_key_that_slipped_below_a_table_is_named() -> None:
    with pytest.raises(UsageError, match=r"quantum_log2 stands below \[run\] and so belongs to it: move it"):
        recipe(run={"mode": "ring", "quantum_log2": -20})


def test_labels_stay_as_they_are_when_recipes_get_new_keys() -> None:
    assert recipe().label == "mine-705004bd"


def test_what_two_nodes_do_is_said_in_a_table_and_is_no_part_of_the_label() -> None:
    assert recipe().run.two_nodes == "stall"
    other = recipe(run={"two_nodes": "lower-id"})
    assert (other.run.two_nodes, other.label) == ("lower-id", recipe().label)


def test_a_recipe_that_is_not_there_is_refused_with_the_built_in_ones() -> None:
    with pytest.raises(
        UsageError, match="no recipe 'speach': it is neither a file nor one of digits, speech"
    ):
        load_recipe("speach")


def test_a_recipe_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"recipe {tmp_path} cannot be read: Is a directory"):
        load_recipe(tmp_path)
    broken = tmp_path / "broken.toml"
    broken.write_text("name = \n")
    with pytest.raises(UsageError, match=r"broken\.toml is not valid TOML: .*line 1"):
        load_recipe(broken)
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not valid TOML"):
        load_recipe(broken)


def test_a_long_value_is_cut_short_in_the_refusal() -> None:
    with pytest.raises(UsageError, match=r"name = \"x{56}\.\.\. is refused"):
        recipe(name="x" * 1000)


def test_a_recipe_is_trained_asynchronously_unless_it_asks_for_a_ring() -> None:
    assert recipe().run.trains.word == "async"
    assert recipe(run={"mode": "ring"}).run.trains.word == "ring-sparse"
    dense = recipe(run={"mode": "ring", "payload": "dense-float16"})
    assert dense.run.trains.word == "ring-dense-float16"
    assert dense.label == recipe().label  # the mode is in the fingerprint itself


def test_what_only_a_ring_has_is_refused_elsewhere() -> None:
    with pytest.raises(
        UsageError, match='payload = "dense" is for a ring, and the mode is "async": give mode'
    ):
        recipe(run={"payload": "dense"})


def test_a_dense_ring_needs_no_threshold_and_says_what_it_has_no_use_for() -> None:
    dense = {"mode": "ring", "payload": "dense"}
    bare = recipe(tau=None, warm_start=0.0, run=dense)
    assert (bare.tau, bare.density, bare.unused) == (None, None, "")
    assert recipe(run=dense).unused == (
        "recipe mine: tau and warm_start mean nothing in a dense ring: every gradient goes "
        "around whole, and the mean of all is one step"
    )
    assert recipe(run={"mode": "ring"}).unused == ""
    assert recipe(run={"mode": "ring"}, own_residual=True).unused == (
        "recipe mine: own_residual means nothing in rounds"
    )
    assert recipe(own_residual=True).unused == ""
    with pytest.raises(UsageError, match="give one of tau and density"):
        recipe(tau=None, run={"mode": "ring"})


def test_the_command_line_counts_before_the_recipe(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = 'name = "mine"\ndata = "digits"\nhidden = [8]\nbatch = 4\nepochs = 2\nlearning_rate = 0.1\n'
    path.write_text(text + '[run]\nmode = "ring"\npayload = "dense"\ntwo_nodes = "lower-id"\n')
    assert load_recipe(path).run.trains.word == "ring-dense"
    told = load_recipe(path, Told(payload="dense-float16"))
    assert told.run.trains.word == "ring-dense-float16"
    assert load_recipe("digits", Told(mode="ring", payload="dense")).unused == ""  # for other modes
    assert told.run.two_nodes == "lower-id"
    with pytest.raises(UsageError, match="give one of tau and density"):
        load_recipe(path, Told(mode="async"))
    assert load_recipe("digits", Told("ring")).run.trains.word == "ring-sparse"
    with pytest.raises(UsageError, match=r"^--payload dense is for a ring, .* give --mode ring too"):
        load_recipe("digits", Told(payload="dense"))
    assert Told("ring", "dense").options == ["--mode", "ring", "--payload", "dense"]


def test_rounds_are_for_owners_and_another_mode_leaves_them_out(tmp_path: Path) -> None:
    assert recipe(run={"mode": "owners", "rounds": True}).run.trains.word == "owners-rounds"
    with pytest.raises(UsageError, match='rounds = true is for mode "owners", and the mode is "ring": give'):
        recipe(run={"mode": "ring", "rounds": True})
    with pytest.raises(UsageError, match=r'^--rounds is for mode "owners", and the mode is "async": give'):
        load_recipe("digits", Told(rounds=True))
    path = tmp_path / "rounds.toml"
    path.write_text(built_in_recipe_text("digits") + '[run]\nmode = "owners"\nrounds = true\n')
    assert load_recipe(path).run.trains.word == "owners-rounds"
    assert load_recipe(path, Told(rounds=False)).run.trains.word == "owners"
    assert load_recipe(path, Told("async")).run.trains.word == "async"
    assert load_recipe(path, Told(rule="adagrad")).run.trains.word.startswith("owners-rounds-adagrad(")
    assert load_recipe(path, Told(payload="ternary")).run.trains.word == "owners-rounds-ternary"
    with pytest.raises(UsageError, match=r"^recipe .*: rule nesterov is for rounds, .*: train in rounds"):
        recipe(run={"mode": "owners", "rule": "nesterov"})
    with pytest.raises(
        UsageError, match=r"^--rule: rule nesterov is for rounds, .*\(rounds=True, --rounds\)"
    ):
        load_recipe(path, Told(rule="nesterov", rounds=False))
    assert load_recipe(path, Told(rule="nesterov")).run.trains.word == "owners-rounds-nesterov(momentum=0.9)"
    assert Told("owners", rounds=True).options == ["--mode", "owners", "--rounds"]
    assert Told(rounds=False).options == ["--no-rounds"]


def test_ternary_contributions_are_for_owners_in_rounds(tmp_path: Path) -> None:
    run = {"mode": "owners", "rounds": True, "payload": "ternary"}
    assert recipe(run=run).run.trains.word == "owners-rounds-ternary"
    assert recipe(run=run, tau=None).run.trains.ternary
    assert "tau mean nothing where contributions are ternary" in recipe(run=run).unused
    refused = (
        (run | {"rounds": False}, 'is for owners in rounds, and the mode is "owners" without: give mode'),
        (
            {"mode": "ring", "payload": "ternary"},
            'is for owners in rounds, and the mode is "ring": give mode',
        ),
        (run | {"rule": "adagrad"}, "rule adagrad does not go with payload ternary"),
    )
    for table, words in refused:
        with pytest.raises(UsageError, match=words):
            recipe(run=table)
    with pytest.raises(
        UsageError, match=r"^--payload ternary is for owners in rounds, .*give --mode owners --rounds"
    ):
        load_recipe("digits", Told("owners", "ternary"))
    path = tmp_path / "ternary.toml"
    path.write_text(
        built_in_recipe_text("digits") + '[run]\nmode = "owners"\nrounds = true\npayload = "ternary"\n'
    )
    assert load_recipe(path, Told("ring")).run.trains.word == "ring-sparse"
    assert load_recipe(path, Told("async")).run.trains.word == "async"
