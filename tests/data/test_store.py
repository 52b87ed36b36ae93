"""Shards from a real S3 server, and through a proxy that fails."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import p2psgd.cli.app
from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.data import RetryPolicy, Shards, StoreError
from p2psgd.data.index import make_list
from p2psgd.data.shard_list import ShardList
from tests.data.store_server import FaultyProxy

SOON = RetryPolicy(pauses_s=(0.01, 0.01), stall_s=0.3)
NUMBERS = np.arange(12, dtype=np.float32).reshape(6, 2)


def test_every_format_is_listed_fetched_checked_and_kept(
    bucket: Any, proxy: FaultyProxy, tmp_path: Path
) -> None:
    bucket.save("train/a.npz", x=NUMBERS, y=np.array([3, 0, 1, 2, 3, 7]))
    file = io.BytesIO()
    np.save(file, NUMBERS)
    bucket.put("train/b.npy", file.getvalue())
    large = np.arange(2_000_000, dtype=np.float32).reshape(8, -1)
    bucket.put("train/deep/c.safetensors", safetensors.numpy.save({"x": large}))
    bucket.put("train/README.txt", b"no shard")
    place = f"{bucket.url}/train/"
    made = make_list(place)
    shards = Shards(place)
    assert shards.list == made
    assert [(shard.name, shard.samples) for shard in made.shards] == [
        ("a.npz", 6),
        ("b.npy", 6),
        ("deep/c.safetensors", 8),
    ]
    labels = made.shards[0].arrays["y"]
    assert (labels.least, labels.largest, labels.shape, labels.dtype) == (0, 7, (6,), "int64")
    whole = shards.list.samples, shards.list.digest
    part = shards.only("y").list
    assert (part.samples, part.digest) == (6, ShardList(shards=made.shards[:1]).digest)
    assert whole == (20, made.digest), "and what was asked of the whole before has no part in it"
    loaded = [shards.load(shard) for shard in made.shards]
    np.testing.assert_array_equal(loaded[0]["x"], NUMBERS)
    np.testing.assert_array_equal(loaded[1]["array"], NUMBERS)
    np.testing.assert_array_equal(loaded[2]["x"], large)
    assert 2 <= proxy.asked["c.safetensors"] <= 2 * 4, "in pieces, each time"
    asked = dict(proxy.asked)
    again = Shards(place)
    assert [set(again.load(shard)) for shard in made.shards] == [{"x", "y"}, {"array"}, {"x"}]
    assert {name: count - asked[name] for name, count in proxy.asked.items() if count > asked[name]} == {
        "shards.json": 1
    }, "the cache had them"


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of p2psgd data."""
    monkeypatch.setattr("sys.argv", ["p2psgd", "data", *arguments])
    with pytest.raises(SystemExit) as end:
        p2psgd.cli.app.main()
    assert isinstance(end.value.code, int)
    return end.value.code


def test_a_command_lists_shards(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.save("a.npz", x=NUMBERS)
    bucket.save("deep/b.npz", x=NUMBERS + 1)
    assert command(monkeypatch, "index", bucket.url) == 0
    digest = Shards(bucket.url).list.digest
    *listed, said = capsys.readouterr().out.splitlines(keepends=True)
    assert listed == ["1 of 2: a.npz\n", "2 of 2: deep/b.npz\n"]
    assert said.startswith("2 shards with 12 samples, ")
    assert said.endswith(f" bytes, digest {digest}: listed in {bucket.url}/shards.json\n")
    assert command(monkeypatch, "index", bucket.url, "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["shards"], made["samples"], made["digest"]) == (2, 12, digest)
    assert made["file"] == f"{bucket.url}/shards.json"
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "a.npz").write_bytes(b"PK")
    assert command(monkeypatch, "index", str(copy)) == 65
    assert (
        capsys.readouterr().err
        == "p2psgd: shard a.npz: it is damaged, or not of plain arrays: it is not a .npz file\n"
    )


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("error", "in 3 attempts: "),
        ("wrong", "its SHA-256 begins with "),
        ("short", "bytes, and shards.json tells "),
        ("stall", "in 3 attempts: nothing has come for 0.3 s"),
    ],
)
def test_a_store_that_fails_is_asked_again_and_then_named(
    bucket: Any, proxy: FaultyProxy, fault: str, words: str
) -> None:
    bucket.save("bad.npz", x=NUMBERS)
    bucket.save("good.npz", x=NUMBERS + 1)
    make_list(bucket.url)
    shards = Shards(bucket.url)
    proxy.fault, proxy.word = fault, "bad"
    shards.load(shards.list.shards[1])
    # a busy machine may let an answer that comes wait for longer than a stall is short here
    shards.patience = SOON if fault == "stall" else replace(SOON, stall_s=10.0)
    with pytest.raises(StoreError) as caught:
        shards.load(shards.list.shards[0])
    assert caught.value.exit_code is ExitCode.TEMPORARY
    said = str(caught.value)
    assert said.startswith(f"the data store {bucket.url} does not give shard bad.npz in 3 attempts: ")
    assert words in said
    assert "\n" not in said
    assert proxy.asked["bad.npz"] >= 1
    proxy.fault, shards.patience = "", RetryPolicy()
    np.testing.assert_array_equal(shards.load(shards.list.shards[0])["x"], NUMBERS)


def test_a_shard_that_is_gone_is_named_at_once(bucket: Any, proxy: FaultyProxy) -> None:
    bucket.save("a.npz", x=NUMBERS)
    made = make_list(bucket.url)
    bucket.put("shards.json", made.packed().replace(b"a.npz", b"z.npz"))
    shards = Shards(bucket.url, patience=RetryPolicy(pauses_s=(60.0,)))
    with pytest.raises(StoreError, match=r"does not give shard z\.npz: there is no such file"):
        shards.load(shards.list.shards[0])
    proxy.fault, proxy.word = "forbidden", "shards.json"  # new keys may come
    with pytest.raises(StoreError, match=r"does not give shards\.json: it may not be read: "):
        Shards(bucket.url)


def test_what_cannot_be_a_data_set_is_refused_in_a_sentence(bucket: Any, tmp_path: Path) -> None:
    def refusal(place: str) -> str:
        with pytest.raises(UsageError) as caught:
            Shards(place)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert refusal(f"{bucket.url}/none") == (
        f"{bucket.url}/none/shards.json, the list of its shards, cannot be had: there is no such file; "
        f"make one with p2psgd data index {bucket.url}/none"
    )
    assert "is no URL that fsspec can read" in refusal("nowhere://bucket")
    with pytest.raises(UsageError, match=r"has 0 files that end in \.npz, \.npy, \.safetensors"):
        make_list(str(tmp_path))
    np.savez(tmp_path / "a.npz", x=NUMBERS)
    made = json.loads(make_list(str(tmp_path)).packed())
    cases: list[tuple[dict[str, Any], str]] = [
        ({"version": 2}, "version: Input should be less than or equal to 1"),
        ({"shards": []}, "shards: Tuple should have at least 1 item"),
        ({"shards": made["shards"] * 2}, "must stand in the order of their names"),
        ({"shards": [{**made["shards"][0], "name": "../a.npz"}]}, "a path below the list's own folder"),
        ({"shards": [{**made["shards"][0], "name": "a\nb.npz"}]}, "no line breaks"),
        ({"shards": [{**made["shards"][0], "samples": 5}]}, "is its number of samples"),
        ({"shards": [{**made["shards"][0], "sha256": "AB"}]}, "shards.0.sha256: String should match"),
    ]
    for change, words in cases:
        (tmp_path / "shards.json").write_text(json.dumps({**made, **change}))
        said = refusal(str(tmp_path))
        assert words in said
        assert said.endswith("make it anew with p2psgd data index")
    made["shards"][0]["arrays"]["x"]["dtype"] = "float64"
    (tmp_path / "shards.json").write_text(json.dumps(made))
    shards = Shards(tmp_path)
    with pytest.raises(UsageError, match=r"shard a\.npz: its arrays are others than shards\.json tells"):
        shards.load(shards.list.shards[0])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a\\b.npz", {"x": NUMBERS}, "it cannot be listed: Value error, a name is a path below"),
        ("a.npz", b"PK\3\4 rubbish", "it is damaged, or not of plain arrays: "),
        ("a.npz", "pickle", "Object arrays cannot be loaded when allow_pickle=False"),
        (
            "a.npz",
            {"x": NUMBERS, "y": np.zeros(5)},
            "the same number of samples, at least one: 6 of x, 5 of y",
        ),
        ("a.npz", {"x": np.float32(1)}, "at least one: 0 of x"),
        ("a.npz", {}, "it holds no arrays"),
        ("a.npy", b"\x93NUMPY\1", "it is damaged"),
        ("a.safetensors", b"\xff" * 20, "it is damaged"),
        (
            "a.safetensors",
            len(head := b'{"x":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}').to_bytes(8, "little")
            + head
            + b"12",
            "x is of BF16, which numpy has not: save it as F16 or F32",
        ),
    ],
)
def test_a_file_that_is_no_shard_is_named(tmp_path: Path, name: str, content: Any, words: str) -> None:
    path = tmp_path / name
    if content == "pickle":
        np.savez(path, x=np.array([{}], dtype=object))
    elif isinstance(content, dict):
        np.savez(path, **content)
    else:
        path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        make_list(str(tmp_path))
    assert caught.value.exit_code is ExitCode.DATA
    assert str(caught.value).startswith(f"shard {ascii(name)[1:-1]}: ")
    assert words in str(caught.value)


def test_a_shard_is_read_again_when_python_fails_to_parse_its_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "a.npy", NUMBERS)
    parse, failures = np.lib.format.read_array, [SystemError("AST constructor recursion depth mismatch")]

    def read_array(*given: Any, **named: Any) -> Any:
        if failures:
            raise failures.pop()
        return parse(*given, **named)

    monkeypatch.setattr(np.lib.format, "read_array", read_array)
    assert make_list(str(tmp_path)).shards[0].samples == len(NUMBERS)
    assert not failures
