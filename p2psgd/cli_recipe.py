"""`p2psgd recipe`, to start a recipe of one's own from, and `p2psgd pretrain`, which makes the weights that
some start from.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from p2psgd.cli_options import RecipeOption
from p2psgd.ops.printing import print_text


def recipe(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The recipe to print.")] = None,
) -> None:
    """Print a built-in recipe, to copy and change; without a name, list them."""
    from p2psgd.trainer.recipe import built_in_recipe_text, built_in_recipes

    if name is not None:
        print_text(built_in_recipe_text(name).rstrip("\n"))
        return
    names = built_in_recipes()
    for each in names:
        about = built_in_recipe_text(each).partition("\n")[0].removeprefix("# ")
        print_text(f"{each:<{max(map(len, names))}}  {about}")


def pretrain(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The .npz or .safetensors file to write.")],
    recipe: RecipeOption = "speech-paper",
) -> None:
    """Make the weights that a recipe with a table [pretrain] starts from: once, for all nodes.

    Those of speech-paper take about a minute.
    """
    from p2psgd.ops.weights import check_weights_place, write_tensors
    from p2psgd.trainer.data import load_data_of
    from p2psgd.trainer.evaluation import loss_and_accuracy, net_shape
    from p2psgd.trainer.net import flat
    from p2psgd.trainer.pretraining import pretrain as make
    from p2psgd.trainer.recipe import load_recipe

    check_weights_place(file)
    loaded = load_recipe(recipe)
    dataset = load_data_of(loaded)
    shape = net_shape(loaded, dataset)
    terminal, shown = sys.stderr.isatty(), ""

    def say(words: str) -> None:
        nonlocal shown
        words = words if terminal else words.partition(",")[0]
        if words != shown:
            line = f"\r{words}  " if terminal else f"{words}\n"
            print(line, end="", file=sys.stderr, flush=True)
        shown = words

    try:
        tensors = make(loaded, dataset, say)
    finally:
        if shown and terminal:
            print(file=sys.stderr)
    write_tensors(file, tensors)
    weights = flat(tensors)
    _, accuracy = loss_and_accuracy(shape, weights, dataset.test)
    print_text(
        f"{file} holds {weights.size:,} weights, {100 * accuracy:.1f} % of the test samples right: "
        f"copy it to all nodes and give --initial {file.name} to p2psgd train"
    )
