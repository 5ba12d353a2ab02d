"""Jobs with hooks in a file beside the spec: what they change arrives in loss, gradients and weights."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from tests.local_job import Lines, run_local
from tests.tiny_models import make_tiny_model

SPEC = """
seed = 1
deterministic = true
model = { path = "model" }
data = { path = "rows.jsonl" }
cluster = { threads = 1 }
checkpoint = { interval = 1, keep = "all" }
rollout = { batch_size = 4, samples_per_prompt = 4, max_response_tokens = 16 }
trainer = { steps = 2, lr = 3e-3, dtype = "float32", max_grad_norm = 1e9 }
engine = { dtype = "float32" }

[[rewards]]
type = "hooks.py:first_token"
"""
HOOKS = """
import json
from pathlib import Path

import rlrun
from pydantic import BaseModel, ConfigDict


@rlrun.reward
def first_token(sample):
    return float(sample.tokens[0] % 5)


class Params(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Hook:
    Params = Params
    api_version = 1

    def __init__(self, params):
        self.params = params


class FirstTokens(Hook):
    def on_samples(self, groups):
        for group in groups:
            for sample in group.samples:
                sample.loss_mask[3:] = 0
                sample.info["trained"] = int(sample.loss_mask.sum())


class Ledger(Hook):
    def on_removed(self, groups):
        self.write("removed", groups)

    def on_samples(self, groups):
        self.write("trained", groups)

    def write(self, what, groups):
        rewards = [sample.reward for group in groups for sample in group.samples]
        with Path(__file__).with_name("ledger.jsonl").open("a") as file:
            file.write(json.dumps([what, rewards]) + "\\n")


class Half(Hook):
    def before_update(self, part):
        assert part.rank == 0 and len(part.optimizers) == 1
        for parameter in part.parameters.values():
            parameter.grad.mul_(0.5)


class Nothing(Hook):
    def on_batch(self, inputs):
        return inputs.advantages * 0


class Frozen(Hook):
    def on_model(self, part):
        for module in part.modules:
            for name, parameter in module.named_parameters():
                parameter.requires_grad_("norm" in name)


class Raises(Hook):
    def on_samples(self, groups):
        groups[0].samples[0].reward = 5.0
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("job")
    make_tiny_model(folder / "model", scale=0.05)
    rows = [{"prompt": f"say {number}", "label": ""} for number in range(16)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "hooks.py").write_text(HOOKS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLRUN_ALLOW_LOCAL_PLUGINS", "1")
        yield folder


def run_with(folder: Path, *names: str) -> Lines:
    return run_local(write_spec(folder, *names), folder / "-".join(["run", *names]))


def write_spec(folder: Path, *names: str) -> Path:
    spec = folder / ("-".join(["job", *names]) + ".toml")
    hooks = "".join(f'\n[[hooks]]\ntype = "hooks.py:{name}"\n' for name in names)
    spec.write_text(SPEC + hooks)
    return spec


@pytest.fixture(scope="module")
def plain(folder: Path) -> Lines:
    return run_with(folder)


def test_gradients_that_a_hook_halves_are_those_of_the_step(folder: Path, plain: Lines) -> None:
    half = run_with(folder, "Half")
    assert plain.lines[0]["train/grad_norm"] > 0
    assert half.lines[0]["train/grad_norm"] == plain.lines[0]["train/grad_norm"] / 2
    assert half.lines[0]["train/loss"] == plain.lines[0]["train/loss"]


def test_masked_tokens_count_in_no_denominator_and_a_resumed_run_repeats_them(
    folder: Path, plain: Lines
) -> None:
    masked = run_with(folder, "FirstTokens")
    trained = [line["train/response_tokens"] for line in masked.lines]
    assert 0 < trained[0] <= 16 * 3 < plain.lines[0]["train/response_tokens"]
    parts = folder / "parts"
    shutil.copytree(folder / "run-FirstTokens/checkpoints/step-1", parts / "checkpoints/step-1")
    again = run_local(write_spec(folder, "FirstTokens"), parts, port=2)
    assert again.curve == masked.curve[1:]


def test_without_advantages_nothing_is_trained(folder: Path, plain: Lines) -> None:
    nothing = run_with(folder, "Nothing")
    assert nothing.lines[0]["train/grad_norm"] == 0.0 < plain.lines[0]["train/grad_norm"]


def test_parameters_that_a_hook_freezes_stay(folder: Path) -> None:
    run_with(folder, "Frozen")
    before = load_file(folder / "model/model.safetensors")
    after = load_file(folder / "run-Frozen/model/model.safetensors")
    assert {name for name in after if (after[name] != before[name]).any()} == {
        name for name in before if "norm" in name
    }


def test_a_hook_that_changes_a_reward_ends_the_job_by_name(folder: Path) -> None:
    with pytest.raises(ValueError, match=r'hooks\.0 \(".*hooks\.py:Raises"\): on_samples: sample 0-0: only'):
        run_with(folder, "Raises")


def test_a_hook_sees_every_scored_sample_also_those_that_filters_drop(folder: Path) -> None:
    spec = write_spec(folder, "Ledger")
    spec.write_text(spec.read_text() + '\n[[filters]]\ntype = "reward_range"\nlow = 2.0\n')
    job = run_local(spec, folder / "ledger")
    entries = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    assert [what for what, _ in entries] == ["removed", "trained"] * 2
    for line, (_, removed), (_, trained) in zip(job.lines, entries[::2], entries[1::2], strict=True):
        assert removed and len(trained) == 16
        assert np.mean(np.reshape(removed, (-1, 4)), axis=1).max() < 2.0
        assert np.mean([*removed, *trained]) == pytest.approx(line["rollout/reward/mean"])  # of all samples
