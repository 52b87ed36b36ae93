"""The examples of a model in parts: without the lines that are marked, and with a batch that does not fit."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

import pytest

from tests.torch.needed import torch

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).parents[2] / "examples" / "torch"
MARK = "  # p2psgd"


@pytest.mark.parametrize("name", ["fsdp", "tensor_parallel", "pipeline"])
def test_an_example_without_its_five_marked_lines_is_a_plain_script(name: str) -> None:
    lines = (EXAMPLES / f"{name}.py").read_text().splitlines()
    assert sum(line.endswith(MARK) for line in lines) == 5
    tree = ast.parse("\n".join(line for line in lines if not line.endswith(MARK)))
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    assert not {"link", "p2psgd"}.intersection(names)
    assert {"rank", "ranks", "done"}.issubset(names)


@pytest.mark.parametrize(("batch", "ranks"), [(4, 3), (2, 4), (0, 1)])
def test_a_batch_that_ranks_cannot_share_evenly_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], batch: int, ranks: int
) -> None:
    """Else ranks train on nothing, or a group on fewer samples than were asked for."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", ["fsdp.py", "--batch", str(batch)])
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda _: None)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: ranks)
    with pytest.raises(SystemExit):
        runpy.run_path(str(EXAMPLES / "fsdp.py"))
    assert f"--batch {batch} cannot be shared out evenly to {ranks} ranks" in capsys.readouterr().err
