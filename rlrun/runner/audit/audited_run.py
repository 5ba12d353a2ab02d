"""A run's folder as checks read it. Nothing is written to it, and no model is loaded.

spec.lock.json ─▶ spec, needs       rollouts/*.jsonl.zst ─▶ batches, one at a time
metrics.jsonl  ─▶ steps             model folder, data   ─▶ tokenizer, prompts, when a check asks
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar, get_args

from rlrun.models.json_files import read_json_object
from rlrun.plugins.registry import PluginError
from rlrun.plugins.types import Needs, Prompt, Sample
from rlrun.plugins.validation import needs_of
from rlrun.runner.audit.stored_sample import StoredSample, read_sample
from rlrun.runner.audit.violation import NotChecked, Violation
from rlrun.runner.contracts.errors import JobError, RunFolderError
from rlrun.runner.job.inputs import Inputs, read_inputs
from rlrun.runner.prompts.tokenizer import Tokenizer
from rlrun.runner.records.lock import data_hashes, read_lock
from rlrun.runner.records.metrics_file import MetricsLine, read_lines
from rlrun.runner.records.packed_lines import UnreadableFile, read_records
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.rollouts.settings import RolloutSettings, rollout_settings
from rlrun.runner.scoring.scorer import Scorer
from rlrun.specs.sections.evaluation import EvalDatasetSpec
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.rollout import RolloutFunctionSpec
from rlrun.specs.sections.scoring import RewardSpec
from rlrun.specs.step_names import ROLLOUTS, Kind, list_step_paths

Metrics = Mapping[str, float | None]
Loaded = TypeVar("Loaded")
_REPEATABLE = (
    *("exact_match", "math", "deepscaler", "dapo", "f1", "gpqa"),
    *("format", "length", "repetition", "reasoning_gym"),
)
"""Rewards that read nothing but the response and the row, so that they give the same value each time."""
_READ_METADATA = ("reasoning_gym",)
"""Those among them that read the row's metadata, which only whole records have."""


@dataclass(slots=True)
class Batch:
    """One file of samples."""

    kind: Kind
    step: int
    file: str
    """Its path below the run's folder."""
    samples: list[StoredSample] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    """(place, what is wrong) of each line that is not a sample, and of a file that cannot be read."""

    def place(self, stored: StoredSample) -> str:
        """Returns the file and the line of a sample."""
        return f"{self.file}:{stored.line}"

    def violation(self, stored: StoredSample, message: str) -> Violation:
        """Returns what is wrong with one of its samples."""
        return Violation(message, self.step, (stored.id,), self.place(stored))


class AuditedRun:
    """One run."""

    def __init__(self, folder: RunFolder) -> None:
        """Raises RunFolderError if the folder has no lock that this version of rlrun can read."""
        self.folder = folder
        self.lock = read_lock(folder.lock)
        try:
            self.spec = Spec.model_validate(self.lock["spec"])
        except ValueError as error:
            raise RunFolderError(
                f"{folder.shown}: this version of rlrun cannot read its spec: {error}"
            ) from None
        self.lines: Sequence[MetricsLine] = read_lines(folder.metrics)
        self.steps: dict[int, Metrics] = {
            line.metrics["step"]: line.metrics for line in self.lines if line.metrics is not None
        }
        """The metrics of each step."""
        self.state = folder.current_state()
        self.trained: dict[int, int] = {}
        """The step that trained on each prompt; `trained_once` fills it."""
        self.removed: tuple[int, Sequence[StoredSample]] = (-1, ())
        """A step, and the samples that it stored and did not train on; `recomputed` sets it."""
        self._taken: dict[int, Prompt] = {}

        self.rescorer = _Rescorer(self.spec)
        """Scores samples again."""

    def close(self) -> None:
        """Ends the process that scores samples again, if there is one."""
        self.rescorer.close()

    @cached_property
    def needs(self) -> Needs:
        """What the algorithm needs. Raises NotChecked if it cannot be built here."""
        try:
            return needs_of(self.spec)
        except PluginError as error:
            raise NotChecked(str(error)) from None

    @property
    def trains_on_rollouts(self) -> bool:
        """Whether the run generated what it trained on, step by step."""
        return self.needs.rollout and self.spec.debug.mode is None

    @property
    def model_folder(self) -> Path:
        """The folder of the model's configuration and tokenizer. Raises NotChecked if it is not here."""
        folder = Path(self.lock["model"].get("folder", ""))
        if not (folder / "config.json").is_file():
            raise NotChecked(f"the model's folder {folder} is not here")
        return folder

    @cached_property
    def vocabulary_size(self) -> int:
        """The number of tokens that the model knows."""
        config = read_json_object(self.model_folder / "config.json")
        size = config.get("vocab_size", config.get("text_config", {}).get("vocab_size"))
        if not isinstance(size, int):
            raise NotChecked("the model's config.json has no vocab_size")
        return size

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises NotChecked if it cannot be loaded."""
        return _or_raise(self._tokenizer)

    @cached_property
    def _tokenizer(self) -> Tokenizer | NotChecked:
        try:
            return Tokenizer(self.model_folder, self.spec.model.chat_template_args)
        except ValueError as error:
            return NotChecked(str(error))

    @cached_property
    def changed_data(self) -> list[str]:
        """The keys of the data's files that are not those of the launch."""
        before, now = self.lock.get("data", {}), dict(data_hashes(self.spec))
        return [key for key, digest in before.items() if now.get(key) != digest]

    @property
    def inputs(self) -> Inputs:
        """The run's data, read again as a launch does. Raises NotChecked if that is impossible."""
        return _or_raise(self._inputs)

    @cached_property
    def _inputs(self) -> Inputs | NotChecked:
        spec = self.spec
        try:
            inputs = read_inputs(spec, self.model_folder, self.needs)
        except (ValueError, OSError, ImportError) as error:
            return NotChecked(f"the data cannot be read again: {error}")
        asyncio.run(inputs.close())
        return inputs

    def prompts(self, dataset: str, last: int) -> Mapping[int, Prompt]:
        """Returns the prompts of training (""), or of an evaluation dataset, at least up to index `last`.

        Raises NotChecked if the run cannot repeat their order.
        """
        if dataset:
            sets = {each.name: each for each in self.inputs.eval_sets}
            if dataset not in sets:
                raise NotChecked(f"the spec has no evaluation dataset {dataset}")
            return {prompt.index: prompt for prompt in sets[dataset].prompts}
        stream = self.inputs.stream
        if stream is None or stream.steering is not None:
            raise NotChecked("the data source chooses its rows from the results of earlier ones")
        try:
            missing = last + 1 - len(self._taken)
            self._taken |= {prompt.index: prompt for prompt in stream.take(max(0, missing))}
        except ValueError as error:
            raise NotChecked(f"the data cannot be read again: {error}") from None
        return self._taken

    def dataset(self, name: str) -> EvalDatasetSpec | None:
        """Returns an evaluation dataset of the spec; None for training, or a name that it does not have."""
        return next((each for each in self.spec.eval.datasets if each.name == name), None)

    def settings(self, stored: StoredSample) -> RolloutSettings:
        """Returns how a sample was to be generated."""
        return rollout_settings(self.spec.rollout, self.dataset(stored.dataset))

    def rollout_function(self, stored: StoredSample) -> RolloutFunctionSpec:
        """Returns the rollout plugin that answered a prompt."""
        return (self.dataset(stored.dataset) or self.spec.rollout).function

    def batches(self) -> Iterator[Batch]:
        """Yields the files of samples, by step; each is read when it is its turn."""
        paths = {
            (step, kind): path
            for kind in get_args(Kind)
            for step, path in list_step_paths(self.folder.rollouts, ROLLOUTS, kind).items()
        }
        for (step, kind), path in sorted(paths.items()):
            yield _read(kind, step, path)

    def is_whole(self, batch: Batch) -> bool:
        """Returns whether a file has every sample that the step trained on."""
        spec = self.spec
        if not self.needs.rollout:
            return False
        return len({stored.index for stored in batch.samples}) >= spec.rollout.batch_size


def _or_raise(value: Loaded | NotChecked) -> Loaded:
    if isinstance(value, NotChecked):
        raise value
    return value


def _read(kind: Kind, step: int, path: Path) -> Batch:
    batch = Batch(kind, step, f"{path.parent.name}/{path.name}")
    try:
        for number, record in enumerate(read_records(path), start=1):
            try:
                stored = read_sample(number, record if kind == "eval" else {**record, "dataset": None})
                batch.samples.append(stored)
            except ValueError as error:
                batch.problems.append((f"{batch.file}:{number}", str(error)))
    except UnreadableFile as error:
        batch.problems.append((batch.file, str(error)))
    return batch


class _Rescorer:
    """The rewards of a run; their process starts with the first samples."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._runner = asyncio.Runner()
        self._scorer: Scorer | None = None

    def score(self, samples: Sequence[Sample], rewards: Sequence[RewardSpec]) -> list[Sample]:
        """Returns copies of samples, scored again. Raises NotChecked if a reward need not repeat itself."""
        others = [reward.type for reward in rewards if reward.type not in _REPEATABLE or reward.type_key]
        if others:
            raise NotChecked(f"the reward {others[0]} may give another value the second time")
        if any(reward.type in _READ_METADATA for reward in rewards) and not all(
            sample.prompt.row.metadata for sample in samples
        ):
            raise NotChecked("rewards read the rows' metadata (debug.save_rollouts stores them)")
        copies = [replace(sample, reward=float("nan"), rewards={}, failure=None) for sample in samples]
        try:
            self._runner.run(self._score(copies, rewards))
        except JobError as error:
            raise NotChecked(f"the rewards cannot be computed again: {error}") from None
        return copies

    async def _score(self, samples: Sequence[Sample], rewards: Sequence[RewardSpec]) -> None:
        if self._scorer is None:
            spec = self._spec
            scoring = spec.scoring.model_copy(update={"workers": 1, "on_error": "drop"})
            evaluated = [dataset.rewards for dataset in spec.eval.datasets]
            self._scorer = Scorer(spec.rewards, scoring, evaluated=evaluated)
            await self._scorer.start()
        await self._scorer.grader_of(rewards).score(samples)

    def close(self) -> None:
        """Ends the process."""
        if self._scorer is not None:
            self._runner.run(self._scorer.close())
        self._runner.close()
