"""Reads the data of a job before it starts: tokenizer, training rows, held-out rows. Takes seconds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.registry import build
from rlrun.plugins.row_checks import is_good, row_check
from rlrun.plugins.types import Group, Needs, Prompt, Row
from rlrun.runner.host.model_files import ModelFiles
from rlrun.runner.host.remote_code import CodeFile
from rlrun.runner.prompts.conversations import (
    Demonstration,
    encode_conversation,
    encode_demonstration,
    with_images,
)
from rlrun.runner.prompts.dataset import EAGER_ROWS, EncodedPrompt, PromptStream
from rlrun.runner.prompts.prefetcher import Prefetcher
from rlrun.runner.prompts.teacher_prompts import TeacherPrompts
from rlrun.runner.prompts.teacher_rows import teacher_check
from rlrun.runner.prompts.teacher_tokens import TeacherTokens, read_teacher_tokens
from rlrun.runner.prompts.template import naming
from rlrun.runner.prompts.tokenizer import Tokenizer
from rlrun.runner.rollouts.demonstrations import demonstration
from rlrun.runner.rollouts.evaluation import EvalSet, eval_set
from rlrun.specs.sections.data import DataSpec
from rlrun.specs.sections.evaluation import EvalDatasetSpec
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.rollout import RolloutFunctionSpec

Tokens = NDArray[np.int32]
Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Inputs:
    """A job's data; prompts are tokenised as they are read."""

    tokenizer: Tokenizer
    stream: PromptStream | None
    """The prompts of the job's steps; None for a job that only evaluates."""
    demonstrations: "Demonstrations | None"
    """None if the policy answers the prompts."""
    eval_sets: Sequence[EvalSet]
    rollout: Any
    """The rollout plugin, whose tools are described in the prompts; None if rows are demonstrations."""
    teacher_prompts: TeacherPrompts | None = None
    """Makes the teacher's own prompts; None: it reads the policy's."""
    teacher_tokens: TeacherTokens | None = None
    """The tokens of a teacher with a tokenizer of its own; None: it has the policy's."""
    eval_rollouts: Mapping[str, Any] = field(default_factory=dict)
    """The rollout plugins that evaluation datasets have of their own, by the names of the datasets."""

    @property
    def steps(self) -> PromptStream:
        """The prompts of the job's steps, of a job that has some."""
        assert self.stream is not None, "a job that only evaluates does not read the training rows"
        return self.stream

    async def close(self) -> None:
        """Closes the rollout plugins that have a `close`."""
        for rollout in (self.rollout, *self.eval_rollouts.values()):
            if hasattr(rollout, "close"):
                await rollout.close()

    def prompts(self, count: int) -> Prefetcher[Prompt]:
        """Returns a reader of prompts in batches of `count`."""
        stream = self.steps
        return Prefetcher(lambda: stream.take(count), stream.state, stream.restore, stream.steering)

    def groups(self, count: int) -> Prefetcher[Group]:
        """Returns a reader of demonstrations in batches of `count`."""
        demonstrations, stream = self.demonstrations, self.steps
        assert demonstrations is not None
        return Prefetcher(lambda: demonstrations.groups(stream.take(count)), stream.state, stream.restore)


def read_inputs(
    spec: Spec,
    model_folder: Path,
    needs: Needs,
    *,
    code: Sequence[CodeFile] | None = None,
    teacher: Path | None = None,
) -> Inputs:
    """Reads everything; ValueError for data that cannot be used.

    `needs`: those of the algorithm, which say whether the policy answers the prompts. `code`: the model's
    Python files that may run. `teacher`: the folder of the teacher of `teacher.path`.
    """
    tokenizer = Tokenizer(model_folder, spec.model.chat_template_args, code)
    limit = spec.rollout.max_prompt_tokens
    if not needs.rollout:
        source = build("data", spec.data.type, spec.data.params)
        keep = len(source) <= EAGER_ROWS
        demonstrations = Demonstrations(spec, tokenizer, needs, keep=keep)
        stream = PromptStream(source, demonstrations.encode, spec.data, limit, spec.seed)
        return Inputs(
            tokenizer, stream, demonstrations, (), None, _teacher_prompts(spec, tokenizer, needs, ())
        )
    tools: Tools = ()
    prompts: PromptStream | None = None
    function = _rollout(spec.rollout.function)
    if spec.debug.mode != "eval":
        tools = _shown_tools("rollout.function", spec.rollout.function, function, spec.data, tokenizer)
        check = _training_check(spec, needs)
        encode = _prompt_encoder(tokenizer, spec.data, tools, limit, check)
        source = build("data", spec.data.type, spec.data.params)
        samples = spec.rollout.samples_per_prompt
        prompts = PromptStream(source, encode, spec.data, limit, spec.seed, samples=samples)
    own = {
        dataset.name: _rollout(dataset.function)
        for dataset in spec.eval.datasets
        if dataset.function != spec.rollout.function
    }
    sets = [
        _eval_set(spec, dataset, tokenizer, own.get(dataset.name, function)) for dataset in spec.eval.datasets
    ]
    own_prompts = _teacher_prompts(spec, tokenizer, needs, tools)
    own_tokens = _teacher_tokens(spec, tokenizer, needs, teacher)
    return Inputs(tokenizer, prompts, None, sets, function, own_prompts, own_tokens, own)


def read_messages(spec: Spec) -> list[EvalSet]:
    """Returns the evaluation datasets of a model that is served elsewhere: their prompts have no tokens.

    Raises ValueError for data that cannot be used.
    """
    return [_messages(spec, dataset) for dataset in spec.eval.datasets]


def _messages(spec: Spec, dataset: EvalDatasetSpec) -> EvalSet:
    check = row_check(dataset.rewards)

    def encode(row: Row) -> EncodedPrompt:
        check(row)
        return EncodedPrompt(np.zeros(0, np.int32), as_messages=True)

    return eval_set(dataset, spec.rollout, _in_order(spec, dataset, encode).epoch())


def _teacher_tokens(
    spec: Spec, tokenizer: Tokenizer, needs: Needs, folder: Path | None
) -> TeacherTokens | None:
    """Returns the tokens of a teacher with a tokenizer of its own; None where it has the policy's."""
    if spec.teacher is None or spec.teacher.tokenizer is None or not needs.teacher or folder is None:
        return None
    return read_teacher_tokens(
        tokenizer,
        folder,
        ModelFiles(folder, None).config(),
        apply_chat_template=spec.data.apply_chat_template,
        max_length=ModelFiles(tokenizer.folder, None).config()["max_position_embeddings"],
    )


def _teacher_prompts(spec: Spec, tokenizer: Tokenizer, needs: Needs, tools: Tools) -> TeacherPrompts | None:
    """Returns what makes the teacher's own prompts; None where it reads the policy's."""
    if spec.teacher is None or spec.teacher.prompt is None or not needs.teacher:
        return None
    limits = [ModelFiles(tokenizer.folder, None).config()["max_position_embeddings"]]
    serving = [section for section in spec.engines if section.name in spec.teacher.engines]
    limits += [section.max_length for section in serving if section.max_length is not None]
    return TeacherPrompts(spec.teacher, tokenizer, spec.data.apply_chat_template, tools, min(limits))


def _training_check(spec: Spec, needs: Needs) -> Callable[[Row], None]:
    """Returns a check of a row by the rewards, and by the teacher's prompt."""
    check_for_rewards = row_check(spec.rewards)
    check_for_teacher = teacher_check(spec, needs)

    def check(row: Row) -> None:
        check_for_rewards(row)
        check_for_teacher(row)

    return check


class Demonstrations:
    """Tokenises rows for SFT, DPO and KTO. A row's responses are tokenised with its prompt, and fetched
    later.
    """

    def __init__(self, spec: Spec, tokenizer: Tokenizer, needs: Needs, *, keep: bool) -> None:
        """`needs`: those of the algorithm, which say what a row must have. `keep`: keeps all responses, for
        datasets that are tokenised as a whole.
        """
        self._needs = needs
        self._spec = spec
        self._tokenizer = tokenizer
        self._keep = keep
        self._responses: dict[str, list[Demonstration]] = {}
        self._check_for_teacher = teacher_check(spec, needs)

    def encode(self, row: Row) -> EncodedPrompt:
        """Returns the prompt. Raises ValueError if a response is missing or too long."""
        template, whole = self._spec.data.apply_chat_template, self._needs.scores
        if self._needs.labels:
            is_good(row)
        self._check_for_teacher(row)
        if (
            template
            and not (self._needs.pairs or self._needs.labels)
            and row.response is None
            and not isinstance(row.prompt, str)
        ):
            responses = encode_conversation(self._tokenizer, row)
            prompt = responses[0].prompt
        else:
            prompt, preferred = encode_demonstration(self._tokenizer, row, template, whole=whole)
            responses = [_trained_on_all(prompt, preferred, row.response)]
        if self._needs.pairs:
            if row.rejected is None:
                raise ValueError(f"row {row.id}: the algorithm needs pairs; set data.rejected_key")
            rejected_row = replace(row, response=row.rejected)
            _, rejected = encode_demonstration(self._tokenizer, rejected_row, template, whole=whole)
            responses.append(_trained_on_all(prompt, rejected, row.rejected))
        images = self._tokenizer.images
        with naming(row):
            placed = images.place(row.images)
            responses = [with_images(encoded, placed, images.placeholder) for encoded in responses]
        first = responses[0]
        for encoded in responses:
            self._check(row, len(encoded.prompt) + len(encoded.response) - len(first.prompt))
        self._responses[row.id] = responses
        return EncodedPrompt(first.prompt, first.prompt_images)

    def _check(self, row: Row, length: int) -> None:
        """`length` counts all tokens after the row's prompt, including those of earlier turns."""
        longest = self._spec.rollout.max_response_tokens
        if length > longest:
            raise ValueError(
                f"row {row.id}: the response has {length} tokens, rollout.max_response_tokens is {longest}"
            )

    def groups(self, prompts: Sequence[Prompt]) -> list[Group]:
        """Returns the demonstrations of prompts that were encoded just before."""
        groups = [self._group(prompt) for prompt in prompts]
        if self._needs.labels:
            add_mismatched(groups)
        if not self._keep:
            self._responses.clear()
        return groups

    def _group(self, prompt: Prompt) -> Group:
        samples = [
            replace(
                demonstration(
                    replace(prompt, tokens=encoded.prompt, images=encoded.prompt_images),
                    *(number, encoded.response, encoded.mask, encoded.text),
                ),
                images=encoded.response_images,
            )
            for number, encoded in enumerate(self._responses[prompt.row.id])
        ]
        return Group(prompt, samples)


def add_mismatched(groups: Sequence[Group]) -> None:
    """Adds to each group the response of the next group, which its prompt did not ask for and which is not
    trained.
    """
    responses = [group.samples[0] for group in groups]
    for group, own, other in zip(groups, responses, [*responses[1:], responses[0]], strict=True):
        mask = np.zeros(len(other.tokens), np.float32)
        mismatched = demonstration(own.prompt, 1, other.tokens, mask, other.text)
        group.samples.append(replace(mismatched, images=other.images))


def _trained_on_all(prompt: Tokens, response: Tokens, text: str | None) -> Demonstration:
    return Demonstration(prompt, response, np.ones(len(response), dtype=np.float32), text or "")


def _rollout(function: RolloutFunctionSpec) -> Any:
    return build("rollouts", function.type, function.params)


def _shown_tools(
    table: str, section: RolloutFunctionSpec, function: Any, data: DataSpec, tokenizer: Tokenizer
) -> Tools:
    """Returns the tools of a rollout.

    Raises ValueError if the prompts of `data` or the chat template cannot show them or their results.
    """
    tools: Tools = getattr(function, "tools", ())
    rows = table.rpartition(".")[0].replace("rollout", "data")
    if tools:
        if not data.apply_chat_template:
            raise ValueError(
                f"{table}: {section.type} tells the policy of its tools by the chat template; set "
                f"{rows}.apply_chat_template = true"
            )
        tokenizer.follow_up([{"role": "tool", "name": "tool", "content": "a result"}], tools)
    return tools


def _prompt_encoder(
    tokenizer: Tokenizer, data: DataSpec, tools: Tools, max_prompt_tokens: int, check: Callable[[Row], None]
) -> Callable[[Row], EncodedPrompt]:
    """Returns an encoder of rows, which raises ValueError for rows that the rewards cannot score."""

    def encode(row: Row) -> EncodedPrompt:
        check(row)
        tokens = tokenizer.encode_prompt(row, data.apply_chat_template, tools, max_prompt_tokens)
        if len(tokens) > max_prompt_tokens:
            return EncodedPrompt(tokens)  # only the beginning of the text, which does not have all images
        with naming(row):
            images = tokenizer.images.place(row.images)
            return EncodedPrompt(tokenizer.images.expand(tokens, images), images)

    return encode


def _eval_set(spec: Spec, dataset: EvalDatasetSpec, tokenizer: Tokenizer, function: Any) -> EvalSet:
    """Returns a held-out dataset as a whole, in its own order."""
    limit = dataset.max_prompt_tokens
    tools = _shown_tools("eval.datasets.function", dataset.function, function, dataset, tokenizer)
    encode = _prompt_encoder(tokenizer, dataset, tools, limit, row_check(dataset.rewards))
    return eval_set(dataset, spec.rollout, _in_order(spec, dataset, encode).epoch())


def _in_order(spec: Spec, dataset: EvalDatasetSpec, encode: Callable[[Row], EncodedPrompt]) -> PromptStream:
    source = build("data", dataset.type, dataset.params)
    in_order = dataset.model_copy(update={"shuffle": False})
    return PromptStream(source, encode, in_order, dataset.max_prompt_tokens, spec.seed)
