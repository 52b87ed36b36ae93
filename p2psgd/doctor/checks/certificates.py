"""Are the files of the TLS directory in order, and for how long?"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Final

from p2psgd.doctor.finding import Finding, note, ok, problem
from p2psgd.errors import UsageError
from p2psgd.tls.credentials import Credentials
from p2psgd.tls.expiry import WARNED_DAYS

CHECK: Final = "tls"
RENEW: Final = "p2psgd ca issue --renew on the machine that holds the CA, then copy the node's files here"


def load_credentials(directory: Path, now: datetime) -> tuple[Credentials | None, Finding]:
    """What a node would use; None if it cannot be used."""
    try:
        credentials = Credentials.load(directory)
    except UsageError as error:
        return None, problem(CHECK, str(error), f"p2psgd ca check {directory}")
    return credentials, judge_expiry(credentials, now)


def judge_expiry(credentials: Credentials, now: datetime) -> Finding:
    """How long its certificates hold."""
    days = (credentials.expires - now).days
    words = f"{credentials.name} of run {credentials.run}, certificates until {credentials.expires:%Y-%m-%d}"
    if days < WARNED_DAYS:
        return note(CHECK, f"{words}, {days} days from now", RENEW)
    return ok(CHECK, words)
