"""Trajectories -> samples -> group, for rollouts and evaluation alike. Pure but for the tokenizer."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rlrun.plugins.generation import Trajectory
from rlrun.plugins.session import Chat
from rlrun.plugins.types import Group, Prompt, Sample, Status


def groups_of(
    prompts: Sequence[Prompt], executions: Sequence[Sequence[Sequence[Trajectory]]], chat: Chat
) -> list[Group]:
    """The samples of each prompt, by execution, ready to be scored; all are decoded in one go."""
    flat = [one for prompt in executions for execution in prompt for one in execution if one.text is None]
    texts = iter(chat.decode_batch([turn.tokens for one in flat for turn in one.turns]))
    for one in flat:
        one.text = next(texts) if len(one.turns) == 1 else "\n".join([next(texts) for _ in one.turns])
    return [_group(prompt, own) for prompt, own in zip(prompts, executions, strict=True)]


def without(group: Group, status: Status) -> Group:
    """The group less its samples of that status."""
    return Group(group.prompt, [sample for sample in group.samples if sample.status is not status])


def mask_truncated(group: Group) -> Group:
    """The same group, its truncated samples not trained; their rewards still count in its statistics."""
    for sample in group.samples:
        if sample.status is Status.TRUNCATED:
            sample.loss_mask = np.zeros_like(sample.loss_mask)
    return group


def prompt_index(group: Group) -> int:
    """Sort key: the order of prompts in the run."""
    return group.prompt.index


def _group(prompt: Prompt, executions: Sequence[Sequence[Trajectory]]) -> Group:
    samples = (_samples(prompt, number, left) for number, left in enumerate(executions))
    return Group(prompt, [sample for own in samples for sample in own])


def _samples(prompt: Prompt, number: int, left: Sequence[Trajectory]) -> list[Sample]:
    """What execution `number` left; several samples share its id, and count once."""
    execution = f"{prompt.index}-{number}"
    if len(left) == 1:
        return [_sample(prompt, execution, left[0])]
    return [
        _sample(prompt, f"{execution}.{place}", one, execution_id=execution) for place, one in enumerate(left)
    ]


def _sample(prompt: Prompt, id: str, one: Trajectory, execution_id: str = "") -> Sample:
    tokens, log_probs, mask, versions = one.response()
    assert one.text is not None, "decoded before"
    return Sample(
        id=id,
        prompt=prompt if one.prompt is prompt.tokens else replace(prompt, tokens=one.prompt),
        tokens=tokens,
        log_probs=log_probs,
        loss_mask=mask,
        versions=versions,
        status=one.status,
        text=one.text,
        execution_id=execution_id,
        failure=one.failure,
        info=one.info,
        experts=one.experts(),
        sampling_mask=one.sampling_mask(),
    )
