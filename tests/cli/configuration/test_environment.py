"""Variables of p2psgd, of an orchestrator, and of nobody."""

from __future__ import annotations

import re

import pytest

from p2psgd.base.environment import check_environment
from p2psgd.base.errors import ExitCode, UsageError


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("P2PSGD_LOG_BUGDET", "the nearest is P2PSGD_LOG_BUDGET; correct it or unset it"),
        ("P2PSGD_CONTOL", "the nearest is P2PSGD_CONTROL; correct it or unset it"),
        ("P2PSGD_log_budget", "unset it"),
        ("P2PSGD_", "unset it"),
    ],
)
def test_a_name_that_nothing_reads_is_refused(name: str, hint: str) -> None:
    with pytest.raises(
        UsageError, match=f"no variable {name}, which is in the environment: .*{hint}$"
    ) as caught:
        check_environment({name: "1", "PATH": "/bin"})
    assert caught.value.exit_code is ExitCode.CONFIGURATION


def test_of_several_the_first_is_named_and_the_others_are_counted() -> None:
    with pytest.raises(
        UsageError, match=re.escape("P2PSGD_A, which is in the environment (2 more are unknown)")
    ):
        check_environment({f"P2PSGD_{name}": "" for name in "BCA"})


def test_a_name_of_any_bytes_is_shown_escaped() -> None:
    with pytest.raises(UsageError, match=r"P2PSGD_\\x1b\[31m\\n,"):
        check_environment({"P2PSGD_\x1b[31m\n": ""})


@pytest.mark.parametrize(
    "environment",
    [
        {"P2PSGD_LOG_BUDGET": "512", "P2PSGD_CONTROL": "/run/p2psgd", "P2PSGD_ALONE": "1"},
        {"_P2PSGD_COMPLETE": "complete_bash", "P2PSGDX": "1"},
        {
            "P2PSGD_REQUIRE_TORCH": "1",
            "P2PSGD_GPU_WITHOUT_POOL": "1",
            "P2PSGD_OPERATIONS": "1",
            "P2PSGD_ENGINES": "1",
        },
        {  # Kubernetes, for the services p2psgd and p2psgd-peers
            "P2PSGD_SERVICE_HOST": "10.0.0.1",
            "P2PSGD_SERVICE_PORT": "7315",
            "P2PSGD_SERVICE_PORT_PEERS": "7315",
            "P2PSGD_PORT": "tcp://10.0.0.1:7315",
            "P2PSGD_PORT_7315_TCP_ADDR": "10.0.0.1",
            "P2PSGD_PEERS_SERVICE_HOST": "10.0.0.1",
            "P2PSGD_PEERS_PORT": "tcp://10.0.0.1:7315",
        },
    ],
)
def test_what_is_known_passes(environment: dict[str, str]) -> None:
    check_environment(environment)


def test_a_port_that_no_orchestrator_has_written_is_refused() -> None:
    with pytest.raises(UsageError, match="no variable P2PSGD_PORT,"):
        check_environment({"P2PSGD_PORT": "7315"})
