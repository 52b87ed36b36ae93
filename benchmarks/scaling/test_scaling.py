"""Three paced nodes do about what is predicted of them; the cases themselves are run by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.scaling import CASES
from benchmarks.scaling.measure import measure


@pytest.mark.root
def test_three_paced_nodes_keep_the_predicted_pace_and_bytes(tmp_path: Path) -> None:
    """Within bounds that hold on a machine with other work to do."""
    (case,) = (case for case in CASES if case.name == "small")
    measured, predicted = measure(case, tmp_path / "run", 3.0), case.predict()
    assert 0.3 < measured.steps_per_s / predicted.steps_per_s < 1.1
    link_bytes = predicted.link_share * case.setting.link_bytes_per_s * predicted.step_s
    assert 0.5 < measured.link_bytes / link_bytes < 2.0
