"""Run all parts of one machine: a daemon for each, started again if it ends, and one trainer command.

A daemon computes on one core, so each part has a process of its own: `p2psgd node --part k/K`, k ports above
the one that was given, with its state in a folder of this one's state directory. The trainer command, such as
torchrun, starts one process for each part, and these find their daemons by their rank. They are in lockstep:
where one of them or one daemon ends, all of them are ended and started anew, so the group takes part as a
whole or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import grp
import json
import logging
import os
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from p2psgd.base import formatting
from p2psgd.base.aio import raise_failure
from p2psgd.base.environment import OPTIONS
from p2psgd.base.errors import FINAL, ExitCode, P2psgdError, UsageError, cannot
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.listener import SOCKET_NAME
from p2psgd.ipc.part import COUNT_NAME, group_directory, part_directory
from p2psgd.node.options import NodeOptions
from p2psgd.node.run import RunningClock
from p2psgd.node.systemd import Supervision
from p2psgd.node.trainer import END_S, FINISHED, WAITS_FOR_LAST, LastSteps
from p2psgd.node.trainer_process import Supervisor
from p2psgd.observe.logs import settle_log
from p2psgd.observe.parts import PARTS_NAME, GroupTrainer, PartDaemon, PartsStatus
from p2psgd.observe.status import NodeStatus, TrainerStatus, read_status
from p2psgd.storage.event_log import EVENTS_NAME, EventLog, last_event
from p2psgd.storage.files import make_directory, replacing
from p2psgd.storage.identity import is_locked, lay_down_id, lock_directory, read_id

FIRST_DELAY_S: Final = 1.0  # before a daemon is started again; doubled each time,
DELAY_MAX_S: Final = 60.0  # up to this,
STEADY_S: Final = 30.0  # unless it had run for so long
LOOK_S: Final = 0.5  # between looks at what the status file says
ASK_S: Final = 0.3  # for a daemon's answer about its steps
STOP_S: Final = 90.0  # for daemons to end: as long as one may flush and save
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("p2psgd.node")


class Parts:
    """The daemons of all parts of this machine, and the trainer command that trains on them.

    `options` are those of the node; `count`: the number of parts; `log_format`: of the daemons' logs.
    """

    def __init__(self, options: NodeOptions, count: int, *, log_format: str) -> None:
        self._options, self._count, self._log_format = options, count, log_format
        self._supervision = Supervision()
        self._daemons = [PartDaemon(part=index) for index in range(count)]
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._ending: tuple[str, ExitCode] | None = None
        self._trainer: Supervisor | None = None
        self._trainer_ended = self._signalled = False
        self._trainer_came = False  # one has attached at some time
        self._known_steps = 0
        self._last_steps = LastSteps(options.failure_timeout_s)
        self._seen_to_train = 0  # how often other nodes were
        self._now = RunningClock(time.monotonic, gap_s_max=4 * LOOK_S).read
        self._written = ""
        self._events = EventLog(group_directory(options.state))

    async def serve(self) -> ExitCode:
        """Run until a signal, or until a daemon or the trainer ends for what a person must repair."""
        lock = self._claim()
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self._send, signal.SIGHUP)
        loop.set_exception_handler(self._on_bug)
        try:
            await self._wait_for_former()
            self._start_trainer()
            if self._events.cut_short:
                self._events.write("cut short", "the last run of these parts did not end cleanly")
            self._events.write("start", f"{formatting.counted(self._count, 'part')}, pid {os.getpid()}")
            keepers = [loop.create_task(self._keep(index)) for index in range(self._count)]
            watch = loop.create_task(self._watch())
            for task in (*keepers, watch):
                task.add_done_callback(raise_failure)
            self._supervision.ready()
            await self._stopping.wait()
            self._supervision.stopping("stopping all parts")
            words, code = await self._stop(keepers)
            watch.cancel()
            self._events.write("stop", f"{words} (exit code {code:d})")
        finally:
            for process in self._processes.values():
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            (self._options.state / PARTS_NAME).unlink(missing_ok=True)
            self._events.close()
            os.close(lock)
        if code is not ExitCode.OK:
            raise UsageError(words, code)
        settle_log(whole=True)
        log.info("%s", words)
        return code

    def _claim(self) -> int:
        """Lock the state directory, and give all parts the same id; return the lock."""
        state = self._options.state
        lock = lock_directory(state)
        try:
            for index in range(self._count):
                make_directory(part_directory(state, index))  # by which trainers find their daemons
            make_directory(group_directory(state))
            with replacing(state / COUNT_NAME) as file:
                file.write(f"{self._count}\n".encode())
            if self._options.tls is None:  # else the certificate gives the id
                self._lay_down_ids()
        except OSError as error:
            os.close(lock)
            raise cannot(f"use {state} as the state directory", error) from None
        return lock

    async def _wait_for_former(self) -> None:
        """Wait for daemons of an earlier start to end, which do so by themselves where that was killed: they
        hand on and save what they have.
        """
        deadline = time.monotonic() + STOP_S
        for index in range(self._count):
            said = False
            while is_locked(part_directory(self._options.state, index)):
                if self._stopping.is_set() or time.monotonic() > deadline:
                    return  # the daemon's own refusal says what is wrong
                if not said:
                    log.info("waiting for the daemon of part %d of an earlier start to end", index)
                said = True
                await asyncio.sleep(LOOK_S)

    def _lay_down_ids(self) -> None:
        places = [part_directory(self._options.state, index) for index in range(self._count)]
        known = next(filter(None, map(read_id, places)), None)
        node = secrets.randbits(64) if known is None else known
        for place in places:
            lay_down_id(place, node=node, name=self._options.name or os.uname().nodename[:64] or "node")

    # -- the daemons

    async def _keep(self, index: int) -> None:
        """Keep the daemon of one part running until the end."""
        daemon, delay_s = self._daemons[index], FIRST_DELAY_S
        while not self._stopping.is_set():
            began = time.monotonic()
            process = self._processes[index] = await self._start(index)
            daemon.pid = process.pid
            if self._stopping.is_set():  # since it was being started
                process.terminate()
            code = await process.wait()
            daemon.pid = None
            if self._stopping.is_set():
                return
            how = f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            daemon.ending = f"the daemon of part {index} {'was ' if code < 0 else ''}{how}"
            if code in FINAL:
                self._end(f"the daemon of part {index} {how}{self._reason(index)}", ExitCode(code))
                return
            if self._trainer is not None:  # all ranks: without one of them the others train no part
                self._trainer.begin_again(daemon.ending)
            delay_s = FIRST_DELAY_S if time.monotonic() - began >= STEADY_S else delay_s
            daemon.restarts += 1
            log.warning("%s; started again in %.0f s, with its group's trainers", daemon.ending, delay_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._stopping.wait()
            delay_s = min(2 * delay_s, DELAY_MAX_S)

    async def _start(self, index: int) -> asyncio.subprocess.Process:
        environment = {name: value for name, value in os.environ.items() if name not in OPTIONS}
        environment.pop("P2PSGD_CONTROL", None)
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "p2psgd.cli.child", str(os.getpid()), ""),
            *("node", *self.words(index)),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )

    def words(self, index: int) -> list[str]:
        """Return the options of `p2psgd node` for one part."""
        asked = self._options
        given = {
            "--part": f"{index}/{self._count}",
            "--state": part_directory(asked.state.absolute(), index),
            "--listen": asked.listen,
            "--peers": None if asked.peers is None else asked.peers.given,
            "--advertise": asked.advertise,
            "--bootstrap-expect": asked.bootstrap_expect,
            "--rank": None if asked.rank is None else "{}/{}".format(*asked.rank),
            "--control-group": asked.control_group and grp.getgrgid(asked.control_group).gr_name,
            "--name": asked.name,
            "--tls": None if asked.tls is None else asked.tls.absolute(),
            "--http": asked.http,
            "--failure-timeout": f"{asked.failure_timeout_s:g}",
            "--log-budget": asked.log_budget_bytes >> 20,
            "--log-disk-budget": asked.store_budget_bytes >> 20,
            "--log-format": self._log_format,
        }
        words = [str(word) for name, value in given.items() if value is not None for word in (name, value)]
        words += ["--insecure-plaintext"] if asked.insecure_plaintext else []
        words += ["--end-with-trainer"] if asked.end_with_trainer else []
        return words + (["--http-exposed"] if asked.http_exposed else [])

    def _reason(self, index: int) -> str:
        event = last_event(part_directory(self._options.state, index) / EVENTS_NAME)
        return f": {event['words']}" if event is not None and event["kind"] == "stop" else ""

    # -- the trainer

    def _start_trainer(self) -> None:
        command = self._options.trainer
        if command is None:
            place = self._options.state.absolute()
            log.info("waiting for trainers, one for each part: start them with P2PSGD_CONTROL=%s", place)
            return
        self._trainer = Supervisor(
            command,
            environment={"P2PSGD_CONTROL": str(self._options.state.absolute())},
            progress=self._steps,
            came=self._has_come,
            crashed=self._on_crash,
            ended=self._on_trainer_end,
            failed=self._end,
        )
        self._trainer.start()

    def _on_crash(self, words: str) -> None:
        """Kill ranks that are still attached though their launcher has ended, as when it was killed itself:
        each has a session of its own.
        """
        self._events.write("trainer", words)
        for index in range(self._count):
            with contextlib.suppress(P2psgdError, OSError):
                pid = self._trainer_of(index).pid
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)

    def _steps(self) -> int:
        """Return the steps of the first part's trainers, as far as they are known."""
        self._ask()
        return self._known_steps

    def _has_come(self) -> bool:
        """Return whether a trainer is known to have attached at any time."""
        self._ask()
        return self._trainer_came

    def _ask(self) -> bool:
        """Ask the first part's daemon about its trainer; return whether it answers, which a busy one may not:
        nothing follows from that.
        """
        try:
            trainer = self._trainer_of(0)
        except P2psgdError:
            return False
        self._known_steps = trainer.steps
        self._trainer_came |= trainer.attached or trainer.finished or trainer.steps > 0
        return True

    def _trainer_of(self, index: int) -> TrainerStatus:
        return self._status_of(index).trainer

    def _status_of(self, index: int) -> NodeStatus:
        """Return what the daemon of a part says; P2psgdError if it does not answer."""
        place = part_directory(self._options.state, index) / SOCKET_NAME
        with ControlClient(place, timeout_s=ASK_S) as client:
            return read_status(client.request("status")["status"])

    def _on_trainer_end(self) -> None:
        self._trainer_ended = True
        if not self._stopping.is_set():
            self._events.write("trainer", "the trainer has ended")
        self._judge_end()
        if self._options.end_with_trainer and not self._stopping.is_set():
            log.info("%s", WAITS_FOR_LAST)

    def _judge_end(self) -> None:
        """End all parts if it is known that the trainer has ended without attaching."""
        if self._ask() and not (self._stopping.is_set() or self._trainer_came):
            words = f"the trainer ended without attaching to this node: {self._options.trainer}"
            self._end(words, ExitCode.CONFIGURATION)

    def _end_with_trainer(self, now: float) -> None:
        """End all parts if the other nodes have made their last steps, as the first part knows."""
        try:
            status = self._status_of(0)
        except P2psgdError:
            return
        self._seen_to_train += any(peer.steps_per_s for peer in status.peers)
        updates = sum(row.sequence for row in status.frontier if row.id != status.id)
        if self._last_steps.are_made((self._seen_to_train, updates), now):
            self._end(FINISHED, ExitCode.OK)

    # -- what people see

    async def _watch(self) -> None:
        while True:
            self._write_status()
            if self._trainer_ended and not self._trainer_came:
                self._judge_end()
            elif self._trainer_ended and self._options.end_with_trainer:
                self._end_with_trainer(self._now())
            self._supervision.beat(time.monotonic(), self._sentence)
            await asyncio.sleep(min(LOOK_S, self._supervision.interval_s))

    def _sentence(self) -> str:
        running = sum(daemon.pid is not None for daemon in self._daemons)
        return f"{running} of {formatting.counted(self._count, 'part')} running"

    def _write_status(self) -> None:
        """Write the file that `p2psgd status` reads, if it would be another one."""
        trainer = self._trainer
        status = PartsStatus(
            pid=os.getpid(),
            parts=self._count,
            daemons=self._daemons,
            trouble=self._events.trouble,
            trainer=None
            if trainer is None
            else GroupTrainer(
                command=self._options.trainer or "",
                running=trainer.running,
                ended=self._trainer_ended,
                restarts=trainer.restarts,
                crash=trainer.words,
                restarting=trainer.restart_in_s > 0,
            ),
        )
        text = status.model_dump_json(indent=2)
        if text == self._written:
            return
        with contextlib.suppress(OSError):  # a full disk: the next look tries again
            with replacing(self._options.state / PARTS_NAME) as file:
                file.write(text.encode())
            self._written = text

    # -- the end

    def _end(self, words: str, code: ExitCode) -> None:
        self._ending = self._ending or (words, code)
        self._stopping.set()

    def _on_bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End all parts on an error that no code expected, such as a daemon that cannot be started."""
        error = context.get("exception")
        log.error("%s", context.get("message"), exc_info=error)
        code = ExitCode.TEMPORARY if isinstance(error, OSError) else ExitCode.INTERNAL
        self._end(f"the parts cannot be run any longer: {error!r:.200}", code)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stopping.is_set() and not (self._signalled and number is signal.SIGINT):
            self._signalled = True
            log.info("%s has come while this node ends", number.name)
            return
        if self._stopping.is_set():
            words = "stopped at once, without waiting for acknowledgements"
            log.warning(words)
            self._events.write("stop", f"{words} (exit code {ExitCode.TEMPORARY:d})")
            if self._trainer is not None:
                self._trainer.kill()
            self._send(signal.SIGKILL)
            os._exit(ExitCode.TEMPORARY)
        self._signalled = True
        self._end(f"stopped by {number.name}", ExitCode.OK)

    def _send(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)

    async def _stop(self, keepers: list[asyncio.Task[None]]) -> tuple[str, ExitCode]:
        """Let the trainers end their step and the daemons hand on what they made; return how it ended."""
        assert self._ending is not None
        words, code = self._ending
        if self._trainer is not None:
            self._trainer.finish()
        self._send(signal.SIGTERM)
        _, late = await asyncio.wait(keepers, timeout=STOP_S)
        if late:
            log.warning("%s did not stop: killed", formatting.counted(len(late), "daemon"))
            self._send(signal.SIGKILL)
            await asyncio.wait(late)
        if self._trainer is not None:
            if self._trainer_came:  # a script that has left its link may evaluate and save
                await self._trainer.wait(END_S)
            await self._trainer.stop()
        # One that SIGTERM has killed had only begun to start, and has nothing to hand on.
        codes = [
            0 if process.returncode == -signal.SIGTERM else process.returncode or 0
            for process in self._processes.values()
        ]
        if code is ExitCode.OK and any(codes):
            index = next(index for index, each in enumerate(codes) if each)
            return f"the daemon of part {index} did not end well{self._reason(index)}", ExitCode.TEMPORARY
        if code is ExitCode.OK and self._options.end_with_trainer and not self._trainer_ended:
            return f"{words}, before its trainer has finished", ExitCode.TEMPORARY
        return words, code


def run_parts(options: NodeOptions, count: int, *, log_format: str) -> ExitCode:
    """Run the daemons of `count` parts to their end."""
    return asyncio.run(_serve(options, count, log_format))


async def _serve(options: NodeOptions, count: int, log_format: str) -> ExitCode:
    return await Parts(options, count, log_format=log_format).serve()


def read_parts(state: Path) -> PartsStatus | None:
    """Return what runs all parts with this state directory; None if nothing does."""
    try:
        status = PartsStatus.model_validate(json.loads((state / PARTS_NAME).read_text(encoding="utf-8")))
        os.kill(status.pid, 0)
    except PermissionError:  # it runs, as another user
        return status
    except (OSError, ValueError):  # no such file, or no such process: it was killed and has left the file
        return None
    return status
