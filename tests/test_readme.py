"""What the README shows works as printed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.daemons import P2PSGD

README = Path(__file__).parent.parent / "README.md"
RING = README.parent / "docs" / "how-to" / "ring.md"
GPU = README.parent / "docs" / "how-to" / "gpu.md"
DATA = README.parent / "docs" / "how-to" / "data.md"
TORCH = README.parent / "docs" / "how-to" / "torch.md"
UNITS = README.parent / "systemd" / "README.md"
WATCHING = README.parent / "docs" / "how-to" / "watching.md"
OPERATIONS = README.parent / "docs" / "how-to" / "operations.md"
SECURITY = README.parent / "SECURITY.md"


@pytest.mark.timeout(180)
def test_the_script_trains_on_two_nodes(tmp_path: Path) -> None:
    script, keeping = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    before, loop, after = script.partition("    while ")
    keeping = textwrap.indent(textwrap.dedent(keeping), "    ")
    path = tmp_path / "train.py"
    # The same script, which keeps a state, and a look at how far its weights came.
    check = "    assert np.abs(link.weights - truth).max() < 0.1\n"
    path.write_text(f"import json\n{before}{keeping}{loop}{after}{check}")
    report = tmp_path / "report.json"
    command = [*P2PSGD, "local", "-n", "2", "--trainer", f"{sys.executable} {path}", "--report", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(report.read_text())
    assert result["replicas_identical"]
    assert [node["steps"] for node in result["per_node"]] == [3000, 3000]
    assert all(node["loss"] < 1 for node in result["per_node"]), "begun at about 100"


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("place", "rounds", "check"),
    [
        (0, 400, "assert np.abs(link.weights - truth).max() < 0.1"),
        (1, 100, "assert np.abs(link.weights - truth).max() < 0.1"),
        (2, 101, "assert worst.shape == (1,) and worst[0] == loss[0] < 0.1"),
    ],
)
def test_the_scripts_for_rounds_train_on_two_nodes(
    tmp_path: Path, place: int, rounds: int, check: str
) -> None:
    script = re.findall(r"```python\n(.*?)```", RING.read_text(encoding="utf-8"), re.DOTALL)[place]
    path, report = tmp_path / "train.py", tmp_path / "report.json"
    path.write_text(f"{script}    {check}\n")
    command = [*P2PSGD, "local", "-n", "2", "--trainer", f"{sys.executable} {path}", "--report", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(report.read_text())
    assert (result["replicas_identical"], result["rounds"]) == (True, rounds)


@pytest.mark.parametrize("page", [README, DATA, RING, GPU, TORCH, UNITS, WATCHING, OPERATIONS, SECURITY])
def test_every_file_it_names_is_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
