"""A chat server on loopback that counts requests, and can simulate faults."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from groundling.judges.asking import quoting as fence


def verdict(first: str, second: str) -> str:
    """Return the verdict of the server's model, which prefers the longer caption."""
    return "tie" if len(first) == len(second) else "1" if len(first) > len(second) else "2"


def captions(body: dict[str, Any]) -> tuple[str, str]:
    return fence.read_all(body["messages"][1]["content"])


@dataclass
class ChatServer:
    """Requests to a server, and how the server treats each of them.

    Attributes:
        treat: Maps the number of a request to "ok", an HTTP status, "hang", "drip", "half", "drop", "nonsense" or
            "huge".
        write: Maps a request's body to the model's text; None for a line with its verdict.
        replace: Maps the number of a request to JSON that is sent instead of a reply; None for the reply.
        raw: Maps the number of a request to bytes that are sent instead of everything, including the head; or None.
        also: Additional entries of a reply.
        latency: Seconds before a reply.
        bodies: Bodies of all requests.
        headers: Headers of all requests.
    """

    treat: Callable[[int], str] = lambda number: "ok"
    write: Callable[[dict[str, Any]], str] | None = None
    more: Callable[[dict[str, Any]], dict[str, Any]] = lambda body: {}
    replace: Callable[[int], dict[str, Any] | None] = lambda number: None
    raw: Callable[[int], bytes | None] = lambda number: None
    also: dict[str, Any] = field(default_factory=dict)
    latency: float = 0.0
    reply_headers: dict[str, str] = field(default_factory=dict)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    most_at_once: int = 0
    _present: int = 0
    _lock: Any = field(default_factory=threading.Lock)
    over: Any = field(default_factory=threading.Event)

    def count(self, body: dict[str, Any], headers: dict[str, str]) -> int:
        with self._lock:
            self.bodies.append(body)
            self.headers.append(headers)
            self._present += 1
            self.most_at_once = max(self.most_at_once, self._present)
            return len(self.bodies) - 1

    def leave(self) -> None:
        with self._lock:
            self._present -= 1

    def reply(self, body: dict[str, Any]) -> bytes:
        text = self.write(body) if self.write else f"The longer one.\nVerdict: {verdict(*captions(body))}"
        content = {
            "choices": [{"message": {"content": text}, "finish_reason": "stop", **self.more(body)}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 7},
            **self.also,
        }
        return json.dumps(content).encode()


@contextmanager
def serving(server: ChatServer) -> Iterator[ChatServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            number = server.count(body, dict(self.headers))
            try:
                time.sleep(server.latency)
                raw = server.raw(number)
                if raw is not None:
                    self.wfile.write(raw)
                    self.close_connection = True
                    return
                self.treat(server.treat(number), body, server.replace(number))
            except OSError:
                self.close_connection = True
            finally:
                server.leave()

        def treat(self, how: str, body: dict[str, Any], instead: dict[str, Any] | None) -> None:
            content = (
                (server.reply(body) if instead is None else json.dumps(instead).encode())
                if not how.isdigit()
                else json.dumps({"error": how, "sent": self.headers["Authorization"]}).encode()
            )
            if how == "hang":
                server.over.wait(30)
            if how == "drip":
                content = b" " * 100 + content
            if how == "nonsense":
                content = b"\xff\x00<html>no JSON</html>"
            if how == "huge":
                content = b'{"choices": "' + b"x" * (10 * 2**20) + b'"}'
            if how in ("hang", "drop"):
                self.close_connection = True
                return
            self.send_response(int(how) if how.isdigit() else 200)
            for name, value in server.reply_headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            while how == "drip" and content and not server.over.wait(0.05):
                self.wfile.write(content[:1])
                content = content[1:]
            self.wfile.write(content[: len(content) // 2] if how == "half" else content)
            if how == "half":
                self.close_connection = True

        def log_message(self, *arguments: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *arguments: object) -> None:
            pass

    http = Quiet(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_address[1]}/v1"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        http.shutdown()
        http.server_close()
        thread.join()
