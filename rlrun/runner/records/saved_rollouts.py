"""Writes groups as lines of JSON: short ones for people, or whole ones that another job can train on.

    Group -> one line per sample -> rollouts/step-N.jsonl.zst of a run -> Group

Whole lines hold arrays as base64 of their little-endian bytes, so that they are read back bit for bit. Images
are stored beside the file (saved_images.py).
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.plugins.types import Group, Prompt, Row, Sample, Status, TurnReward, VersionSpan
from rlrun.runner.records.encoded_arrays import (
    FLOAT_DTYPE,
    INT_DTYPE,
    decode_array,
    decode_experts,
    decode_mask,
    encode_array,
    encode_experts,
    encode_mask,
)
from rlrun.runner.records.packed_lines import UnreadableFile, read_records, write_lines
from rlrun.runner.records.saved_images import (
    FindImage,
    find_encoded,
    find_in_folder,
    image_fields,
    placed_images,
    row_images,
)
from rlrun.specs.paths import display_path
from rlrun.specs.step_names import ROLLOUTS, Kind, step_name

_WEIGHTS = ("cross_entropy", "policy_weights", "kl_weights")
"""The weights that a rollout may give to tokens."""
_ARRAYS = {
    **dict.fromkeys(("prompt_tokens", "response_tokens"), INT_DTYPE),
    **dict.fromkeys(("log_probs", "trainer_log_probs", "loss_mask", "advantages"), FLOAT_DTYPE),
    **dict.fromkeys(_WEIGHTS, FLOAT_DTYPE),
}
"""The fields of a record that are arrays, with their dtypes."""
_NO_IMAGES = find_encoded({})
TOKEN_BUDGET = 16_384
"""Response tokens per file whose log-probs are saved for people to read: about 100 KB."""


def rollout_path(folder: Path, step: int, kind: Kind = "step") -> Path:
    """Returns the path of a step's samples in a run's `rollouts/`."""
    return folder / step_name(step, ROLLOUTS, kind)


def write_records(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Writes one line per record."""
    write_lines(path, (json.dumps(record, ensure_ascii=False, default=str) for record in records))


def map_records(samples: Iterable[tuple[Group, Sample]], *, whole: bool) -> Iterator[dict[str, Any]]:
    """Yields the record of each sample; without `whole`, only the first ones have their tokens.

    These are the samples that fit into TOKEN_BUDGET together.
    """
    num_tokens = 0
    for group, sample in samples:
        num_tokens += len(sample.tokens)
        if whole:
            yield whole_record(group, sample)
        elif num_tokens <= TOKEN_BUDGET:
            yield readable_record(group, sample) | token_fields(sample)
        else:
            yield readable_record(group, sample)


def read_groups(path: Path) -> list[Group]:
    """Returns the groups of a file of whole lines. Raises ValueError if the file does not have them."""
    try:
        return records_to_groups(read_records(path), find_in_folder(path.parent))
    except UnreadableFile:
        raise
    except KeyError as error:
        raise ValueError(
            f"{display_path(path)} has samples without {error}: it was written for people to read. Run the "
            "job that wrote it with debug.save_rollouts = true"
        ) from None
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise ValueError(f"{display_path(path)} has a sample that cannot be read: {error}") from None


def readable_record(group: Group, sample: Sample) -> dict[str, Any]:
    """Returns the fields of a sample that people read."""
    row = group.prompt.row
    turns = [[turn.end, turn.reward] for turn in sample.turn_rewards]
    return {
        "id": sample.id,
        "row": row.id,
        "dataset": row.metadata.get("source"),
        "prompt": row.prompt,
        "response": sample.text,
        "label": row.label,
        "reward": sample.reward if sample.is_scored else None,
        "rewards": sample.rewards,
        **({"turn_rewards": turns} if turns else {}),
        **({} if sample.greedy_reward is None else {"greedy_reward": sample.greedy_reward}),
        **({} if sample.distilled is None else {"distilled": sample.distilled}),
        "status": sample.status,
        "tokens": len(sample.tokens),
        "trained_tokens": int(sample.loss_mask.sum()),
        "versions": [[span.version, span.start, span.end] for span in sample.versions],
        "failure": sample.failure,
        "info": sample.info,
        "details": sample.reward_details,
        "verdicts": sample.verdicts,
        **image_fields(sample),
    }


def token_fields(sample: Sample) -> dict[str, Any]:
    """Returns the fields that have a value for every token of the response."""
    fields = {
        "response_tokens": encode_array(sample.tokens, INT_DTYPE),
        "log_probs": encode_array(sample.log_probs, FLOAT_DTYPE),
        "loss_mask": encode_array(sample.loss_mask, FLOAT_DTYPE),
    }
    for name in ("advantages", *_WEIGHTS):
        if (values := getattr(sample, name)) is not None:
            fields[name] = encode_array(values, FLOAT_DTYPE)
    if sample.policy_log_probs is not None and sample.policy_log_probs is not sample.log_probs:
        fields["trainer_log_probs"] = encode_array(sample.policy_log_probs, FLOAT_DTYPE)
    return fields


def whole_record(group: Group, sample: Sample) -> dict[str, Any]:
    """Returns all fields of a sample that training on it needs."""
    prompt = sample.prompt
    return (readable_record(group, sample) | token_fields(sample)) | {
        "index": prompt.index,
        "metadata": dict(prompt.row.metadata),
        "execution": sample.execution_id,
        "reward_weights": sample.reward_weights,
        "prompt_tokens": encode_array(prompt.tokens, INT_DTYPE),
        "experts": encode_experts(sample.experts),
        "sampling_mask": encode_mask(sample.sampling_mask),
    }


def with_arrays(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a record with arrays in place of their encoded bytes; None where the record does not have one.

    Raises ValueError for a field that is not an encoded array.
    """
    return {**record} | {
        name: None if (text := record.get(name)) is None else decode_array(text, dtype)
        for name, dtype in _ARRAYS.items()
    }


def records_to_groups(
    records: Iterable[Mapping[str, Any]], find_image: FindImage = _NO_IMAGES
) -> list[Group]:
    """Returns the groups of whole records; the samples of a prompt must be adjacent.

    Raises KeyError for a record that is not whole, or an image that `find_image` does not have.
    """
    groups: list[Group] = []
    for record in records:
        prompt = _prompt(record, find_image)
        if not groups or groups[-1].prompt.index != record["index"]:
            groups.append(Group(prompt, []))
        first = groups[-1].prompt
        shared = np.array_equal(prompt.tokens, first.tokens) and prompt.images == first.images
        # a rollout may give samples of a group other prompts
        groups[-1].samples.append(_sample(first if shared else prompt, record, find_image))
    return groups


def _prompt(record: Mapping[str, Any], find_image: FindImage) -> Prompt:
    row = Row(
        record["row"],
        record["prompt"],
        record["label"],
        record["metadata"],
        images=row_images(record, find_image),
    )
    images = placed_images(record, "prompt", find_image)
    return Prompt(row, record["index"], decode_array(record["prompt_tokens"], INT_DTYPE), images)


def _sample(prompt: Prompt, record: Mapping[str, Any], find_image: FindImage) -> Sample:
    tokens = decode_array(record["response_tokens"], INT_DTYPE)
    log_probs, loss_mask = (decode_array(record[name], FLOAT_DTYPE) for name in ("log_probs", "loss_mask"))
    mask = decode_mask(record.get("sampling_mask"))
    weights = {name: decode_array(record[name], FLOAT_DTYPE) for name in _WEIGHTS if name in record}
    arrays = [tokens, log_probs, loss_mask, *weights.values()]
    lengths = [*map(len, arrays), len(tokens) if mask is None else len(mask)]
    if len(set(lengths)) > 1:
        raise ValueError(f"its tokens, log-probs and masks have different lengths: {lengths}")
    return Sample(
        id=record["id"],
        prompt=prompt,
        tokens=tokens,
        log_probs=log_probs,
        loss_mask=loss_mask,
        versions=tuple(VersionSpan(*span) for span in record["versions"]),
        status=Status(record["status"]),
        text=record["response"],
        execution_id=record["execution"],
        reward=math.nan if record["reward"] is None else record["reward"],
        rewards=record["rewards"],
        turn_rewards=tuple(TurnReward(*turn) for turn in record.get("turn_rewards", ())),
        reward_weights=record.get("reward_weights", {}),
        greedy_reward=record.get("greedy_reward"),
        failure=record["failure"],
        info=record["info"],
        reward_details=record.get("details", {}),
        verdicts=record.get("verdicts", []),
        experts=decode_experts(record["experts"]),
        sampling_mask=mask,
        cross_entropy=weights.get("cross_entropy"),
        policy_weights=weights.get("policy_weights"),
        kl_weights=weights.get("kl_weights"),
        images=placed_images(record, "response", find_image),
    )
