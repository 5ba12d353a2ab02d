"""Tools as the policy calls them, in the real sandbox and on a real index."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rlrun.plugins.authoring.rollout_testing import check_tool
from rlrun.plugins.failures import InfrastructureError
from rlrun.plugins.registry import build

CORPUS = [
    {"title": "Tour Eiffel", "text": "The tower stands in Paris and is 330 metres tall."},
    {"title": "Colosseum", "text": "The amphitheatre stands in Rome."},
    {"text": "Paris is the capital of France; towers are many."},
]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(map(json.dumps, CORPUS)) + "\n")
    return path


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("print(6 * 7)", "42"),
        ("x = 6\nx * 7", "42"),
        ("'a'", "'a'"),
        ("x = 1", "(no output)"),
        ("print('a')\n1 / 0", "a\nexited with status 1: ZeroDivisionError: division by zero"),
        ("def f(:", "exited with status 1: SyntaxError: invalid syntax"),
        ("import socket; socket.create_connection(('1.1.1.1', 80))", "Network is unreachable"),
        ("import time; time.sleep(600)", "took longer than 4 s"),
    ],
)
async def test_python_says_what_was_printed_or_what_went_wrong(code: str, told: str) -> None:
    timeout = 4.0 if "sleep" in code else 60.0
    answer = await build("tools", "python", {"timeout": timeout}).call({"code": code})
    assert answer == told if "\n" in told or told.startswith("4") else told in answer


async def test_programs_run_side_by_side() -> None:
    python = build("tools", "python", {"timeout": 60.0})
    answers = await asyncio.gather(*(python.call({"code": f"{number} * 2"}) for number in range(4)))
    assert answers == ["0", "2", "4", "6"]


async def test_search_shows_what_fits_best_first(corpus: Path) -> None:
    search = build("tools", "search", {"path": str(corpus), "results": 2})
    assert await search.call({"query": "tower in Paris"}) == (
        "[1] Tour Eiffel\nThe tower stands in Paris and is 330 metres tall.\n\n"
        "[2] Paris is the capital of France; towers are many."
    )
    assert await search.call({"query": 'NEAR(rome, "amphitheatre") OR *'}) == (
        "[1] Colosseum\nThe amphitheatre stands in Rome."
    )
    assert await search.call({"query": "zeppelin"}) == "Nothing found."
    with pytest.raises(ValueError, match="no words"):
        await search.call({"query": "?!"})
    await search.close()


async def test_an_index_is_kept_until_the_corpus_changes(corpus: Path, tmp_path: Path) -> None:
    params = {"path": str(corpus), "index": str(tmp_path / "index.db")}
    for _ in range(2):
        search = build("tools", "search", params)
        assert "Colosseum" in await search.call({"query": "rome"})
        await search.close()
    text = tmp_path / "corpus.txt"
    text.write_text("Rome fell.\nSlowly.\n\n\nParis did not.\n")
    search = build("tools", "search", {**params, "path": str(text)})
    assert await search.call({"query": "rome"}) == "[1] Rome fell.\nSlowly."
    await search.close()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "has no passages"),
        ('{"body": "x"}', "corpus.jsonl:1: no passage with a 'text'"),
        ("x", ":1: no pass"),
    ],
)
def test_a_corpus_that_cannot_be_used_is_named(corpus: Path, lines: str, message: str) -> None:
    corpus.write_text(lines)
    with pytest.raises(ValueError, match=message):
        build("tools", "search", {"path": str(corpus)})


def test_built_in_tools_keep_their_contract(corpus: Path) -> None:
    assert check_tool("python", {"timeout": 60}, [{"code": "1"}, {}, {"code": 1}]) == ["1", None, None]
    assert check_tool("search", {"path": str(corpus)}, [{"query": "rome"}, {"words": "rome"}])[1] is None


class _Retriever(BaseHTTPRequestHandler):
    """Answers what it was told to, by the words that are asked for."""

    ANSWERS: ClassVar[dict[str, tuple[int, object]]] = {
        "rome": (200, {"result": "Rome is old."}),
        "atlantis": (200, {"error": "no such place"}),
        "rubbish": (200, ["?"]),
        "down": (503, {}),
    }
    FOUND: ClassVar[dict[str, object]] = {
        "rome": {
            "result": [[{"contents": "Rome\nA city."}, {"document": {"contents": "Nero"}, "score": 1.0}]]
        },
        "rubbish": {"result": "?"},
    }
    """The answers of Search-R1's server, without and with scores."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = (
            (200, self.FOUND[body["queries"][0]]) if "queries" in body else self.ANSWERS[body["query"]]
        )
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
async def remote() -> AsyncIterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Retriever)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    query = {"type": "string", "description": "Words."}
    url = f"http://127.0.0.1:{server.server_port}/"
    params = {"url": url, "name": "search", "about": "Finds.", "parameters": {"query": query}}
    tool = build("tools", "remote", {**params, "attempts": 1})
    yield tool
    await tool.close()
    server.shutdown()
    server.server_close()


async def test_a_retrieval_server_is_a_tool(remote: Any) -> None:
    tool = build("tools", "retriever", {"url": remote._params.url, "attempts": 1})
    assert tool.schema["function"]["name"] == "search"
    assert await tool.call({"query": "rome"}) == "Doc 1(Title: Rome) A city.\nDoc 2(Title: Nero) "
    with pytest.raises(InfrastructureError, match="the answer must be"):
        await tool.call({"query": "rubbish"})
    with pytest.raises(ValueError, match="query"):
        await tool.call({})
    await tool.close()


async def test_a_service_is_a_tool(remote: Any) -> None:
    assert remote.schema["function"]["parameters"]["required"] == ["query"]
    assert await remote.call({"query": "rome"}) == "Rome is old."


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"query": "atlantis"}, ValueError, "no such place"),
        ({}, ValueError, r"missing arguments: \['query'\]"),
        ({"query": "rome", "k": 1}, ValueError, r"unknown: \['k'\]"),
        (
            {"query": "down"},
            InfrastructureError,
            "gave no answer in 1 attempt; the last: HTTP 503",
        ),
        ({"query": "rubbish"}, InfrastructureError, "gave no answer in 1 attempt"),
    ],
)
async def test_mistakes_of_the_policy_are_told_apart_from_failures_of_the_service(
    remote: Any, arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        await remote.call(arguments)
    assert type(caught.value) is error
