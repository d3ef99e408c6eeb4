"""A judge that queries a server, and a dataset for it."""

from pathlib import Path

from groundling.judges import OpenAIJudge, Pairs, Question
from groundling.judges.asking.judge import Reply, Request
from tests.judges.asking import annotating
from tests.judges.asking.chat_server import ChatServer


def judge(server: ChatServer, **arguments: object) -> OpenAIJudge:
    defaults = {"timeout": 0.5, "max_retries": 3, "backoff": 0.01, "concurrency": 4}
    return OpenAIJudge("model", server.url, **{**defaults, **arguments})  # type: ignore[arg-type]


def dataset(folder: Path, count: int) -> Pairs:
    """Write ``count`` rows with as many distinct pairs; the first caption is longer in even rows."""
    rows = [(f"a{n}" + "x" * 9, f"b{n}") for n in range(count)]
    return annotating.dataset(folder, [row if n % 2 == 0 else row[::-1] for n, row in enumerate(rows)])


EXPECTED = [0, 1] * 50


def ask(one: OpenAIJudge, count: int = 1) -> list[Reply]:
    question = Question(world="nethack")
    requests = [
        Request(n, question.conversation(f"a{n}xx", f"b{n}", one.answer_format), question) for n in range(count)
    ]
    replies: dict[int, Reply] = {}

    def on_reply(request: Request, reply: Reply) -> None:
        replies[request.number] = reply

    one.ask(requests, on_reply)
    return [replies[n] for n in range(count)]
