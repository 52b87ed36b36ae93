from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psgd.base.errors import TrainerError
from p2psgd.ipc.protocol import (
    AttachRequest,
    DetachRequest,
    FinishRequest,
    ReportRequest,
    Request,
    StatusRequest,
    pack_request,
    parse_request,
)
from p2psgd.ipc.run_proposal import RunProposal
from p2psgd.ipc.tensor_table import pack_tensors
from tests.ipc.daemons import PATIENT

RUN = {
    "tensors": pack_tensors((("w", (3, 4)), ("b", ()))),
    "quantum_log2": -20,
    "mode": "async",
    "label": "speech",
    "two_nodes": "lower-id",
}
ATTACH = {"op": "attach", "version": 1, "pid": 77, "run": RUN}


def with_run(**changes: Any) -> dict[str, Any]:
    return {**ATTACH, "run": {**RUN, **changes}}


def test_an_attach_request_carries_the_run() -> None:
    request = parse_request(msgpack.packb(ATTACH))
    assert isinstance(request, AttachRequest)
    assert request.run is not None
    assert request.run.proposal() == RunProposal(
        (("w", (3, 4)), ("b", ())), -20, "async", "speech", "lower-id"
    )
    assert request.run.proposal().weights == 13


@pytest.mark.parametrize(
    "request_",
    [
        StatusRequest(),
        FinishRequest(),
        DetachRequest(finished=True),
        ReportRequest(samples=3, loss=None),
        AttachRequest(version=1, pid=1, run=None),
    ],
)
def test_a_packed_request_is_read_as_itself(request_: Request) -> None:
    assert parse_request(pack_request(request_)) == request_


def test_a_report_names_only_what_it_says() -> None:
    report = parse_request(pack_request(ReportRequest(loss=None)))
    assert report.model_fields_set == {"op", "loss"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"op": "stop"},
        {"op": {}},
        {"op": "status", "more": 1},
        {"op": "detach"},
        {"op": "detach", "finished": 1},
        {"op": "report", "loss": float("nan")},
        {"op": "report", "samples_per_s": float("inf")},
        {"op": "report", "samples": True},
        {"op": "report", "samples": 1.0},
        {"op": "report", "samples": -1},
        {"op": "report", "waits": "x" * 501},
        {**ATTACH, "pid": 0},
        {**ATTACH, "pid": "1"},
        {"op": "attach", "version": 1, "pid": 1},
        with_run(tensors=b""),
        with_run(tensors=""),
        with_run(tensors=pack_tensors(())),
        with_run(tensors=pack_tensors((("w", (0,)),))),
        with_run(tensors=pack_tensors((("", (1,)),))),
        with_run(tensors=pack_tensors((("w" * 201, (1,)),))),
        with_run(tensors=pack_tensors((("w", (2**31 + 1,)),))),
        with_run(tensors=pack_tensors((("w", (1,)),)) + b"more"),
        with_run(quantum_log2=1),
        with_run(quantum_log2=-31),
        with_run(mode="ring"),
        with_run(label="x" * 201),
        with_run(two_nodes="both"),
        {"op": "state", "steps": -1, "outbox": 0},
        {"op": "state", "steps": 1},
        with_run(seed=1),
    ],
)
def test_a_request_that_is_not_exactly_one_is_refused_in_a_sentence(fields: dict[str, Any]) -> None:
    with pytest.raises(TrainerError, match="malformed request: "):
        parse_request(msgpack.packb(fields))


@pytest.mark.parametrize(
    ("datagram", "words"),
    [
        (b"", "no MessagePack map"),
        (b"\xc1", "no MessagePack map"),
        (msgpack.packb([1]), "no MessagePack map"),
        (msgpack.packb({"op": "status"}) + b"\x00", "extra data"),
        (b"\x82\xa2op\xa6status\xa2op\xa6status", "a key stands twice"),
        (b"\x81\x01\x02", "no MessagePack map"),
        (b"\x81\xc4\x02op\xa6status", "a key is not text"),
        (b"\x81\xa2op\xc7\x00\x05", "extension type 5"),
        (b"\x81\xa2op\xd6\xff\x00\x00\x00\x00", "max_ext_len"),
        (b"\x81\xa2op" + b"\x91" * 60_000, "no MessagePack map"),
        (b"\x81\xa2op\xdd\xff\xff\xff\xff", "max_array_len"),
        (b"\xdf\xff\xff\xff\xff", "max_map_len"),
        (b"\x81\xa2op\xdb\x03\x93\x87\x00", "no MessagePack map"),
        (msgpack.packb({"op": "status", "more": [1]}), "max_array_len"),
        (bytes(131_073), "more than 131072 bytes"),
    ],
)
def test_a_datagram_that_is_no_plain_map_is_refused(datagram: bytes, words: str) -> None:
    with pytest.raises(TrainerError, match=words):
        parse_request(datagram)


def check_refusal_or_request(datagram: bytes) -> None:
    refusal = ""
    try:
        parse_request(datagram)
    except TrainerError as error:
        refusal = str(error)
    assert len(refusal) < 400


@PATIENT
@given(st.one_of(st.binary(max_size=300), st.binary(max_size=300).map(lambda tail: b"\x82\xa2op" + tail)))
def test_any_bytes_are_a_request_or_a_refusal(datagram: bytes) -> None:
    check_refusal_or_request(datagram)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@PATIENT
@given(
    st.sampled_from(["report", "attach", "detach", "status"]), st.dictionaries(st.text(), values, max_size=5)
)
def test_any_fields_are_a_request_or_a_refusal(op: str, fields: dict[str, Any]) -> None:
    known = {"report": ["loss", "waits"], "attach": ["version", "pid", "run"], "detach": ["finished"]}.get(
        op, []
    )
    named = dict(zip(known, fields.values(), strict=False))
    check_refusal_or_request(msgpack.packb({**named, "op": op}))


def test_tensors_with_one_name_or_too_many_weights_are_refused() -> None:
    request = parse_request(
        msgpack.packb(with_run(tensors=pack_tensors((("w", (1,)), ("v", (1,)), ("w", (1,))))))
    )
    assert isinstance(request, AttachRequest)
    assert request.run is not None
    with pytest.raises(TrainerError, match="'w' stands for 2 tensors"):
        request.run.proposal()
    request = parse_request(msgpack.packb(with_run(tensors=pack_tensors((("w", (2**31, 2**31)),)))))
    assert isinstance(request, AttachRequest)
    assert request.run is not None
    with pytest.raises(TrainerError, match="at most 2147483648"):
        request.run.proposal()


def test_a_request_that_no_daemon_would_take_is_not_sent() -> None:
    long = tuple((f"{'long ' * 30}{number}", (1,)) for number in range(7000))
    chance = random.Random(1)
    dense = tuple((f"{number} {chance.getrandbits(256):x}", (1,)) for number in range(5000))
    for tensors in (long, dense):
        run = {"tensors": tensors, "quantum_log2": 0, "mode": "async", "label": ""}
        request = AttachRequest.model_validate({"version": 1, "pid": 1, "run": run})
        with pytest.raises(TrainerError, match="fewer tensors or shorter names"):
            pack_request(request)
