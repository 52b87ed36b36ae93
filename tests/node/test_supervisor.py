"""The daemon's own trainer: restarted when it crashes, passed on when a person must act, never orphaned."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from p2psgd.base.errors import ExitCode, StoreError, UsageError
from p2psgd.node import trainer_process
from p2psgd.node import trainer_process as supervisor_module
from p2psgd.node.trainer_process import CRASHES_MAX, Supervisor
from tests import DEADLINE_S
from tests.conftest import LoopFactory

KILLS_ITSELF = "import os; os.kill(os.getpid(), 9)"
NEVER_THE_SAME = "import random; raise ValueError(''.join(random.choices('abcdefgh', k=20)))"


class Watched:
    """A supervisor of a Python one-liner, and what it said."""

    def __init__(
        self, code: str, *, progress: Callable[[], int] = lambda: 0, came: Callable[[], bool] = lambda: True
    ) -> None:
        self.failures: list[tuple[str, ExitCode]] = []
        self.crashes: list[str] = []
        self.ended = False
        self.supervisor = Supervisor(
            f'{sys.executable} -c "{code}"',
            environment={"MARK": "set"},
            progress=progress,
            came=came,
            crashed=self.crashes.append,
            ended=self._end,
            failed=lambda words, code: self.failures.append((words, code)),
        )

    def _end(self) -> None:
        self.ended = True

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.01)


def run(loop_factory: LoopFactory, scenario: Callable[[], Awaitable[None]]) -> None:
    async def body() -> None:
        await scenario()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(body())


def test_a_bug_in_the_supervisor_is_not_kept_until_it_stops(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        watched = Watched("pass", progress=lambda: 1 // 0)
        watched.supervisor.start()
        await watched.until(lambda: bool(told))
        assert isinstance(told[0], ZeroDivisionError)

    run(loop_factory, scenario)


def test_a_crashed_trainer_is_started_again_until_it_is_done(
    loop_factory: LoopFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_process, "FIRST_DELAY_S", 0.001)

    async def scenario() -> None:
        path = tmp_path / "lives"
        code = (
            f"import os,sys; open('{path}','a').write('x'); lives=len(open('{path}').read());"
            "os.kill(os.getpid(),9) if lives==1 else sys.exit(3 if lives==2 else 0)"
        )
        watched = Watched(code)
        watched.supervisor.start()
        assert watched.supervisor._task is not None
        await watched.supervisor._task
        assert path.read_text() == "xxx"
        assert watched.supervisor.restarts == 2
        assert "killed by signal 9" in watched.crashes[0]
        assert "exit code 3" in watched.crashes[1]
        assert watched.supervisor.words == "", "the last one did not crash"
        assert not watched.failures

    run(loop_factory, scenario)


def test_one_that_is_to_begin_again_does_so_though_it_ends_well_at_sigterm(
    loop_factory: LoopFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_process, "FIRST_DELAY_S", 0.001)
    path = tmp_path / "lives"

    async def scenario() -> None:
        code = (
            "import signal,sys,time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0));"
            f"open('{path}','a').write('x'); len(open('{path}').read()) > 1 or time.sleep(600)"
        )
        watched = Watched(code)
        watched.supervisor.start()
        await watched.until(path.exists)
        watched.supervisor.begin_again("a daemon of its group was killed")
        await watched.until(lambda: watched.ended)
        assert path.read_text() == "xx"
        assert watched.crashes == ["a daemon of its group was killed; started again in 0 s"]

    run(loop_factory, scenario)


def test_a_script_that_raises_the_same_twice_is_given_up_with_its_exception(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although each life makes a mini-batch, its words differ in a number, and its exit prints more."""
    monkeypatch.setattr(trainer_process, "FIRST_DELAY_S", 0.001)

    async def scenario() -> None:
        count = itertools.count()
        code = (
            "import atexit,os; atexit.register(print,'bye'); print('step 1');"
            "raise ValueError(f'shape {os.getpid()}')"
        )
        watched = Watched(code, progress=lambda: next(count))
        watched.supervisor.start()
        await watched.until(lambda: bool(watched.failures))
        ((words, found),) = watched.failures
        crash = r"the trainer crashed \(exit code 1\): ValueError: shape \d+"
        assert re.fullmatch(f"{crash}; twice alike, with less than 30 s of training in between", words)
        assert found is ExitCode.TRAINER
        assert len(watched.crashes) == 1

    run(loop_factory, scenario)


def test_a_crash_after_training_is_tried_again_and_two_alike_without_it_are_final(
    loop_factory: LoopFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_process, "FIRST_DELAY_S", 0.001)
    monkeypatch.setattr(trainer_process, "PROGRESS_EVERY_S", 0.01)
    monkeypatch.setattr(trainer_process, "STEADY_S", 0.5)

    async def scenario() -> None:
        steps, lives = tmp_path / "steps", tmp_path / "lives"
        code = (
            f"import time; open('{lives}','a').write('x'); lives=len(open('{lives}').read());"
            f"lives<3 and (open('{steps}','a').write('x'), time.sleep(1.0)); 1/0"
        )
        watched = Watched(code, progress=lambda: len(steps.read_text()) if steps.exists() else 0)
        watched.supervisor.start()
        await watched.until(lambda: bool(watched.failures))
        assert lives.read_text() == "xxxx", "two that trained, and two that did not"
        assert watched.failures[0][1] is ExitCode.TRAINER

    run(loop_factory, scenario)


@pytest.mark.parametrize(
    ("code", "exit_code"), [(KILLS_ITSELF, ExitCode.TEMPORARY), (NEVER_THE_SAME, ExitCode.TRAINER)]
)
def test_a_trainer_that_only_crashes_is_given_up(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch, code: str, exit_code: ExitCode
) -> None:
    """Later than a script with a bug: by signals as by words that are never the same."""
    monkeypatch.setattr(trainer_process, "FIRST_DELAY_S", 0.001)
    monkeypatch.setattr(trainer_process, "DELAY_MAX_S", 0.001)

    async def scenario() -> None:
        watched = Watched(code)
        watched.supervisor.start()
        await watched.until(lambda: bool(watched.failures))
        words, found = watched.failures[0]
        assert words.endswith(f"; {CRASHES_MAX} times in a row")
        assert found is exit_code

    run(loop_factory, scenario)


@pytest.mark.parametrize("line", ["p2psgd: {}", "p2psgd.base.errors.StoreError: {}"])
def test_a_trainer_whose_data_store_fails_is_started_again_as_often_as_it_takes(
    monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr(trainer_process, "FIRST_DELAY_S", 0.001)
    monkeypatch.setattr(trainer_process, "DELAY_MAX_S", 0.001)
    said = line.format(StoreError("s3://bucket", "does not answer"))

    async def scenario() -> None:
        watched = Watched(f"import sys; print('{said}'); sys.exit(75)", came=lambda: False)
        watched.supervisor.start()
        await watched.until(lambda: watched.supervisor.restarts > CRASHES_MAX)
        assert watched.crashes[-1].startswith("the trainer crashed (exit code 75): ")
        assert "the data store s3://bucket does not answer; started again in " in watched.crashes[-1]
        assert not watched.failures
        await watched.supervisor.stop()

    run(asyncio.new_event_loop, scenario)


@pytest.mark.parametrize("exit_code", [2, 126, 127])
def test_a_command_that_cannot_run_is_not_tried_again(loop_factory: LoopFactory, exit_code: int) -> None:
    async def scenario() -> None:
        watched = Watched(f"import sys; print('no such file'); sys.exit({exit_code})", came=lambda: False)
        watched.supervisor.start()
        await watched.until(lambda: bool(watched.failures))
        words = f"the trainer cannot run (exit code {exit_code}): no such file"
        assert watched.failures == [(words, ExitCode.CONFIGURATION)]
        assert not watched.crashes

    run(loop_factory, scenario)


def test_a_trainer_that_had_attached_may_be_missing_for_a_moment(
    loop_factory: LoopFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_process, "FIRST_DELAY_S", 0.001)

    async def scenario() -> None:
        lives = tmp_path / "lives"
        code = f"open('{lives}','a').write('x'); raise SystemExit(2 * (open('{lives}').read() == 'x'))"
        watched = Watched(code, came=lambda: True)
        watched.supervisor.start()
        await watched.until(lambda: watched.ended)
        assert not watched.failures

    run(loop_factory, scenario)


def test_a_trainer_that_crashes_again_and_again_is_started_ever_later_but_not_later_than_that(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if each life gets somewhere, which is no reason to give it up."""
    count = itertools.count()
    waits: list[float] = []

    async def note(_: Supervisor, delay_s: float, wait: Any = Supervisor._wait) -> None:
        waits.append(delay_s)
        await wait(_, delay_s / 1000)

    monkeypatch.setattr(Supervisor, "_wait", note)

    async def scenario() -> None:
        watched = Watched(KILLS_ITSELF, progress=lambda: next(count))
        watched.supervisor.start()
        await watched.until(lambda: watched.supervisor.restarts > CRASHES_MAX)
        await watched.supervisor.stop()
        assert not watched.failures

    run(loop_factory, scenario)
    assert waits[:9] == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_trainer_that_had_run_for_a_while_is_started_again_soon_however_often(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_process, "FIRST_DELAY_S", 0.001)
    monkeypatch.setattr(trainer_process, "STEADY_S", 0.0)
    monkeypatch.setattr(trainer_process, "DELAY_MAX_S", 100.0)

    async def scenario() -> None:
        count = itertools.count()
        watched = Watched("raise SystemExit(3)", progress=lambda: next(count))
        watched.supervisor.start()
        await watched.until(lambda: watched.supervisor.restarts == 20)  # doubled each time it would take days
        await watched.supervisor.stop()

    run(loop_factory, scenario)


@pytest.mark.parametrize("end", ["finish", "stop"])
def test_nobody_waits_for_a_crashed_trainer_that_is_not_to_be_started_again(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(trainer_process, "FIRST_DELAY_S", 10_000.0)

    async def scenario() -> None:
        watched = Watched(KILLS_ITSELF)
        watched.supervisor.start()
        assert watched.supervisor.restart_in_s == 0
        await watched.until(lambda: watched.supervisor.restart_in_s > 0)
        assert "killed by signal 9" in watched.supervisor.words
        if end == "stop":
            await watched.supervisor.stop()
        else:
            watched.supervisor.finish()
        assert watched.supervisor._task is not None
        await watched.supervisor._task
        assert watched.supervisor.restart_in_s == 0
        assert watched.ended == (end == "finish")

    run(loop_factory, scenario)


@pytest.mark.parametrize(("own", "quoted"), [("print('epoch 3');", "; it said last: epoch 3"), ("", "")])
def test_the_last_words_of_a_killed_trainer_are_its_own_and_not_told_as_its_reason(
    loop_factory: LoopFactory, own: str, quoted: str
) -> None:
    async def scenario() -> None:
        watched = Watched(
            f"import os; {own} print('p2psgd: each step is sent by itself'); os.kill(os.getpid(), 9)"
        )
        watched.supervisor.start()
        await watched.until(lambda: watched.supervisor.restarts > 0)
        assert watched.supervisor.words == f"the trainer crashed (killed by signal 9){quoted}"
        await watched.supervisor.stop()

    run(loop_factory, scenario)


def test_a_shell_whose_command_is_killed_counts_as_killed(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_process, "FIRST_DELAY_S", 0.001)

    async def scenario() -> None:
        watched = Watched("import sys; sys.exit(128 + 9)")
        watched.supervisor.start()
        await watched.until(lambda: watched.supervisor.restarts > 2)
        assert watched.supervisor.words == "the trainer crashed (killed by signal 9)"
        await watched.supervisor.stop()

    run(loop_factory, scenario)


def test_what_a_person_must_mend_is_passed_on_at_once(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        watched = Watched("import sys; print('p2psgd: no such recipe'); sys.exit(64)")
        watched.supervisor.start()
        await watched.until(lambda: bool(watched.failures))
        assert watched.failures == [("no such recipe", ExitCode.USAGE)]
        assert watched.supervisor.restarts == 0

    run(loop_factory, scenario)


def test_a_script_for_a_device_that_is_not_there_is_not_tried_again(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        watched = Watched("import p2psgd.gpu; p2psgd.gpu.attach([1.0], device='cuda:999')")
        watched.supervisor.start()
        await watched.until(lambda: bool(watched.failures))
        ((words, code),) = watched.failures
        assert (words.partition(":999")[0], code) == ("device cuda", ExitCode.CONFIGURATION)
        assert watched.supervisor.restarts == 0

    run(loop_factory, scenario)


def test_a_script_that_lacks_a_package_is_not_tried_again(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        watched = Watched("import Nobody_has_this")
        watched.supervisor.start()
        await watched.until(lambda: bool(watched.failures))
        words = "the trainer cannot run: no module named 'Nobody_has_this'; "
        advice = "install it where the trainer's Python finds it"
        assert watched.failures == [(words + advice, ExitCode.CONFIGURATION)]
        assert watched.supervisor.restarts == 0

    run(loop_factory, scenario)


def test_a_script_that_p2psgd_refuses_its_data_is_not_tried_again(
    tmp_path: Path, loop_factory: LoopFactory
) -> None:
    async def scenario() -> None:
        watched = Watched(f"import p2psgd; p2psgd.data.Shards('{tmp_path}')")
        watched.supervisor.start()
        await watched.until(lambda: bool(watched.failures))
        ((words, code),) = watched.failures
        assert words.startswith(f"{tmp_path}/shards.json, the list of its shards, cannot be had: ")
        assert (code, watched.supervisor.restarts) == (ExitCode.DATA, 0)

    run(loop_factory, scenario)


def test_a_command_that_does_not_exist_is_named(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        failures: list[str] = []
        supervisor = Supervisor(
            "no-such-command --now",
            environment={},
            progress=lambda: 0,
            came=lambda: True,
            crashed=lambda _: None,
            ended=lambda: None,
            failed=lambda words, code: failures.append(words),
        )
        supervisor.start()
        assert supervisor._task is not None
        await supervisor._task
        assert failures == ["cannot start the trainer 'no-such-command': no such file or directory"]

    run(loop_factory, scenario)


def test_a_trainer_that_ignores_sigterm_is_killed_with_its_children(
    loop_factory: LoopFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "STOP_TIMEOUT_S", 0.3)

    async def scenario() -> None:
        path = tmp_path / "child"
        code = (
            "import signal,subprocess,time; signal.signal(15,signal.SIG_IGN);"
            f"child=subprocess.Popen(['sleep','1000']); open('{path}','w').write(str(child.pid)+'.');"
            "time.sleep(1000)"
        )
        watched = Watched(code)
        watched.supervisor.start()
        await watched.until(lambda: path.exists() and path.read_text().endswith("."))
        child = int(path.read_text()[:-1])
        await watched.supervisor.stop()
        await watched.until(lambda: not alive(child))

    run(loop_factory, scenario)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().split()[2] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("command", "words"), [("", "empty"), ("'open", "not a command line")])
def test_a_command_line_that_is_none_is_refused(command: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Supervisor(
            command,
            environment={},
            progress=lambda: 0,
            came=lambda: True,
            crashed=lambda _: None,
            ended=lambda: None,
            failed=lambda *_: None,
        )


def test_the_environment_reaches_the_trainer(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        watched = Watched("import os,sys; sys.exit(0 if os.environ['MARK']=='set' else 64)")
        watched.supervisor.start()
        assert watched.supervisor._task is not None
        await watched.supervisor._task
        assert not watched.failures
        assert "MARK" not in os.environ

    run(loop_factory, scenario)
