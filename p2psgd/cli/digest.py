"""`p2psgd digest`: asks a node whether its replica and its peers' are equal, and judges what it reports."""

from __future__ import annotations

import time
from typing import Final

from p2psgd.base import formatting
from p2psgd.base.formatting import printable
from p2psgd.ipc.client import ControlClient
from p2psgd.observe.digest import Difference, DigestReport, PeerReport
from p2psgd.observe.status import ScrubStatus, Verdict, read_part

SCRUB_TIMEOUTS: Final = 12  # to wait for one; it takes 2.4 of a loop that is not late
POLL_S: Final = 0.05
NAMED_MAX: Final = 8  # in one sentence


class Scrub:
    """A scrub that a daemon was asked for."""

    def __init__(self, client: ControlClient, *, failure_timeouts: float = SCRUB_TIMEOUTS) -> None:
        """Ask the daemon to scrub its replica now, within this number of failure timeouts."""
        self._client = client
        asked = _ask(client, scrub=True)
        self._before = asked.scrub
        self._deadline = time.monotonic() + failure_timeouts * asked.failure_timeout_s

    def report(self) -> DigestReport:
        """Wait until it is done, and return the daemon's report. If it is not in time, what an earlier scrub
        found does not count.
        """
        while True:
            report = _ask(self._client, scrub=False)
            if report.scrub.count > self._before.count:
                break
            if time.monotonic() > self._deadline:
                return _with_scrub(report, clean=None)
            time.sleep(POLL_S)
        if report.scrub.quarantines > self._before.quarantines:
            return _with_scrub(report, clean=False)  # also if a snapshot has mended it already
        return report


def _ask(client: ControlClient, *, scrub: bool) -> DigestReport:
    return read_part(DigestReport, client.request("digest", scrub=scrub)["digest"], "digest report")


def _with_scrub(report: DigestReport, *, clean: bool | None) -> DigestReport:
    return report.model_copy(update={"scrub": report.scrub.model_copy(update={"clean": clean})})


def find_fault(report: DigestReport) -> str:
    """Return why this report does not prove the replicas equal, in one sentence; "" if it does."""
    match report.scrub.clean:
        case True:
            faults = []
        case False:
            faults = ["the weights in memory are not what the digest says"]
        case _:
            faults = ["no scrub of the memory has finished"]
    differ, unknown = report.differ_total, report.unknown_total
    faults += [f"{_who(report, Verdict.DIFFERS, differ)}: another replica"] if differ else []
    faults += [f"{_who(report, Verdict.UNKNOWN, unknown)}: not compared"] if unknown else []
    if not report.view and report.bootstrap_expect > 1:
        others = ": there is nobody to compare with" if not report.peers_total else ""
        faults.append(f"the cluster has not formed{others}")
    return printable("; ".join(faults))


def _who(report: DigestReport, verdict: Verdict, total: int) -> str:
    """Return some of the peers of that verdict, and how many more there are."""
    names = [peer.node for peer in report.peers if peer.verdict is verdict][:NAMED_MAX]
    return formatting.listed([*names, f"{total - len(names)} more"] if total > len(names) else names)


def render_digest(report: DigestReport) -> str:
    """Return the report as lines of text."""
    ready = "ready" if report.ready else f"not ready: {report.waits or '?'}"
    lines = [
        f"{report.node}: digest {report.digest} after {formatting.counted(report.updates, report.unit)}, "
        f"view {report.view}, {ready}",
        f"scrub     {_scrub(report.scrub)}",
        *(f"peer      {_peer(peer, report.unit)}" for peer in report.peers),
    ]
    unlisted = report.peers_total - len(report.peers)
    lines += [f"peers     {unlisted} more are not listed"] if unlisted > 0 else []
    lines += [] if report.peers else ["peers     none: there is nothing to compare with"]
    return "\n".join(map(printable, lines))


def _scrub(scrub: ScrubStatus) -> str:
    match scrub.clean:
        case True:
            words = "clean: the digest was recomputed from the weights in memory and is the same"
        case False:
            words = "NOT CLEAN: the weights in memory are not what the digest says; something changed them"
        case _:
            return "none has finished since it was asked for"
    return f"{words} ({formatting.duration(scrub.age_s)} ago)"


def _peer(peer: PeerReport, unit: str) -> str:
    if peer.verdict is Verdict.UNKNOWN and not peer.linked:
        return f"{peer.node}: not compared, since it is not linked: ask it there"
    facts = [
        "linked" if peer.linked else "not linked, by its last word",
        "ready" if peer.ready else "not ready",
        f"view {peer.view}",
    ]
    facts += [f"lacks {formatting.counted(peer.lacks, unit)} of ours"] if peer.lacks else []
    facts += [f"has {formatting.counted(peer.ahead, unit)} that we lack"] if peer.ahead else []
    return f"{peer.node}: {_verdict(peer, unit)} ({', '.join(facts)})"


def _verdict(peer: PeerReport, unit: str) -> str:
    match peer.verdict:
        case Verdict.IDENTICAL:
            return "identical"
        case Verdict.AGREES:
            return "equal where both have applied the same"
        case Verdict.UNKNOWN:
            return "has not said yet what it has"
        case Verdict.DIFFERS:
            at = next(iter(peer.differs_at), Difference())
            if unit != "update":
                return f"DIFFERS at {unit} {at.count}"
            return f"DIFFERS at update {at.sequence} of {at.id}/{at.incarnation}"
