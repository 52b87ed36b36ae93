"""Commands on what a run starts from: `p2psgd recipe` and `p2psgd data`."""

from __future__ import annotations

from typing import Annotated

import typer

from p2psgd.base.formatting import counted, print_text


def recipe(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The recipe to print.")] = None,
) -> None:
    """Print a built-in recipe, to copy and change; without a name, list them."""
    from p2psgd.recipes.recipe import built_in_recipe_text, built_in_recipes

    if name is not None:
        print_text(built_in_recipe_text(name).rstrip("\n"))
        return
    names = built_in_recipes()
    for each in names:
        about = built_in_recipe_text(each).partition("\n")[0].removeprefix("# ")
        print_text(f"{each:<{max(map(len, names))}}  {about}")


# ----------------------------------------------------------------------------
# `p2psgd data`: data in shards, in a folder or wherever a URL leads.


app = typer.Typer(help="Prepare data that nodes share out among them.", rich_markup_mode=None)


@app.callback()
def group() -> None:
    """Prepare data that nodes share out among them."""


@app.command()
def index(
    place: Annotated[
        str, typer.Argument(metavar="PLACE", help="A folder, or a URL such as s3://bucket/prefix.")
    ],
) -> None:
    """Read all shards there (.npz, .npy, .safetensors), and write the list of them, shards.json."""
    from p2psgd.data.index import make_list

    made = make_list(place, _say)
    size = sum(shard.bytes for shard in made.shards)
    print_text(
        f"{counted(len(made.shards), 'shard')} with {counted(made.samples, 'sample')}, {size:,} bytes, "
        f"digest {made.digest}: listed in {place.rstrip('/')}/shards.json"
    )


def _say(words: str) -> None:
    print(words, flush=True)
