"""The switch holds each packet for its delay and gives it to its receiver alone, also with real packets."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.ring.hosts import can_shape
from benchmarks.rivals import delay
from benchmarks.rivals.delay import MAC_BYTES, VNET_HEADER_BYTES, DelayedLan, Switch

A, B = b"a" * MAC_BYTES, b"b" * MAC_BYTES
EVERYBODY = b"\xff" * MAC_BYTES


def packet(source: bytes, target: bytes) -> bytes:
    return bytes(VNET_HEADER_BYTES) + target + source + b"what is sent"


def test_a_packet_is_held_for_the_delay_and_goes_to_all_until_it_is_known_where_its_receiver_is() -> None:
    switch = Switch(3, delay_s=0.05)
    assert switch.wait_s(1.0) is None
    switch.take(1.0, 0, packet(A, EVERYBODY))
    switch.take(1.02, 2, packet(B, A))
    assert list(switch.due(1.04)) == []
    assert switch.wait_s(1.04) == pytest.approx(0.01)
    assert list(switch.due(1.06)) == [(1, packet(A, EVERYBODY)), (2, packet(A, EVERYBODY))]
    assert list(switch.due(1.08)) == [(0, packet(B, A))], "A was seen at that port"
    switch.take(2.0, 2, packet(B, B))
    assert list(switch.due(3.0)) == [], "nothing goes back to where it came from"


def test_a_packet_is_lost_while_the_switch_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay, "HELD_BYTES_MAX", 2 * len(packet(A, B)))
    switch = Switch(2, delay_s=0.05)
    for _ in range(3):
        switch.take(1.0, 0, packet(A, B))
    assert switch.lost == 1
    assert len(list(switch.due(2.0))) == 2
    switch.take(2.0, 0, packet(A, B))
    assert switch.lost == 1, "there is room again"


ECHO = """
import socket
with socket.create_server(("0.0.0.0", 5555)) as server:
    print("up", flush=True)
    connection, _ = server.accept()
    while received := connection.recv(1 << 20):
        connection.sendall(received)
"""
ROUND_TRIPS = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 5555)) as connection:
    trips = []
    for _ in range(3):
        begin = time.monotonic()
        connection.sendall(b"x")
        connection.recv(1)
        trips.append(time.monotonic() - begin)
    print(min(trips))
    connection.sendall(bytes(1_000_000))
    left = 1_000_000
    while left:
        left -= len(connection.recv(left))
"""


@pytest.mark.root
def test_a_round_trip_takes_two_delays_and_large_packets_arrive_whole() -> None:
    if not can_shape():
        pytest.skip("network namespaces need root, ip and tc")
    with DelayedLan(2, delay_ms=50, rate="100mbit", burst="256kb") as lan:
        server = [*lan.within(0), sys.executable, "-c", ECHO]
        with subprocess.Popen(server, stdout=subprocess.PIPE) as echo:
            assert echo.stdout is not None
            assert echo.stdout.readline() == b"up\n"
            client = [*lan.within(1), sys.executable, "-c", ROUND_TRIPS, lan.addresses[0]]
            done = subprocess.run(client, capture_output=True, check=True, timeout=60)
        assert echo.returncode == 0
    assert float(done.stdout) >= 0.1
