"""Part `status`: the schema of what the commands print as JSON, and of the metrics, seen on real nodes."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import tempfile
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from tests.oracle.processes import LIMIT_S, P2PSGD, Node, environment, nodes, run, run_local
from tests.oracle.schema import Frozen, Types, types_of, union

OBSERVATIONS: Final = 3
STEPS: Final = 30  # that a node makes before it is looked at
RECIPE: Final = """\
name = "calm"
data = "digits"
hidden = [32]
learning_rate = 0.0001
tau = 0.1
batch = 256
epochs = 4
warm_start = 0
"""
SAMPLE: Final = re.compile(r"^([a-z][a-z0-9_]*)(?:\{(.*)\})? ", re.MULTILINE)  # a line of /metrics
KIND: Final = re.compile(r"^# TYPE (.*)$", re.MULTILINE)
LABEL: Final = re.compile(r'([a-z_]+)="')

Samples = dict[str, list[Any]]  # document -> what was seen of it


def observe_often() -> dict[str, Frozen]:
    """Return the schema of each document, of several observations."""
    seen = [observe() for _ in range(OBSERVATIONS)]
    return {name: union([each[name] for each in seen]) for name in seen[0]}


def observe() -> dict[str, Types]:
    """Return the schema of each document as it is now."""
    samples: Samples = {}
    for scenario in (_pair, _joining, _rings, _reports, _doctors):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            (place / "calm.toml").write_text(RECIPE)
            (place / "other.toml").write_text(RECIPE.replace("32", "16"))
            samples |= scenario(place)
    return {name: types_of(each) for name, each in samples.items()}


# -- what is looked at in a status to know when to look at all of it


def _trains(status: dict[str, Any]) -> bool:
    trainer = status["trainer"]
    measured = trainer["steps_per_s"] is not None
    return bool(status.get("ready")) and measured and int(trainer["steps"]) >= STEPS


def _waits(status: dict[str, Any]) -> bool:
    return status["run"] is not None and not status["ready"]


def _has_lost(status: dict[str, Any]) -> bool:
    return all(peer["state"] != "connected" for peer in status["peers"])


# -- the scenarios


def _pair(folder: Path) -> Samples:
    """Two nodes train; a node of another run dials them; then one of them is gone."""
    ports = _free_ports(4)
    _write_hosts(folder, ports[:2])
    http = f"127.0.0.1:{ports[3]}"
    start = Node(folder, "node-0", *_options(ports[0]), "--http", http)
    with nodes(start, Node(folder, "node-1", *_options(ports[1]))) as (first, second):
        ready = [first.wait(_trains, "training"), second.wait(_trains, "training")]
        stranger = Node(folder, "stranger", *_options(ports[2], recipe="other.toml"))
        with nodes(stranger):
            stranger.wait_for_end()
        ready.append(first.status())
        digest = [json.loads(first.ask("digest", "--json"))]
        metrics = _metrics(f"http://{http}/metrics")
        served = [_get_json(f"http://{http}/status.json")]
        second.stop()
        lost = [first.wait(_has_lost, "the loss of its peer")]
        digest.append(json.loads(first.ask("digest", "--json", codes=(0, 1))))
        events = [json.loads(line) for line in first.ask("events", "--json").splitlines()]
    return {
        "status ready": ready,
        "status served": served,
        "status without peers": lost,
        "metrics": metrics,
        "digest": digest,
        "events": events,
    }


def _joining(folder: Path) -> Samples:
    """One node of three, with a trainer, and one that has none."""
    ports = _free_ports(3)
    _write_hosts(folder, ports)
    patient = ("--failure-timeout", "60")  # it waits for so long before it trains alone
    with nodes(Node(folder, "node-0", *_options(ports[0]), *patient)) as (node,):
        waiting = [node.wait(_waits, "joining")]
    idle = Node(folder, "node-1", "--peers", "hosts.txt", "--listen", f"127.0.0.1:{ports[1]}")
    with nodes(idle):
        alone = [idle.wait(bool, "an answer")]
    return {"status joining": waiting, "status before a run": alone}


def _rings(folder: Path) -> Samples:
    """Two nodes in a sparse ring, and two in a dense one with TLS."""
    run(folder, "ca", "init", "--run", "test")
    run(folder, "ca", "issue", "node-0", "node-1")
    found: Samples = {}
    tls = [("--tls", f"ca/nodes/node-{number}") for number in range(2)]
    for payload, plain in (("sparse", True), ("dense", False)):
        place = folder / payload
        place.mkdir()
        (place / "calm.toml").write_text(RECIPE)
        (place / "ca").symlink_to(folder / "ca")
        ports = _free_ports(2)
        _write_hosts(place, ports)
        words = ("--mode", "ring", "--payload", payload)
        started = [
            Node(place, f"node-{number}", *_options(port, *words), *(() if plain else tls[number]))
            for number, port in enumerate(ports)
        ]
        with nodes(*started):
            found[f"status {payload} ring"] = [node.wait(_trains, "training") for node in started]
            found[f"digest {payload} ring"] = [json.loads(started[0].ask("digest", "--json", codes=(0, 1)))]
    return found


def _reports(folder: Path) -> Samples:
    """Reports of local runs that train to their end."""
    common = ("--recipe", "digits", "-n", "2", "--steps", "40")
    ring = ("--mode", "ring", "--payload", "dense")
    return {
        "report": [run_local(folder, *common)],
        "report of a ring": [run_local(folder, *common, *ring)],
    }


def _doctors(folder: Path) -> Samples:
    """Two doctors that meet, and one that meets nobody."""
    ports = _free_ports(2)
    _write_hosts(folder, ports)
    words = ("doctor", "--json", "--peers", "hosts.txt", "--weights", "1000")
    alone = json.loads(run(folder, *words, *_place(ports[0], "s"), "--wait", "1", codes=(0, 75, 78)))
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    [*P2PSGD, *words, *_place(port, f"state-{port}"), "--wait", "60"],
                    cwd=folder,
                    env=environment(),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            )
            for port in ports
        ]
        met = [json.loads(each.communicate(timeout=LIMIT_S)[0]) for each in started]
    return {"doctor": met, "doctor alone": [alone]}


# -- nodes, and what they serve


def _options(port: int, *words: str, recipe: str = "calm.toml") -> tuple[str, ...]:
    trainer = shlex.join((*P2PSGD, "train", "--recipe", recipe, "--seconds", "100000", *words))
    return ("--peers", "hosts.txt", "--listen", f"127.0.0.1:{port}", "--trainer", trainer)


def _place(port: int, state: str) -> tuple[str, ...]:
    return ("--listen", f"127.0.0.1:{port}", "--state", state)


def _write_hosts(folder: Path, ports: list[int]) -> None:
    (folder / "hosts.txt").write_text("".join(f"127.0.0.1:{port}\n" for port in ports))


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def _get_json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        return json.load(answer)


def _metrics(url: str) -> list[dict[str, str]]:
    """Return all metrics with their kinds, and all samples with their labels, as keys."""
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        text = answer.read().decode()
    samples = [f"{name}({','.join(LABEL.findall(labels))})" for name, labels in SAMPLE.findall(text)]
    return [dict.fromkeys((*KIND.findall(text), *samples), "")]
