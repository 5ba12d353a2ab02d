"""One rank of the companions' test: `RANK WORLD_SIZE PORT FOLDERS OUT`."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import torch
from trainer_cases import make_rank, make_sequences, make_spec, plan

from rlrun.runner.packing import all_micro_batches, plan_steps


def main():
    rank, world_size, port = (int(value) for value in sys.argv[1:4])
    folders, out = json.loads(sys.argv[4]), Path(sys.argv[5])
    spec = make_spec(
        folders["policy"], {"tensor": world_size}, {"type": "ppo", "distillation": {}}, optimizer="muon"
    )
    sections = {"teacher": {"path": folders["teacher"]}, "critic": {"lr": 1e-2, "optimizer": "muon"}}
    spec = type(spec).model_validate(spec.model_dump(exclude_unset=True) | sections)
    trainer = make_rank(
        folders["policy"], spec, rank=rank, world_size=world_size, port=port, teacher=folders["teacher"]
    )
    sequences = make_sequences()
    settings = {"optimizer_steps": 1, "reduction": "per_sample_mean", "max_tokens": 100, "max_length": 512}
    aside = plan_steps(sequences, **settings, max_response_tokens=64, data_degree=world_size)
    batches = all_micro_batches(aside)
    result = {"teacher": trainer.teacher_log_probs(sequences, batches), "metrics": []}
    for _ in range(2):
        values = trainer.values(sequences, batches)
        mine = range(len(sequences))
        known = {
            i: dataclasses.replace(
                sequences[i], values=values[i], returns=np.ones(len(values[i]), np.float32)
            )
            for i in mine
            if i in values
        }
        result["metrics"] += trainer.train_critic(known, aside)
        (metrics,) = trainer.train(sequences, plan(sequences, spec))
        result["metrics"].append({name: value for name, value in metrics.items() if "train/" in name})
    result["values"] = trainer.values(sequences, batches)
    torch.save(result, out / f"{rank}.pt")
    trainer.close()


if __name__ == "__main__":
    main()
