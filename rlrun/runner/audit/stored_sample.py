"""One line of a file of samples, checked for its form."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlrun.plugins.types import Group, Prompt, Row, Sample, Status, TurnReward, VersionSpan
from rlrun.runner.records.encoded_arrays import decode_mask
from rlrun.runner.records.saved_rollouts import with_arrays


@dataclass(frozen=True, slots=True)
class StoredSample:
    """A sample as a file has it. What the file leaves out is empty in `sample`."""

    line: int
    dataset: str
    """The name of an evaluation's dataset; "" for samples of training."""
    sample: Sample
    has_tokens: bool
    """Whether the tokens and their values are stored. Otherwise they are zeros."""
    has_prompt: bool
    """Whether the tokens of the prompt are stored."""
    tokens: int
    """What the record says of the response's length."""
    trained_tokens: int

    @property
    def id(self) -> str:
        """The sample's id."""
        return self.sample.id

    @property
    def index(self) -> int:
        """The position of its prompt in the run."""
        return self.sample.prompt.index

    @property
    def is_masked(self) -> bool:
        """Whether some tokens that the policy generated are not trained on."""
        return bool(((self.sample.loss_mask == 0) & (self.sample.log_probs != 0)).any())


def read_sample(line: int, record: Mapping[str, Any]) -> StoredSample:
    """Returns the sample of a record. Raises ValueError, which says what is wrong, for another form."""
    try:
        values = with_arrays(record)
        sample, has_tokens = _sample(values)
        return StoredSample(
            line=line,
            dataset=_dataset(values),
            sample=sample,
            has_tokens=has_tokens,
            has_prompt=values["prompt_tokens"] is not None,
            tokens=_whole(values, "tokens"),
            trained_tokens=_whole(values, "trained_tokens"),
        )
    except KeyError as error:
        raise ValueError(f"it has no {error}") from None
    except (TypeError, AttributeError) as error:
        raise ValueError(f"it cannot be read: {error}") from None


def groups_of(samples: list[StoredSample]) -> list[Group]:
    """Returns the groups of samples, in the order of their prompts."""
    groups: dict[int, Group] = {}
    for stored in samples:
        group = groups.setdefault(stored.index, Group(stored.sample.prompt, []))
        group.samples.append(stored.sample)
    return [groups[index] for index in sorted(groups)]


def _sample(values: Mapping[str, Any]) -> tuple[Sample, bool]:
    has_tokens = values["response_tokens"] is not None
    length = len(values["response_tokens"]) if has_tokens else _whole(values, "tokens")
    arrays = {
        name: values[name]
        for name in (
            *("log_probs", "loss_mask", "advantages", "trainer_log_probs"),
            *("cross_entropy", "policy_weights", "kl_weights"),
        )
        if values[name] is not None
    }
    lengths = {name: len(array) for name, array in arrays.items() if len(array) != length}
    if lengths:
        raise ValueError(f"it has {length} tokens, and of other arrays: {lengths}")
    zeros = np.zeros(length, np.float32)
    execution = values.get("execution") or (values["id"].partition(".")[0] if "." in values["id"] else "")
    sample = Sample(
        id=values["id"],
        prompt=_prompt(values),
        tokens=values["response_tokens"] if has_tokens else np.zeros(length, np.int32),
        log_probs=arrays.get("log_probs", zeros),
        loss_mask=arrays.get("loss_mask", zeros),
        versions=tuple(VersionSpan(*map(int, span)) for span in values["versions"]),
        status=Status(values["status"]),
        text=values["response"],
        execution_id=execution,
        reward=_reward(values["reward"]),
        rewards={name: _reward(reward) for name, reward in values["rewards"].items()},
        turn_rewards=tuple(
            TurnReward(int(end), _reward(reward)) for end, reward in values.get("turn_rewards", ())
        ),
        reward_weights=values.get("reward_weights", {}),
        failure=values["failure"],
        info=values["info"],
        reward_details=values.get("details", {}),
        verdicts=values.get("verdicts", []),
        sampling_mask=decode_mask(values.get("sampling_mask")),
        cross_entropy=arrays.get("cross_entropy"),
        policy_weights=arrays.get("policy_weights"),
        kl_weights=arrays.get("kl_weights"),
        advantages=arrays.get("advantages"),
        distilled=None if (distilled := values.get("distilled")) is None else bool(distilled),
        policy_log_probs=arrays.get("trainer_log_probs"),
    )
    return sample, has_tokens


def _prompt(values: Mapping[str, Any]) -> Prompt:
    index, _, number = str(values["id"]).partition("-")
    if not index.isdecimal() or not number:
        raise ValueError(f"its id is {values['id']!r}, not <prompt>-<number>")
    tokens = values["prompt_tokens"]
    row = Row(values["row"], values["prompt"], values["label"], values.get("metadata", {}))
    return Prompt(row, int(index), np.zeros(0, np.int32) if tokens is None else tokens)


def _reward(value: Any) -> float:
    """Returns a reward; nan for None."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"its reward is {value!r}, not a number")
    return value


def _whole(values: Mapping[str, Any], name: str) -> int:
    value = values[name]
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is {value!r}, not a number of tokens")
    return value


def _dataset(values: Mapping[str, Any]) -> str:
    """Returns the dataset of an evaluation's sample; in training `dataset` is what the row's metadata say."""
    return values.get("dataset") or ""
