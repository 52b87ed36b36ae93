"""What --peers may name, and a source that another package brings."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from pathlib import Path

import pytest

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.net.address import HOSTS_MAX, Address
from p2psgd.net.hosts import find_hosts
from p2psgd.net.peer_sources import source as source_module
from p2psgd.net.peer_sources.parse import GROUP, parse_peers
from p2psgd.net.peer_sources.source import AGAIN_TIMEOUTS, PeerSource, again_s
from tests import DEADLINE_S
from tests.conftest import LoopFactory


def refusal(text: str) -> UsageError:
    """Return why a source is refused, when it is named or when it is asked."""
    with pytest.raises(UsageError) as caught:
        parse_peers(text).ask()
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_file_is_named_by_its_path_with_or_without_a_scheme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("hosts.txt", "dns:x", "mine:list"):
        Path(name).write_text("alpha\nbeta:7000\n")
    for text in ("hosts.txt", "file:hosts.txt", "./dns:x", "mine:list", "file:dns:x"):
        source = parse_peers(text)
        assert source.ask() == (Address("alpha", 7315), Address("beta", 7000))
        assert (source.ordered, source.again, source.names_file) == (True, False, True)


def test_hosts_in_place_of_their_list_are_refused_with_what_to_give() -> None:
    for text in ("127.0.0.1:7315", "", ",".join(f"host-{number}.example:7315" for number in range(50))):
        words = str(refusal(text))
        assert words.startswith("cannot read the list of hosts /")
        assert "--peers takes the path of a file with one host[:port] a line, or a source, such" in words


def test_an_unknown_scheme_is_refused_with_those_that_are_known() -> None:
    error = refusal("dsn:nodes.example")
    assert "neither such a file nor a source dsn:, known are dns:, env:, exec:, file:, slurm:" in str(error)
    assert error.exit_code is ExitCode.CONFIGURATION


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("dns:nodes.example", Address("nodes.example", 7315)),
        ("dns:nodes.example.:7000", Address("nodes.example.", 7000)),
        ("dns:[2001:db8::1]:7000", Address("2001:db8::1", 7000)),
    ],
)
def test_a_name_is_the_whole_list_whose_hosts_have_no_rank(text: str, address: Address) -> None:
    source = parse_peers(text)
    assert source.ask() == (address,)
    assert not source.ordered
    assert not source.again  # the node resolves it again by itself


def test_a_name_that_leads_to_this_node_alone_gives_no_rank_where_the_same_line_of_a_file_does(
    tmp_path: Path,
) -> None:
    path = tmp_path / "hosts.txt"
    path.write_text("localhost:7001\n")
    ranks = [
        asyncio.run(find_hosts(parse_peers(text), Address("0.0.0.0", 7001), timeout_s=DEADLINE_S)).rank
        for text in (str(path), "dns:localhost:7001")
    ]
    assert ranks == [(0, 1), None]


@pytest.mark.parametrize("text", ["dns:", "dns:a b", "dns:a:0", "dns:a:b"])
def test_what_is_not_a_name_is_refused(text: str) -> None:
    assert str(refusal(text)).startswith("--peers dns:NAME[:PORT]: ")


@pytest.mark.parametrize(
    "value", ["alpha,beta:7000", " alpha  beta:7000 ", "alpha, beta:7000\n", "alpha,,beta:7000,"]
)
def test_a_variable_holds_a_list_separated_by_commas_or_spaces(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("NODES", value)
    source = parse_peers("env:NODES")
    assert source.ask() == (Address("alpha", 7315), Address("beta", 7000))
    assert source.ordered


def test_a_variable_that_is_not_there_or_holds_something_else_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NODES", raising=False)
    assert "there is no variable NODES in the environment; set it" in str(refusal("env:NODES"))
    monkeypatch.setenv("NODES", "alpha be/ta")
    assert "$NODES, each entry a line, line 2: 'be/ta'" in str(refusal("env:NODES"))
    assert "'A B' is not the name of an environment variable" in str(refusal("env:A B"))


# -- of other packages

PACKAGE = """
def rack(argument):
    if argument == "broken":
        raise LookupError("no such\\nrack")
    if argument == "ends":
        raise SystemExit("no such rack either")
    number = 0
    while argument == "endless":
        yield f"host-{number}"
        number += 1
    yield from (f"{argument}-{number}:7400" for number in range(2))
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that is installed as far as Python can see."""
    (tmp_path / "racks.py").write_text(PACKAGE)
    facts = tmp_path / "racks-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: racks\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[{GROUP}]\nrack = racks:rack\ngone = racks:gone\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "racks", raising=False)
    return tmp_path


@pytest.mark.usefixtures("package")
def test_another_package_adds_a_source_which_is_asked_again() -> None:
    source = parse_peers("rack:b7")
    assert source.ask() == (Address("b7-0", 7400), Address("b7-1", 7400))
    assert (str(source), source.ordered, source.again) == ("rack:b7", False, True)


@pytest.mark.usefixtures("package")
def test_a_source_of_another_package_that_fails_is_named_with_its_own_words() -> None:
    error = refusal("rack:broken")
    assert str(error) == "--peers rack: LookupError: no such rack"
    assert error.exit_code is ExitCode.TEMPORARY
    with asyncio.Runner() as runner, pytest.raises(UsageError, match="rack: SystemExit: no such rack either"):
        runner.run(parse_peers("rack:ends").addresses())  # the node goes on
    assert "racks:gone cannot be imported: AttributeError" in str(refusal("gone:x"))
    assert "'x y-0:7400' is not host" in str(refusal("rack:x y"))
    assert "known are dns:, env:, exec:, file:, gone:, rack:, slurm:" in str(refusal("unknown:x"))


@pytest.mark.usefixtures("package")
def test_an_endless_answer_is_refused() -> None:
    assert f"more than {HOSTS_MAX} hosts" in str(refusal("rack:endless"))


# -- asked again


def test_a_source_that_does_not_answer_is_asked_once_and_its_late_answer_counts(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    awake, asked = threading.Event(), 0

    def ask() -> tuple[Address, ...]:
        nonlocal asked
        asked += 1
        awake.wait(DEADLINE_S)
        return (Address("alpha", 1),)

    async def scenario() -> None:
        source = PeerSource("slow:", ask)
        monkeypatch.setattr(source_module, "ANSWER_S", 0.05)
        for _ in range(3):
            with pytest.raises(UsageError, match=re.escape("slow: has not answered within 0 s")):
                await source.addresses()
        assert asked == 1
        monkeypatch.setattr(source_module, "ANSWER_S", DEADLINE_S)
        awake.set()
        assert await source.addresses() == (Address("alpha", 1),)
        assert asked == 1
        assert await source.addresses() == (Address("alpha", 1),)
        assert asked == 2

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scenario())


def test_the_next_question_comes_within_twelve_failure_timeouts() -> None:
    delays = [again_s(2.0) for _ in range(100)]
    assert min(delays) >= AGAIN_TIMEOUTS
    assert max(delays) <= 2 * AGAIN_TIMEOUTS
    assert len(set(delays)) > 1
