from pathlib import Path

import pytest

from rlrun.runner.checkpoints.saving import Checkpoints
from rlrun.runner.job.job import Progress, RolloutJob
from rlrun.runner.job.rollout_only import generate
from rlrun.runner.job.starting_point import begin, checkpoint_before, restore_run
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.rollouts.evaluation import EvalResult
from rlrun.runner.rollouts.filtering import Filters
from rlrun.runner.rollouts.synchronous import SynchronousSource
from rlrun.specs.sections.debug import DebugSpec
from tests.resolved_specs import resolved, resolved_rollout
from tests.runner.loop_fakes import Engines, Journal, Prompts, Relative, policy

SPEC = resolved_rollout(batch_size=2, samples_per_prompt=2, max_response_tokens=8)


class Evaluation:
    async def run(self) -> EvalResult:
        return EvalResult({"eval/held/reward": 0.5}, {})


def job(folder: RunFolder, steps: int, engines: Engines, journal: Journal) -> RolloutJob:
    source = SynchronousSource(SPEC, policy(engines), Prompts().ahead(2), Filters([]))
    checkpoints = Checkpoints(folder.checkpoints, keep=2)
    return RolloutJob(
        steps=steps,
        source=source,
        journal=journal,
        checkpoints=checkpoints,
        evaluation=Evaluation(),
        checkpoint_interval=2,
    )


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.make()
    return folder


def asked(engines: Engines) -> list[int]:
    return sorted({int(request.tokens[0]) for request in engines.requests})


async def test_samples_are_made_by_the_same_weights_all_along_and_a_resume_goes_on(folder: RunFolder) -> None:
    engines, journal = Engines(), Journal()
    await generate(job(folder, 3, engines, journal), Progress())
    assert [step for step, _ in journal.lines] == [0, 1, 2, 3]
    assert journal.lines[0][1]["eval/held/reward"] == 0.5
    assert all("train/loss" not in metrics for _, metrics in journal.lines)
    assert "weights" not in " ".join(journal.events)
    assert asked(engines) == [0, 1, 2, 3, 4, 5]

    engines, journal = Engines(), Journal()
    resumed = job(folder, 5, engines, journal)
    progress = await restore_run(folder, resumed.checkpoints, resumed.source)
    assert progress is not None
    assert (progress.step, progress.version) == (3, 0)
    await generate(resumed, progress)
    assert [step for step, _ in journal.lines] == [4, 5]
    assert asked(engines) == [6, 7, 8, 9]


async def test_a_step_begins_from_the_other_runs_checkpoint(folder: RunFolder) -> None:
    await generate(job(folder, 4, Engines(), Journal()), Progress())
    rollouts = str(folder.path)
    assert checkpoint_before(DebugSpec(mode="train", rollouts=rollouts)) is None
    debug = {"mode": "train", "rollouts": rollouts, "step": 1}
    first = resolved({"model": {"path": "m"}, "data": {}, "debug": debug})
    assert await begin(first, None, Relative()) == Progress()
    before = checkpoint_before(DebugSpec(mode="train", rollouts=rollouts, step=3))
    assert before == folder.checkpoints / "step-2"
    with pytest.raises(ValueError, match=r"no checkpoint of step 5, which step 6 started from"):
        checkpoint_before(DebugSpec(mode="train", rollouts=rollouts, step=6))
