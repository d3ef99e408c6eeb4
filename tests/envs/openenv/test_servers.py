"""OpenEnv's own client and server on loopback, and servers that return invalid replies."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from groundling.cli.main import main
from groundling.envs.openenv.env import OpenEnv
from groundling.envs.openenv.proposal import count_sessions, propose, read_schema
from groundling.envs.worker_pool import EnvLost
from groundling.errors import ConfigError
from tests.envs.openenv.colours import Game
from tests.envs.openenv.test_env import make_envs, play
from tests.thorough import THOROUGH

pytest.importorskip("openenv")
import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from websockets.sync.server import serve


class Door(Action):
    door: int


class Seen(Observation):
    question: str
    legal_actions: list[int]
    messages: list[dict[str, str]]


class Doors(Environment[Door, Seen, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True
    state = State()

    def __init__(self) -> None:
        super().__init__()
        self.game = Game()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **given: Any) -> Seen:
        self.game.reset(seed)
        return Seen(**self.game.fields)

    def step(self, action: Door, timeout_s: float | None = None, **given: Any) -> Seen:
        reward = self.game.step(action.door)
        return Seen(**self.game.fields, reward=reward, done=self.game.done)


@contextmanager
def _serving(port: int = 0) -> Iterator[int]:
    """Serve `Doors` to at most two sessions, and yield the port; the server's end closes all sessions."""
    app = create_fastapi_app(Doors, Door, Seen, max_concurrent_envs=2)
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", timeout_graceful_shutdown=0)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def _answering(answer: Callable[[int], Any]) -> Iterator[str]:
    """Answer the n-th message of a session with ``answer(n)``, or close the session if this is None."""

    def handle(socket: Any) -> None:
        for number, _ in enumerate(socket):
            reply = answer(number)
            if reply is None:
                return
            socket.send(reply if isinstance(reply, str) else json.dumps(reply))

    with serve(handle, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()


def _observation(**fields: Any) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": {"text": "A hall."}, "reward": 0, "done": False, **fields}}


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("<html><body>502 Bad Gateway", "did not respond to a step with JSON: '<html><body>502 Bad Gateway'"),
        ([1, 2], "failed during a step: AttributeError"),
        (_observation(reward=float("nan")), "sent the reward nan"),
        (_observation(observation="A hall."), "sent the observation 'A hall.': expected a mapping"),
        (_observation(observation={"text": "x" * 2**20}), "failed during a step: ConnectionClosed.*too big"),
        ("[" * 100_000, "failed during a step: RecursionError"),
        (None, "failed during a step: ConnectionClosed"),
    ],
)
def test_nonsense_is_reported_in_one_line(reply: Any, message: str) -> None:
    with _answering(lambda number: _observation() if number < 2 else reply) as url:  # after the state and the reset
        env = OpenEnv(url, action="say")
        env.reset(seed=0)
        with pytest.raises(EnvLost, match=message) as caught:
            env.step("hello")
        assert "\n" not in str(caught.value)
        env.close()


def test_a_server_that_hangs_is_left() -> None:
    leave = threading.Event()
    with _answering(lambda number: leave.wait(20) and None if number == 2 else _observation()) as url:
        env = OpenEnv(url, action="say", timeout=1.0)
        env.reset(seed=0)
        with pytest.raises(EnvLost, match="did not respond to a step within 1 s"):
            env.step("hello")
        leave.set()
        env.close()


def test_an_address_without_a_server() -> None:
    with pytest.raises(ConfigError, match="no OpenEnv server answers at http:"):
        OpenEnv("http://127.0.0.1:1", action="say").reset(seed=0)


def test_a_port_of_another_protocol_is_reported() -> None:
    def answer(listening: socket.socket) -> None:
        client, _ = listening.accept()
        client.recv(1000)
        client.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
        client.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=answer, args=[listening], daemon=True).start()
        with pytest.raises(ConfigError, match=r"no OpenEnv server answers at .*SSH"):
            read_schema(f"http://127.0.0.1:{listening.getsockname()[1]}")


def test_the_proposal_plays() -> None:
    with _serving() as port:
        id = f"openenv:http://127.0.0.1:{port}"
        proposal = propose(id, {"max_steps": 9})
        assert proposal.args == {
            "action": "door",
            "admissible": "legal_actions",
            "goal": "{question}",
            "descriptions": ["messages.-1.content"],
            "max_steps": 9,
        }
        assert dict(proposal.schema)["action"] == "door: integer"
        assert count_sessions(id, 5) == 2
        with pytest.raises(
            ConfigError, match=r"no free session .*2/2.* larger max_concurrent_envs, or lower world.num"
        ):
            make_envs(num_envs=3, id=id).reset()


def test_a_run_survives_its_server() -> None:
    with _serving() as port:
        (envs := make_envs(id=f"openenv:http://127.0.0.1:{port}")).reset()
        whole = play(envs, 12)
        envs.close()
        (envs := make_envs(id=f"openenv:http://127.0.0.1:{port}")).reset()
        begun = play(envs, 4)
    with pytest.warns(UserWarning, match="env 0 "), _serving(port):
        rest = play(envs, 12, first=4)
        envs.close()
    assert [*begun, *rest] == whole


@THOROUGH
def test_check_env_prints_the_words_of_the_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    with _serving() as port:
        id = f"openenv:http://127.0.0.1:{port}"
        assert main(["check-env", id, "--episodes", "2", "world.args.names={0: red, 1: green, 2: blue}"]) == 0
        printed = " ".join(capsys.readouterr().out.split())
    for text in ("2 concurrent", "world.args.admissible=legal_actions", "world.args.names.2=blue", "world.num_envs=2"):
        assert text in printed
    assert "the same seed and actions produced the same episode every time" in printed
