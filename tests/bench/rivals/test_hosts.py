"""A host's processes get its share of the processors, and all of them end with it."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.bench.rivals.processors import NoControlGroups, Processors, share


@pytest.mark.root
def test_a_host_that_is_killed_leaves_no_process_behind() -> None:
    if os.geteuid() != 0:
        pytest.skip("control groups need root")
    try:
        processors = Processors(f"p2psgd-test-{os.getpid()}")
    except (NoControlGroups, OSError) as error:
        pytest.skip(f"no control groups here: {error}")
    try:
        processors.limit(share(4))
        command = [*processors.within, "sh", "-c", "sleep 1000 & echo; wait"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as family:
            assert family.stdout is not None
            family.stdout.readline()
            assert len(processors.members()) == 2
            processors.kill()
            assert family.wait(10) == -9
        assert processors.members() == []
    finally:
        processors.remove()
