"""Runs for the tests of the view, written as rlrun writes them, and damaged or old ones."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.runner.records.encoded_arrays import encode_array
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.saved_rollouts import rollout_path, write_records
from rlrun.runner.sweeps.sweep_folder import SweepFolder
from rlrun.runner.sweeps.trials import trial_of
from rlrun.specs.step_names import Kind

PIECES = {1: "4", 2: "2", 3: {"hex": "e282"}, 4: {"hex": "ac"}, 5: " tool"}
HOSTILE = '<script>document.title="broken"</script><img src=x onerror="document.title=1"> \u202egnp.exe\u202c'


def write_run(path: Path, steps: int = 4, state: Mapping[str, Any] | None = None) -> RunFolder:
    """Writes a run whose steps have two groups of four samples each, and an evaluation after every second."""
    folder = RunFolder(path)
    path.mkdir(parents=True, exist_ok=True)
    folder.make()
    write_state(folder, steps, state or {})
    folder.metrics.write_text("".join(metrics_line(step) for step in range(1, steps + 1)))
    folder.vocabulary.write_text("".join(f"{json.dumps([*item])}\n" for item in PIECES.items()))
    spec = {"name": path.name, "trainer": {"lr": 1e-5, "steps": steps}}
    folder.lock.write_text(json.dumps({"model": {"sha256": "0"}, "spec": spec}))
    for step in range(1, steps + 1):
        write_step(folder, step, [record(step, line) for line in range(8)])
        spans = [
            ["driver", "rollout", 0.0, 1.0],
            ["driver", "train", 1.0, 3.0],
            ["engine 0", "requests", 0.1, 0.9],
        ]
        with folder.timeline.open("a") as file:
            file.write(json.dumps({"step": step, "time": 0.0, "spans": spans}) + "\n")
        if step % 2 == 0:
            write_step(folder, step, [record(step, line, dataset="held-out") for line in range(2)], "eval")
    return folder


def write_sweep(path: Path) -> SweepFolder:
    """Writes a sweep of three trials, of which the third waits and the second has the largest reward."""
    sweep = SweepFolder(path)
    path.mkdir()
    trials = [trial_of(number, {"trainer.lr": lr}) for number, lr in enumerate((1e-6, 1e-5, 1e-4))]
    sweep.write(trials, "rollout/reward/mean", larger=True)
    for steps, trial in zip((2, 3), trials[:2], strict=True):
        write_run(sweep.run_of(trial).path, steps)
    return sweep


def write_state(folder: RunFolder, step: int, state: Mapping[str, Any]) -> None:
    """Writes state.json of a run that is done, except for the given fields."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    owner = {"pid": 1, "host": "elsewhere", "boot_id": "b", "pid_namespace": 1, "start_ticks": 1}
    known = {"status": "done", "started": now, "updated": now, "step": step, "steps": step, "metrics": {}}
    folder.write_state(owner | known | {"error": None} | dict(state))


def write_readable_spec(folder: RunFolder) -> None:
    """Writes a spec that rlrun can read, which its diagnosis needs."""
    spec = {"model": {"path": "tiny"}, "data": {"type": "jsonl"}, "rewards": [{"type": "random"}]}
    lock = {"model": {"sha256": "0"}, "spec": spec | {"algorithm": {"type": "grpo"}}}
    folder.lock.write_text(json.dumps(lock))


def metrics_line(step: int) -> str:
    """Returns a line of metrics.jsonl."""
    metrics = {
        "rollout/reward/mean": step / 10,
        "rollout/rewards/judge": step / 10,
        "train/loss": 1 / step,
        "perf/step_time": 3.0,
        "perf/train_time": 2.0,
    }
    return json.dumps({"step": step} | metrics) + "\n"


def record(step: int, line: int, **changes: Any) -> dict[str, Any]:
    """Returns the record of one sample; in the first group rewards differ, in the second they are all 1."""
    group = line // 4
    reward = float(line % 2) if group == 0 else 1.0
    return {
        "id": f"{group}-{line % 4}",
        "row": f"row {group}",
        "dataset": None,
        "prompt": [{"role": "user", "content": f"question {group}"}],
        "response": f"answer {line} of step {step}",
        "label": "42",
        "reward": reward,
        "rewards": {"judge": reward},
        "status": "truncated" if line == 7 else "completed",
        "tokens": 10 * (line + 1),
        "trained_tokens": 10,
        "versions": [[step - 1, 0, 5]],
        "failure": None,
        "info": {},
        "details": {"judge": {"score": reward, "reason": f"reason {line}"}},
        "verdicts": [],
        "response_tokens": encode_array(np.array([1, 2, 3, 4, 5]), "<i4"),
        "log_probs": encode_array(np.array([-0.1, -2.0, -0.5, -0.2, 0.0]), "<f4"),
        "loss_mask": encode_array(np.array([1, 1, 1, 1, 0]), "<f4"),
        "advantages": encode_array(np.full(5, reward - 0.5), "<f4"),
        "trainer_log_probs": encode_array(np.array([-0.1, -2.5, -0.5, -0.2, 0.0]), "<f4"),
    } | changes


def write_images(folder: RunFolder, *images: bytes) -> list[str]:
    """Writes PNG files beside the samples of a run; returns their digests."""
    digests = [hashlib.sha256(image).hexdigest() for image in images]
    (folder.rollouts / "images").mkdir(exist_ok=True)
    for digest, image in zip(digests, images, strict=True):
        (folder.rollouts / "images" / f"{digest}.png").write_bytes(image)
    return digests


def old_record(step: int, line: int) -> dict[str, Any]:
    """Returns a record as the first versions wrote it: without reasons, verdicts, tokens and datasets."""
    newer = {"details", "verdicts", "dataset", "response_tokens", "log_probs", "loss_mask", "advantages"}
    return {
        name: value for name, value in record(step, line).items() if name not in newer | {"trainer_log_probs"}
    }


def write_step(
    folder: RunFolder, step: int, records: Iterable[Mapping[str, Any]], kind: Kind = "step"
) -> Path:
    """Writes a file of samples, and returns its path."""
    path = rollout_path(folder.rollouts, step, kind)
    write_records(path, records)
    return path
