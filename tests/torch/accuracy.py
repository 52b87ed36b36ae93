"""How well the plain example and the distributed one do: `python -m tests.torch.accuracy`.

The accuracy of the latter is that of the replicas at the end, which are all the same.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from p2psgd.recipes.datasets import DATASETS

EXAMPLES: Final = Path(__file__).parents[2] / "examples" / "torch"


def accuracy_of(weights: Path) -> float:
    """Of the example's model with these weights and buffers (.npz), on the test samples."""
    torch: Any = importlib.import_module("torch")
    return accuracy_with({name: torch.from_numpy(values) for name, values in np.load(weights).items()})


def accuracy_with(state: dict[str, Any]) -> float:
    """Of the example's model with this state_dict."""
    torch: Any = importlib.import_module("torch")
    nn = torch.nn
    model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
    model.load_state_dict(state)
    model.eval()
    digits = np.load(DATASETS / "digits.npz")
    with torch.no_grad():
        answers = model(torch.from_numpy(digits["x_test"])).argmax(1).numpy()
    return float((answers == digits["y_test"]).mean())


def plain(seed: int) -> float:
    """What the plain script says."""
    command = [sys.executable, str(EXAMPLES / "plain.py"), str(seed)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # as p2psgd local has it for each of four
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(re.findall(r"test accuracy (\d\.\d+)", done.stdout)[0])


def distributed(seed: int, nodes: int) -> tuple[float, str]:
    """Of the replicas of so many nodes, and what came of compression."""
    trainer = shlex.join([sys.executable, str(EXAMPLES / "distributed.py"), str(seed)])
    with tempfile.TemporaryDirectory() as folder:
        weights, report = Path(folder) / "weights.npz", Path(folder) / "report.json"
        command = [sys.executable, "-m", "p2psgd", "local", "-n", str(nodes), "--trainer", trainer]
        command += ["--weights", str(weights), "--report", str(report)]
        subprocess.run(command, check=True, capture_output=True)
        told = json.loads(report.read_text())
        assert told["replicas_identical"]
        note = (
            f"{told['compression_ratio']:.0f} times fewer bytes, {told['bits_per_index']:.1f} bits per index"
        )
        return accuracy_of(weights), note


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=4)
    given = parser.parse_args()
    rows: dict[str, list[float]] = {"plain": [], f"{given.nodes} nodes": []}
    one, several = rows.values()
    for seed in range(1, given.seeds + 1):
        one.append(plain(seed))
        accuracy, note = distributed(seed, given.nodes)
        several.append(accuracy)
        print(f"seed {seed}: plain {100 * one[-1]:.2f} %, {given.nodes} nodes {100 * accuracy:.2f} %; {note}")
    for name, values in rows.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{name}: mean {100 * statistics.mean(values):.2f} %, standard deviation {100 * spread:.2f}")


if __name__ == "__main__":
    main()
