"""A real headless Chromium, driven over the W3C WebDriver protocol by its chromedriver."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.daemons import until
from tests.ports import free_ports

FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",  # does not start for root otherwise; only pages of our own are opened
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",  # of which a screenshot of a whole page leaves a gap
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def installed() -> bool:
    return bool(shutil.which("chromium") and shutil.which("chromedriver"))


class Browser:
    """One window; `phone`: a narrow screen that is touched. Ends with all its processes."""

    def __init__(self, place: Path, *, width: int = 1280, height: int = 900, phone: bool = False) -> None:
        place.mkdir(parents=True, exist_ok=True)
        (port,) = free_ports(1)
        self._base = f"http://127.0.0.1:{port}"
        self._driver = subprocess.Popen(
            ["chromedriver", f"--port={port}", f"--log-path={place / 'chromedriver.log'}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        options: dict[str, Any] = {
            "binary": shutil.which("chromium"),
            "args": [*FLAGS, f"--user-data-dir={place / 'profile'}", f"--window-size={width},{height}"],
        }
        if phone:
            metrics = {"width": width, "height": height, "pixelRatio": 2.0, "touch": True}
            options["mobileEmulation"] = {"deviceMetrics": metrics}
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        try:
            until(self._ready, "chromedriver answers")
            answer = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            self._base += f"/session/{answer['sessionId']}"
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._ask("DELETE", "", None)
        finally:
            self._end()

    def open(self, url: str) -> None:
        self._ask("POST", "/url", {"url": url})

    def run(self, script: str) -> Any:
        """What the script returns, run in the page."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": []})

    def text(self, selector: str = "body") -> str:
        """What a person can read there."""
        return str(self.run(f"return document.querySelector({json.dumps(selector)}).innerText"))

    def console(self) -> list[dict[str, Any]]:
        """What has come since it was asked for last; `level` SEVERE: errors, some of `source` network."""
        entries: list[dict[str, Any]] = self._ask("POST", "/se/log", {"type": "browser"})
        return entries

    def errors(self, *, of_network: bool = True) -> list[str]:
        """Errors in the console since it was looked at last, also those of requests that failed."""
        return [
            entry["message"]
            for entry in self.console()
            if entry["level"] == "SEVERE" and (of_network or entry["source"] != "network")
        ]

    def use_scheme(self, scheme: str) -> None:
        """light or dark"""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._execute("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path) -> None:
        """Of the whole page, as .png."""
        answer = self._execute("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _execute(self, command: str, **parameters: Any) -> Any:
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _ready(self) -> bool:
        try:
            return bool(self._ask("GET", "/status", None)["ready"])
        except OSError:
            return False

    def _ask(self, method: str, path: str, fields: dict[str, Any] | None) -> Any:
        body = None if fields is None else json.dumps(fields).encode()
        request = urllib.request.Request(self._base + path, data=body, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(error.read().decode()) from None

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._driver.pid, signal.SIGKILL)
        self._driver.wait(10)
