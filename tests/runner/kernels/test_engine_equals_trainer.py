"""With `true_on_policy` the trainer's log-probs are the engine's, bit for bit, in every batch."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.runner.batches.packing import all_micro_batches
from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.engines.native.engine.loading import load
from rlrun.runner.engines.native.engine.requests import SampleInProgress, group_samples
from rlrun.runner.engines.native.engine.scheduler import Scheduler
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.model import native_ops
from rlrun.runner.kernels.operators import in_order, set_order
from rlrun.runner.kernels.operators import load as load_operators
from rlrun.specs.sections.job import Spec
from tests.runner.engines.engine_cases import new_sample, random_prompts, run
from tests.runner.trainer.trainer_cases import TEMPERATURE, make_rank, make_spec, plan
from tests.tiny_models import make_tiny_model

pytestmark = pytest.mark.skipif(not load_operators(), reason="no C++ compiler")

MODELS = {
    "qwen3": {"family": "qwen3", "num_hidden_layers": 3},
    "qwen3-tied-wide-heads": {"family": "qwen3", "tied": True, "head_dim": 80},
    "qwen2-biases": {"family": "qwen2"},
    "llama-many-kv-heads": {"family": "llama", "num_key_value_heads": 4},
    "odd-widths": {"family": "qwen3", "hidden_size": 76, "intermediate_size": 150, "vocab": 333},
}


@pytest.fixture(autouse=True)
def _exact_process() -> Iterator[None]:
    """Undoes what a trainer's process sets once."""
    threads = torch.get_num_threads()
    yield
    set_order(value=None)
    torch.set_num_threads(threads)


def engine(folder: Path, dtype: str = "float32", head: str = "model", **settings: int) -> Scheduler:
    setup = EngineSetup(str(folder), dtype=dtype, head_dtype=head, true_on_policy=True, **settings)  # type: ignore[arg-type]
    return load(setup).scheduler


def samples_of(
    prompts: list[list[int]], each: int = 3, temperature: float = TEMPERATURE
) -> list[SampleInProgress]:
    """Samples of uneven lengths: some rows end early, and others start in their place."""
    return [
        new_sample(
            prompt,
            seed=10 * p + k,
            temperature=temperature,
            max_new_tokens=5 + 13 * ((p + k) % 4),
            ignore_eos=True,
        )
        for p, prompt in enumerate(prompts)
        for k in range(each)
    ]


def sequence_of(sample: SampleInProgress) -> TrainSequence:
    response = len(sample.tokens)
    return TrainSequence(
        tokens=np.concatenate([sample.prompt, sample.tokens]).astype(np.int32),
        prompt_length=len(sample.prompt),
        loss_mask=np.ones(response, np.float32),
        advantages=np.linspace(-1, 1, response, dtype=np.float32),
        rollout_log_probs=np.asarray(sample.log_probs, np.float32),
        execution=str(sample.seed),
    )


def exact_spec(folder: Path, dtype: str = "float32", **trainer: object) -> Spec:
    spec = make_spec(folder, dtype=dtype, **trainer)
    return spec.model_copy(update={"true_on_policy": True})


def trainer_difference(folder: Path, samples: list[SampleInProgress], spec: Spec) -> float:
    """Returns the largest difference, from a pass over log-probs and from the metric of a training step."""
    trainer = make_rank(folder, spec)
    sequences = [sequence_of(sample) for sample in samples]
    steps = plan(sequences, spec)
    log_probs = trainer.policy.log_probs(sequences, all_micro_batches(steps))
    assert sorted(log_probs) == list(range(len(sequences)))
    differences = [np.abs(log_probs[i] - one.rollout_log_probs).max() for i, one in enumerate(sequences)]
    (metrics,) = trainer.policy.train(sequences, steps)
    trainer.close()
    assert metrics["train/grad_norm"] > 0
    return float(max(*differences, metrics["train/train_rollout_logprob_abs_diff_max"]))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_equal_for_packs_of_any_size(name: str, dtype: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, **MODELS[name], scale=0.05)  # type: ignore[arg-type]
    samples = run(engine(folder, dtype, max_running=5), samples_of(random_prompts(5, longest=50)))
    for budget, share in ((60, False), (100_000, False), (300, True)):
        spec = exact_spec(folder, dtype, max_tokens_per_rank=budget, share_prefixes=share)
        assert trainer_difference(folder, samples, spec) == 0.0, (budget, share)


def test_equal_with_a_float32_head_recomputation_and_a_small_chunk(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, scale=0.05)
    samples = run(engine(folder, "bfloat16", "float32"), samples_of(random_prompts(4)))
    spec = exact_spec(
        folder, "bfloat16", head_dtype="float32", activation_checkpointing="full", logits_chunk=7
    )
    assert trainer_difference(folder, samples, spec) == 0.0


def test_equal_for_later_turns_over_kept_caches(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, scale=0.05)
    scheduler = engine(folder, kept_samples=16)
    first = run(scheduler, samples_of(random_prompts(3, shortest=20), each=1))
    prompts = [[*one.prompt.tolist(), *one.tokens.tolist(), *range(9, 9 + k)] for k, one in enumerate(first)]
    second = run(scheduler, samples_of(prompts, each=2))
    assert all(len(one.prompt) > len(first[0].prompt) for one in second)
    spec = exact_spec(folder, max_tokens_per_rank=200, share_prefixes=True)
    assert trainer_difference(folder, [*first, *second], spec) == 0.0


def test_a_sample_does_not_depend_on_rows_threads_or_retractions(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, scale=0.05)
    prompts = random_prompts(4)
    results = []
    for rows, threads in ((12, 1), (2, 1), (5, 3)):
        torch.set_num_threads(threads)
        scheduler, samples = engine(folder, max_running=rows), samples_of(prompts)
        scheduler.add(group_samples(samples))
        for step in range(10_000):
            if not scheduler.busy:
                break
            if step == 4 and threads == 3:
                scheduler.retract_all()
            scheduler.step()
        results.append([(one.tokens.tolist(), one.log_probs.tolist()) for one in samples])
    assert results[0] == results[1] == results[2]


def test_greedy_samples_have_the_log_probs_of_temperature_1(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, scale=0.05)
    greedy = run(engine(folder), samples_of(random_prompts(3), temperature=0.0))
    spec = exact_spec(folder)
    warm = spec.model_copy(update={"rollout": spec.rollout.model_copy(update={"temperature": 1.0})})
    assert trainer_difference(folder, greedy, warm) == 0.0


def test_equal_by_default_where_that_takes_no_longer(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, scale=0.05)
    for dtype in ("float32", "bfloat16"):
        scheduler = load(EngineSetup(str(folder), dtype=dtype)).scheduler  # type: ignore[arg-type]
        samples = run(scheduler, samples_of(random_prompts(4)))
        if in_order(getattr(torch, dtype)):
            spec = make_spec(folder, dtype=dtype, max_tokens_per_rank=300, share_prefixes=True)
            assert trainer_difference(folder, samples, spec) == 0.0


def test_other_engines_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison would notice: products and attention in other orders round differently."""
    folder = make_tiny_model(tmp_path, scale=0.05)
    monkeypatch.setattr(native_ops, "packs", lambda dtype: False)
    scheduler = load(EngineSetup(str(folder), dtype="float32")).scheduler
    samples = run(scheduler, samples_of(random_prompts(4)))
    assert 0.0 < trainer_difference(folder, samples, exact_spec(folder)) < 1e-5


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "qwen3_5_text"])
def test_other_families_are_refused(family: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, family)
    with pytest.raises(ValueError, match=r"true_on_policy: no operators for .* give the same bits"):
        engine(folder)
