"""The recurrent state of Gated DeltaNet beside the KV cache: shared prompts, retraction, weights, sleep."""

from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.models.config_json import read_architecture
from rlrun.runner.batches.packing import all_micro_batches
from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.engines.native.engine.engine import Engine
from rlrun.runner.engines.native.engine.loading import load
from rlrun.runner.engines.native.engine.requests import SampleInProgress, group_samples
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.model.config import weight_shapes
from rlrun.runner.engines.native.model.engine_parts import engine_parts
from rlrun.runner.weights.carriers.disk.reader import FolderModel
from rlrun.runner.weights.carriers.native.pinned_segments import PinnedSegments
from rlrun.runner.weights.carriers.native.reader import SegmentModel
from rlrun.runner.weights.carriers.reader import ReadingEngine
from tests.runner.engines.engine_cases import new_sample, random_prompts, run
from tests.runner.trainer.trainer_cases import TEMPERATURE, make_rank, make_spec, plan
from tests.tiny_models import make_tiny_model

PROMPTS = random_prompts(4, shortest=2)


@pytest.fixture(scope="module", params=["qwen3_5_text", "qwen3_next"])
def family(request: pytest.FixtureRequest) -> str:
    """A dense family, and one with experts whose projections are stored head by head."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("recurrent"), family, scale=0.05, tied=True)


@pytest.fixture(scope="module")
def other(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("recurrent"), family, scale=0.05, tied=True, seed=7)


def setup_of(folder: Path, **settings: int) -> EngineSetup:
    return EngineSetup(str(folder), dtype="float32", **({"max_running": 8} | settings))  # type: ignore[arg-type]


def samples_of(prompts: list[list[int]], count: int = 3, temperature: float = 1.0) -> list[SampleInProgress]:
    fields = {"ignore_eos": True, "temperature": temperature}
    return [
        new_sample(prompt, seed=10 * i + k, name=f"{i}-{k}", max_new_tokens=7 + 8 * k, **fields)
        for i, prompt in enumerate(prompts)
        for k in range(count)
    ]


def assert_same(ours: list[SampleInProgress], theirs: list[SampleInProgress]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-4)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[SampleInProgress]:
    """Each sample alone in an engine, whose prompt is therefore computed for it only."""
    scheduler = load(setup_of(folder)).scheduler
    return [run(scheduler, [sample])[0] for sample in samples_of(PROMPTS)]


@pytest.mark.parametrize(
    "settings",
    [{}, {"max_running": 2}, {"max_cache_tokens": 112}],
    ids=["together", "more samples of a prompt than rows", "retraction"],
)
def test_a_sample_does_not_depend_on_the_rows_before_it(
    folder: Path, expected: list[SampleInProgress], settings: dict[str, int]
) -> None:
    assert_same(run(load(setup_of(folder, **settings)).scheduler, samples_of(PROMPTS)), expected)


def test_resuming_after_a_retraction_computes_the_state_again(
    folder: Path, expected: list[SampleInProgress]
) -> None:
    scheduler, samples = load(setup_of(folder)).scheduler, samples_of(PROMPTS)
    scheduler.add(group_samples(samples))
    while scheduler.busy:
        for _ in range(5):
            scheduler.step()
        scheduler.retract_all()
    assert_same(samples, expected)


def test_scored_log_probs_are_those_of_generation(folder: Path, expected: list[SampleInProgress]) -> None:
    scheduler = load(setup_of(folder)).scheduler
    whole = [np.concatenate([sample.prompt, sample.tokens]) for sample in expected]
    for sample, scored in zip(expected, scheduler.score(whole), strict=True):
        np.testing.assert_allclose(scored.log_probs[len(sample.prompt) - 1 :], sample.log_probs, atol=1e-4)


def test_a_sample_that_starts_after_new_weights_has_no_state_of_the_old_ones(
    folder: Path, other: Path
) -> None:
    scheduler = load(setup_of(folder, max_running=2)).scheduler
    samples = samples_of(PROMPTS[:1], count=4)
    scheduler.add(group_samples(samples))
    for _ in range(3):
        scheduler.step()
    late = load(setup_of(other)).scheduler
    scheduler.set_weights(late.model.weights, 4)
    while scheduler.busy:
        scheduler.step()
    assert_same(samples[2:], run(late, samples_of(PROMPTS[:1], count=4))[2:])
    assert [one.spans[0][0] for one in samples] == [0, 0, 4, 4]


def test_states_leave_memory_while_the_engine_sleeps(
    folder: Path, other: Path, expected: list[SampleInProgress]
) -> None:
    engine = Engine(load(setup_of(folder)))
    engine.start()
    try:
        engine.release(["weights", "kv_cache"]).result()
        states = engine._scheduler.model.recurrent
        assert states is not None
        assert not sum(tensor.numel() for tensor in states.tensors)
        for version, source in enumerate((other, folder)):
            engine.load(FolderModel(weight_shapes(read_architecture(source)), str(source), version)).result()
        engine.restore(["weights", "kv_cache"]).result()
        samples = samples_of(PROMPTS)
        engine.submit(samples)
        while engine._thread.call(lambda: engine._scheduler.busy).result():
            pass
    finally:
        engine.stop()
    assert_same(samples, expected)


def test_the_size_of_a_row_s_state_is_that_of_its_tensors(folder: Path) -> None:
    model = read_architecture(folder)
    states = engine_parts(model).make_states(7, torch.bfloat16, torch.device("cpu"))
    assert states is not None
    assert 8 * model.state_bytes(2) == sum(tensor.nbytes for tensor in states.tensors)


def test_states_count_towards_the_memory_of_the_cache(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"max_running 1000000000 needs .* GB of recurrent states"):
        load(setup_of(folder, max_running=10**9))


def sequence_of(sample: SampleInProgress) -> TrainSequence:
    """A sample to train on, with an advantage that depends on its name."""
    ones = np.ones(len(sample.tokens), np.float32)
    tokens = np.concatenate([sample.prompt, sample.tokens])
    advantages = ones * (1 if sample.id.endswith("0") else -1)
    return TrainSequence(tokens, len(sample.prompt), ones, advantages, sample.log_probs, sample.id)


def test_an_engine_has_the_log_probs_of_the_trainer_after_each_update(folder: Path) -> None:
    spec = make_spec(folder)
    trainer = make_rank(folder, spec)
    engine = Engine(load(setup_of(folder)))
    reading = ReadingEngine(weight_shapes(read_architecture(folder)), torch.device("cpu"), None, ())
    engine.start()
    try:
        for version in (1, 2):
            samples = samples_of(PROMPTS, temperature=TEMPERATURE)
            engine.submit(samples)
            while engine._thread.call(lambda: engine._scheduler.busy).result():
                pass
            sequences = [sequence_of(sample) for sample in samples]
            steps = plan(sequences, spec)
            log_probs = trainer.policy.log_probs(sequences, all_micro_batches(steps))
            for i, sample in enumerate(samples):
                np.testing.assert_allclose(log_probs[i], sample.log_probs, atol=1e-5)
            trainer.policy.train(sequences, steps)
            manifest = trainer.write_weights(version)
            assert manifest is not None
            engine.load(SegmentModel(manifest, reading, PinnedSegments())).result()
            assert [span[0] for span in samples[0].spans] == [version - 1]
    finally:
        engine.stop()
        trainer._writer.close()
        trainer.close()
