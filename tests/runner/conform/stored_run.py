"""The folder of a run of rlrun's own whose step has the batch of another trainer."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.plugins.types import Group, Prompt, Row, Sample, Status, VersionSpan
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.sample_files import SampleFiles
from tests.runner.conform.other_trainer import GROUPS, PAD, Trainer, batch_of


def stored(folder: Path, trainer: Trainer, **debug: Any) -> RunFolder:
    """Writes the step of a run as a job with `debug.save_rollouts` does."""
    run = RunFolder(folder / "runs" / "first")
    run.rollouts.mkdir(parents=True)
    lock: Mapping[str, Any] = {
        "spec": {
            "algorithm": {"type": "grpo"},
            "trainer": {"reduction": "per_sample_mean"},
            "rollout": {"temperature": 1.0, "max_response_tokens": 16},
            "debug": {"save_rollouts": True, **debug},
        },
        "model": {"sha256": "0"},
    }
    run.lock.write_text(json.dumps(lock))
    batch = batch_of(trainer)
    groups = [
        Group(Prompt(Row(str(number), "?"), number, np.array([5], np.int32)), []) for number in range(GROUPS)
    ]
    for row, number in enumerate(batch["groups"]):
        length = int((batch["tokens"][row] != PAD).sum())
        group = groups[int(number)]
        group.samples.append(
            Sample(
                id=f"{number}-{row}",
                prompt=group.prompt,
                tokens=batch["tokens"][row, :length].astype(np.int32),
                log_probs=batch["log_probs"][row, :length].astype(np.float32),
                loss_mask=batch["mask"][row, :length].astype(np.float32),
                versions=(VersionSpan(0, 0, length),),
                status=Status.COMPLETED,
                text="",
                reward=float(batch["rewards"][row]),
                advantages=np.full(length, batch["advantages"][row], np.float32),
            )
        )
    SampleFiles(run, keeps_every=True).write_step(3, groups, [])
    return run
