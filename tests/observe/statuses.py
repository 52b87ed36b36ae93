"""A status as a daemon gives it, for tests of views: change what a test is about, leave the rest."""

from __future__ import annotations

from typing import Any

from p2psgd.observe.status import NodeStatus, read_status


def peer(node: str, **changes: Any) -> dict[str, Any]:
    """Return what a node says of one peer."""
    return {
        "node": node,
        "id": "00000000000000ff",
        "address": "127.0.0.1:7001",
        "state": "connected",
        "lag": 0,
        "since_s": 100.0,
        "bytes_sent": 30_000,
        "bytes_received": 3_000_000,
        "error": "",
        "through": "",
    } | changes


def trainer(**changes: Any) -> dict[str, Any]:
    """Return the trainer's part of a status."""
    return {
        "attached": True,
        "pid": 4712,
        "steps": 1_000,
        "samples": 256_000,
        "samples_per_s": 6_543.2,
        "loss": 2.3456,
        "test_accuracy": None,
        "epoch": 1.234,
        "waits": "",
        "reloads": 0,
        "refused_requests": 0,
        "finished": False,
        "restarts": 0,
        "supervised": True,
    } | changes


def ring(**changes: Any) -> dict[str, Any]:
    """Return the ring's part of a status."""
    return {
        "round": 1_234,
        "payload": "sparse",
        "order": ["node-0", "node-1", "node-2"],
        "nodes": 3,
        "generation": 2,
        "running": True,
        "active": True,
        "contributed": True,
        "waiting_for": "",
        "since_s": 0.1,
    } | changes


def split(**changes: Any) -> dict[str, Any]:
    """Return what a trainer says of 1,000 steps of 10 ms."""
    return {
        "timed_steps": 1_000,
        "computing_s": 6.0,
        "waiting_s": 3.0,
        "adding_s": 0.3,
        "sending_s": 0.7,
        "daemon_adding_s": 0.0,
        "daemon_sending_s": 0.0,
    } | changes


def status(node: str = "node-0", **changes: Any) -> NodeStatus:
    """Return one node's status, with `changes` to the fields below."""
    return read_status(fields(node, **changes))


def bare(node: str) -> NodeStatus:
    """Return what is known of a node that has not answered yet."""
    return NodeStatus(node=node)


def lost(node: str, why: str = "killed by signal 9", **changes: Any) -> NodeStatus:
    """Return the last status of a node whose daemon has ended."""
    return status(node, state="lost", waits=f"lost ({why})", **changes)


def fields(node: str = "node-0", **changes: Any) -> dict[str, Any]:
    """Return a status as a daemon sends it: 1,000 mini-batches of 80,000 weights, 100 indices of 12 bits."""
    return {
        "node": node,
        "id": "00112233aabbccdd",
        "incarnation": 1,
        "pid": 4711,
        "version": "0.1.0",
        "uptime_s": 3_725.2,
        "state": "training",
        "waits": "",
        "run": {
            "fingerprint": "ab" * 16,
            "mode": "async",
            "weights": 80_000,
            "quantum_log2": -20,
            "tensors": 8,
            "label": "speech",
        },
        "ring": None,
        "listen": "127.0.0.1:7000",
        "plaintext": True,
        "digest": "0123456789abcdef",
        "coordinate_max": 123_456,
        "frontier": [
            {
                "node": node,
                "id": "00112233aabbccdd",
                "incarnation": 1,
                "sequence": 1_000,
                "digest": "0123456789abcdef",
            }
        ],
        "updates": {
            "sent": 1_000,
            "applied": 990,
            "duplicates": 2,
            "indices_sent": 100_000,
            "bytes": 150_000,
        },
        "bytes": {"sent": 9_000_000, "received": 8_000_000},
        "log": {"updates": 30, "bytes": 88_000, "budget_bytes": 256_000_000},
        "loop_lag_ms": 0.3,
        "trainer": trainer(),
        "peers": [peer("node-1")],
        "dropped": {},
        "doctors": 0,
        "strangers": [],
        "alarms": [],
    } | changes
