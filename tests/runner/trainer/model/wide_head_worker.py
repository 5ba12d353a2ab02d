"""One rank of the float32 head's tests: `RANK WORLD_SIZE PORT LAYOUTS OUT`; layouts share one process group.

The head's own hidden states and the gradients of its log-probs are recorded, and a plain float32 head is
computed from them: what the layers before it round does not matter.
"""

import json
import sys
from pathlib import Path

import torch.distributed as dist

from rlrun.runner.batches.packing import all_micro_batches
from tests.runner.trainer.trainer_cases import TEMPERATURE, make_rank, make_sequences, make_spec, plan

BUDGET = 60


def record(head):
    """Every call's hidden states, targets, log-probs and, once they are known, gradients of the log-probs."""
    calls, forward = [], head.forward

    def recorded(hidden):
        log_probs, entropy = forward(hidden)
        rows, targets = head.query.rows, head.query.targets
        call = {"hidden": hidden.detach()[0, rows].float(), "targets": targets, "found": log_probs.detach()}
        calls.append(call)
        if log_probs.requires_grad:
            log_probs.register_hook(lambda gradients: call.update(gradients=gradients))
        return log_probs, entropy

    head.forward = recorded
    return calls


def measure(folder, parallel, head_dtype, *, rank=0, world_size=1, port=None):
    """The largest error of a log-prob, and the relative error of the gradient of the head's weights."""
    algorithm = {"type": "grpo"}
    settings = {"dtype": "bfloat16", "head_dtype": head_dtype, "logits_chunk": 16, "lr": 1e-12}
    spec = make_spec(folder, parallel, algorithm, **settings, max_grad_norm=1e9, max_tokens_per_rank=BUDGET)
    trainer = make_rank(folder, spec, rank=rank, world_size=world_size, port=port)
    calls = record(trainer.policy.model.decoders[0].lm_head)
    masters = dict(trainer.policy.parameters.gather())
    name = "lm_head.weight" if "lm_head.weight" in masters else "model.embed_tokens.weight"
    weight = everywhere(masters[name], world_size).bfloat16().float().requires_grad_()
    sequences = make_sequences()
    steps = plan(sequences, spec)
    trainer.policy.log_probs(sequences, all_micro_batches(steps))
    trainer.policy.train(sequences, steps)
    worst, loss = 0.0, 0.0
    for call in calls:
        logits = call["hidden"] @ weight.t() / TEMPERATURE
        log_probs = logits.log_softmax(-1).gather(1, call["targets"][:, None])[:, 0]
        worst = max([worst, *(log_probs.detach() - call["found"]).abs().tolist()])
        loss += (log_probs * call.get("gradients", 0.0)).sum()
    loss.backward()
    if parallel.get("fsdp", 1) > 1:
        dist.all_reduce(weight.grad)
    parameters = trainer.policy.parameters
    parameters.masters = {name: master.grad for name, master in parameters.masters.items()}
    gradient = dict(parameters.gather())[name]
    error = float((gradient - weight.grad).norm() / weight.grad.norm()) if rank == 0 else 0.0
    return trainer, {"log_probs": worst, "gradient": error}


def everywhere(tensor, world_size):
    if world_size > 1:
        dist.broadcast(tensor, 0)
    return tensor


def main(rank, world_size, port, layouts, out):
    found = []
    for folder, parallel in layouts:
        trainer, errors = measure(folder, parallel, "float32", rank=rank, world_size=world_size, port=port)
        found.append(errors)
    (Path(out) / f"{world_size}-{rank}.json").write_text(json.dumps(found))
    trainer.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]), sys.argv[5])
