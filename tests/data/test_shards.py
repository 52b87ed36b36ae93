"""Going through shards beside a link to a real daemon."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import TrainerError, UsageError
from p2psgd.client.attach import attach
from p2psgd.client.link import Link
from p2psgd.data import RetryPolicy, Shards, StoreError
from p2psgd.data.index import make_list
from tests.data.lists import shard_list
from tests.ipc.daemons import QUANTUM, Daemon

DELTA = np.full(4, 9 * QUANTUM, np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six shards with samples 0 to 9, 10 to 19 and so on."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for shard in range(6):
        np.savez_compressed(folder / f"{shard}.npz", number=np.arange(10 * shard, 10 * shard + 10))
    make_list(str(folder))
    return folder


@pytest.fixture
def data(folder: Path) -> Shards:
    return Shards(folder, patience=RetryPolicy(pauses_s=(), stall_s=20.0))


@pytest.fixture
def link(daemon: Daemon, data: Shards) -> Iterator[Link]:
    with attach(np.zeros(4, np.float32), control=daemon.path, shards=data.list) as link:
        yield link


def test_batches_bring_every_sample_once_an_epoch_and_count_a_shard_with_its_last_send(
    daemon: Daemon, data: Shards, link: Link
) -> None:
    seen: list[list[int]] = []
    for batch in data.batches(link, 4, epochs=2, seed=3):
        held = link.shard_counts[0]
        assert 1 <= held.sum() + (len(batch["number"]) == 2) <= 2, "one in use, one fetched ahead"
        link.receive()
        link.send(DELTA, 8)
        seen.append(batch["number"].tolist())
        daemon.take_all()
        published = daemon.call(daemon.host.coordinates[10:].copy)
        np.testing.assert_array_equal(
            published, link.shard_counts[1], "the gradient and the count go together"
        )
    assert [len(batch) for batch in seen] == [4, 4, 2] * 12
    first, second = ([number for batch in part for number in batch] for part in (seen[:18], seen[18:]))
    assert sorted(first) == sorted(second) == list(range(60))
    assert first != second
    assert link.shard_counts.tolist() == [[0] * 6, [2] * 6]
    assert list(data.batches(link, 4, epochs=2)) == [], "all are used up"
    assert Counter(len(batch["number"]) for batch in data.batches(link, 100, epochs=3)) == {10: 6}


def test_who_stops_within_a_shard_gives_it_back(daemon: Daemon, data: Shards, link: Link) -> None:
    for number, _ in enumerate(data.batches(link, 4)):
        link.send(DELTA, 8)
        if number == 4:
            daemon.call(daemon.server.session.finish)
    assert number == 4
    assert link.shard_counts.sum(axis=1).tolist() == [0, 1]
    daemon.take_all()
    assert daemon.call(lambda: int(daemon.host.coordinates[4:].sum())) == 1, "the daemon knows"


def test_a_script_that_is_terminated_gives_back_what_it_holds(
    daemon: Daemon, data: Shards, link: Link
) -> None:
    def go_through() -> None:
        for number, _ in enumerate(data.batches(link, 4)):
            link.send(DELTA, 8)
            if number == 3:
                signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as end:
        go_through()
    assert end.value.code == 143
    signal.raise_signal(signal.SIGTERM)  # the second of one stop does not kill it meanwhile
    daemon.take_all()
    assert daemon.call(lambda: int(daemon.host.coordinates[4:].sum())) == 1, "the daemon knows"
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN, "or what it starts would inherit that"
    with pytest.raises(SystemExit):  # of a script that lived on
        go_through()


def test_a_shard_whose_last_mini_batch_was_not_sent_is_not_counted_as_used(
    daemon: Daemon, data: Shards, link: Link
) -> None:
    def go_through() -> None:
        for number, _ in enumerate(data.batches(link, 4)):
            if number == 5:  # the last one of the second shard
                raise ValueError("the loss is not finite")
            link.send(DELTA, 8)

    with pytest.raises(ValueError, match="not finite"):
        go_through()
    assert link.shard_counts.sum(axis=1).tolist() == [0, 1]
    daemon.take_all()
    published = daemon.call(daemon.host.coordinates[4:].copy)
    assert published.tolist() == link.shard_counts.reshape(-1).tolist()


def test_a_shard_that_cannot_be_had_ends_it_with_a_sentence_and_the_others_are_given_back(
    daemon: Daemon, folder: Path, data: Shards, link: Link
) -> None:
    for name in ("0", "1", "2"):
        (folder / f"{name}.npz").write_bytes(b"PK")
    (folder / "3.npz").unlink()

    def go_through() -> None:
        for _ in data.batches(link, 10):
            link.send(DELTA, 8)

    with pytest.raises(StoreError, match=rf"^the data store {folder} does not give shard \d\.npz") as caught:
        go_through()
    assert "\n" not in str(caught.value)
    assert not link.shard_counts[0].any()


def test_what_another_node_holds_is_waited_for_and_then_used(
    daemon: Daemon, data: Shards, link: Link
) -> None:
    for shard in range(6):
        link.count_shard(shard, held=shard == 5, used=shard != 5)
    said: list[str] = []
    uses = [use.number for use in data.each(link, lease_s=0.6, says=said.append)]
    assert uses == [5]
    assert said[0].startswith("1 of 6 shards is other nodes' to use: waited 0 s so far")
    assert said[-1] == ""


def test_the_script_of_the_page_trains(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = re.findall(r"```python\n(.*?)```", Path("docs/how-to/data.md").read_text(), re.DOTALL)
    (script,) = [each for each in scripts if "data.Shards(" in each]
    folder, draw = tmp_path / "train", np.random.default_rng(1)
    folder.mkdir()
    truth = draw.normal(size=100).astype(np.float32)
    for number in range(3):
        x = draw.normal(size=(600, 100)).astype(np.float32)
        np.savez(folder / f"{number}.npz", x=x, y=x @ truth)
    make_list(str(folder))
    monkeypatch.setenv("P2PSGD_CONTROL", str(daemon.path))
    names: dict[str, Any] = {}
    exec(script.replace("s3://bucket/train", str(folder)), names)
    assert names["link"].steps == 10 * 3 * 3
    before, after = np.abs(truth).mean(), np.abs(daemon.weights()[:100] - truth).mean()
    assert after < 0.8 * before
    assert daemon.host.coordinates[100:].tolist() == [0] * 3 + [10] * 3


def test_wrong_words_are_refused(data: Shards, link: Link, folder: Path) -> None:
    cases: list[tuple[Callable[[], Iterator[Any]], str]] = [
        (lambda: data.batches(link, 0), "a mini-batch of 0 samples"),
        (lambda: data.each(link, epochs=0), "epochs = 0 is refused"),
        (lambda: iter([data.only("label")]), "no shard of .* has an array label; there are number"),
        (lambda: iter([Shards(folder, ahead=99)]), "ahead = 99 is refused"),
    ]
    for wrong, words in cases:
        with pytest.raises(UsageError, match=words):
            next(wrong())
    other: Any = data.only("number")
    other.list = shard_list(3)
    with pytest.raises(TrainerError, match=r"the run counts 6 shards, and .* has 3"):
        next(other.each(link))
