"""Creates the source of groups that a spec asks for."""

from pathlib import Path

from rlrun.plugins.registry import build
from rlrun.plugins.validation import needs_of
from rlrun.runner.contracts.interfaces import RolloutContext
from rlrun.runner.host.model_files import ModelFiles
from rlrun.runner.job.inputs import Inputs
from rlrun.runner.job.job import BatchSource
from rlrun.runner.job.starting_point import checkpoint_before
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.rollouts.asynchronous import AsynchronousSource
from rlrun.runner.rollouts.demonstrations import DemonstrationSource
from rlrun.runner.rollouts.filtering import Filters
from rlrun.runner.rollouts.partial import PartialSource
from rlrun.runner.rollouts.saved_source import SavedSource
from rlrun.runner.rollouts.synchronous import SynchronousSource
from rlrun.runner.scoring.scorer import unique_names
from rlrun.specs.sections.job import Spec


def policy_source(spec: Spec, policy: RolloutContext, inputs: Inputs) -> BatchSource:
    """Returns a source of the policy's samples: synchronous, asynchronous or partial."""
    rollout = spec.rollout
    prompts = inputs.prompts(rollout.oversample)
    filters = filters_of(spec)
    if rollout.partial:
        strategy = build("buffers", rollout.buffer.type, rollout.buffer.params)
        return PartialSource(rollout, policy, prompts, filters, strategy)
    kind = SynchronousSource if rollout.mode == "sync" else AsynchronousSource
    return kind(rollout, policy, prompts, filters)


def filters_of(spec: Spec) -> Filters:
    """Returns the filters of a spec, each with the name that its drops are counted under."""
    built = [build("filters", section.type, section.params) for section in spec.filters]
    return Filters(list(zip(unique_names(spec.filters), built, strict=True)))


def demonstration_source(inputs: Inputs, batch_size: int) -> BatchSource:
    """Returns a source of the demonstrations in the rows."""
    return DemonstrationSource(inputs.groups(batch_size))


def saved_source(spec: Spec, last: int, model: ModelFiles) -> SavedSource | None:
    """Returns the samples that `debug.mode = "train"` trains on up to step `last`; None for other modes.

    Raises ValueError if samples of some steps do not exist.
    """
    if spec.debug.mode != "train":
        return None
    assert spec.debug.rollouts is not None, "a rule of the spec requires it"
    checkpoint_before(spec.debug)
    run, first = RunFolder(Path(spec.debug.rollouts)), spec.debug.step or 1
    masked = spec.rollout.sampling_mask
    pairs = needs_of(spec).pairs
    vocabulary, fraction = model.config()["vocab_size"], spec.debug.fraction
    return SavedSource(run, first, last, vocabulary, fraction=fraction, masked=masked, pairs=pairs)
