"""A host's processes get its share of the processors, and all of them end with it."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from benchmarks.rivals.leftovers import remove_leftovers
from benchmarks.rivals.processors import NoControlGroups, Processors, share


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


@pytest.mark.root
def test_what_a_killed_bench_left_behind_is_ended_and_what_a_living_one_has_is_not() -> None:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("control groups and network namespaces need root and ip")
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    names = [f"p2psgd{number}h0" for number in (gone.pid, os.getpid())]
    try:
        dead, living = map(Processors, names)
    except (NoControlGroups, OSError) as error:
        pytest.skip(f"no control groups here: {error}")
    try:
        subprocess.run(["ip", "netns", "add", names[0]], check=True)
        with (
            subprocess.Popen([*dead.within, "sleep", "1000"]) as orphan,
            subprocess.Popen([*living.within, "sleep", "1000"]) as other,
        ):
            while not (dead.members() and living.members()):
                assert orphan.poll() is None
                assert other.poll() is None
            remove_leftovers()
            assert orphan.wait(10) == -9
            assert other.poll() is None
            living.kill()
        assert not dead.members()
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        assert names[0] not in listed
    finally:
        living.remove()
