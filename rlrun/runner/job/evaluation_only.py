"""A run that only evaluates: engines and rewards, without a trainer and without steps.

datasets ─▶ what they can show ─▶ samples, each kept as soon as it is scored ─▶ metrics of step 0, eval-0
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from rlrun.plugins.types import Group
from rlrun.runner.checkpoints.saving import Checkpoints
from rlrun.runner.job.assembly import RunningJob
from rlrun.runner.job.build_job import make_evaluator
from rlrun.runner.job.job import NoBatches, ProcessRecords, Progress, RolloutJob
from rlrun.runner.job.step_end import evaluate_first, saved_when_stopped
from rlrun.runner.job.stopping import StopRequest
from rlrun.runner.records.journal import Journal
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.sample_files import read_earlier
from rlrun.runner.records.statistics import detectable_difference
from rlrun.runner.rollouts.evaluation import EvalSet, Evaluator
from rlrun.specs.sections.job import Spec


async def evaluate_alone(
    spec: Spec,
    running: RunningJob,
    folder: RunFolder,
    journal: Journal,
    say: Callable[[str], None],
    *,
    stop: StopRequest,
) -> None:
    """Evaluates the model that the job's engines serve, as `evaluate_datasets` does."""

    def evaluator(earlier: Mapping[str, Sequence[Group]]) -> Evaluator:
        return make_evaluator(spec, running, journal, earlier)

    sets = running.inputs.eval_sets
    await evaluate_datasets(
        spec, sets, evaluator, folder=folder, journal=journal, say=say, processes=running, stop=stop
    )


async def evaluate_datasets(
    spec: Spec,
    sets: Sequence[EvalSet],
    make: Callable[[Mapping[str, Sequence[Group]]], Evaluator],
    *,
    folder: RunFolder,
    journal: Journal,
    say: Callable[[str], None],
    processes: ProcessRecords,
    stop: StopRequest,
) -> None:
    """Evaluates a model on every dataset, except for samples that an earlier launch of the run finished.

    `make` returns the evaluator, and gets the groups of these samples by dataset. A run that is asked to stop
    keeps its finished samples, and returns.
    """
    earlier = read_earlier(folder)
    folder.take_back(-1)
    for line in evaluation_notes(sets):
        say(line)
    if num_samples := sum(len(group.samples) for groups in earlier.values() for group in groups):
        say(f"continues with the {num_samples:,} samples that are finished")
    checkpoints = Checkpoints(folder.checkpoints, spec.checkpoint.keep)
    job = RolloutJob(
        steps=0,
        source=NoBatches(),
        journal=journal,
        checkpoints=checkpoints,
        evaluation=make(earlier),
        stop=stop,
        processes=processes,
    )
    journal.begin(0, job.steps, spec.model_dump(mode="json"))
    progress = Progress()
    async with saved_when_stopped(job, progress):
        await evaluate_first(job, progress)
    await journal.flush()
    if not stop.asked:
        folder.evaluated.unlink(missing_ok=True)  # rollouts/eval-0 has its samples now


def evaluation_notes(sets: Sequence[EvalSet]) -> Iterator[str]:
    """Yields how many samples an evaluation generates for each dataset, and what it can detect."""
    for dataset in sets:
        prompts, samples = len(dataset.prompts), dataset.settings.samples
        line = f"{dataset.name}: {prompts:,} prompts × {samples} = {prompts * samples:,} samples"
        size = detectable_difference(prompts, samples) if prompts > 1 else 1.0
        if size >= 1:
            line += "; that is too few to tell two models apart"
        else:
            line += (
                f"; two models whose pass rates differ by {size:.3f} or more are told apart in four of five "
                "comparisons (at rates near 0.5; less is needed near 0 and 1)"
            )
        yield line
