"""P2PSGD_<OPTION> in the environment, and what there is that nothing reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from p2psgd.configuration.file import nearest

PREFIX: Final = "P2PSGD"
# Read elsewhere, and no options: where a trainer finds its daemon and keeps data, which code runs, what
# marks a local run.
OTHERS: Final = frozenset(
    {
        "P2PSGD_CACHE",
        "P2PSGD_CACHE_BYTES",
        "P2PSGD_CONTROL",
        "P2PSGD_CPU",
        "P2PSGD_LOCAL_RUN",
        "P2PSGD_LOOP",
        "P2PSGD_RESIDUAL_COPY_S",
        "P2PSGD_STATE",
    }
)
TESTS: Final = ("P2PSGD_REQUIRE_", "P2PSGD_GPU_", "P2PSGD_PROBE")  # switches of this project's own tests
NAMED_MAX: Final = 8


def variable_of(option: str) -> str:
    """P2PSGD_LOG_BUDGET of log_budget."""
    return f"{PREFIX}_{option.upper()}"


def warn_of_unknown(environment: Mapping[str, str], options: Collection[str]) -> list[str]:
    """A sentence for each variable, NAMED_MAX at most, that looks like one of ours and is none.

    They are not refused: an orchestrator puts variables there for each service that it knows, and one of them
    may be called p2psgd.
    """
    known = OTHERS | set(options)
    unknown = sorted(
        name
        for name in environment
        if name.startswith(f"{PREFIX}_") and name not in known and not name.startswith(TESTS)
    )
    return [_words(name, nearest(name, known)) for name in unknown[:NAMED_MAX]]


def _words(name: str, near: str | None) -> str:
    hint = f", the nearest is {near}" if near else ""
    return f"{ascii(name)[1:-1]:.80} in the environment is read by nothing{hint}"
