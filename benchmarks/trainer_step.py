"""A training step of rlrun against a plain loop of transformers and torch, on the same packed batch.

    python benchmarks/trainer_step.py [--size s|m] [--dtype bfloat16|float32] [--documents 64] [--threads 1]
                                      [--against plain torchtitan] [--shared [1024+256x8 …]]

Both sides hold the same weights, run the same micro-batches (documents packed under a token budget, positions
starting anew in each) and the same GRPO update at ratio 1 with entropy, and take turns in one process. The
plain side is what a careful user writes: autocast over float32 weights, transformers' own masks for packed
documents, fused AdamW, logits of response tokens alone. `--against torchtitan` is torchtitan's own model,
loss and optimizer in a loop (bare_torchtitan.py); what rlrun adds to the modules it trains is told by
trainer_overhead.py. Prints JSON: tokens a second of CPU time (of device
time on a GPU) for forward, backward, optimizer and the whole; the most memory that a step takes on top of
what is held between steps (weights and the optimizer's state); the share of the machine's own matrix-product
speed; and how far the two sides' log-probs differ.

`--shared` compares rlrun's step with `trainer.share_prefixes` and without instead, on one group of samples of
each shape, by default three (shared_prefixes.py says what it prints).
"""

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from bare_torchtitan import Torchtitan, adamw
from floor import matmul_rate
from peak import peak_bytes

from rlrun.models.vision import VisionTower
from rlrun.runner.batches.packing import all_micro_batches, plan_steps
from rlrun.runner.contracts.carriers import TrainerSetup, TrainSequence, TrainStep
from rlrun.runner.trainer.passes.packed_batch import make_pack
from rlrun.runner.trainer.roles.rank import TrainerRank
from rlrun.specs.sections.job import Spec
from tests.resolved_specs import resolved

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

SIZES = {
    "s": {"hidden_size": 256, "num_hidden_layers": 6, "intermediate_size": 768, "num_attention_heads": 4},
    "m": {"hidden_size": 512, "num_hidden_layers": 8, "intermediate_size": 1536, "num_attention_heads": 8},
    "l": {"hidden_size": 1024, "num_hidden_layers": 12, "intermediate_size": 3072, "num_attention_heads": 16},
}
VOCABULARY = {"s": 4096, "m": 8192, "l": 8192}
PARTS = ("forward", "backward", "optimizer")


def make_model(folder: Path, size: str) -> None:
    heads = SIZES[size]["num_attention_heads"]
    config = transformers.Qwen3Config(
        **SIZES[size],
        num_key_value_heads=heads // 2,
        head_dim=64,
        vocab_size=VOCABULARY[size],
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)


def make_sequences(documents: int, vocabulary: int, prompt: int = 32) -> list[TrainSequence]:
    """Lognormal response lengths around 96, at most 512."""
    rng = np.random.default_rng(0)
    sequences = []
    for i, length in enumerate(np.clip(rng.lognormal(np.log(96), 0.8, documents), 4, 512).astype(int)):
        sequences.append(
            TrainSequence(
                tokens=rng.integers(0, vocabulary, prompt + length).astype(np.int32),
                prompt_length=prompt,
                loss_mask=np.ones(length, np.float32),
                advantages=np.full(length, rng.normal(), np.float32),
                rollout_log_probs=np.full(length, -np.log(vocabulary), np.float32),
                execution=str(i),
            )
        )
    return sequences


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


class Bare:
    """A side of bare_torchtitan.py, timed."""

    def __init__(self, side: Torchtitan) -> None:
        self.side = side

    def step(self, sequences, step) -> dict[str, float]:
        device = self.side.device
        seconds = dict.fromkeys((*PARTS, "total"), 0.0)
        begin = now(device)
        for members in step.micro_batches[0]:
            start = now(device)
            loss = self.side.forward([sequences[i] for i in members])
            middle = now(device)
            loss.backward()
            seconds["forward"] += middle - start
            seconds["backward"] += now(device) - middle
        start = now(device)
        self.side.update()
        self.side.optimizer.zero_grad()
        seconds["optimizer"] = now(device) - start
        seconds["total"] = now(device) - begin
        return seconds


class Ours:
    def __init__(self, folder: Path, spec: Spec, threads: int) -> None:
        self.rank = TrainerRank(
            TrainerSetup(spec.model_dump_json(), str(folder), 0, DEVICE, 1, "127.0.0.1", 1, threads, 10**6)
        )
        self.device = self.rank._device

    def log_probs(self, sequences, step):
        found = self.rank.policy.log_probs(sequences, all_micro_batches([step]))
        return np.concatenate([found[i] for i in range(len(sequences))])

    def step(self, sequences, step) -> dict[str, float]:
        start = now(self.device)
        (metrics,) = self.rank.policy.train(sequences, [step])
        seconds = {"total": now(self.device) - start}
        self.rank.policy.optimizer.zero_grad()  # as the other sides, so that the peak counts the gradients
        wall = {part: metrics[f"perf/{part}_time"] for part in PARTS}
        scale = seconds["total"] / sum(wall.values())
        return seconds | {part: wall[part] * scale for part in PARTS}


class Plain:
    auto = transformers.AutoModelForCausalLM
    tower: VisionTower | None = None

    def __init__(self, folder: Path, spec: Spec, device: torch.device) -> None:
        self.model = self.auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").to(
            device
        )
        trainer = spec.trainer
        self.optimizer = adamw(self.model, trainer)
        self.max_norm = trainer.max_grad_norm
        self.half, self.device = trainer.dtype == "bfloat16", device

    def forward(self, pack) -> tuple[torch.Tensor, torch.Tensor]:
        precision = (
            torch.autocast(self.device.type, torch.bfloat16) if self.half else contextlib.nullcontext()
        )
        with precision:
            hidden = self.model.model(
                input_ids=pack.tokens, position_ids=pack.positions[None], use_cache=False
            )
            logits = self.model.lm_head(hidden.last_hidden_state[0, pack.rows])
        everything = logits.float().log_softmax(-1)
        entropy = -(everything.exp() * everything).sum(-1)
        return everything.gather(1, pack.targets[:, None])[:, 0], entropy

    @torch.no_grad()
    def log_probs(self, sequences, step):
        found = {}
        for members in step.micro_batches[0]:
            pack = make_pack([sequences[i] for i in members], 1, self.device, tower=self.tower)
            parts = self.forward(pack)[0].cpu().split(pack.response_lengths)
            found |= dict(zip(members, parts, strict=True))
        return torch.cat([found[i] for i in range(len(sequences))]).numpy()

    def step(self, sequences, step) -> dict[str, float]:
        seconds = dict.fromkeys((*PARTS, "total"), 0.0)
        begin = now(self.device)
        for members in step.micro_batches[0]:
            start = now(self.device)
            pack = make_pack([sequences[i] for i in members], 1, self.device, tower=self.tower)
            log_probs, _ = self.forward(pack)
            weights = [np.full(len(sequences[i].loss_mask), step.scale[i], np.float32) for i in members]
            advantages = [sequences[i].advantages for i in members]
            ratio = (log_probs - log_probs.detach()).exp()
            weight = torch.from_numpy(np.concatenate(weights) * np.concatenate(advantages)).to(self.device)
            loss = -torch.minimum(ratio * weight, ratio.clamp(0.8, 1.2) * weight).sum()
            middle = now(self.device)
            loss.backward()
            seconds["forward"] += middle - start
            seconds["backward"] += now(self.device) - middle
        start = now(self.device)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        seconds["optimizer"] = now(self.device) - start
        seconds["total"] = now(self.device) - begin
        return seconds


SIDES = {"plain": Plain, "torchtitan": lambda *args: Bare(Torchtitan(*args))}


def matrix_speed(dtype: torch.dtype, device: torch.device) -> float:
    """FLOP/s of a 2048³ product, the best of several; on a CPU of its time, whatever the threads."""
    if device.type == "cpu":
        return matmul_rate(dtype, torch.get_num_threads(), clock=time.process_time)
    a, b = (torch.randn(2048, 2048, device=device).to(dtype) for _ in range(2))
    times = []
    for _ in range(6):
        start = now(device)
        a @ b
        times.append(now(device) - start)
    return float(2 * 2048**3 / min(times))


def floating_point_operations(size: str, tokens: int, responses: int) -> float:
    """Returns the operations of a step's matrix products: 6 for each parameter and token, of the head for
    response tokens only.
    """
    hidden, layers = SIZES[size]["hidden_size"], SIZES[size]["num_hidden_layers"]
    heads, inner = SIZES[size]["num_attention_heads"], SIZES[size]["intermediate_size"]
    linear = layers * hidden * (3 * inner + 64 * (2 * heads + heads))
    return 6.0 * (linear * tokens + hidden * VOCABULARY[size] * responses)


def main() -> None:
    parser = step_parser()
    parser.add_argument("--against", nargs="+", choices=SIDES, default=["plain"])
    parser.add_argument("--shared", nargs="*", metavar="PROMPT+RESPONSExSAMPLES")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder, options.size)
        if options.shared is None:
            result = measure(folder, step_spec(folder, options), options)
        else:
            from shared_prefixes import compare  # which imports this module

            result = compare(folder, options)
        print(json.dumps(result, indent=2))


def step_parser(
    description: str | None = None, *, dtype: str = "bfloat16", documents: int = 64, repeat: int = 5
) -> argparse.ArgumentParser:
    """Returns a parser of the options that every benchmark of a training step has, with these defaults."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--size", choices=SIZES, default="s")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default=dtype)
    parser.add_argument("--documents", type=int, default=documents)
    parser.add_argument("--budget", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=repeat)
    return parser


def step_spec(folder: Path, options: argparse.Namespace, **trainer: object) -> Spec:
    """Returns the spec of a step with these options; `trainer`: further keys of `[trainer]`."""
    trainer |= {"steps": 1, "dtype": options.dtype, "max_tokens_per_rank": options.budget, "lr": 1e-6}
    return resolved({"model": {"path": str(folder)}, "data": {}, "trainer": trainer})


def one_step(sequences: list[TrainSequence], budget: int) -> TrainStep:
    """All of them in one optimizer step, in micro-batches of `budget` tokens."""
    (step,) = plan_steps(
        sequences,
        optimizer_steps=1,
        reduction="per_sample_mean",
        max_batch_tokens=budget,
        max_length=4096,
        max_response_tokens=512,
        data_degree=1,
    )
    return step


def measure(folder: Path, spec: Spec, options: argparse.Namespace) -> dict[str, object]:
    sequences = make_sequences(options.documents, VOCABULARY[options.size])
    step = one_step(sequences, options.budget)
    ours = Ours(folder, spec, options.threads)
    others = {name: SIDES[name](folder, spec, ours.device) for name in options.against}
    runs: dict[str, list[dict[str, float]]] = {"rlrun": [], **{name: [] for name in others}}
    difference = None
    if isinstance(plain := others.get("plain"), Plain):
        gaps = ours.log_probs(sequences, step) - plain.log_probs(sequences, step)
        difference = float(np.abs(gaps).mean())
    for _ in range(options.repeat + 1):
        for name, side in ({"rlrun": ours} | others).items():
            runs[name].append(side.step(sequences, step))
    peaks = {
        name: peak_bytes(lambda side=side: side.step(sequences, step), ours.device)
        for name, side in ({"rlrun": ours} | others).items()
    }
    tokens = sum(len(sequence.tokens) for sequence in sequences)
    responses = sum(len(sequence.loss_mask) for sequence in sequences)
    work = floating_point_operations(options.size, tokens, responses)
    speed = matrix_speed(getattr(torch, options.dtype), ours.device)
    result: dict[str, object] = {
        **vars(options),
        "device": ours.device.type,
        "tokens": tokens,
        "micro_batches": len(step.micro_batches[0]),
        "mean_abs_log_prob_difference": difference,
    }
    for side, measured in runs.items():
        seconds = {part: statistics.median(run[part] for run in measured[1:]) for part in (*PARTS, "total")}
        result[side] = {f"{part}_tokens_per_second": round(tokens / seconds[part]) for part in seconds} | {
            "seconds": round(seconds["total"], 4),
            "share_of_matrix_speed": round(work / seconds["total"] / speed, 3),
            "peak_mib": round(peaks[side] / 2**20, 1),
        }
    totals = {
        side: statistics.median(run["total"] for run in measured[1:]) for side, measured in runs.items()
    }
    result["time_over_rlrun"] = {name: round(totals[name] / totals["rlrun"], 3) for name in others}
    ours.rank.close()
    return result


if __name__ == "__main__":
    main()
