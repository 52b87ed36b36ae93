"""The example configuration of the service."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, cast

from typer.main import get_command

import p2psgd.cli.app
from p2psgd.base.environment import KNOWN

SYSTEMD = Path(__file__).parents[3] / "systemd"
SHOWN_ONLY = {"http"}  # not set by default: the example shows a likely value


def commands() -> Any:
    """Those of the program, by name."""
    return cast(Any, get_command(p2psgd.cli.app.app)).commands


def test_what_it_has_commented_out_is_the_default() -> None:
    text = (SYSTEMD / "node.toml.example").read_text(encoding="utf-8")
    whole = tomllib.loads(re.sub(r"(?m)^#(?=[a-z_]+ = )", "", text))
    assert {"peers", "listen", "failure_timeout", "log_budget", "log_disk_budget"} <= set(whole)
    defaults = {parameter.name: parameter.default for parameter in commands()["node"].params}
    assert set(whole) <= set(defaults)
    for name in set(whole) - SHOWN_ONLY - {"peers", "tls"}:
        assert defaults[name] == whole[name], name
    assert set(tomllib.loads(text)) == {"peers", "tls"}


def test_variables_that_units_and_examples_set_are_read() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(SYSTEMD.iterdir()))
    named = set(re.findall(r"P2PSGD_[A-Z_]+", text))
    assert "P2PSGD_SECONDS" in named
    assert named <= KNOWN
