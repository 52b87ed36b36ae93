"""What `p2psgd node` would be started with, and why, by `p2psgd config show`, which asks that command."""

from __future__ import annotations

import json
import os
import typing
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import p2psgd.cli.app
from p2psgd.base.environment import OPTIONS
from p2psgd.base.errors import ExitCode
from p2psgd.cli.configuration import ABOUT_ITSELF, ConfiguredCommand, variable_of

PLAIN = "--insecure-plaintext"  # or a node listens on loopback only


@pytest.fixture(autouse=True)
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A list of hosts in the current directory, and no variable of whoever runs the tests."""
    for name in ("STATE", "CONTROL", "CONFIG"):
        monkeypatch.delenv(f"P2PSGD_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "hosts.txt"
    path.write_text("10.0.0.1\n")
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of the command."""
    monkeypatch.setattr("sys.argv", ["p2psgd", *arguments])
    with pytest.raises(SystemExit) as end:
        p2psgd.cli.app.main()
    assert isinstance(end.value.code, int)
    return end.value.code


class Show(typing.Protocol):
    """Give `p2psgd config show --json` these options."""

    def __call__(self, *arguments: str) -> dict[str, Any]: ...


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Show:
    """What it prints, which must not be a refusal."""

    def call(*arguments: str) -> dict[str, Any]:
        assert run(monkeypatch, "config", "show", "--json", PLAIN, *arguments) == ExitCode.OK
        shown: dict[str, Any] = json.loads(capsys.readouterr().out)
        return shown

    return call


def test_each_way_is_stronger_than_the_one_before(
    tmp_path: Path, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node.toml").write_text('peers = "hosts.txt"\nfailure_timeout = 7\nlog_budget = 3\n')

    def failure_timeout(*arguments: str) -> tuple[float, str, str | None]:
        found = show("--peers", "hosts.txt", *arguments)["failure_timeout"]
        return found["value"], found["from"], found["place"]

    assert failure_timeout() == (5.0, "default", None)
    assert failure_timeout("--config", "node.toml") == (7.0, "file", "node.toml")
    monkeypatch.setenv("P2PSGD_FAILURE_TIMEOUT", "8")
    assert failure_timeout("--config", "node.toml") == (8.0, "environment", "P2PSGD_FAILURE_TIMEOUT")
    assert failure_timeout("--config", "node.toml", "--failure-timeout", "9") == (9.0, "command line", None)


def test_the_file_can_be_named_in_the_environment(
    tmp_path: Path, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node.toml").write_text('peers = "hosts.txt"\nfailure_timeout = 7\n')
    monkeypatch.setenv("P2PSGD_CONFIG", str(tmp_path / "node.toml"))
    found = {"value": 7.0, "from": "file", "place": str(tmp_path / "node.toml")}
    assert show()["failure_timeout"] == found


def test_every_option_of_node_can_stand_in_the_file(tmp_path: Path, show: Show) -> None:
    """Also one that is not there yet: nothing beside the command's signature lists them."""
    values = show("--peers", "hosts.txt")
    node = typing.cast(Any, get_command(p2psgd.cli.app.app)).commands["node"]
    assert set(values) == {parameter.name for parameter in node.params} - ABOUT_ITSELF
    given = {name: each["value"] for name, each in values.items() if each["value"] is not None}
    lines = [f"{name} = {json.dumps(value)}" for name, value in given.items()]
    (tmp_path / "node.toml").write_text("\n".join(lines))
    shown = show("--config", "node.toml")
    from_file = {name for name, each in shown.items() if each["from"] == "file"}
    assert from_file == set(given) - {"insecure_plaintext"}  # which is on the command line as well
    assert {name: shown[name]["value"] for name in given} == given


def test_what_is_not_set_is_shown_as_the_node_makes_it(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/var/x")
    assert show("--peers", "hosts.txt")["state"] == {
        "value": "/var/x/p2psgd",
        "from": "default",
        "place": None,
    }
    monkeypatch.setenv("P2PSGD_STATE", "/srv/node")
    assert show("--peers", "hosts.txt")["state"] == {
        "value": "/srv/node",
        "from": "environment",
        "place": "P2PSGD_STATE",
    }


def test_variables_that_mean_something_else_are_no_options(
    show: Show, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("P2PSGD_CONTROL", str(tmp_path))  # where a trainer finds its daemon
    assert show("--peers", "hosts.txt")["control"] == {"value": None, "from": "default", "place": None}


def test_people_are_shown_a_line_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "node.toml").write_text('peers = "hosts.txt"\nlog_budget = 512\n')
    monkeypatch.setenv("P2PSGD_NAME", 'two\n"words"')
    options = (
        "--config",
        "node.toml",
        "--http-exposed",
        "--http",
        "127.0.0.1:9400",
        PLAIN,
    )
    assert run(monkeypatch, "config", "show", *options) == ExitCode.OK
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()}
    fields = {name: " ".join(rest.split()) for name, rest in lines.items()}
    assert fields["log_budget"] == "512 node.toml"
    assert fields["name"] == '"two\\n\\"words\\"" $P2PSGD_NAME'
    assert fields["http_exposed"] == "true command line"
    assert fields["tls"] == "- default"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            "failure_timeout = 900",
            "failure_timeout: --failure-timeout: the failure timeout must be 0.2 to 600 s, not 900",
        ),
        (
            "failure_timeout = nan",
            "failure_timeout: --failure-timeout: the failure timeout must be 0.2 to 600 s, not nan",
        ),
        ("log_budget = 0", "log_budget: it takes 1 or more"),
        ('listen = "a b"', "listen: --listen: 'a b' is not host, host:port or [ipv6]:port"),
        ("http_exposed = true", "http_exposed: --http-exposed is for the address of --http"),
        ('log_format = "xml"', "log_format: Invalid value for '--log-format': 'xml' is not one of"),
        ('config = "other.toml"', "there is no option 'config', known are advertise, "),
        ("failure_timeout = '5'", "failure_timeout: it takes a number, without quotes"),
    ],
)
@pytest.mark.parametrize("command", [["node"], ["config", "show"]])
def test_what_the_file_says_wrong_is_refused_with_file_and_key(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    content: str,
    sentence: str,
) -> None:
    Path("node.toml").write_text(content)
    options = ("--config", "node.toml", "--peers", "hosts.txt")
    assert run(monkeypatch, *command, *options) == ExitCode.CONFIGURATION
    words = capsys.readouterr().err
    assert words.startswith(f"p2psgd: in node.toml, {sentence}")
    assert words.count("\n") == 1


def test_what_the_environment_says_wrong_is_refused_with_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("P2PSGD_LOG_BUDGET", "many")
    assert run(monkeypatch, "node", "--peers", "hosts.txt") == ExitCode.CONFIGURATION
    words = "p2psgd: P2PSGD_LOG_BUDGET=many in the environment: it takes a whole number\n"
    assert capsys.readouterr().err == words
    monkeypatch.setenv("P2PSGD_FAILURE_TIMEOUT", "abc")
    monkeypatch.delenv("P2PSGD_LOG_BUDGET")
    assert run(monkeypatch, "node", "--peers", "hosts.txt") == ExitCode.CONFIGURATION
    words = "p2psgd: P2PSGD_FAILURE_TIMEOUT=abc in the environment: it takes a number\n"
    assert capsys.readouterr().err == words
    # What is on the command line is that command line's fault, whatever else is set.
    assert run(monkeypatch, "node", "--peers", "hosts.txt", "--log-budget", "no") == ExitCode.USAGE
    assert capsys.readouterr().err.startswith("p2psgd: Invalid value for '--log-budget'")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--nonsense"], ExitCode.USAGE),
        (["stray"], ExitCode.USAGE),
        ([], ExitCode.USAGE),
        (["--peers", "hosts.txt", "--listen", "a b"], ExitCode.USAGE),
        (["--peers", "hosts.txt", "--rank", "x"], ExitCode.USAGE),
        (["--peers", "hosts.txt"], ExitCode.CONFIGURATION),
        (["--peers", "absent.txt", PLAIN], ExitCode.CONFIGURATION),
        (["--peers", "dns:a b", PLAIN], ExitCode.USAGE),
        (["--peers", "dns:nodes.example", PLAIN], ExitCode.OK),
        (["--peers", "exec:echo 10.0.0.1", PLAIN], ExitCode.OK),
        (["--peers", "exec:exit 1", PLAIN], ExitCode.TEMPORARY),
        (["--peers", "env:NO_SUCH_VARIABLE", PLAIN], ExitCode.CONFIGURATION),
        (["--config", "absent.toml"], ExitCode.CONFIGURATION),
        (["--peers", "hosts.txt", "--tls", "absent"], ExitCode.CONFIGURATION),
    ],
)
def test_show_ends_with_the_code_of_node_for_the_same_mistake(
    monkeypatch: pytest.MonkeyPatch, options: list[str], code: ExitCode
) -> None:
    assert run(monkeypatch, "config", "show", *options) == code
    if code is ExitCode.USAGE:  # else a node would look at this machine, and listen
        assert run(monkeypatch, "node", *options) == code


def test_listen_without_a_port_is_the_default_port(show: Show) -> None:
    for text, address in (("127.0.0.1", "127.0.0.1:7315"), ("[::1]", "[::1]:7315"), ("[::1]:80", "[::1]:80")):
        assert show("--peers", "hosts.txt", "--listen", text)["listen"]["value"] == address


def test_what_is_in_force_is_shown_before_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, missing in (
        ([PLAIN], "how does this node find others? give --peers FILE, --zeroconf, or both"),
        (["--peers", "hosts.txt", "--tls", "absent"], "there is no absent/ca.pem"),
    ):
        run(monkeypatch, "config", "show", "--json", "--failure-timeout", "7", *options)
        said = capsys.readouterr()
        assert json.loads(said.out)["failure_timeout"]["value"] == 7
        assert said.err.startswith(f"p2psgd: {missing}")
        assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    "command", [["config", "show"], ["node"], ["status"], ["checkpoint", "list"], ["recipe"]]
)
def test_a_variable_that_nothing_reads_is_refused_with_the_nearest_by_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    monkeypatch.setenv("P2PSGD_LOG_BUGDET", "1")
    assert run(monkeypatch, *command) == ExitCode.CONFIGURATION
    words = "p2psgd has no variable P2PSGD_LOG_BUGDET, which is in the environment"
    hint = "the nearest is P2PSGD_LOG_BUDGET; correct it or unset it"
    assert capsys.readouterr().err == f"p2psgd: {words}: {hint}\n"
    assert run(monkeypatch, *command, "--help") == ExitCode.OK


def test_the_variables_of_options_are_those_that_trainers_know() -> None:
    commands = typing.cast(Any, get_command(p2psgd.cli.app.app)).commands.values()
    configured = [command for command in commands if isinstance(command, ConfiguredCommand)]
    read = {
        variable_of(parameter.name)
        for command in configured
        for parameter in command.params
        if getattr(parameter, "allow_from_autoenv", False)
    }
    assert read - {variable_of("help")} == OPTIONS


def test_options_of_node_train_and_local_that_share_a_variable_mean_the_same() -> None:
    """P2PSGD_X is one thing, whichever command reads it."""
    commands = typing.cast(Any, get_command(p2psgd.cli.app.app)).commands
    kinds: dict[str, Any] = {}
    for command in commands.values():
        if not isinstance(command, ConfiguredCommand):
            continue
        hints = typing.get_type_hints(command.callback)
        for parameter in command.params:
            if parameter.name in hints and getattr(parameter, "allow_from_autoenv", False):
                variable = variable_of(parameter.name)
                assert kinds.setdefault(variable, hints[parameter.name]) == hints[parameter.name], variable
    assert {"P2PSGD_LOG_BUDGET", "P2PSGD_RECIPE", "P2PSGD_NODES"} <= set(kinds)
    assert "P2PSGD_CONTROL" not in kinds


def test_what_local_reads_from_the_environment_is_not_read_by_each_of_its_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, Any] = {}

    def run_local(plan: Any, _: object) -> ExitCode:
        seen.update(steps=plan.steps, left={name for name in os.environ if name.startswith("P2PSGD_")})
        return ExitCode.OK

    monkeypatch.setattr("p2psgd.cli.local.run_local", run_local)
    for name in [name for name in os.environ if name.startswith("P2PSGD_")]:
        monkeypatch.delenv(name)
    for name, value in {"STEPS": "3", "REPORT": "report.json", "CPU": "portable", "LOOP": "asyncio"}.items():
        monkeypatch.setenv(f"P2PSGD_{name}", value)
    monkeypatch.setenv("P2PSGD_RECIPE", "digits")
    assert run(monkeypatch, "local", "-n", "2") == ExitCode.OK
    assert seen == {"steps": 3, "left": {"P2PSGD_CPU", "P2PSGD_LOOP"}}


def test_a_doctor_that_is_told_of_nobody_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("node.toml").write_text("log_budget = 512\n")
    assert run(monkeypatch, "doctor", "--config", "node.toml") == ExitCode.USAGE
    words = "p2psgd: which machines? give --peers FILE, or the --config that names it\n"
    assert capsys.readouterr().err == words


def test_help_says_how_else_options_can_be_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "node", "--help") == ExitCode.OK
    words = capsys.readouterr().out
    assert "P2PSGD_LOG_BUDGET=512" in words
    assert "env var" not in words
