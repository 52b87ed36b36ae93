"""What the README and the pages of docs/ show works as printed: scripts, commands, options and links."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main

from p2psgd.cli.app import app
from tests import DEADLINE_S
from tests.daemons import P2PSGD, PACED, until
from tests.ports import free_ports

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
HOW_TO = ROOT / "docs" / "how-to"
PAGES = sorted(
    ROOT / name
    for name in subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    if (ROOT / name).is_file()
)
FENCE = re.compile(r"^ *```(.*?)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def fenced(page: Path, language: str) -> list[str]:
    """The blocks of a page that are marked with this language, in order."""
    blocks = FENCE.findall(page.read_text(encoding="utf-8"))
    return [textwrap.dedent(content) for mark, content in blocks if mark == language]


def train_on_two_nodes(tmp_path: Path, script: str) -> dict[str, object]:
    """Run a script by `p2psgd local -n 2`; return its report."""
    path, report = tmp_path / "train.py", tmp_path / "report.json"
    path.write_text(script)
    command = [*P2PSGD, "local", "-n", "2", "--trainer", f"{sys.executable} {path}", "--report", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, object] = json.loads(report.read_text())
    assert result["replicas_identical"]
    return result


def steps_of(report: dict[str, object]) -> list[int]:
    nodes = report["per_node"]
    assert isinstance(nodes, list)
    return [node["steps"] for node in nodes]


def test_a_stranger_reads_it_in_three_minutes() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


def test_the_script_trains_on_two_nodes(tmp_path: Path) -> None:
    (script,) = fenced(README, "python")
    check = "    assert np.abs(link.weights - truth).max() < 0.1\n"  # a look at how far its weights came
    assert steps_of(train_on_two_nodes(tmp_path, script + check)) == [3000, 3000]


@pytest.mark.long
def test_a_node_waits_as_the_tutorial_shows_for_one_that_attaches_after_its_last_step(tmp_path: Path) -> None:
    """The second node's script attaches once the first one has made all its steps."""
    page = ROOT / "docs" / "tutorial" / "own-script.md"
    (waits,) = [block for block in fenced(page, "") if block.startswith("deadline = ")]
    script = f"""\
import os, pathlib, time
import numpy as np
import p2psgd

place = pathlib.Path({str(tmp_path)!r})
late = "node-1" in os.environ["P2PSGD_CONTROL"]
while late and not (place / "trained").exists():
    time.sleep(0.1)
with p2psgd.attach(np.zeros(100, np.float32)) as link:
    while link.steps < 3000 and not link.stopping:
        link.receive()
        link.send(np.full(100, 1e-3, np.float32), threshold=1000)
    (place / "trained").touch()
{textwrap.indent(waits, "    ")}
    np.save(place / f"weights-{{int(late)}}.npy", link.weights)
"""
    assert steps_of(train_on_two_nodes(tmp_path, script)) == [3000, 3000]
    first, second = (np.load(tmp_path / f"weights-{number}.npy") for number in (0, 1))
    np.testing.assert_array_equal(first, second)


@pytest.mark.long
def test_the_tutorials_script_trains_and_keeps_a_state(tmp_path: Path) -> None:
    (script,) = fenced(ROOT / "docs" / "tutorial" / "own-script.md", "python")
    (keeping,) = fenced(HOW_TO / "keep-state.md", "python")
    before, loop, after = script.partition("    while ")
    check = "    assert np.abs(link.weights - truth).max() < 0.1\n"
    whole = f"import json\n{before}{textwrap.indent(keeping, '    ')}{loop}{after}{check}"
    report = train_on_two_nodes(tmp_path, whole)
    assert steps_of(report) == [3000, 3000]
    nodes = report["per_node"]
    assert isinstance(nodes, list)
    assert all(node["loss"] < 1 for node in nodes), "begun at about 100"


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "rounds", "check"),
    [
        (0, 400, "assert np.abs(link.weights - truth).max() < 0.1"),
        (1, 100, "assert np.abs(link.weights - truth).max() < 0.1"),
        (2, 101, "assert worst.shape == (1,) and worst[0] == loss[0] < 0.1"),
    ],
)
def test_the_scripts_for_rounds_train_on_two_nodes(
    tmp_path: Path, place: int, rounds: int, check: str
) -> None:
    script = fenced(HOW_TO / "ring.md", "python")[place]
    assert train_on_two_nodes(tmp_path, f"{script}    {check}\n")["rounds"] == rounds


# ----------------------------------------------------------------------------
# The README's three machines, on this one: each host is a directory, and `ssh` a script that goes there.


class Hosts:
    """Three hosts under `place`, with addresses of their own in the environment instead of options."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._ports = free_ports(3)
        programs = place / "bin"
        programs.mkdir()
        for name, body in {
            "ssh": f'cd {place}/"$1" && exec bash -c "$2"',
            "p2psgd": f'exec {shlex.join(PACED)} "$@"',  # on one machine, whose cores all three share
        }.items():
            (programs / name).write_text(f"#!/bin/bash\n{body}\n")
            (programs / name).chmod(0o755)
        lines = "".join(f"127.0.0.1:{port}\n" for port in self._ports)
        for number in (1, 2, 3):
            self.home(number).mkdir()
            (self.home(number) / "hosts.txt").write_text(lines)
        self._path = f"{programs}:{os.environ['PATH']}"

    def home(self, number: int) -> Path:
        return self._place / f"10.0.0.{number}"

    def environment(self, number: int) -> dict[str, str]:
        home = self.home(number)
        address = f"127.0.0.1:{self._ports[number - 1]}"
        options = {
            "STATE": str(home / "state"),
            "LISTEN": address,
            "FAILURE_TIMEOUT": "1",
            "LOG_FORMAT": "text",
        }
        variables = {f"P2PSGD_{name}": value for name, value in options.items()}
        return {**os.environ, **variables, "PATH": self._path, "OPENBLAS_NUM_THREADS": "1"}

    def run(self, commands: str, number: int, cwd: Path | None = None) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=cwd or self.home(number),
            env=self.environment(number),
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def started(self, command: str) -> Iterator[list[subprocess.Popen[bytes]]]:
        """The same command on all three; no process outlives the test, their logs are shown if it fails."""
        nodes: list[subprocess.Popen[bytes]] = []
        try:
            for number in (1, 2, 3):
                with (self.home(number) / "log.txt").open("wb") as log:
                    nodes.append(
                        subprocess.Popen(
                            ["bash", "-c", f"exec {command}"],
                            cwd=self.home(number),
                            env=self.environment(number),
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                            start_new_session=True,
                        )
                    )
            yield nodes
        except BaseException:
            for number in (1, 2, 3):
                sys.stderr.write((self.home(number) / "log.txt").read_text(errors="replace")[-3000:])
            raise
        finally:
            for node in nodes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(node.pid, signal.SIGKILL)
                node.wait(DEADLINE_S)

    def is_training(self, number: int) -> bool:
        with contextlib.suppress(AssertionError):
            status = json.loads(self.run("p2psgd status --json", number))
            trains: bool = status.get("ready", False) and status["state"] == "training"
            return trains and status["view"]["members_total"] == 3
        return False


@pytest.mark.long
def test_three_machines_train_by_the_commands_of_the_readme(tmp_path: Path) -> None:
    section = README.read_text(encoding="utf-8").partition("## Three machines\n")[2].partition("\n## ")[0]
    certificates, node, look = [content for _, content in FENCE.findall(section)]
    hosts = Hosts(tmp_path)
    hosts.run(certificates, 1, cwd=tmp_path)
    with hosts.started(node.strip()) as nodes:
        until(lambda: all(map(hosts.is_training, (1, 2, 3))), "all three train")
        for line in look.splitlines():
            command = line.partition("#")[0].strip()
            hosts.run(command + (" --once" if command == "p2psgd top" else ""), 1)
        assert (hosts.home(1) / "weights.npz").exists()
        for each in nodes:
            each.send_signal(signal.SIGTERM)
        assert [each.wait(DEADLINE_S) for each in nodes] == [0, 0, 0]


# ----------------------------------------------------------------------------
# All commands and all links of all pages.


def commands_of(page: Path) -> list[list[str]]:
    """The calls of `p2psgd` in the blocks of a page, as words."""
    calls = []
    for mark, content in FENCE.findall(page.read_text(encoding="utf-8")):
        if mark.partition(" ")[0] not in {"", "sh"}:
            continue
        for line in content.replace("\\\n", " ").splitlines():
            for call in re.findall(
                r"(?:^|&& |do |sudo |bin/)p2psgd (?!\S*[:/])((?:[^#|;&]|&&)*)", line.strip()
            ):
                with contextlib.suppress(ValueError):  # an unfinished quotation, as in what a command prints
                    calls.append(shlex.split(call.partition(" && ")[0]))
    return calls


def fault_of(words: list[str]) -> str:
    """Why this is no call of p2psgd; "" if it is one."""
    command: Any = typer.main.get_command(app)
    rest = ["node", *words[2:]] if words[:2] == ["config", "show"] else list(words)  # it takes node's options
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        command = command.commands.get(rest.pop(0))
        if command is None:
            return "no such command"
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
    wrong = [word for word in rest if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]
    return f"unknown: {', '.join(wrong)}" if wrong else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_and_option_exists(page: Path) -> None:
    faults = {shlex.join(words): fault for words in commands_of(page) if (fault := fault_of(words))}
    assert not faults


def test_the_readme_shows_commands() -> None:
    assert len(commands_of(README)) >= 8, "or they are not looked at"
    assert fault_of(["node", "--no-such-option"])
    assert fault_of(["no-such-command"])


def test_its_two_commands_are_targets_that_do_what_it_says() -> None:
    (block,) = [
        content for _, content in FENCE.findall(README.read_text(encoding="utf-8")) if "make" in content
    ]
    targets = [line.split()[1] for line in block.splitlines()]
    done = subprocess.run(
        ["make", "-n", *targets, "docs"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "p2psgd local -n 4 --recipe examples/demo.toml" in done.stdout
    assert "-m pytest" in done.stdout
    assert "mkdocs build --strict" in done.stdout


def anchors_of(page: Path) -> set[str]:
    """What a link may name after `#`: its headings, as GitHub and the site write them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    written = set(re.findall(r'(?:id|name)="([^"]+)"', text)) | set(re.findall(r"^::: (\S+)$", text, re.M))
    return {
        re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading)).strip("-") for heading in plain
    } | written


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        if anchor and found.suffix == ".md":
            assert anchor in anchors_of(found), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    for name in re.findall(r"(?<![\w/])tests/[\w/]+\.(?:py|md)", page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name


def test_no_message_or_page_takes_p2psgd_from_a_package_index() -> None:
    """The name may be somebody else's there."""
    sources = [path for path in PAGES if path.parent != ROOT / "docs" / "decisions"]
    sources += (ROOT / "p2psgd").rglob("*.py")
    install = re.compile(r"pip install (-\S+ )*['\"]?p2psgd\b")
    assert [path for path in sources if install.search(path.read_text(encoding="utf-8"))] == []


@dataclass(frozen=True)
class Summary:
    """Rows of a table in the reference: the first sentence of the docstring of a function, or of each public
    member of a class.
    """

    page: str
    source: str
    what: str
    written: str

    def rows(self) -> list[str]:
        tree = ast.parse((ROOT / self.source).read_text(encoding="utf-8"))
        (found,) = (each for each in tree.body if getattr(each, "name", "") == self.what)
        if isinstance(found, ast.FunctionDef):
            return [self._row(found, f"{self.written}()")]
        assert isinstance(found, ast.ClassDef)
        attributes = (ast.get_docstring(found) or "").partition("Attributes:\n")[2]
        described = re.findall(r"^    (\w+): (.*?)(?=^    \w|\Z)", attributes, re.MULTILINE | re.DOTALL)
        members = [each for each in found.body if isinstance(each, ast.FunctionDef)]
        return [f"| `{self.written}.{name}` | {' '.join(text.split())} |" for name, text in described] + [
            self._row(each, f"{self.written}.{each.name}" + ("" if each.decorator_list else "()"))
            for each in members
            if not each.name.startswith("_")
        ]

    def _row(self, function: ast.FunctionDef, name: str) -> str:
        text = " ".join((ast.get_docstring(function) or "").partition("\n\n")[0].split())
        return f"| `{name}` | {text} |"


@pytest.mark.parametrize(
    "summary",
    [
        Summary("attach.md", "p2psgd/client/attach.py", "attach", "p2psgd.attach"),
        Summary("attach.md", "p2psgd/gpu/__init__.py", "attach", "p2psgd.gpu.attach"),
        Summary("attach.md", "p2psgd/torch/attach.py", "attach", "p2psgd.torch.attach"),
        Summary("torch.md", "p2psgd/torch/attach.py", "attach", "p2psgd.torch.attach"),
        Summary("torch.md", "p2psgd/torch/closure.py", "closure", "p2psgd.torch.closure"),
        Summary("attach.md", "p2psgd/client/scipy_fun.py", "scipy_fun", "p2psgd.scipy_fun"),
        Summary("torch.md", "p2psgd/torch/model_link.py", "ModelLink", "link"),
        Summary("link.md", "p2psgd/client/link.py", "Link", "link"),
    ],
    ids=lambda summary: f"{summary.page}-{summary.written}",
)
def test_a_table_of_the_reference_has_the_first_sentences_of_the_docstrings(summary: Summary) -> None:
    """A code host shows no docstrings, and a table of them alone cannot grow old."""
    wanted = "\n".join(summary.rows())
    page = (ROOT / "docs" / "reference" / summary.page).read_text(encoding="utf-8")
    assert f"{wanted}\n" in page, f"docs/reference/{summary.page} wants:\n{wanted}"
