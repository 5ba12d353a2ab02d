"""Turns trajectories into samples and groups, for training and evaluation alike. No I/O but decoding."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from operator import attrgetter

from rlrun.plugins.generation import Trajectory
from rlrun.plugins.session import Chat
from rlrun.plugins.types import Group, Prompt, Sample, Status, last_samples


def groups_of(
    prompts: Sequence[Prompt],
    trajectories: Sequence[Sequence[Sequence[Trajectory]]],
    chat: Chat,
    first_number: int = 0,
) -> list[Group]:
    """Returns one group per prompt, ready to be scored; all texts are decoded in one call.

    `trajectories[i][k]` are those of execution `first_number` + k of prompt i.
    """
    undecoded = [
        trajectory
        for executions in trajectories
        for execution in executions
        for trajectory in execution
        if trajectory.text is None
    ]
    texts = iter(chat.decode_batch([turn.tokens for trajectory in undecoded for turn in trajectory.turns]))
    for trajectory in undecoded:
        turn_texts = [next(texts) for _ in trajectory.turns]
        trajectory.text = "\n".join(turn_texts)
    return [
        _group(prompt, executions, first_number)
        for prompt, executions in zip(prompts, trajectories, strict=True)
    ]


def greedy_samples(
    prompts: Sequence[Prompt], trajectories: Sequence[Sequence[Sequence[Trajectory]]], chat: Chat
) -> list[list[Sample]]:
    """Returns the samples of each prompt's greedy execution, to be scored; none for a prompt without one."""
    groups = groups_of(prompts, trajectories, chat)
    return [
        [
            replace(sample, id=f"{group.prompt.index}-greedy{place or ''}")
            for place, sample in enumerate(group.samples)
        ]
        for group in groups
    ]


def without_samples(group: Group, indices: Collection[int]) -> Group:
    """Returns the group without the samples at these indices."""
    dropped = set(indices)
    return Group(group.prompt, [sample for index, sample in enumerate(group.samples) if index not in dropped])


def without_status(group: Group, *statuses: Status) -> Group:
    """Returns the group without its samples that ended with one of these statuses."""
    return without_samples(
        group, [index for index, sample in enumerate(group.samples) if sample.status in statuses]
    )


def best_and_worst(group: Group) -> Group | None:
    """Returns the samples with the highest and the lowest reward, in this order, as one execution: their loss
    is one number. None if fewer than two can be trained on.

    Of an execution of several samples, the last one is compared. Equal rewards keep the samples' order.
    """
    samples = [
        sample for sample in last_samples(group.samples) if sample.is_scored and sample.loss_mask.any()
    ]
    if len(samples) < 2:
        return None
    best = max(samples, key=attrgetter("reward"))
    worst = min(reversed(samples), key=attrgetter("reward"))
    execution = str(group.prompt.index)
    return Group(group.prompt, [replace(sample, execution_id=execution) for sample in (best, worst)])


def mask_truncated(group: Group) -> None:
    """Sets the loss mask of truncated samples to zero; their rewards still count for the advantages."""
    for sample in group.samples:
        if sample.status is Status.TRUNCATED:
            sample.stop_training()


def prompt_index(group: Group) -> int:
    """Returns the index of the group's prompt in the run: the sort key of groups."""
    return group.prompt.index


def _group(prompt: Prompt, executions: Sequence[Sequence[Trajectory]], first_number: int) -> Group:
    numbered = enumerate(executions, first_number)
    samples = (_samples(prompt, number, trajectories) for number, trajectories in numbered)
    return Group(prompt, [sample for execution in samples for sample in execution])


def _samples(prompt: Prompt, number: int, trajectories: Sequence[Trajectory]) -> list[Sample]:
    """Returns the samples of execution `number`; several share an execution id, and count once."""
    execution = f"{prompt.index}-{number}"
    if len(trajectories) == 1:
        return [_sample(prompt, execution, trajectories[0])]
    return [
        _sample(prompt, f"{execution}.{index}", trajectory, execution_id=execution)
        for index, trajectory in enumerate(trajectories)
    ]


def _sample(prompt: Prompt, id: str, trajectory: Trajectory, execution_id: str = "") -> Sample:
    tokens, log_probs, mask, versions = trajectory.response()
    assert trajectory.text is not None, "groups_of decodes before it makes samples"
    return Sample(
        id=id,
        prompt=_prompt_of(trajectory, prompt),
        tokens=tokens,
        log_probs=log_probs,
        loss_mask=mask,
        versions=versions,
        status=trajectory.status,
        text=trajectory.text,
        execution_id=execution_id,
        turn_rewards=trajectory.rewarded_turns(),
        failure=trajectory.failure,
        failure_type=trajectory.failure_type,
        info=trajectory.info,
        experts=trajectory.experts(),
        sampling_mask=trajectory.sampling_mask(),
        cross_entropy=trajectory.cross_entropy(),
        policy_weights=trajectory.policy_weights(),
        kl_weights=trajectory.kl_weights(),
        images=trajectory.response_images(),
    )


def _prompt_of(trajectory: Trajectory, prompt: Prompt) -> Prompt:
    """Returns the prompt of a sample, which is the session's unless the rollout made another one."""
    images = prompt.images if trajectory.prompt_images is None else trajectory.prompt_images
    if trajectory.prompt is prompt.tokens and images == prompt.images:
        return prompt
    return replace(prompt, tokens=trajectory.prompt, images=images)
