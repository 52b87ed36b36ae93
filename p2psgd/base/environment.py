"""The environment variables of p2psgd: their names, and the refusal of any other name that begins alike.

A variable that nothing reads is a setting that its user believes to be in force. So commands and trainers
refuse to start beside one, and name the nearest that exists. What an orchestrator or this project's own tests
set is known by its pattern.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Final

from p2psgd.base.errors import ExitCode, UsageError

PREFIX: Final = "P2PSGD"
# P2PSGD_<OPTION>: what commands read. A test compares the list with the options of the command line, which
# trainers do not import: it would triple the time in which they start.
_OPTIONS: Final = """
    ADVERTISE BOOTSTRAP_EXPECT CONFIG CONTROL_GROUP DEVICE END_WITH_TRAINER FAILURE_TIMEOUT HTTP HTTP_EXPOSED
    INITIAL INSECURE_PLAINTEXT LISTEN LOG_BUDGET LOG_DISK_BUDGET LOG_FORMAT MODE NAME NODES OUTPUT PART PARTS
    PAYLOAD PEERS RANK RECIPE REPORT ROUNDS RULE SECONDS STARTED STATE STEPS TLS TRAINER WEIGHTS ZEROCONF
"""
# These are read elsewhere, and are not options: where a trainer finds its daemon or whether it trains without
# one, where it keeps data, which code runs, what marks a local run.
_OTHERS: Final = "ALONE CACHE CACHE_BYTES CONTROL CPU LOCAL_RUN LOOP RESIDUAL_COPY_S"
OPTIONS: Final = frozenset(f"{PREFIX}_{name}" for name in _OPTIONS.split())
KNOWN: Final = OPTIONS | {f"{PREFIX}_{name}" for name in _OTHERS.split()}

# Kubernetes sets these in every container for a service called p2psgd or p2psgd-<word>. P2PSGD_PORT alone
# could be somebody's mistake for --listen: a service's is a URL.
_SERVICE: Final = re.compile(
    rf"{PREFIX}(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)=.*"
    rf"|{PREFIX}(_\w+)?_PORT=(tcp|udp|sctp)://.*",
    re.DOTALL,
)
_TESTS: Final = ("P2PSGD_REQUIRE_", "P2PSGD_GPU_", "P2PSGD_PROBE", "P2PSGD_OPERATIONS", "P2PSGD_ENGINES")


def check_environment(environment: Mapping[str, str]) -> None:
    """Raise UsageError (exit code 78) if a variable begins with P2PSGD_ and is not one of p2psgd's."""
    unknown = sorted(name for name, value in environment.items() if _is_unknown(name, value))
    if not unknown:
        return
    name, more = unknown[0], f" ({len(unknown) - 1} more are unknown)" if unknown[1:] else ""
    endings = {known.removeprefix(f"{PREFIX}_"): known for known in sorted(KNOWN)}
    ending = difflib.get_close_matches(name.removeprefix(f"{PREFIX}_"), endings, n=1)
    near = [endings[each] for each in ending]
    hint = f"the nearest is {near[0]}; correct it or unset it" if near else "unset it"
    raise UsageError(
        f"p2psgd has no variable {ascii(name)[1:-1]:.80}, which is in the environment{more}: {hint}",
        ExitCode.CONFIGURATION,
    )


def _is_unknown(name: str, value: str) -> bool:
    ours = name.startswith(f"{PREFIX}_") and name not in KNOWN and not name.startswith(_TESTS)
    return ours and not _SERVICE.fullmatch(f"{name}={value}")
