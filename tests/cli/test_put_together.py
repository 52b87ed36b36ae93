"""Parts of a model are one file of weights: tensors, buffers and second names by the names of the whole."""

from __future__ import annotations

import numpy as np

from p2psgd.cli.parts import put_together
from p2psgd.cli.weights_file import Made
from p2psgd.ipc.part import Part, label_of


def made(part: int, cut: str, arrays: dict[str, float], **kept: dict[str, float]) -> Made:
    """What one of two parts gives, each array of one number; a second name stands in `aliases`."""
    buffers = {name: np.full(1, value) for name, value in kept.get("buffers", {}).items()}
    return Made(
        {name: np.full(1, value) for name, value in arrays.items()},
        buffers,
        dict.fromkeys(kept.get("aliases", {}), "0.weight"),
        digest="00",
        steps=3,
        label=label_of("", Part(part, 2), cut),
    )


def test_buffers_and_second_names_of_stages_are_told_apart_by_their_parts() -> None:
    cut = "a stage of 2 tensors"
    one = made(0, cut, {"0.weight": 1.0}, buffers={"1.mean": 2.0, "3.mean": 3.0}, aliases={"2.weight": 0})
    other = made(1, cut, {"0.weight": 4.0, "3.mean": 5.0}, buffers={"1.mean": 6.0}, aliases={"2.weight": 0})
    whole = put_together([one, other])
    assert {name: float(its[0]) for name, its in whole.arrays.items()} == {
        "part-0.0.weight": 1.0,
        "part-1.0.weight": 4.0,
        "part-1.3.mean": 5.0,
    }
    assert {name: float(its[0]) for name, its in whole.buffers.items()} == {
        "part-0.1.mean": 2.0,
        "part-0.3.mean": 3.0,
        "part-1.1.mean": 6.0,
    }
    assert whole.aliases == {"part-0.2.weight": "part-0.0.weight", "part-1.2.weight": "part-1.0.weight"}


def test_stages_that_keep_their_names_and_ranks_that_have_the_same_buffers_need_no_other_names() -> None:
    stages = [
        made(part, "a stage of 1 tensor", {f"{part}.weight": 1.0}, buffers={f"{part}.mean": 2.0})
        for part in (0, 1)
    ]
    whole = put_together(stages)
    assert ([*whole.arrays], [*whole.buffers]) == (["0.weight", "1.weight"], ["0.mean", "1.mean"])
    halves = [
        made(
            part,
            "cut over 2 ranks",
            {f"0.weight[{part}:{part + 1} of 2]": 1.0},
            buffers={"1.mean": 2.0 + part},
        )
        for part in (0, 1)
    ]
    whole = put_together([each._replace(aliases={"2.weight": "0.weight"}) for each in halves])
    assert ([*whole.arrays], [*whole.buffers]) == (["0.weight"], ["1.mean"])
    assert whole.aliases == {"2.weight": "0.weight"}
