"""A real S3 server on loopback, in a process of its own, and a proxy before it that fails when told to."""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import urlopen

from tests.ports import free_ports

START_TIMEOUT_S = 60.0
NOT_PASSED_ON = {"content-length", "connection", "transfer-encoding", "content-range"}  # nor checksums: many
# stores have none


def environment(port: int) -> dict[str, str]:
    """What S3's libraries are told, this port on loopback among it."""
    return {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }


@contextlib.contextmanager
def s3_server() -> Iterator[int]:
    """Its port."""
    port = free_ports(1)[0]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            assert process.poll() is None, "the S3 server has ended"
            with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{port}/moto-api/"):
                break
            assert time.monotonic() < deadline, "the S3 server does not answer"
            time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait(10)


class FaultyProxy:
    """Passes on what is asked of the server; of objects whose names hold `word` it gives what `fault` says:
    "error" (status 500), "gone" (404), "forbidden" (403), "wrong" (other bytes of the same length),
    "short" (half of them), "stall" (nothing, until that changes). `asked` counts requests of objects by
    their names.
    """

    def __init__(self, port: int) -> None:
        self.fault = self.word = ""
        self.asked: dict[str, int] = {}
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: Any) -> None:
                pass

            def pass_on(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                proxy.pass_on(self, port, self.rfile.read(length))

            do_GET = do_HEAD = do_PUT = do_POST = pass_on

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def pass_on(self, handler: BaseHTTPRequestHandler, port: int, body: bytes) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        headers = {key: value for key, value in handler.headers.items() if key.lower() != "connection"}
        connection.request(handler.command, handler.path, body, headers)
        answer = connection.getresponse()
        content, status = answer.read(), answer.status
        connection.close()
        if handler.command == "GET" and "?" not in handler.path:
            name = handler.path.rsplit("/", 1)[-1]
            self.asked[name] = self.asked.get(name, 0) + 1
            while self.fault == "stall" and self.word in name:
                time.sleep(0.02)
            if self.fault == "gone" and self.word in name:
                status, content = 404, b""
            if self.fault == "forbidden" and self.word in name:
                status, content = 403, b""
            if self.fault == "error" and self.word in name:
                status, content = 500, b""
            if self.fault == "wrong" and self.word in name:
                content = bytes(len(content))
            if self.fault == "short" and self.word in name:
                content = content[: len(content) // 2]
        handler.send_response(status)
        for key, value in answer.getheaders():
            if key.lower() not in NOT_PASSED_ON and not key.lower().startswith("x-amz-checksum"):
                handler.send_header(key, value)
        length = answer.getheader("Content-Length") if handler.command == "HEAD" else str(len(content))
        handler.send_header("Content-Length", length or "0")
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(content)

    def close(self) -> None:
        self.fault = ""
        self._server.shutdown()
        self._server.server_close()
