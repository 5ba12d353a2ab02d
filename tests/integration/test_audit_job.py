"""`rlrun audit` is silent about healthy runs, and names each corruption that is planted in a real run."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlrun.runner.audit.check import Outcome
from rlrun.runner.audit.table import CHECKS, audit
from rlrun.runner.records.encoded_arrays import FLOAT_DTYPE, INT_DTYPE, decode_array, encode_array
from rlrun.runner.records.packed_lines import read_records
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.saved_rollouts import rollout_path, write_records
from tests.cli.cli_outcome import Command
from tests.cli.conftest import rlrun as rlrun  # noqa: PLC0414 a fixture
from tests.integration.jobs import Ended, Jobs
from tests.integration.test_agent_job import AGENT
from tests.integration.test_agent_job import settings as agent_settings
from tests.integration.test_async_job import ASYNC
from tests.integration.test_environment_job import write_world
from tests.integration.test_grpo_job import SFT
from tests.integration.test_partial_job import PARTIAL

HELD_OUT = {"name": "held", "type": "jsonl", "path": "rows.jsonl@[:8]", "samples_per_prompt": 2}
LENGTH = {"type": "length", "max_tokens": 16}
REWARDS = [{**LENGTH, "buffer": 16}, {**LENGTH, "buffer": 8, "weight": 0.5}]
SETTINGS: dict[str, object] = {
    "trainer__steps": 6,
    "rollout__batch_size": 4,
    "rewards": REWARDS,
    "checkpoint__interval": 2,
    "debug__save_rollouts": True,
    "eval__datasets": [HELD_OUT],
}
Record = dict[str, Any]
Corruption = Callable[[RunFolder], None]


@pytest.fixture(scope="module")
def healthy(jobs: Jobs) -> Ended:
    ended = jobs.run("healthy", **SETTINGS)
    assert ended.code == 0, ended.output
    return ended


@pytest.fixture(autouse=True)
def plugins(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has the rewards and rollouts that the jobs have."""
    monkeypatch.syspath_prepend(str(jobs.folder / "site"))
    monkeypatch.setenv("RLRUN_ALLOW_LOCAL_PLUGINS", "1")


@pytest.fixture
def copy(healthy: Ended, tmp_path: Path) -> RunFolder:
    shutil.copytree(healthy.folder.path, tmp_path / "run")
    return RunFolder(tmp_path / "run")


def violated(folder: RunFolder, *, rescores: bool = False) -> dict[str, Outcome]:
    """Returns the outcomes with violations, by the name of the check. `rescores` starts a reward process."""
    skipped = () if rescores else ("reward_values",)
    return {outcome.check.name: outcome for outcome in audit(folder, skipped) if outcome.violations}


def explain(outcomes: dict[str, Outcome]) -> str:
    return "\n".join(f"{name}: {outcome.violations[0]}" for name, outcome in outcomes.items())


def edit(folder: RunFolder, change: Callable[[list[Record]], object], step: int = 6) -> None:
    """Changes the stored samples that a step trained on."""
    path = rollout_path(folder.rollouts, step)
    records = list(read_records(path))
    change(records)
    write_records(path, records)


def edit_lines(folder: RunFolder, change: Callable[[list[Record]], object]) -> None:
    """Changes the lines of metrics."""
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    change(lines)
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))


def edit_lock(folder: RunFolder, change: Callable[[Record], object], *, given: bool = True) -> None:
    """Changes the resolved spec, and what was given."""
    lock = json.loads(folder.lock.read_text())
    for part in ("spec", "given") if given else ("spec",):
        change(lock[part])
    folder.lock.write_text(json.dumps(lock))


def array(record: Record, name: str) -> Any:
    return decode_array(record[name], INT_DTYPE if name.endswith("tokens") else FLOAT_DTYPE)


def put(record: Record, name: str, values: Any) -> None:
    record[name] = encode_array(np.asarray(values), INT_DTYPE if name.endswith("tokens") else FLOAT_DTYPE)


def with_array(name: str, change: Callable[[Any], Any]) -> Callable[[list[Record]], None]:
    """Returns a change of one array of the first sample that has at least 4 tokens."""

    def apply(records: list[Record]) -> None:
        record = next(each for each in records if each["tokens"] >= 4)
        put(record, name, change(array(record, name)))

    return apply


def at(position: int, value: float) -> Callable[[Any], Any]:
    def apply(values: Any) -> Any:
        values[position] = value
        return values

    return apply


def unmask(records: list[Record]) -> None:
    record = next(each for each in records if each["tokens"] >= 4)
    put(record, "loss_mask", at(1, 0.0)(array(record, "loss_mask")))
    record["trained_tokens"] -= 1


def shift_rewards(records: list[Record]) -> None:
    """Changes the reward, and its parts in agreement with it."""
    records[0]["reward"] += 1.0
    records[0]["rewards"]["length"] += 1.0


def overwrite(records: list[Record], key: str, value: object, *, where: int = 0) -> None:
    records[where][key] = value


def negate(records: list[Record]) -> None:
    for record in records:
        put(record, "advantages", -array(record, "advantages"))


def in_all(name: str, value: float) -> Callable[[list[Record]], None]:
    def apply(lines: list[Record]) -> None:
        for line in lines:
            if name in line:
                line[name] = value

    return apply


def damage_checkpoint(folder: RunFolder) -> None:
    path = max(
        (folder.checkpoints / "step-6" / "trainer").glob("*.distcp"), key=lambda file: file.stat().st_size
    )
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def fail(folder: RunFolder) -> None:
    state = json.loads(folder.state.read_text())
    folder.state.write_text(json.dumps(state | {"status": "failed", "error": "a rank died"}))


def log_error(folder: RunFolder) -> None:
    with (folder.logs / "engine-0.log").open("a") as log:
        log.write("11-26 08:31:02 ERROR server: CUDA error\n")


def collapse(lines: list[Record]) -> None:
    """Adds steps whose entropy falls to nothing while the reward stays as it is."""
    last = lines[-1]
    lines += [{**last, "step": step, "train/entropy": 0.01} for step in range(7, 27)]


def truncate(folder: RunFolder) -> None:
    path = rollout_path(folder.rollouts, 6)
    path.write_bytes(path.read_bytes()[:-40])


def train_on_constant_group(folder: RunFolder) -> None:
    edit_lock(folder, lambda spec: spec.update(filters=[{"type": "nonzero_std"}]))


def samples(change: Callable[[list[Record]], object]) -> Corruption:
    return lambda folder: edit(folder, change)


def lines(change: Callable[[list[Record]], object]) -> Corruption:
    return lambda folder: edit_lines(folder, change)


def swap_status(records: list[Record]) -> None:
    """States another end of a response than its last token shows."""
    record = records[0]
    record["status"] = "completed" if record["status"] == "truncated" else "truncated"


def set_key(key: str, value: object) -> Callable[[Record], None]:
    *sections, name = key.split(".")

    def apply(spec: Record) -> None:
        for section in sections:
            spec = spec[section]
        spec[name] = value

    return apply


def repeat_step(folder: RunFolder) -> None:
    shutil.copy(rollout_path(folder.rollouts, 5), rollout_path(folder.rollouts, 6))


CORRUPTIONS: Sequence[tuple[str, str, Corruption]] = (
    ("samples_readable", "cut file", truncate),
    ("samples_readable", "mask of another length", samples(with_array("loss_mask", lambda mask: mask[1:]))),
    ("samples_readable", "reward as text", samples(lambda records: overwrite(records, "reward", "1.0"))),
    ("token_counts", "mask and its count", samples(lambda records: overwrite(records, "trained_tokens", 1))),
    ("token_ids", "token of another model", samples(with_array("response_tokens", at(1, 10**6)))),
    (
        "response_text",
        "another text",
        samples(lambda records: overwrite(records, "response", "the answer is 4")),
    ),
    (
        "response_text",
        "another token",
        samples(with_array("response_tokens", lambda ids: at(1, 100 if ids[1] != 100 else 101)(ids))),
    ),
    ("response_ending", "finish reason", samples(swap_status)),
    (
        "response_ending",
        "longer than allowed",
        lambda folder: edit_lock(folder, set_key("rollout.max_response_tokens", 3)),
    ),
    (
        "length_limits",
        "longer than allowed",
        lambda folder: edit_lock(folder, set_key("rollout.max_response_tokens", 3)),
    ),
    ("loss_mask", "sampled token not trained", samples(unmask)),
    ("loss_mask", "weight in the mask", samples(with_array("loss_mask", at(1, 0.5)))),
    ("log_prob_range", "nan", samples(with_array("log_probs", at(1, float("nan"))))),
    ("log_prob_range", "probability above 1", samples(with_array("log_probs", at(1, 0.3)))),
    (
        "turn_rewards",
        "outside of the response",
        samples(lambda records: overwrite(records, "turn_rewards", [[1, 0.5], [99, 0.5]])),
    ),
    ("groups_whole", "sample lost", samples(lambda records: records.pop(1))),
    ("groups_whole", "sample twice", samples(lambda records: records.__setitem__(1, records[0]))),
    ("groups_whole", "rows mixed", samples(lambda records: overwrite(records, "row", "0"))),
    ("trained_once", "step repeated", repeat_step),
    (
        "weight_versions",
        "old weights",
        samples(lambda records: overwrite(records, "versions", [[0, 0, records[0]["tokens"]]])),
    ),
    (
        "weight_versions",
        "future weights",
        samples(lambda records: overwrite(records, "versions", [[9, 0, records[0]["tokens"]]])),
    ),
    (
        "weight_versions",
        "gap",
        samples(lambda records: overwrite(records, "versions", [[5, 1, records[0]["tokens"]]])),
    ),
    (
        "stated_staleness",
        "stale step",
        lines(lambda each: overwrite(each, "rollout/staleness/max", 2.0, where=-1)),
    ),
    ("data_order", "another seed", lambda folder: edit_lock(folder, set_key("seed", 2))),
    ("data_order", "another row", samples(lambda records: [each.update(row="77") for each in records[:4]])),
    ("labels", "label leaked", samples(lambda records: overwrite(records, "label", "yes"))),
    ("prompt_tokens", "another template", samples(with_array("prompt_tokens", lambda ids: ids[:-1]))),
    ("reward_sums", "reward edited", samples(lambda records: overwrite(records, "reward", 0.9))),
    (
        "reward_sums",
        "weight edited",
        lambda folder: edit_lock(folder, lambda spec: spec["rewards"][1].update(weight=2.0)),
    ),
    ("reward_values", "rewards shifted", samples(shift_rewards)),
    ("reward_sums", "reward lost", samples(lambda records: overwrite(records, "reward", None))),
    ("rewards_differ", "constant", lines(in_all("rollout/reward/std", 0.0))),
    ("filters", "filter ignored", train_on_constant_group),
    ("advantages", "sign", samples(negate)),
    ("advantages", "rewards shifted", samples(shift_rewards)),
    ("metric_lines", "step lost", lines(lambda each: each.pop(3))),
    ("metric_lines", "step twice", lines(lambda each: each.insert(3, each[3]))),
    ("metric_lines", "other state", lines(lambda each: each.pop())),
    ("metrics_finite", "loss is nan", lines(lambda each: overwrite(each, "train/loss", None, where=2))),
    (
        "metrics_finite",
        "steps skipped",
        lines(lambda each: overwrite(each, "train/skipped_steps", 1.0, where=2)),
    ),
    (
        "metrics_recomputed",
        "reward",
        lines(lambda each: overwrite(each, "rollout/reward/mean", 0.99, where=2)),
    ),
    ("metrics_recomputed", "evaluation", lines(lambda each: overwrite(each, "eval/held/reward", 0.99))),
    (
        "metrics_recomputed",
        "trained tokens",
        lines(lambda each: overwrite(each, "train/response_tokens", 1.0, where=2)),
    ),
    ("metrics_recomputed", "rewards of samples", samples(shift_rewards)),
    (
        "log_prob_gap",
        "mismatch",
        lines(lambda each: overwrite(each, "train/train_rollout_logprob_abs_diff", 0.5, where=2)),
    ),
    ("first_ratio", "kl", lines(lambda each: overwrite(each, "train/approx_kl", 0.02, where=2))),
    ("first_ratio", "clipped", lines(lambda each: overwrite(each, "train/clip_frac", 0.1, where=2))),
    ("policy_trains", "no gradient", lines(in_all("train/grad_norm", 0.0))),
    ("policy_trains", "no learning rate", lines(in_all("train/lr", 0.0))),
    ("weights_sent", "no update", lines(lambda each: overwrite(each, "perf/weight_sync_bytes", 0, where=2))),
    ("alerts", "entropy", lines(collapse)),
    (
        "spec_as_given",
        "key edited",
        lambda folder: edit_lock(folder, set_key("trainer.lr", 0.1), given=False),
    ),
    ("run_ending", "failed", fail),
    ("checkpoints", "flipped bit", damage_checkpoint),
    ("checkpoints", "lost", lambda folder: shutil.rmtree(folder.checkpoints / "step-6")),
    ("log_errors", "error", log_error),
)


def test_a_healthy_run_has_no_violation_and_every_stored_thing_is_inspected(healthy: Ended) -> None:
    outcomes = {outcome.check.name: outcome for outcome in audit(healthy.folder)}
    found = violated(healthy.folder, rescores=True)
    assert not found, explain(found)
    not_checked = {name: outcome.why_not for name, outcome in outcomes.items() if outcome.why_not}
    assert not_checked == {
        "filters": "the spec has no filters",
        "stored_log_prob_gap": "the run stores no samples with log-probs of the trainer",
        "alerts": "alerts need 20 steps",
    }
    assert outcomes["advantages"].inspected == 6 * 16
    assert outcomes["metrics_recomputed"].inspected > 6 * 15


@pytest.mark.parametrize(
    ("name", "corruption"),
    [(name, corruption) for name, _, corruption in CORRUPTIONS],
    ids=[f"{name}-{what.replace(' ', '_')}" for name, what, _ in CORRUPTIONS],
)
def test_a_planted_corruption_is_found_and_named(copy: RunFolder, name: str, corruption: Corruption) -> None:
    corruption(copy)
    found = violated(copy, rescores=name == "reward_values")
    assert name in found, explain(found)
    violation = found[name].violations[0]
    assert violation.message and violation.file


def test_every_check_has_a_planted_corruption() -> None:
    own_jobs = {"stored_log_prob_gap"}  # below
    assert {check.name for check in CHECKS} == {name for name, _, _ in CORRUPTIONS} | own_jobs


def test_a_violation_names_step_sample_line_and_values(copy: RunFolder) -> None:
    edit(copy, shift_rewards)
    edit(copy, lambda records: overwrite(records, "reward", 7.0, where=2), step=5)
    [violation] = violated(copy)["reward_sums"].violations
    assert violation.step == 5
    assert violation.samples[0].endswith("-2")
    assert violation.file == "rollouts/step-5.jsonl.zst:3"
    assert "its reward is 7" in violation.message


def test_samples_that_are_not_all_stored_are_said_to_be_unchecked(copy: RunFolder) -> None:
    """A run whose steps have more groups than it stores."""
    edit_lock(copy, set_key("rollout.batch_size", 8))
    outcomes = {outcome.check.name: outcome for outcome in audit(copy, ["reward_values"])}
    assert outcomes["advantages"].status == "not checked"
    assert "not all samples" in outcomes["advantages"].why_not
    assert outcomes["metrics_recomputed"].why_not.startswith("only ranges")


def test_data_that_changed_since_the_launch_is_said_to_be_unchecked(copy: RunFolder) -> None:
    lock = json.loads(copy.lock.read_text())
    lock["data"]["data.path"] = "0" * 64
    copy.lock.write_text(json.dumps(lock))
    outcomes = {outcome.check.name: outcome for outcome in audit(copy, ["reward_values"])}
    for name in ("data_order", "labels", "prompt_tokens"):
        assert outcomes[name].status == "not checked"
        assert "data.path" in outcomes[name].why_not


def test_the_command_prints_a_table_or_json_and_its_exit_code_is_for_ci(
    rlrun: Command, healthy: Ended, copy: RunFolder
) -> None:
    clean = rlrun("audit", "healthy", "--runs-dir", healthy.folder.path.parent)
    assert clean.code == 0, clean.err
    assert "0 violated" in clean.out
    edit(copy, negate)
    found = rlrun("audit", "run", "--runs-dir", copy.path.parent)
    assert found.code == 2
    assert "error advantages: " in found.out and " of 96 samples with advantages" in found.out
    assert "docs/auditing.md#advantages" in found.out
    as_json = rlrun("audit", "run", "--runs-dir", copy.path.parent, "--json", "--skip", "advantages")
    assert as_json.code == 0
    statuses = {each["check"]: each["status"] for each in json.loads(as_json.out)["checks"]}
    assert "advantages" not in statuses and statuses["loss_mask"] == "passed"
    misspelt = rlrun("audit", "run", "--runs-dir", copy.path.parent, "--skip", "advantage")
    assert misspelt.code == 2 and "there is no such check" in misspelt.err


SHORT: dict[str, object] = {
    "trainer__steps": 3,
    "rollout__batch_size": 4,
    "checkpoint__interval": 2,
    "debug__save_rollouts": True,
}
TURNS = {"type": "two_turns"}
MODES: dict[str, dict[str, Any]] = {
    "not-all-saved": {**SHORT, "debug__save_rollouts": False, "rollout__batch_size": 12},
    "two-turns": {**SHORT, "rollout__function": TURNS},
    "asynchronous": {**ASYNC, "trainer__steps": 6, "debug__save_rollouts": True},
    "asynchronous-rare": {
        **ASYNC,
        "rollout__weight_update_interval": 2,
        "rollout__max_staleness": 3,
        "trainer__steps": 8,
    },
    "asynchronous-between": {**ASYNC, "rollout__weight_update": "between", "trainer__steps": 6},
    "partial": {**PARTIAL, "trainer__steps": 6},
    "lora": {**SHORT, "trainer__lora": {"rank": 4, "alpha": 8.0}},
    "several-optimizer-steps": {**SHORT, "trainer__global_batch_size": 8},
    "ppo": {**SHORT, "algorithm__type": "ppo"},
    "dapo": {**SHORT, "algorithm__type": "dapo", "filters": [{"type": "nonzero_std"}]},
    "rloo": {**SHORT, "algorithm__type": "rloo", "rollout__top_p": 0.9, "rollout__truncated": "mask"},
    "reference": {**SHORT, "algorithm__kl__in_loss__coef": 0.01},
    "rollout-only": {**SHORT, "debug__mode": "rollout", "deterministic": False},
    "engines-log-probs": {**SHORT, "trainer__old_log_probs": "rollout"},
}


@pytest.fixture(scope="module")
def world(jobs: Jobs) -> Iterator[dict[str, Any]]:
    """Files of the jobs; the settings of one in an environment."""
    environment = write_world(jobs)
    (jobs.folder / "agent.py").write_text(AGENT)
    rows = [{"prompt": f"say {i}", "answer": f"{i} yes", "rejected": "no"} for i in range(64)]
    (jobs.folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("sft", "dpo"):
        spec = f'name = "{name}"\nseed = 1\n[model]\npath = "{jobs.model}"\n[data]\npath = "pairs.jsonl"\n'
        (jobs.folder / f"{name}.toml").write_text(f'{spec}response_key = "answer"\n{SFT}')
    yield {**environment, "trainer__steps": 3, "debug__save_rollouts": True}


def check_healthy(ended: Ended) -> None:
    assert ended.code == 0, ended.output
    found = violated(ended.folder)
    assert not found, explain(found)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [*MODES, "environment"])
def test_a_healthy_run_of_each_mode_has_no_violation(
    jobs: Jobs, world: dict[str, Any], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(jobs.folder)
    check_healthy(jobs.run(mode, "--allow-local-plugins", **MODES.get(mode, world)))


@pytest.mark.slow
def test_healthy_runs_of_demonstrations_agents_and_evaluations_have_no_violation(
    jobs: Jobs, world: dict[str, Any]
) -> None:
    check_healthy(jobs.run("sft", spec="sft.toml"))
    check_healthy(jobs.run("dpo", spec="dpo.toml", algorithm__type="dpo", data__rejected_key="rejected"))
    check_healthy(jobs.start("evaluation", word="eval", eval__datasets=[HELD_OUT]).wait())
    settings = agent_settings(jobs, jobs.folder / "agent.py")
    check_healthy(jobs.run("agents", **settings, trainer__steps=2, debug__save_rollouts=True))


@pytest.mark.slow
def test_tokens_of_an_environment_that_are_trained_on_are_found(
    jobs: Jobs, world: dict[str, Any], tmp_path: Path
) -> None:
    ended = jobs.run("turns", "--allow-local-plugins", **world)
    assert ended.code == 0, ended.output
    shutil.copytree(ended.folder.path, tmp_path / "run")
    copy = RunFolder(tmp_path / "run")

    def train_on_everything(records: list[Record]) -> None:
        for record in records:
            mask = np.ones_like(array(record, "loss_mask"))
            put(record, "loss_mask", mask)
            record["trained_tokens"] = len(mask)

    edit(copy, train_on_everything, step=3)
    found = violated(copy)
    assert {"loss_mask", "response_text"} <= found.keys(), explain(found)


@pytest.mark.slow
def test_stored_log_probs_of_engine_and_trainer_that_differ_are_found(jobs: Jobs, tmp_path: Path) -> None:
    ended = jobs.run("two-updates", **MODES["several-optimizer-steps"])
    assert ended.code == 0, ended.output
    shutil.copytree(ended.folder.path, tmp_path / "run")
    copy = RunFolder(tmp_path / "run")
    edit(copy, with_array("trainer_log_probs", lambda values: values - 0.2), step=3)
    assert violated(copy).keys() == {"stored_log_prob_gap"}
