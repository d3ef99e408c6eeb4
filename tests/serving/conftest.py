"""A bundled model that is served on loopback."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from groundling.lm import LanguageModel
from groundling.policies import ActionWritingPolicy
from groundling.policies.policy import Policy
from groundling.serving.served_policy import ServedPolicy
from groundling.serving.writer import Writer

uvicorn = pytest.importorskip("uvicorn")
make_app = pytest.importorskip("groundling.serving.app").make_app
TOKEN = "a-token-of-the-tests"


@dataclass(frozen=True)
class Server:
    url: str
    name: str

    def post(self, path: str, body: Any, token: str = TOKEN) -> tuple[int, dict[str, Any]]:
        """Send a body (JSON unless it is bytes), and return the reply's status and JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"{self.url}/v1{path}", content if body else None, head)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            content = error.read()
            return error.code, json.loads(content) if content.startswith(b"{") else {}

    def complete(self, **body: Any) -> dict[str, Any]:
        status, reply = self.post("/chat/completions" if "messages" in body else "/completions", body)
        assert status == 200, reply
        return reply


@contextmanager
def served(policy: Policy, name: str = "a-model") -> Iterator[Server]:
    writer = Writer(ServedPolicy(policy))
    app = make_app(writer, name, TOKEN, {"127.0.0.1", "localhost"})
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Server(f"http://127.0.0.1:{port}", name)
    finally:
        server.should_exit = True
        thread.join()
        writer.close()


@pytest.fixture(scope="package")
def lm() -> LanguageModel:
    return LanguageModel.from_pretrained("starter-causal")


@pytest.fixture(scope="package")
def server(lm: LanguageModel) -> Iterator[Server]:
    with served(ActionWritingPolicy(lm, prompt="conversation", value_hidden_sizes=(8,))) as server:
        yield server
