"""A dump of a step of rlrun's own runs: the samples that `debug.save_rollouts` stores, with their settings.

runs/NAME/rollouts/step-N.jsonl.zst ┐
runs/NAME/spec.lock.json            ┴─▶ Dump, whose advantages are compared
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlrun.runner.conform.dump import Batch, Dump, parse_settings
from rlrun.runner.contracts.errors import DumpError
from rlrun.runner.records.lock import read_lock
from rlrun.runner.records.packed_lines import UnreadableFile, read_records
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.saved_rollouts import rollout_path, with_arrays
from rlrun.specs.paths import display_path
from rlrun.specs.reading.strict import as_json

_OF_TOKENS = ("response_tokens", "log_probs", "loss_mask", "advantages", "trainer_log_probs")
"""Fields with a value for each token of the response."""
_NEEDED = ("response_tokens", "log_probs", "loss_mask", "advantages", "reward", "index")


def dump_of_step(run: RunFolder, step: int) -> Dump:
    """Returns the batch of a step. Raises DumpError, with the cure, if the run does not store all of it."""
    path = rollout_path(run.rollouts, step)
    if not path.is_file():
        raise DumpError(f"{run.shown} has no samples of step {step} ({display_path(path)})")
    try:
        records = [with_arrays(record) for record in read_records(path)]
    except (UnreadableFile, ValueError, TypeError) as error:  # a field that is not an encoded array
        raise DumpError(f"{display_path(path)} cannot be read: {error}") from error
    try:
        spec = read_lock(run.lock)["spec"]
        keeps_all, settings_text = spec["debug"].get("save_rollouts"), _settings(run, step, spec)
    except (LookupError, TypeError, AttributeError) as error:
        raise DumpError(f"{display_path(run.lock)} is not the lock of a launch: it lacks {error}") from error
    if not keeps_all:
        raise DumpError(
            f"{run.shown} stores a part of each step's samples, and advantages compare those of a group: "
            "run it with debug.save_rollouts = true"
        )
    for record in records:
        if missing := [name for name in _NEEDED if record.get(name) is None]:
            raise DumpError(
                f"{display_path(path)}: sample {record.get('id')} has no {', '.join(missing)}, so its "
                "advantages cannot be compared"
            )
        lengths = {name: np.size(record[name]) for name in _OF_TOKENS if record.get(name) is not None}
        if len(set(lengths.values())) != 1:
            stated = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise DumpError(
                f"{display_path(path)}: sample {record.get('id')} has fields of different lengths ({stated})"
            )
    if not records:
        raise DumpError(f"{display_path(path)} has no samples")
    try:
        batch = _batch(records)
    except (TypeError, ValueError, OverflowError) as error:
        raise DumpError(f"{display_path(path)} does not hold samples of rlrun: {error}") from error
    if not np.isfinite(batch.rewards).all():
        row = int(np.flatnonzero(~np.isfinite(batch.rewards))[0])
        raise DumpError(f"{display_path(path)}: the reward of sample {records[row].get('id')} is not finite")
    if not batch.mask.any():
        raise DumpError(f"{display_path(path)}: no token of the step was trained")
    advantages = _padded([record["advantages"] for record in records], np.float32)
    settings = parse_settings(settings_text, display_path(path))
    return Dump(path, settings, batch, {"advantages": advantages})


def _batch(records: Sequence[dict[str, Any]]) -> Batch:
    engine = _padded([record["log_probs"] for record in records], np.float32)
    trainer = [record.get("trainer_log_probs") for record in records]
    whole = all(values is not None for values in trainer)
    return Batch(
        tokens=_padded([record["response_tokens"] for record in records], np.int64),
        mask=_padded([record["loss_mask"] for record in records], np.float32),
        log_probs=_padded(trainer, np.float32) if whole else engine,
        rewards=np.array([float(record["reward"]) for record in records], np.float64),
        groups=np.array([record["index"] for record in records], np.int64),
        sampling_log_probs=engine,
    )


def _settings(run: RunFolder, step: int, spec: dict[str, Any]) -> str:
    """Returns the settings of the run's lock that the loss depends on, as JSON."""
    rollout = {key: spec["rollout"][key] for key in ("temperature", "max_response_tokens")}
    return as_json(
        {
            "algorithm": spec["algorithm"],
            "trainer": {"reduction": spec["trainer"]["reduction"]},
            "rollout": rollout,
            "batch": {"source": f"rlrun, {run.name}, step {step}"},
        }
    )


def _padded(rows: Sequence[Any], dtype: Any) -> Any:
    """Returns rows of different lengths as one array, padded on the right with 0."""
    width = max(map(len, rows))
    return np.stack([np.pad(np.asarray(row, dtype), (0, width - len(row))) for row in rows])
