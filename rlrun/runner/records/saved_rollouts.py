"""Writes groups as lines of JSON: short ones for people, or whole ones that another job can train on.

    Group -> one line per sample -> rollouts/step-N.jsonl.zst of a run -> Group

Whole lines hold arrays as base64 of their little-endian bytes, so that they are read back bit for bit.
"""

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.sampling_mask import SamplingMask
from rlrun.plugins.types import Group, Prompt, Row, Sample, Status, VersionSpan
from rlrun.runner.records.packed_lines import UnreadableFile, read_records, write_lines
from rlrun.specs.paths import display_path
from rlrun.specs.step_names import ROLLOUTS, step_name

INT_DTYPE, FLOAT_DTYPE = "<i4", "<f4"
"""Dtypes in the file: of tokens; of log-probs and masks."""
_SHORTS = "<i2"


def rollout_path(folder: Path, step: int) -> Path:
    """Returns the path of a step's samples in a run's `rollouts/`."""
    return folder / step_name(step, ROLLOUTS)


def write_samples(path: Path, samples: Iterable[tuple[Group, Sample]], *, whole: bool) -> None:
    """Writes samples with their prompts; with `whole`, also everything that training on them needs."""
    make_record = whole_record if whole else readable_record
    records = (make_record(group, sample) for group, sample in samples)
    write_lines(path, (json.dumps(record, ensure_ascii=False, default=str) for record in records))


def read_groups(path: Path) -> list[Group]:
    """Returns the groups of a file of whole lines. Raises ValueError if the file does not have them."""
    try:
        return records_to_groups(read_records(path))
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
    return {
        "id": sample.id,
        "row": row.id,
        "prompt": row.prompt,
        "response": sample.text,
        "label": row.label,
        "reward": sample.reward if math.isfinite(sample.reward) else None,
        "rewards": sample.rewards,
        "status": sample.status,
        "tokens": len(sample.tokens),
        "trained_tokens": int(sample.loss_mask.sum()),
        "versions": [[span.version, span.start, span.end] for span in sample.versions],
        "failure": sample.failure,
        "info": sample.info,
    }


def whole_record(group: Group, sample: Sample) -> dict[str, Any]:
    """Returns all fields of a sample that training on it needs."""
    prompt = sample.prompt
    return readable_record(group, sample) | {
        "index": prompt.index,
        "metadata": dict(prompt.row.metadata),
        "execution": sample.execution_id,
        "prompt_tokens": encode_array(prompt.tokens, INT_DTYPE),
        "response_tokens": encode_array(sample.tokens, INT_DTYPE),
        "log_probs": encode_array(sample.log_probs, FLOAT_DTYPE),
        "loss_mask": encode_array(sample.loss_mask, FLOAT_DTYPE),
        "experts": encode_experts(sample.experts),
        "sampling_mask": encode_mask(sample.sampling_mask),
    }


def records_to_groups(records: Iterable[Mapping[str, Any]]) -> list[Group]:
    """Returns the groups of whole records; the samples of a prompt must be adjacent.

    Raises KeyError for a record that is not whole.
    """
    groups: list[Group] = []
    for record in records:
        if not groups or groups[-1].prompt.index != record["index"]:
            groups.append(Group(_prompt(record), []))
        groups[-1].samples.append(_sample(groups[-1].prompt, record))
    return groups


def _prompt(record: Mapping[str, Any]) -> Prompt:
    row = Row(record["row"], record["prompt"], record["label"], record["metadata"])
    return Prompt(row, record["index"], decode_array(record["prompt_tokens"], INT_DTYPE))


def _sample(first: Prompt, record: Mapping[str, Any]) -> Sample:
    """Returns a sample that shares its group's prompt, unless a rollout gave it other prompt tokens."""
    recorded_prompt = _prompt(record)
    prompt = first if np.array_equal(recorded_prompt.tokens, first.tokens) else recorded_prompt
    return Sample(
        id=record["id"],
        prompt=prompt,
        tokens=decode_array(record["response_tokens"], INT_DTYPE),
        log_probs=decode_array(record["log_probs"], FLOAT_DTYPE),
        loss_mask=decode_array(record["loss_mask"], FLOAT_DTYPE),
        versions=tuple(VersionSpan(*span) for span in record["versions"]),
        status=Status(record["status"]),
        text=record["response"],
        execution_id=record["execution"],
        reward=math.nan if record["reward"] is None else record["reward"],
        rewards=record["rewards"],
        failure=record["failure"],
        info=record["info"],
        experts=decode_experts(record["experts"]),
        sampling_mask=decode_mask(record.get("sampling_mask")),
    )


def encode_experts(experts: NDArray[np.int16] | None) -> list[Any] | None:
    """Encodes a table of routed experts as its width and its numbers."""
    return None if experts is None else [experts.shape[1], encode_array(experts, _SHORTS)]


def decode_experts(record: Sequence[Any] | None) -> NDArray[np.int16] | None:
    """Decodes a table of routed experts."""
    return None if record is None else decode_array(record[1], _SHORTS).reshape(-1, record[0])


def encode_mask(mask: SamplingMask | None) -> list[str] | None:
    """Lengths and ids of a sampling mask."""
    return (
        None if mask is None else [encode_array(mask.lengths, INT_DTYPE), encode_array(mask.ids, INT_DTYPE)]
    )


def decode_mask(record: Sequence[str] | None) -> SamplingMask | None:
    """Decodes a sampling mask; records of earlier versions have none."""
    if record is None:
        return None
    lengths, ids = (decode_array(text, INT_DTYPE) for text in record)
    return SamplingMask(ids, lengths)


def encode_array(array: NDArray[Any], kind: str) -> str:
    """Encodes an array as base64 of its little-endian bytes."""
    return base64.b64encode(array.astype(kind).tobytes()).decode()


def decode_array(text: str, kind: str) -> NDArray[Any]:
    """Decodes an array; it has this machine's byte order and is writable."""
    array = np.frombuffer(base64.b64decode(text), kind)
    return array.astype(array.dtype.newbyteorder("="))
