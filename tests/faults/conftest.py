from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemons import all_stopped, trainer, until
from tests.faults.target import Target
from tests.test_node import Place, calm


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A real daemon that strangers may talk to; its trainer has finished, so nothing changes by itself."""
    path: Path = tmp_path_factory.mktemp("target")
    place = Place(path, 1)
    trained = ("--trainer", trainer(calm(path), "--steps", "5"))
    with all_stopped([place.start(0, *trained)]) as daemons:
        until(daemons[0].finished, "the trainer has finished")
        yield Target(daemons[0], place.ports[0])
        assert daemons[0].stop() == 0
