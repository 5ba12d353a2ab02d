"""Secrets written into a spec: refused where nothing else can be meant, else told of by their looks."""

import json
import secrets as drawn
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.specs.paths import RECIPES
from rlrun.specs.problems.findings import SpecError, SpecText
from rlrun.specs.reading.literal_secrets import literal_secrets, secret_warnings
from rlrun.specs.reading.loading import load_spec

URL = "https://user:${env:PASSWORD}@host"
REFUSED = {
    "key": ({"engine": {"api_key": "open sesame"}}, "api_key is a secret", "${env:API_KEY}"),
    "key of an array": ({"engines": [{"api_key": "x"}]}, "api_key is a secret", "${env:API_KEY}"),
    "plugin's key": ({"rewards": [{"openai_api_key": "x"}]}, "is a secret", "${env:OPENAI_API_KEY}"),
    "nested": ({"rollout": {"function": {"tools": [{"password": "x"}]}}}, "password is", "${env:PASSWORD}"),
    "variable": ({"engine": {"environment": {"HF_TOKEN": "x"}}}, "HF_TOKEN is", "${env:HF_TOKEN}"),
    "bearer": ({"x": {"headers": {"Authorization": "Bearer x"}}}, "header Auth", "Bearer ${env:TOKEN}"),
    "header": ({"rewards": [{"headers": {"X-API-Key": "x"}}]}, "header X-API-Key", "${env:TOKEN}"),
    "password": ({"rewards": [{"url": "http://me:x@host/"}]}, "the URL contains a secret", URL),
    "password without a name": ({"trackers": [{"tracking_uri": "https://:x@host"}]}, "the URL contains", URL),
    "of a database": ({"data": {"path": "postgresql+psycopg://me:x@host/db"}}, "the URL contains", URL),
    "query": ({"rewards": [{"url": "https://host/score?n=1&api_key=x"}]}, "the URL contains", URL),
    "of engines": ({"engine": {"urls": ["http://me:x@host:1"]}}, "the URL contains", None),
}  # fmt: skip


@pytest.mark.parametrize(("data", "message", "reference"), REFUSED.values(), ids=REFUSED)
def test_literals_where_a_secret_belongs_are_refused(data: Any, message: str, reference: str | None) -> None:
    [finding] = literal_secrets(data)
    assert message in finding.message and "spec.lock.json" in finding.message
    assert finding.suggestion == reference
    assert "${env:" in (finding.cure or "")
    assert finding.found is None


@pytest.mark.parametrize(
    "data",
    [
        {"engine": {"api_key": "${env:KEY}"}},
        {"engine": {"api_key": ""}},
        {"rewards": [{"headers": {"Authorization": "Bearer ${env:KEY}", "Accept": "text/plain"}}]},
        {"rewards": [{"url": "https://${env:USER}:${env:PASSWORD}@host/?token=${env:TOKEN}"}]},
        {"rewards": [{"url": "https://${env:USER_AND_PASSWORD}@host/"}]},
        {"rewards": [{"url": "http://[::1]:80/a:b@c"}], "cluster": {"address": "host:6379"}},
        {
            "data": {"label_key": "answer", "prompt_key": "q", "text_key": "x"},
            "rollout": {"stop_token_ids": [1]},
        },
        {"trackers": [{"mode": "offline", "tags": ["secret"]}]},
    ],
)
def test_references_and_other_text_are_not(data: Any) -> None:
    assert not list(literal_secrets(data))


def load(tmp_path: Path, text: str, *overrides: str) -> Any:
    file = tmp_path / "job.toml"
    file.write_text(text)
    return load_spec([RECIPES / "quickstart.toml", file], overrides)


@pytest.mark.parametrize("place", ["file", "set", "vars", "profile"])
def test_a_refusal_does_not_show_the_secret(tmp_path: Path, place: str) -> None:
    texts = {
        "file": 'engine = { type = "external", urls = ["http://h"], api_key = "hunter2" } # hunter2',
        "set": "",
        "vars": 'vars.key = "hunter2"\nengine.api_key = "${var:key}"',
        "profile": 'profiles.far.engine.api_key = "hunter2"',
    }
    overrides = ["engine.api_key=hunter2"] if place == "set" else []
    with pytest.raises(SpecError) as caught:
        load(tmp_path, texts[place], *overrides)
    shown = str(caught.value) + json.dumps([problem.as_dict() for problem in caught.value.problems])
    assert "api_key is a secret" in shown
    assert "hunter2" not in shown


KEYS = [
    "sk-proj-Ab3dEf6hIj9kLm2nOp5q",
    "hf_AbCdEfGhIjKlMnOpQrStUvWx",
    "ghp_abcdefghijklmnopqrst0123456789",
    "AKIAABCDEFGHIJKLMNOP",
    "Bearer abcdef0123456789",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghij0123456789",
    "-----BEGIN RSA PRIVATE KEY-----",
    "T0pS3cretAb9dEf6hIj9kLm2nOp5qRs",
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "line",
    [
        'name = "{}"',
        '[[rewards]]\nmine = ["{}"]',
        '[profiles.a]\nname = "{}"',
        "# {}",
        'vars = {{ a = "{}" }}',
    ],
)
def test_what_looks_like_a_secret_is_told_with_its_place(key: str, line: str) -> None:
    source = SpecText("job.toml", line.format(key), Path())
    [warning] = secret_warnings([source])
    assert warning.line == 1 + line.count("\n")
    assert "looks like a secret" in warning.message and "ps" not in warning.message
    assert key not in str(warning)


def test_set_says_that_others_can_see_it(tmp_path: Path) -> None:
    loaded = load(tmp_path, "", f"name={KEYS[1]}", "seed=3")
    [warning] = loaded.warnings()
    assert "`ps` shows it to every user of this host" in warning.message
    assert warning.file == "--set name"


@given(st.integers(24, 64))
def test_keys_drawn_at_random_are_told_and_hashes_are_not(length: int) -> None:
    key = drawn.token_urlsafe(64).replace("-", "").replace("_", "")[:length] + "aB3"
    assert list(secret_warnings([SpecText("a", f'x = "{key}"', Path())]))
    assert not list(secret_warnings([SpecText("a", f'x = "{drawn.token_hex(length)}"', Path())]))


def test_nothing_that_is_shipped_looks_like_a_secret() -> None:
    files = [*RECIPES.rglob("*.toml"), *Path(__file__).parents[3].glob("examples/**/*.toml")]
    assert files
    assert not list(secret_warnings([SpecText(str(file), file.read_text(), file.parent) for file in files]))
