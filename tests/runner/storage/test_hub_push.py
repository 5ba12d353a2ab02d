import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import constants

from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.storage.hub_push import push_model
from rlrun.runner.storage.model_card import model_card
from rlrun.specs.sections.job import Spec

LINES = [
    {"step": 0, "eval/held-out/reward": 0.25},
    {"step": 1, "rollout/reward/mean": 0.5, "perf/step_time": 2.0},
    {"step": 2, "rollout/reward/mean": 0.75, "eval/held-out/reward": 0.875, "perf/step_time": 2.0},
]


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's HTTP interface that one commit of small files needs."""

    refuses = False
    created: list[dict[str, Any]]
    commits: list[list[dict[str, Any]]]
    tokens: set[str | None]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.tokens.add(self.headers.get("Authorization"))
        if self.refuses:
            return self._answer({"error": "this token cannot write"}, 403)
        if self.path == "/api/repos/create":
            self.created.append(json.loads(body))
            return self._answer({"url": f"http://{self.headers['Host']}/acme/small"})
        if self.path == "/api/validate-yaml":
            return self._answer({"errors": [], "warnings": []})
        if self.path == "/api/models/acme/small/preupload/main":
            names = [file["path"] for file in json.loads(body)["files"]]
            plain = {"uploadMode": "regular", "shouldIgnore": False}
            return self._answer({"files": [{"path": name, **plain} for name in names]})
        assert self.path == "/api/models/acme/small/commit/main", self.path
        self.commits.append([json.loads(line) for line in body.splitlines()])
        return self._answer(
            {
                "commitUrl": f"http://{self.headers['Host']}/acme/small/commit/1",
                "commitOid": "1",
                "success": True,
            }
        )

    def _answer(self, value: Any, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[type[Hub], str]]:
    handler = type("OneHub", (Hub,), {"created": [], "commits": [], "tokens": set()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        yield handler, endpoint
        server.shutdown()


def spec(model: str = "m") -> Spec:
    return Spec.model_validate(
        {"name": "job", "model": {"path": model}, "data": {}, "checkpoint": {"push": "acme/small"}}
    )


def finished_run(folder: Path) -> RunFolder:
    run = RunFolder(folder / "run")
    run.model.mkdir(parents=True)
    (run.model / "config.json").write_text("{}")
    (run.model / "model.safetensors").write_bytes(bytes(100))
    run.spec.write_text('name = "run"\n')
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return run


def test_the_model_and_its_card_are_one_commit(tmp_path: Path, hub: tuple[type[Hub], str]) -> None:
    handler, endpoint = hub
    run, said = finished_run(tmp_path), []
    push_model(spec(), run, said.append)
    assert said == [f"the model is at {endpoint}/acme/small/commit/1"]
    assert handler.created[0]["name"] == "small"
    assert handler.created[0]["visibility"] == "private"
    assert handler.tokens == {"Bearer hf_secret"}
    [commit] = handler.commits
    assert commit[0]["value"]["summary"] == "job: 2 steps of grpo"
    files = {line["value"]["path"]: base64.b64decode(line["value"]["content"]) for line in commit[1:]}
    assert sorted(files) == ["README.md", "config.json", "model.safetensors"]
    assert files["README.md"] == (run.model / "README.md").read_bytes()


def test_a_push_that_fails_leaves_a_finished_run(
    tmp_path: Path, hub: tuple[type[Hub], str], caplog: pytest.LogCaptureFixture
) -> None:
    handler, _ = hub
    handler.refuses = True
    said: list[str] = []
    push_model(spec(), finished_run(tmp_path), said.append)
    assert not said
    assert "the hub did not store it as acme/small: " in caplog.text
    assert "hf upload acme/small " in caplog.text
    assert "hf_secret" not in caplog.text


def test_a_card_states_base_results_and_spec() -> None:
    text = model_card(spec("Qwen/Qwen3-0.6B"), 'name = "job"\n', LINES, adapter=True)
    _, header, body = text.split("---\n", 2)
    data = yaml.safe_load(header)
    assert data["base_model"] == "Qwen/Qwen3-0.6B"
    assert data["library_name"] == "peft"
    assert "grpo" in data["tags"]
    assert "| eval/held-out/reward | 0.25 | 0.875 | 0.875 |" in body
    assert "| rollout/reward/mean | 0.5 | 0.75 | 0.75 |" in body
    assert '```toml\nname = "job"\n```' in body
    for place in ("/models/mine", "s3://bucket/models/mine"):
        text = model_card(spec(place), "", [], adapter=False)
        assert "base_model" not in text and "\nmine, trained for 0 steps" in text
