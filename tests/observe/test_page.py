"""The page in a real browser: a run of four nodes shown live, while nodes die and come back."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Browser, installed
from tests.cli.local.run import Run
from tests.daemons import PACED, all_stopped, trainer, until
from tests.node.test_node import Place, calm, endless, steps
from tests.ports import free_ports
from tests.wide import widely

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (installed() or os.environ.get("P2PSGD_REQUIRE_CHROMIUM")),
        reason="needs chromium and chromedriver (Debian: chromium, chromium-driver)",
    ),
]

PEERS = """return [...document.querySelectorAll('#lines dt')].filter((label) => label.textContent === 'peer')
    .map((label) => label.nextSibling.className)"""
CURVES = "return document.querySelectorAll('path.curve').length"
WIDTH = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def browser(window: Browser) -> Browser:
    """An empty window, whose console is empty."""
    window.open("about:blank")
    window.console()
    return window


def peers(browser: Browser) -> list[str]:
    """How the lines of the peers are graded."""
    found: list[str] = browser.run(PEERS)
    return found


def loss_points(browser: Browser) -> int:
    return int(browser.run("return page.history.length"))


@pytest.mark.parametrize("mode", widely(["async"], ["ring"]))
def test_a_run_of_four_is_shown_live_and_goes_on_when_one_is_killed(
    tmp_path: Path, browser: Browser, mode: str
) -> None:
    (port,) = free_ports(1)
    options = ("--http", f"127.0.0.1:{port}", "--failure-timeout", "1")
    command = trainer("digits", "--seconds", "600", "--mode", mode, program=PACED)
    run = Run(tmp_path, "-n", "4", "--trainer", command, *options)
    try:
        until(lambda: run.status(0).get("ready"), "node-0 is ready")
        browser.open(f"http://127.0.0.1:{port}/")
        until(lambda: peers(browser) == ["good"] * 3, "three peers that are ready")
        until(lambda: loss_points(browser) >= 3, "a curve of the loss")
        assert browser.text("h1") == "node-0"
        assert browser.text("#contact").startswith("live")
        assert "layer1.weight" in browser.text("#compression")
        until(lambda: int(browser.run(CURVES)) == 4 + 4, "the losses and the pace of four nodes")
        until(lambda: "on average of 4 nodes" in browser.text("#loss-now"), "the losses of all")
        assert "by 4 nodes" in browser.text("#pace-now")
        assert "linked with node-3" in browser.text("#events")
        assert ("of this view is under way" in browser.text("#lines")) == (mode == "ring")

        os.kill(run.status(3)["pid"], signal.SIGKILL)
        until(lambda: {"bad", "idle"} & set(peers(browser)), "node-3 is shown as gone")
        count = loss_points(browser)
        until(lambda: loss_points(browser) >= count + 3, "the page goes on")
        assert "node-3: lost for" in browser.text("#lines") or "node-3 (" in browser.text("#lines")
        assert browser.errors() == []
    finally:
        run.close()


def test_the_page_says_that_its_daemon_is_gone_and_that_it_is_back(tmp_path: Path, browser: Browser) -> None:
    place, (port,) = Place(tmp_path, 1), free_ports(1)
    options = (*endless(calm(tmp_path)), "--http", f"127.0.0.1:{port}")
    with all_stopped([place.start(0, *options)]) as daemons:
        until(lambda: steps(daemons[0]) > 5, "training")
        browser.open(f"http://127.0.0.1:{port}/")
        until(lambda: loss_points(browser) >= 2, "a curve")
        daemons[0].kill()
        until(lambda: "No answer from the daemon" in browser.text("#banner"), "it says so")
        daemons.append(place.start(0, *options))
        until(lambda: "was started again at" in browser.text("#banner"), "it says that it is back")
        assert browser.text("#contact").startswith("live")
        assert "the daemon has been started again" in browser.text("#events")
        assert browser.errors(of_network=False) == []
        assert daemons[1].stop() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_need_not_scroll_sideways(tmp_path: Path, scheme: str) -> None:
    place, (port,) = Place(tmp_path, 1), free_ports(1)
    daemons = [place.start(0, *endless(calm(tmp_path)), "--http", f"127.0.0.1:{port}")]
    with all_stopped(daemons), Browser(tmp_path / "browser", width=360, height=740, phone=True) as browser:
        until(lambda: steps(daemons[0]) > 5, "training")
        browser.use_scheme(scheme)
        browser.open(f"http://127.0.0.1:{port}/")
        until(lambda: loss_points(browser) >= 2, "a curve")
        shown, width = browser.run(WIDTH)
        assert shown <= width == 360
        assert browser.errors() == []


HOSTILE = '<img src=x onerror="throw 1"><script>throw 2</script>"\'&\u202e' + "x" * 200


def hostile(value: Any) -> Any:
    """The same status with hostile text wherever text stands that a peer or a trainer may have written."""
    if isinstance(value, dict):
        kept = ("id", "state", "mode", "payload", "time", "kind")
        return {key: each if key in kept else hostile(each) for key, each in value.items()}
    if isinstance(value, list):
        return [hostile(each) for each in value]
    return HOSTILE if isinstance(value, str) and value else value


def test_text_of_peers_stays_text_and_many_events_are_capped(tmp_path: Path, browser: Browser) -> None:
    place, (port,) = Place(tmp_path, 1), free_ports(1)
    with all_stopped([place.start(0, *endless(calm(tmp_path)), "--http", f"127.0.0.1:{port}")]) as daemons:
        until(lambda: steps(daemons[0]) > 5, "training")
        browser.open(f"http://127.0.0.1:{port}/")
        until(lambda: loss_points(browser) >= 2, "a curve")
        status = browser.run("return page.status")
        status["lines"] += [["note", "an alarm", "warn"]] * 20 + [["peer", "gone", "bad"]] * 128
        status["latest_events"] *= 50
        # In one script: the page goes on asking, and would show the node as it is again.
        texts, made, events = browser.run(
            f"""take({json.dumps(hostile(status))});
            const shown = ['h1', '#lines', '#events', '#compression'];
            return [shown.map((each) => document.querySelector(each).innerText),
                document.querySelectorAll('main img, main script').length,
                document.querySelectorAll('#events li').length]"""
        )
        assert all("onerror" in text for text in texts)
        assert made == 0
        assert events <= 60
        assert browser.errors() == []


def test_a_page_that_is_opened_again_shows_the_run_from_its_start(tmp_path: Path, browser: Browser) -> None:
    place, (port,) = Place(tmp_path, 1), free_ports(1)
    with all_stopped([place.start(0, *endless(calm(tmp_path)), "--http", f"127.0.0.1:{port}")]) as daemons:
        until(lambda: steps(daemons[0]) > 5, "training")
        browser.open(f"http://127.0.0.1:{port}/")
        until(lambda: loss_points(browser) >= 3, "a curve")
        (first,) = browser.run("return [page.history[0][0]]")
        browser.open("about:blank")
        browser.open(f"http://127.0.0.1:{port}/")
        until(lambda: loss_points(browser) >= 3, "the same curve")
        assert browser.run("return [page.history[0][0]]") == [first]
        assert browser.errors() == []


def test_the_pages_of_parts_lead_to_each_other(tmp_path: Path, browser: Browser) -> None:
    place, (port,) = Place(tmp_path, 1), free_ports(1)
    with all_stopped([place.start(0, *endless(calm(tmp_path)), "--http", f"127.0.0.1:{port}")]) as daemons:
        until(lambda: steps(daemons[0]) > 5, "training")
        browser.open(f"http://127.0.0.1:{port}/")
        until(lambda: loss_points(browser) >= 1, "a status")
        assert browser.text("#parts") == ""
        words, links = browser.run(
            """const part = structuredClone(page.status);
            part.run.label = 'mine; part 1/3, cut over 3 ranks: ...';
            take(part);
            const parts = document.querySelector('#parts');
            return [[...parts.children].map((each) => each.innerText.trim()),
                [...parts.querySelectorAll('a')].map((each) => each.href)]"""
        )
        assert words == ["part 0", "part 1 of 3", "part 2"]
        assert links == [f"http://127.0.0.1:{port + number}/" for number in (-1, 1)]
        assert browser.errors() == []
