"""Makes the prompts that a teacher reads in place of the policy's (`teacher.prompt`).

    policy    prompt  P        + response R
    teacher   its own prompt P' + the same R    ─▶ its distribution of the same R tokens

The template gets the question, what its row says, and what is known of the sample when it is scored: a
solution of the same group, and feedback. A sample of which the template's solution and feedback are both
unknown, or whose prompt would be too long, is not distilled: the teacher knows nothing that the policy does
not. Such a sample keeps the policy's prompt, and its divergence and distance count as 0.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.types import Group, Row, Sample
from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.prompts.teacher_rows import question, teacher_row
from rlrun.runner.prompts.template import Tools
from rlrun.runner.prompts.tokenizer import Tokenizer
from rlrun.specs.sections.auxiliary_models import FEEDBACK, SOLUTION, TeacherSpec
from rlrun.specs.text_template import template_names

logger = logging.getLogger(__name__)
Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TeacherPrompts:
    """The template of a teacher's prompts, and how their tokens are made: as those of the policy's."""

    spec: TeacherSpec
    """Its `prompt` is set."""
    tokenizer: Tokenizer
    """The policy's, whose tokens and chat template the teacher shares."""
    apply_chat_template: bool
    tools: Tools
    """Those that the policy's prompts describe."""
    max_length: int
    """Longest sequence of the teacher, in tokens."""
    _unwritten: set[str] = field(default_factory=set)
    """The rows of which a prompt could not be written, each of which is reported once."""

    def __call__(self, groups: Sequence[Group], sequences: Sequence[TrainSequence]) -> list[TrainSequence]:
        """Returns the sequences of all samples, in order, as the teacher reads them, and sets `distilled` of
        the samples. Raises ValueError for a sample whose prompt is not that of its row.
        """
        known: dict[tuple[str, str], Tokens | None] = {}
        samples = [(group, sample) for group in groups for sample in group.samples]
        result = []
        for (group, sample), sequence in zip(samples, sequences, strict=True):
            read, tokens = sequence, self._tokens(group, sample, known)
            sample.distilled = tokens is not None and self._fits(tokens, sequence)
            if tokens is not None and sample.distilled:
                response = sequence.tokens[sequence.prompt_length :]
                tokens_of_both = np.concatenate([tokens, response])
                read = replace(sequence, tokens=tokens_of_both, prompt_length=len(tokens))
            result.append(replace(read, experts=None))  # the engine's belong to the policy's prompt
        return result

    def _tokens(
        self, group: Group, sample: Sample, known: dict[tuple[str, str], Tokens | None]
    ) -> Tokens | None:
        """Returns the prompt of one sample; None if there is nothing to tell the teacher, or if it cannot be
        written.
        """
        if not np.array_equal(sample.prompt.tokens, group.prompt.tokens):
            raise ValueError(
                f"sample {sample.id}: teacher.prompt changes the prompt of a row, and the rollout began this "
                "sample with another one: remove teacher.prompt"
            )
        template = str(self.spec.prompt)
        told = {SOLUTION: self._solution(group, sample), FEEDBACK: feedback_of(sample)}
        used = template_names(template) & set(told)
        if used and not any(told[name] for name in used):
            return None
        row = teacher_row(template, group.prompt.row, told)
        key = row.id, question(row)
        if key not in known:
            known[key] = self._encode(row)
        return known[key]

    def _encode(self, row: Row) -> Tokens | None:
        """Returns the tokens; None for texts that would forge a turn of the conversation."""
        try:
            return self.tokenizer.encode_prompt(row, self.apply_chat_template, self.tools)
        except ValueError as error:
            if row.id not in self._unwritten:
                self._unwritten.add(row.id)
                logger.warning("samples of a row are not distilled: teacher.prompt: %s", error)
            return None

    def _solution(self, group: Group, sample: Sample) -> str:
        """Returns the text of the group's first successful sample of another execution; "" without one."""
        return next(
            (
                other.text
                for other in group.samples
                if other.execution != sample.execution
                and other.status.is_finished
                and other.reward >= self.spec.success_reward
            ),
            "",
        )

    def _fits(self, tokens: Tokens, sequence: TrainSequence) -> bool:
        """Returns whether the prompt is short enough, by the spec and beside the response."""
        limit, response = self.spec.max_prompt_tokens, len(sequence.loss_mask)
        return len(tokens) + response <= self.max_length and (limit is None or len(tokens) <= limit)


def feedback_of(sample: Sample) -> str:
    """Returns the texts named `feedback` in the tables that rewards returned, and in the rollout's notes."""
    tables = (*sample.reward_details.values(), sample.info)
    texts = (table.get(FEEDBACK) for table in tables)
    return "\n".join(text.strip() for text in texts if isinstance(text, str) and text.strip())
