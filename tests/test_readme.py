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


def test_every_file_it_names_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8")):
        assert (README.parent / target).exists(), target
