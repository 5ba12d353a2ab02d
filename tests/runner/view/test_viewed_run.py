import base64
import json
import math
from pathlib import Path

import pytest

from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.view import search as searching
from rlrun.runner.view.answers import Answers, NotFound
from rlrun.runner.view.curves import Curves, reduce
from rlrun.runner.view.indexer import Indexer
from rlrun.runner.view.page import to_json
from rlrun.runner.view.sample_detail import SHOWN_CHARACTERS, join_bytes
from rlrun.runner.view.summary import prompt_text, quote
from rlrun.runner.view.viewed_run import ViewedRun, spans_of_metrics, valid_spans
from tests.pictures import picture
from tests.runner.view.view_runs import (
    metrics_line,
    record,
    write_images,
    write_readable_spec,
    write_run,
    write_step,
    write_sweep,
)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return write_run(tmp_path / "run")


@pytest.fixture
def answers(folder: RunFolder) -> Answers:
    indexer = Indexer(folder)
    indexer.update()
    return Answers([ViewedRun(folder, indexer)])


def test_the_bottleneck_of_a_run_is_named(folder: RunFolder) -> None:
    assert ViewedRun(folder).status()["bottleneck"] is None, "its spec cannot be read"
    write_readable_spec(folder)
    assert ViewedRun(folder).status()["bottleneck"].startswith("Training takes 67 % of a step: add ranks")
    assert ViewedRun(folder).status(reads_metrics=False)["bottleneck"] is None


def test_images_are_sent_by_their_digest(folder: RunFolder, answers: Answers) -> None:
    data = picture()
    [digest] = write_images(folder, data)
    sent = answers.answer("image", {"run": "0", "digest": digest})
    assert base64.b64decode(sent.removeprefix("data:image/png;base64,")) == data
    for bad in ("0" * 64, "../../state", digest.upper()):
        with pytest.raises(ValueError):
            answers.answer("image", {"run": "0", "digest": bad})


def test_a_sample_has_the_text_and_the_values_of_its_tokens(answers: Answers) -> None:
    sample = answers.answer("sample", {"run": "0", "kind": "step", "step": "3", "line": "2"})
    values = sample["token_values"]
    assert values["pieces"] == ["4", "2", "", "€", " tool"]
    assert values["trainer_log_probs"][1] == -2.5
    assert values["advantages"] == [0.5] * 5
    assert sample["details"]["judge"]["reason"] == "reason 1"
    assert "response_tokens" not in sample


def test_a_group_has_the_samples_of_its_prompt(answers: Answers) -> None:
    group = answers.answer("group", {"run": "0", "kind": "step", "step": "3", "row": "row 1"})
    assert [sample["line"] for sample in group] == [5, 6, 7, 8]
    history = answers.answer("history", {"run": "0", "row": "row 0"})
    assert [(item["kind"], item["step"]) for item in history["samples"]] == [
        ("step", step) for step in (1, 2, 3, 4) for _ in range(4)
    ]
    history = answers.answer("history", {"run": "0", "row": "row 0", "dataset": "held-out"})
    assert [(item["kind"], item["step"]) for item in history["samples"]] == [
        *[("eval", 2)] * 2,
        *[("eval", 4)] * 2,
    ]


def test_rows_of_two_datasets_are_two_prompts(folder: RunFolder) -> None:
    datasets = ("sums", "sums", "words", "words")
    records = [record(4, line, dataset=dataset) for line, dataset in enumerate(datasets)]
    write_step(folder, 4, records, "eval")
    indexer = Indexer(folder)
    indexer.update()
    answers = Answers([ViewedRun(folder, indexer)])
    query = {"run": "0", "kind": "eval", "step": "4", "row": "row 0"}
    assert [sample["line"] for sample in answers.answer("group", query | {"dataset": "words"})] == [3, 4]
    groups = answers.answer("samples", {"runs": "0", "kind": "eval", "order": "disagreed", "from_step": "4"})
    assert sorted((group["dataset"], group["samples"]) for group in groups["rows"]) == [
        ("sums", 2), ("words", 2)
    ]  # fmt: skip


def test_trials_have_the_numbers_of_their_runs(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "lrs-sweep")
    runs = [ViewedRun(sweep.run_of(sweep.trials()[1])), ViewedRun(write_run(tmp_path / "another", 1))]
    [table] = Answers(runs, [sweep]).answer("sweeps", {})
    assert (table["name"], table["metric"], table["goal"]) == ("lrs-sweep", "rollout/reward/mean", "max")
    assert [(trial["run"], trial["status"], trial["best"]) for trial in table["trials"]] == [
        (None, "done", False), (0, "done", True), (None, "waiting", False)
    ]  # fmt: skip
    assert Answers(runs).answer("sweeps", {}) == []
    sweep.record.write_text("{")
    [broken] = Answers(runs, [sweep]).answer("sweeps", {})
    assert broken["name"] == "lrs-sweep" and "does not hold a sweep" in broken["problem"]


def test_specs_differ_by_each_key_once(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "run", 1), write_run(tmp_path / "two" / "run", 2)]
    for folder in folders:
        lock = json.loads(folder.lock.read_text())
        folder.lock.write_text(json.dumps(lock | {"given": lock["spec"]}))
    answer = Answers([ViewedRun(folder) for folder in folders]).answer("specs", {"runs": "0,1"})
    assert answer["differences"] == [[{"key": "spec.trainer.steps", "before": 1, "after": 2}]]
    assert answer["spec"]["given"]["trainer"]["steps"] == 1


def test_metrics_that_are_one_number_are_named(tmp_path: Path) -> None:
    rows = [
        {"step": 1, "reward": 0.5, "judge": 0.5, "other": 0.5, "late": 1, "zero": 0, "failed": 0},
        {"step": 2, "reward": 0.7, "judge": 0.7, "other": 0.7, "zero": 0, "failed": 0, "nan": None},
        {"step": 3, "reward": 0.6, "judge": 0.6, "other": 0.8, "zero": 0, "failed": 0, "nan": None},
    ]
    path = tmp_path / "metrics.jsonl"
    curves = Curves(path)
    for count, expected in ((1, []), (2, [["judge", "other", "reward"]]), (3, [["judge", "reward"]])):
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows[:count]))
        curves.refresh()
        assert curves.same == expected, "what is always 0 may be different facts"


def test_lists_quote_prompts_and_responses(answers: Answers) -> None:
    page = answers.answer("samples", {"runs": "0", "order": "worst"})
    assert page["rows"][0]["excerpt"] == "answer 0 of step 4"
    assert page["rows"][0]["prompt"] == "question 0"
    assert page["names"]["status"] == ["completed", "truncated"]
    groups = answers.answer("samples", {"runs": "0", "order": "disagreed"})
    assert groups["rows"][0]["prompt"] == "question 0"


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        pytest.param({}, [(0, 3, 1), (0, 3, 2), (0, 2, 1), (1, 2, 1), (0, 2, 2), (1, 2, 2)], id="newest"),
        pytest.param({"offset": "4"}, [(0, 2, 2), (1, 2, 2), (0, 1, 1), (1, 1, 1)], id="a later page"),
        pytest.param({"order": "worst", "from_step": "2"}, [(0, 3, 1), (0, 2, 1), (1, 2, 1)], id="worst"),
        pytest.param({"order": "longest"}, [(0, 3, 2), (0, 2, 2), (1, 2, 2), (0, 1, 2)], id="longest"),
        pytest.param({"order": "disagreed"}, [(0, 3, 1), (0, 2, 1), (1, 2, 1), (0, 1, 1)], id="groups"),
    ],
)
def test_the_samples_of_two_runs_are_in_one_order(
    tmp_path: Path, filters: dict[str, str], expected: list[tuple[int, int, int]]
) -> None:
    runs = []
    for name, steps in (("one", 3), ("two", 2)):
        folder = write_run(tmp_path / name, steps)
        for step in range(1, steps + 1):
            write_step(folder, step, [record(step, line, response=name) for line in range(2)])
        runs.append(ViewedRun(folder, indexer := Indexer(folder)))
        indexer.update()
    page = Answers(runs).answer("samples", {"runs": "0,1"} | filters)
    places = [(row["run"], row["step"], row["line"]) for row in page["rows"]]
    assert places[: len(expected)] == expected
    assert page["count"] == {"worst": 6, "disagreed": 5}.get(filters.get("order", ""), 10)
    assert {(row["run"], row["excerpt"]) for row in page["rows"]} == {(0, "one"), (1, "two")}


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        pytest.param("one text", "one text", id="a text"),
        pytest.param(None, "", id="none"),
        pytest.param([], "", id="no messages"),
        pytest.param(
            [{"role": "system", "content": "be brief"}, {"role": "user", "content": "why?"}],
            "why?",
            id="a system message is not what differs",
        ),
        pytest.param(
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
             {"role": "user", "content": "c"}, {"role": "tool", "content": "d"}],
            "c",
            id="the last message of the user",
        ),
        pytest.param([{"role": "system", "content": "only"}], "only", id="no message of a user"),
        pytest.param(
            [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}],
            "what?",
            id="an image and a text",
        ),
        pytest.param(["broken", {"role": "user", "content": 7}], "7", id="not messages"),
    ],
)  # fmt: skip
def test_what_lists_show_of_a_prompt(prompt: object, expected: str) -> None:
    assert prompt_text(prompt) == expected
    assert quote({"prompt": prompt})["prompt"] == expected


def test_a_long_prompt_is_quoted_with_both_ends() -> None:
    quoted = quote({"prompt": f"Answer in tags: {'x' * 1000} 1 + 2?", "response": "y" * 1000})
    assert quoted["prompt"].startswith("Answer in tags: xxx") and quoted["prompt"].endswith("xxx 1 + 2?")
    assert {name: len(text) for name, text in quoted.items()} == {"prompt": 241, "excerpt": 240}


def test_long_texts_are_cut_unless_asked_for(folder: RunFolder, answers: Answers) -> None:
    write_step(folder, 4, [record(4, 0, response="x" * (SHOWN_CHARACTERS + 7))])
    query = {"run": "0", "kind": "step", "step": "4", "line": "1"}
    assert answers.answer("sample", query)["cut"] == {"response": 7}
    assert len(answers.answer("sample", query | {"whole": "1"})["response"]) == SHOWN_CHARACTERS + 7


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("nothing", {}),
        ("sample", {"run": "7", "kind": "step", "step": "1", "line": "1"}),
        ("sample", {"run": "-1", "kind": "step", "step": "1", "line": "1"}),
    ],
)
def test_what_does_not_exist_is_not_found(answers: Answers, name: str, query: dict[str, str]) -> None:
    with pytest.raises(NotFound):
        answers.answer(name, query)


@pytest.mark.parametrize(
    "query",
    [
        {"kind": "../../secret", "step": "1", "line": "1"},
        {"kind": "step", "step": "../1", "line": "1"},
        {"kind": "step", "step": "1", "line": "99"},
    ],
)
def test_bad_parameters_are_refused(answers: Answers, query: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        answers.answer("sample", {"run": "0"} | query)


def test_a_search_continues_where_it_stopped(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    first = searching.search(folder.rollouts, "step", "ANSWER 3", None, seconds=-1.0)
    assert [(row["step"], row["line"]) for row in first["rows"]] == [(4, 4)]
    assert "answer 3" in first["rows"][0]["excerpt"]
    rest = searching.search(folder.rollouts, "step", "answer 3", first["next"])
    assert [row["step"] for row in rest["rows"]] == [3, 2, 1]
    assert rest["next"] is None


def test_a_search_finds_text_that_json_escapes(folder: RunFolder) -> None:
    write_step(folder, 9, [record(9, 0, response='say "hi"\nÉté')])
    for text in ('"HI"', 'hi"\nÉté'):
        assert len(searching.search(folder.rollouts, "step", text, None)["rows"]) == 1
    assert searching.search(folder.rollouts, "step", "response_tokens", None)["rows"] == []


def test_metrics_are_read_as_they_grow_and_when_a_resume_replaces_them(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(metrics_line(1) + "broken\n" + metrics_line(2) + '{"step": 3, "train/l')
    curves = Curves(path)
    curves.refresh()
    assert curves.curve("train/loss") == ([1, 2], [1.0, 0.5])
    assert curves.problems == ["metrics.jsonl:2 does not hold the metrics of a step"]
    with path.open("a") as file:
        file.write(
            'oss": 0.25, "eval/a/reward": 0.5, "train/grad_norm": null}\n{"step": 2, "train/loss": 7}\n'
        )
    curves.refresh()
    assert curves.curve("train/loss") == ([1, 2, 3], [1.0, 7.0, 0.25])
    assert curves.curve("eval/a/reward") == ([3], [0.5])
    assert curves.curve("train/grad_norm") == ([], [])
    replacement = tmp_path / "new"
    replacement.write_text(metrics_line(1))
    replacement.replace(path)
    curves.refresh()
    assert curves.curve("train/loss") == ([1], [1.0])


def test_long_curves_keep_their_extremes_and_ends() -> None:
    steps = list(range(10_000))
    values = [math.sin(step / 50) for step in steps]
    values[5000] = 99.0
    reduced_steps, reduced = reduce((steps, values), 200)
    assert len(reduced) <= 202
    assert max(reduced) == 99.0
    assert (reduced_steps[0], reduced_steps[-1]) == (0, 9999)
    assert reduced_steps == sorted(reduced_steps)


@pytest.mark.parametrize(
    ("pieces", "texts"),
    [
        (["a", None, "b"], ["a", None, "b"]),
        ([b"\xe2", b"\x82", b"\xac", "!"], ["", "", "€", "!"]),
        ([b"\xe2", "x"], ["", "\ufffdx"]),
        ([b"\xff"] * 5, ["", "", "", "", "\ufffd" * 5]),
    ],
)
def test_parts_of_characters_are_joined(pieces: list[object], texts: list[object]) -> None:
    assert join_bytes(pieces) == texts


def test_timelines(answers: Answers) -> None:
    answer = answers.answer("timeline", {"run": "0", "step": "2"})
    assert answer["from"] == "timeline"
    assert answer["spans"][0] == ["driver", "rollout", 0.0, 1.0]
    assert valid_spans({"spans": [["a", "b", 1, 0], ["a"], 3, ["a", "b", 0, 1e999], ["a", "b", 0, 1]]}) == [
        ["a", "b", 0.0, 1.0]
    ]
    metrics = {"perf/train_time": 2.0, "perf/rollout_time": 1.0}
    assert spans_of_metrics(metrics) == [["driver", "rollout", 0.0, 1.0], ["driver", "train", 1.0, 3.0]]


def test_specs_are_compared(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, 1) for name in ("a", "b")]
    lock = json.loads(runs[1].lock.read_text())
    lock["spec"]["trainer"]["lr"] = 2.0
    runs[1].lock.write_text(json.dumps(lock))
    answer = Answers([ViewedRun(run) for run in runs]).answer("specs", {"runs": "0,1"})
    keys = {item["key"]: item["after"] for item in answer["differences"][0]}
    assert keys == {"spec.name": "b", "spec.trainer.lr": 2.0}


def test_a_run_without_a_readable_state_is_shown_with_its_problem(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 2)
    folder.state.write_text("{")
    status = ViewedRun(folder).status()
    assert (status["step"], status["status"]) == (2, None)
    assert "state.json" in status["problems"][0]


def test_numbers_that_json_does_not_have_become_null() -> None:
    assert to_json({"a": [math.nan, 1.0, {"b": math.inf}]}) == b'{"a":[null,1.0,{"b":null}]}'
