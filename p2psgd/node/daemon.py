"""A node's daemon, from its start to its end: the only place where loop, clock and signals meet.

The work in between is in files of their own: run (the replica and its orders), backpressure (when the trainer
must wait), control (what is asked of the node), trainer (the command that trains).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
import traceback
from collections.abc import Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from p2psgd import __version__
from p2psgd.base import formatting
from p2psgd.base.aio import follow, raise_failure, raise_limit
from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.core.timing import Timing
from p2psgd.net.hosts import Hosts, describe_change, find_hosts
from p2psgd.net.listen import bind, check_exposure
from p2psgd.net.peer_sources.source import PeerSource, again_s
from p2psgd.net.rejections import RESTARTS_MAX
from p2psgd.node.control import NodeControl
from p2psgd.node.node_run import NodeRun
from p2psgd.node.options import NodeOptions
from p2psgd.node.recovery import RecoveredRun, reopen_run
from p2psgd.node.run import RunningClock
from p2psgd.node.stopping import DRAIN_TIMEOUT_S, leave_run
from p2psgd.node.systemd import Supervision, sentence_of
from p2psgd.node.tls import NodeTls
from p2psgd.observe.compression import OwnCompression
from p2psgd.observe.logs import settle_log
from p2psgd.observe.status import HttpStatus
from p2psgd.storage.event_log import NodeLog
from p2psgd.storage.identity import claim_identity

if TYPE_CHECKING:
    from p2psgd.node.http import NodeHttp

TICKS_PER_TIMEOUT: Final = 25
NAMED_MAX: Final = 8  # peers, in one sentence
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("p2psgd.node")


class Node:
    """An incarnation of a daemon; `run` is its part in the run, once that is known.

    When it is over and `above` is not 0, another must begin in this process, above that incarnation.
    """

    def __init__(
        self,
        options: NodeOptions,
        supervision: Supervision | None = None,
        *,
        above: int = 0,
        incarnations_left: int = 0,
    ) -> None:
        """Begin an incarnation above one that a peer reported, if any; `incarnations_left` may follow."""
        self.options = options
        self.above = 0
        self._incarnations_left = incarnations_left
        self._supervision = supervision or Supervision()
        self.tls = NodeTls(options)
        self.identity = claim_identity(options.state, name=self.tls.name, node=self.tls.node, above=above)
        self.node_log = NodeLog(options.state)
        self.compression = OwnCompression()
        self.hosts = Hosts((), None)
        self.listen = options.listen
        # Seconds in which this process has run: the clock of all that judges peers.
        self.now = RunningClock(time.monotonic, gap_s_max=Timing(options.failure_timeout_s).status_s).read
        self.started = self.now()
        self.loop_lag_s = 0.0
        self.run: NodeRun | None = None
        self._control = NodeControl(self)
        self._late_end: tuple[str, ExitCode] | None = None
        self._listening: socket.socket | None = None
        self._stop: asyncio.Future[tuple[str, ExitCode]] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._http: NodeHttp | None = None
        self._reloading = True  # the list is read at the start
        self._reload_again = False
        self._peers_trouble = ""  # why the list could not be had when it was last asked for
        self._closing = self._ended = self._signalled = False

    async def serve(self) -> ExitCode:
        """Run until a signal, a fault that only a person can repair, or the end of what this replica can
        follow.
        """
        loop = asyncio.get_running_loop()
        self._stop = loop.create_future()
        loop.set_exception_handler(self._on_bug)
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        words, code = "ended by a bug: see its log", ExitCode.INTERNAL
        try:
            await self._begin(loop)
            words, code = await self._stop
            if self.above:
                await self._leave_to_next()
            else:
                self._supervision.stopping(words)
                if code is ExitCode.OK:
                    await self._drain(words)
                    if self._control.trainer.is_cut_short:
                        self.fail(f"{words}, before its trainer has finished", ExitCode.TEMPORARY)
            if code is ExitCode.OK:
                words, code = self._late_end or (words, code)
        except UsageError as error:
            words, code = str(error), error.exit_code
        finally:
            await self._close(f"{words} (exit code {code:d})")
            self._ended = True
            self._supervision.ended(words)
        if code is not ExitCode.OK:
            raise UsageError(words, code)
        settle_log(whole=True)
        log.info("%s", words, extra={"fields": {"kind": "stop"}})
        return code

    async def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.node_log.events.cut_short:
            why = "it was killed, its machine went down, or its disk was full"
            self.node_log.note("cut short", f"the previous run of this daemon did not end cleanly: {why}")
        self._listening, self.listen = await bind(self.options.listen)
        insecure = self.options.insecure_plaintext
        check_exposure(self.listen, encrypted=self.tls.credentials is not None, insecure=insecure)
        if self.options.peers is not None:
            self.hosts = await self._find_hosts(self.options.peers)
            self._spawn(self._follow_hosts(self.options.peers))
            if self.options.peers.again:
                self._spawn(self._ask_again(self.options.peers))
        peers = [str(address) for address in self.hosts.peers]
        more = [f"{len(peers) - NAMED_MAX} more"] if len(peers) > NAMED_MAX else []
        others = formatting.listed([*peers[:NAMED_MAX], *more])
        where = f"{self.listen}{self.tls.words}"
        words = f"p2psgd {__version__} starts as {self.identity.name}, listens on {where}"
        self.node_log.note("start", f"{words}, peers: {others or 'none'}")
        self._supervision.starting(f"starting: looks for a checkpoint in {self.options.state}")
        await self._serve_http()
        self._control.server.start(loop)  # last: who is answered there finds the others too
        self._go_on()
        self._control.trainer.start()
        self._spawn(self._tick())
        self._spawn(self.tls.watch_files(self.node_log))
        self._supervision.ready()

    async def _find_hosts(
        self, source: PeerSource, *, quiet: bool = False, may_be_empty: bool = True
    ) -> Hosts:
        return await find_hosts(
            source,
            self.listen,
            timeout_s=self.options.failure_timeout_s,
            advertised=self.options.advertise,
            ports_above=self.options.ports_above,
            quiet=quiet,
            may_be_empty=may_be_empty,
        )

    async def _serve_http(self) -> None:
        """Start the HTTP server if it is asked for; what it takes is imported only then."""
        if self.options.http is None:
            return
        from p2psgd.node.http import NodeHttp

        control = self._control
        self._http = NodeHttp(control.node_status, self.compression.describe, self.node_log.events)
        await self._http.start(self.options.http, exposed=self.options.http_exposed)

    def http_status(self) -> HttpStatus | None:
        """Return where this node serves HTTP, and how often it has answered; None: nowhere."""
        return None if self._http is None else self._http.status()

    def begin_run(self, opened: RecoveredRun) -> None:
        """Begin the run, which is known now; P2psgdError if it cannot be begun."""
        assert self._listening is not None
        assert self._stop is not None
        self.run = NodeRun(
            opened,
            options=self.options,
            identity=self.identity,
            others=self.hosts.others,
            rank=self._control.rank(),
            listen=self.listen,
            node_log=self.node_log,
            compression=self.compression,
            session=self._control.server.session,
            credentials=self.tls.credentials,
            now=self.now,
            fail=self.fail,
            begin_again=self.begin_again,
            incarnations_left=self._incarnations_left,
        )
        self.run.backpressure.draining = self._stop.done()
        self.run.peers.start()
        hosts = self.hosts
        self._spawn(
            self.run.mesh.start(
                self._listening, hosts.lines, counts=hosts.counts, advertised=self.options.advertise
            )
        )

    def _go_on(self) -> None:
        """Resume from a checkpoint, without a trainer: others may need this node's vote, and what it has."""
        opened = reopen_run(self.options.state, self.node_log)
        if opened is not None:
            self.begin_run(opened)

    async def _tick(self) -> None:
        """Let every part look at the clock, again and again.

        It is also the progress that a watchdog is fed by: the loop has turned, and the replica, the
        checkpointer and the backpressure have handled their events to the end. Not the disk: see
        docs/decisions/operations.md.
        """
        interval_s = min(self.options.failure_timeout_s / TICKS_PER_TIMEOUT, self._supervision.interval_s)
        while True:
            due = time.monotonic() + interval_s
            await asyncio.sleep(interval_s)
            self.loop_lag_s = max(time.monotonic() - due, 0.9 * self.loop_lag_s)
            if self.run is not None:
                self.run.tick(self._control.trainer.loss)
            self.now()  # also before the run is known, and without a peer
            self._control.trainer.tick(self.now())
            if self._http is not None:
                self._http.tick()
            self.tls.look_at_expiry(self.node_log)
            settle_log()
            self._supervision.beat(time.monotonic(), lambda: sentence_of(self._control.node_status()))

    # -- SIGHUP

    def _reload(self) -> None:
        """Read again what may change while this node runs; one that closes must not dial anew."""
        if self._ended and self.above:
            signal.raise_signal(signal.SIGHUP)  # it came at the end of this life, and is for the next
        if self._closing:
            return
        self.tls.reload(self.node_log)
        self._reload_again = True
        if not self._reloading and self.options.peers is not None:
            self._reloading = True
            self._spawn(self._follow_hosts(self.options.peers))

    async def _follow_hosts(self, source: PeerSource) -> None:
        """Dial the hosts that the list names now, if it must be read again. This node's rank stays the one it
        began with.
        """
        while self._reload_again:
            self._reload_again = False
            await self._ask_peers(source)
        self._reloading = False

    async def _ask_again(self, source: PeerSource) -> None:
        """Ask the source again and again; news and troubles are noted once each."""
        while True:
            await asyncio.sleep(again_s(self.options.failure_timeout_s))
            if not self._reloading:
                self._reloading = True
                await self._ask_peers(source, quiet=True)
                await self._follow_hosts(source)  # if SIGHUP has come meanwhile

    async def _ask_peers(self, source: PeerSource, *, quiet: bool = False) -> None:
        """Follow the source's answer, and change nothing if it gives none. `quiet`: say only what is new.

        A program that suddenly lists no machine has failed, rather than found that all are gone.
        """
        try:
            may_be_empty = not (source.again and self.hosts.peers)
            hosts = await self._find_hosts(source, quiet=quiet, may_be_empty=may_be_empty)
        except UsageError as error:
            words = f"{error}; this node goes on with the list as it was"
            if not quiet or words != self._peers_trouble:
                log.warning("%s", words)
                self.node_log.events.write("reload", words)
            self._peers_trouble = words
            return
        how = "read" if source.names_file else "asked"
        words = f"{source} was {how} again: {describe_change(self.hosts.peers, hosts.peers)}"
        if not quiet or self._peers_trouble or set(hosts.peers) != set(self.hosts.peers):
            self.node_log.note("reload", words)
        self._peers_trouble = ""
        self.hosts = replace(hosts, rank=self.hosts.rank)
        if self.run is not None:
            self.run.mesh.dialer.follow(hosts.lines, hosts.counts)

    # -- the end

    def fail(self, words: str, code: ExitCode) -> None:
        """End the daemon with this sentence and exit code."""
        if self._stop is not None and not self._stop.done():
            self._stop.set_result((words, code))
        elif code is not ExitCode.OK and self._late_end is None:
            self._late_end = (words, code)  # while draining: it ends as planned, but not as if all were well

    def begin_again(self, above: int, words: str) -> None:
        """End this incarnation, and have another begin above the one given."""
        if self._stop is not None and not self._stop.done():
            self.above = above
            sentence = f"this daemon restarts above incarnation {above}, which a peer already knows"
            log.warning("%s (%s)", sentence, words)
            self._stop.set_result((f"{sentence} ({words})", ExitCode.OK))

    def _on_signal(self, number: signal.Signals) -> None:
        assert self._stop is not None
        if self._ended and self.above:
            signal.raise_signal(number)  # it came at the end of this life, and is for the next
        elif self.above:
            self.above, self._late_end = 0, (f"stopped by {number.name}", ExitCode.OK)
            self._signalled = True
        elif self._stop.done() and not (self._signalled and number is signal.SIGINT):
            # SIGTERM may come twice for one stop: Slurm sends it to a step, then to each of its processes.
            self._signalled = True
            log.info("%s has come while this node ends", number.name)
        elif self._stop.done():
            words = "stopped at once, without waiting for acknowledgements"
            log.warning(words)
            self.node_log.events.write("stop", f"{words} (exit code {ExitCode.TEMPORARY:d})")
            self._control.trainer.kill()
            os._exit(ExitCode.TEMPORARY)
        else:
            self._signalled = True
            self._stop.set_result((f"stopped by {number.name}", ExitCode.OK))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(raise_failure)
        task.add_done_callback(self._tasks.discard)
        self._tasks.add(task)

    def _on_bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the daemon on an error that no code expected, so that nothing goes on half broken; systemd
        starts it again.

        An OSError may be that of a connection, which has ended then; not if it comes out of a task. An error
        that strangers on the local network cause in zeroconf ends nothing either.
        """
        error = context.get("exception")
        if error is not None and _is_of_zeroconf(error):
            log.warning("zeroconf: %s: %r", context.get("message"), error)
            return
        log.error("%s", context.get("message"), exc_info=error)
        if error is not None and ("task" in context or not isinstance(error, OSError)):
            self.fail(f"internal error, please report it with the log: {error!r}", ExitCode.INTERNAL)

    async def _leave_to_next(self) -> None:
        """Stop the trainer and keep what it made, which the next incarnation brings along."""
        await self._control.trainer.drain()
        if self.run is not None:
            self.run.trainer_changed(active=False)
            await follow(self.run.checkpointer.finish(DRAIN_TIMEOUT_S))

    async def _drain(self, why: str) -> None:
        """Stop the trainer, send what it made, wait until every linked peer has acknowledged it."""
        words = "stopping: waiting until peers have acknowledged this node's updates, for %.0f s at most"
        log.info(words, DRAIN_TIMEOUT_S)
        if self.run is not None:
            self.run.backpressure.draining = True
        await self._control.trainer.drain(to_its_end=True)
        run = self.run
        if run is None:
            return

        def is_missed() -> bool:
            return len(run.replica.view.members) > 1

        # A node that ends with its trainer may be the last of all, after others that have left in order.
        may_be_last = self.options.end_with_trainer
        expected = is_missed if may_be_last else run.expects_peers
        farewell = await follow(
            leave_run(run, why, now=time.monotonic, timeout_s=DRAIN_TIMEOUT_S, expected=expected)
        )
        troubles = []
        if farewell.lost and (is_missed() or (self.hosts.peers and not may_be_last)):
            troubles.append(
                f"no peer has acknowledged this node's last {farewell.lost} updates: they are in "
                f"{self.options.state} alone, and come back with this node"
            )
        if farewell.without:
            troubles.append(f"its last checkpoint is not on disk: {farewell.without}")
        if troubles:
            self.fail(f"stopped, but {', and '.join(troubles)}", ExitCode.TEMPORARY)

    async def _close(self, words: str) -> None:
        self._closing = True
        await self._control.trainer.close()
        self._control.server.close()
        if self._http is not None:
            await self._http.close()
        if self.run is not None:
            self.run.rejections.close()
        for task in tuple(self._tasks):
            task.cancel()
        if self.run is not None:
            await self.run.peers.close()
            await self.run.mesh.close()
        if self._listening is not None:
            self._listening.close()
        if self.run is not None:
            self.run.executor.closed = True
            await self.run.disk.close(DRAIN_TIMEOUT_S, abandoning=self.run.checkpointer.abandoning)
        self.node_log.events.write("stop", words)
        self.node_log.events.close()
        self.identity.release()


def _is_of_zeroconf(error: BaseException) -> bool:
    """Return whether an error was raised within that package, and by nothing of ours that it called."""
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = [module for module in modules if module.split(".")[0] in ("p2psgd", "zeroconf")]
    return bool(ours) and ours[-1].startswith("zeroconf")


def run_node(options: NodeOptions) -> ExitCode:
    """Run a daemon to its end, on uvloop or, with P2PSGD_LOOP=asyncio, on the standard loop."""
    raise_limit()
    if os.environ.get("P2PSGD_LOOP") == "asyncio":
        factory = asyncio.new_event_loop
    else:
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_run_lives(options))


async def _run_lives(options: NodeOptions) -> ExitCode:
    """Run one incarnation after the other, while each asks for another. The loop runs on in between: it keeps
    the signals that come then.
    """
    supervision, above, incarnations_left = Supervision(), 0, RESTARTS_MAX
    while True:
        incarnations_left -= 1
        node = Node(options, supervision, above=above, incarnations_left=incarnations_left)
        code = await node.serve()
        if not node.above:
            return code
        above = node.above
