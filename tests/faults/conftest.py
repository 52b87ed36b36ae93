from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import Certificates
from tests.daemons import all_stopped, trainer, until
from tests.faults.target import Target
from tests.node.test_node import Place, calm


@pytest.fixture(scope="module", params=["plaintext", "TLS"])
def target(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Target]:
    """A real daemon that strangers may talk to; its trainer has finished, so nothing changes by itself."""
    path: Path = tmp_path_factory.mktemp("target")
    place = Place(path, 1)
    certificates = Certificates(path) if request.param == "TLS" else None
    options = () if certificates is None else certificates.options("node-0")
    trained = ("--trainer", trainer(calm(path), "--steps", "5"))
    with all_stopped([place.start(0, *trained, *options)]) as daemons:
        until(daemons[0].finished, "the trainer has finished")
        yield Target(daemons[0], place.ports[0], certificates)
        assert daemons[0].stop() == 0
