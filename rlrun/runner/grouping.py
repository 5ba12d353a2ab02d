"""Prompt -> request -> answers -> group, for rollouts and evaluation alike. Pure but for the decoder."""

from collections.abc import Sequence

import numpy as np

from rlrun.plugins.types import Group, Prompt, Sample, Status
from rlrun.runner.carriers import GenerateRequest, Generation, Sampling
from rlrun.runner.interfaces import Decoder
from rlrun.runner.seeds import sample_seed

_STATUS = {"stop": Status.COMPLETED, "length": Status.TRUNCATED, "abort": Status.ABORTED}


def request_for(
    prompt: Prompt, sampling: Sampling, num_samples: int, run_seed: int, purpose: str
) -> GenerateRequest:
    """The request for a prompt's samples; their seeds depend on run, purpose, prompt and number alone."""
    seeds = tuple(sample_seed(run_seed, purpose, prompt.index, number) for number in range(num_samples))
    return GenerateRequest(f"{purpose}-{prompt.index}", prompt.tokens, seeds, sampling)


def group_of(prompt: Prompt, generations: Sequence[Generation], decoder: Decoder) -> Group:
    """The finished samples of a prompt, decoded and ready to be scored."""
    return groups_of([prompt], [generations], decoder)[0]


def groups_of(
    prompts: Sequence[Prompt], answers: Sequence[Sequence[Generation]], decoder: Decoder
) -> list[Group]:
    """`group_of` for many prompts, decoded in one go."""
    flat = [generation for generations in answers for generation in generations]
    texts = iter(decoder.decode_batch([generation.tokens for generation in flat]))
    return [
        Group(prompt, [_sample(prompt, number, made, next(texts)) for number, made in enumerate(generations)])
        for prompt, generations in zip(prompts, answers, strict=True)
    ]


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


def _sample(prompt: Prompt, number: int, made: Generation, text: str) -> Sample:
    """Tokens, log-probs and mask come together here and nowhere else, so they cannot drift apart."""
    return Sample(
        id=f"{prompt.index}-{number}",
        prompt=prompt,
        tokens=made.tokens,
        log_probs=made.log_probs,
        loss_mask=np.ones(len(made.tokens), dtype=np.float32),
        versions=made.versions,
        status=_STATUS[made.finish],
        text=text,
    )
