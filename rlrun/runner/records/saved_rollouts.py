"""Groups as lines of JSON: for people, and whole, for a job that goes on with them.

    Group -> a line a sample -> rollouts/step-N.jsonl.zst of a run -> Group

Whole lines hold arrays as base64 of their little-endian bytes: what is read is what was written, to the bit.
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

INTS, FLOATS = "<i4", "<f4"
"""Arrays of tokens; of log-probs and masks."""
_SHORTS = "<i2"


def rollout_file(folder: Path, step: int) -> Path:
    """Returns where a run's `rollouts/` has the samples of a step."""
    return folder / step_name(step, ROLLOUTS)


def write_samples(path: Path, samples: Iterable[tuple[Group, Sample]], *, whole: bool) -> None:
    """Write samples with their prompts. `whole`: with everything that training on them takes."""
    record = whole_record if whole else readable_record
    write_lines(path, (json.dumps(record(*one), ensure_ascii=False, default=str) for one in samples))


def read_groups(path: Path) -> list[Group]:
    """The groups of a file of whole lines. ValueError where it is none, or was written for people only."""
    try:
        return groups_of_records(read_records(path))
    except UnreadableFile:
        raise
    except KeyError as error:
        raise ValueError(
            f"{display_path(path)} has no {error} of its samples: it was written for people to read. Run the "
            "job that made it with debug.save_rollouts = true"
        ) from None
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise ValueError(f"{display_path(path)} has a sample that cannot be read: {error}") from None


def readable_record(group: Group, sample: Sample) -> dict[str, Any]:
    """A sample as a person looks at it."""
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
    """A sample with everything that training on it takes."""
    prompt = sample.prompt
    return readable_record(group, sample) | {
        "index": prompt.index,
        "metadata": dict(prompt.row.metadata),
        "execution": sample.execution_id,
        "prompt_tokens": text_of(prompt.tokens, INTS),
        "response_tokens": text_of(sample.tokens, INTS),
        "log_probs": text_of(sample.log_probs, FLOATS),
        "loss_mask": text_of(sample.loss_mask, FLOATS),
        "experts": experts_text(sample.experts),
        "sampling_mask": mask_text(sample.sampling_mask),
    }


def groups_of_records(records: Iterable[Mapping[str, Any]]) -> list[Group]:
    """The groups of whole records, samples of a prompt side by side. KeyError where one is not whole."""
    groups: list[Group] = []
    for record in records:
        if not groups or groups[-1].prompt.index != record["index"]:
            groups.append(Group(_prompt(record), []))
        groups[-1].samples.append(_sample(groups[-1].prompt, record))
    return groups


def _prompt(record: Mapping[str, Any]) -> Prompt:
    row = Row(record["row"], record["prompt"], record["label"], record["metadata"])
    return Prompt(row, record["index"], array_of(record["prompt_tokens"], INTS))


def _sample(first: Prompt, record: Mapping[str, Any]) -> Sample:
    """Samples of a group share their prompt, but for those that a rollout gave tokens of their own."""
    own = _prompt(record)
    prompt = first if np.array_equal(own.tokens, first.tokens) else own
    return Sample(
        id=record["id"],
        prompt=prompt,
        tokens=array_of(record["response_tokens"], INTS),
        log_probs=array_of(record["log_probs"], FLOATS),
        loss_mask=array_of(record["loss_mask"], FLOATS),
        versions=tuple(VersionSpan(*span) for span in record["versions"]),
        status=Status(record["status"]),
        text=record["response"],
        execution_id=record["execution"],
        reward=math.nan if record["reward"] is None else record["reward"],
        rewards=record["rewards"],
        failure=record["failure"],
        info=record["info"],
        experts=experts_of(record["experts"]),
        sampling_mask=mask_of(record.get("sampling_mask")),
    )


def experts_text(experts: NDArray[np.int16] | None) -> list[Any] | None:
    """Width and numbers of a table of experts."""
    return None if experts is None else [experts.shape[1], text_of(experts, _SHORTS)]


def experts_of(record: Sequence[Any] | None) -> NDArray[np.int16] | None:
    """The table again."""
    return None if record is None else array_of(record[1], _SHORTS).reshape(-1, record[0])


def mask_text(mask: SamplingMask | None) -> list[str] | None:
    """Lengths and ids of a sampling mask."""
    return None if mask is None else [text_of(mask.lengths, INTS), text_of(mask.ids, INTS)]


def mask_of(record: Sequence[str] | None) -> SamplingMask | None:
    """The mask again; None too for a record that was written before there were masks."""
    if record is None:
        return None
    lengths, ids = (array_of(text, INTS) for text in record)
    return SamplingMask(ids, lengths)


def text_of(array: NDArray[Any], kind: str) -> str:
    """An array as base64 of its little-endian bytes."""
    return base64.b64encode(array.astype(kind).tobytes()).decode()


def array_of(text: str, kind: str) -> NDArray[Any]:
    """The array of such a text, in this machine's byte order; it may be written to."""
    array = np.frombuffer(base64.b64decode(text), kind)
    return array.astype(array.dtype.newbyteorder("="))
