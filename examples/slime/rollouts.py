"""Writes slime's rollout dumps as samples that `debug.mode = "train"` trains on (docs/running.md):

    python train.py … --save-debug-rollout-data 'dumps/{rollout_id}.pt'
    python rollouts.py runs/from-slime dumps/0.pt dumps/1.pt

Rollout n becomes step n + 1 of the folder. A dump is read as data: no code in it runs.
"""

import argparse
from itertools import groupby
from pathlib import Path

import numpy as np
import torch

from rlrun.plugins.types import Group, Prompt, Row, Sample, Status, VersionSpan
from rlrun.runner.records.saved_rollouts import rollout_path, whole_record, write_records


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes slime's rollout dumps for debug.rollouts.")
    parser.add_argument("target", type=Path, help="The folder to name as debug.rollouts.")
    parser.add_argument("dumps", nargs="+")
    parser.add_argument("--reward-key", help="slime's --reward-key")
    args = parser.parse_args()
    for dump in args.dumps:
        saved = torch.load(dump, weights_only=True)
        rollout = int(saved["rollout_id"])
        samples = sorted(saved["samples"], key=lambda sample: sample["group_index"])  # stable
        path = rollout_path(args.target / "rollouts", rollout + 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_records(
            path,
            [
                whole_record(group, sample)
                for index, members in groupby(samples, key=lambda sample: sample["group_index"])
                for group in [group_of(list(members), index, rollout, args.reward_key)]
                for sample in group.samples
            ],
        )
        print(f"{path}: {len(samples)} samples")


def group_of(members, index, rollout, reward_key):
    first = members[0]
    row = Row(str(index), first["prompt"], first.get("label"), dict(first.get("metadata") or {}))
    group = Group(Prompt(row, index, prompt_tokens(first)), [])
    for number, saved in enumerate(members):
        group.samples.append(sample_of(saved, group.prompt, number, rollout, reward_key))
    return group


def sample_of(saved, prompt, number, rollout, reward_key):
    name, length = f"{prompt.index}-{number}", int(saved["response_length"])
    own = prompt_tokens(saved)
    if not np.array_equal(own, prompt.tokens):
        prompt = Prompt(prompt.row, prompt.index, own)
    if saved.get("rollout_log_probs") is None:
        raise SystemExit(f"sample {name} of rollout {rollout} has no rollout_log_probs, which training needs")
    mask = np.ones(length) if saved.get("loss_mask") is None else np.asarray(saved["loss_mask"])
    reward = saved["reward"] if reward_key is None else saved["reward"][reward_key]
    versions = [int(version) for version in saved.get("weight_versions") or () if str(version).isdigit()]
    execution = saved.get("rollout_id")
    return Sample(
        id=name,
        prompt=prompt,
        tokens=np.asarray(saved["tokens"][len(own) :], dtype=np.int32),
        log_probs=np.asarray(saved["rollout_log_probs"], dtype=np.float32),
        loss_mask=(mask * (not saved.get("remove_sample"))).astype(np.float32),
        versions=(VersionSpan(min(versions, default=rollout), 0, length),),
        status=Status(saved["status"]),
        text=saved["response"],
        execution_id=name if execution is None else f"{prompt.index}-execution-{execution}",
        reward=float(reward),
    )


def prompt_tokens(saved):
    tokens = np.asarray(saved["tokens"], dtype=np.int32)
    return tokens[: len(tokens) - int(saved["response_length"])]


if __name__ == "__main__":
    main()
