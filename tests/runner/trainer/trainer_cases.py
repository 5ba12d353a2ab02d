"""Sequences, a reference in plain transformers, and process groups for the trainer's tests."""

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import torch
import transformers

from rlrun.models.families.table import NATIVE
from rlrun.plugins.sampling_mask import SamplingMask
from rlrun.runner.batches.packing import plan_steps
from rlrun.runner.contracts.carriers import TrainerSetup, TrainSequence
from rlrun.runner.host.network import free_port
from rlrun.runner.trainer.roles.rank import TrainerRank
from tests.resolved_specs import resolved
from tests.runner.batches.forests import random_sequences
from tests.runner.trainer.forked_ranks import rank_server
from tests.tiny_models import FOREIGN
from tests.waiting import wait_for_all

TEMPERATURE = 0.7
LAYERS = {"num_hidden_layers": 4}
CALM = {"scale": 0.05}
"""For random models with Gated DeltaNet: with larger weights, transformers' float32 log-probs differ by 3e-5
from its float64 ones."""

FOUR_HEADS = {"linear_num_key_heads": 4, "linear_num_value_heads": 8}
"""Heads of Gated DeltaNet for two tensor-parallel and two context-parallel ranks."""

MODELS = {
    "qwen3": {"family": "qwen3", **LAYERS},
    "qwen3-tied": {"family": "qwen3", "tied": True, **LAYERS},
    "llama": {
        "family": "llama",
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        **LAYERS,
    },
    "deepseek": {"family": "deepseek_v3", **LAYERS},
    "deepseek-v3.2": {"family": "deepseek_v32", **LAYERS},
    "glm": {"family": "glm4_moe", **LAYERS},
    "glm-air": {"family": "glm4_moe", "use_qk_norm": False, "n_group": 1, **LAYERS},
    "glm-flash": {"family": "glm4_moe_lite", **LAYERS},
    "glm-5": {"family": "glm_moe_dsa", "num_hidden_layers": 6, "index_skip_topk_offset": 2},
    "glm-5-ties": {"family": "glm_moe_dsa", "index_n_heads": 1, **LAYERS},
    "gpt-oss": {"family": "gpt_oss", "num_local_experts": 8, **LAYERS},
    "kimi": {"family": "kimi_k2", **LAYERS},
    "mimo": {"family": "mimo", **LAYERS},
    "minimax": {"family": "minimax_m2", **LAYERS},
    "qwen2": {
        "family": "qwen2",
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        **LAYERS,
    },
    "mistral": {"family": "mistral", "sliding_window": 8, **LAYERS},
    "mistral-tied": {"family": "mistral", "sliding_window": None, "tied": True, **LAYERS},
    "olmo2": {"family": "olmo2", **LAYERS},
    "qwen3-moe": {"family": "qwen3_moe", "num_experts": 8, **LAYERS},
    "qwen3-next": {"family": "qwen3_next", "num_experts": 8, "mlp_only_layers": [1], **CALM},
    "qwen3.5": {"family": "qwen3_5_text", "tied": True, **CALM, **FOUR_HEADS},
    "qwen3.5-moe": {"family": "qwen3_5_moe_text", "num_experts": 8, **CALM},
    "gemma3": {"family": "gemma3_text", "tied": True, **CALM},
    "mixtral": {"family": "mixtral", "num_local_experts": 8},
    "olmoe": {"family": "olmoe", "num_experts": 8},
}
NAMED = {str(model["family"]) for model in MODELS.values()}
MODELS |= {f"transformers-{name}": {"family": name} for name in sorted(FOREIGN.keys() - NAMED)}
"""A test model by name; without padding token, whose embedding transformers sets to zero and never trains."""


def make_sequences(count=9, vocab=320, seed=0, rollout=-3.0):
    rng = np.random.default_rng(seed)
    sequences = []
    for i in range(count):
        prompt, response = int(rng.integers(1, 20)), int(rng.integers(1, 40))
        sequences.append(
            TrainSequence(
                tokens=rng.integers(0, vocab, prompt + response).astype(np.int32),
                prompt_length=prompt,
                loss_mask=(rng.random(response) > 0.2).astype(np.float32),
                advantages=np.full(response, rng.normal(), np.float32),
                rollout_log_probs=np.full(response, rollout, np.float32),
                execution=str(i // 2),
            )
        )
    return sequences


def make_branches(vocab=320, seed=0):
    """Sequences that share prefixes: two groups of three samples, an agent's conversations, each of which
    continues the one before it or an earlier part of it, two equal samples, and two that share nothing.
    """
    rng = np.random.default_rng(seed)

    def grown(stem, count):
        return np.concatenate((stem, rng.integers(0, vocab, count))).astype(np.int32)

    nothing = np.zeros(0, np.int32)
    stems = [(grown(nothing, length), length) for length in (45, 70) for _ in range(3)]
    stems = [(stems[3 * (i // 3)][0], length) for i, (_, length) in enumerate(stems)]
    first = grown(nothing, 60)
    second = grown(first, 30)
    stems += [(first, 33), (second, 75), (second, 40), (first[:50], 50)]
    stems += [(grown(nothing, 9), 5), (grown(nothing, 80), 79)]
    tokens = [(grown(stem, int(rng.integers(1, 40))), prompt) for stem, prompt in stems]
    tokens.append(tokens[0])
    order = rng.permutation(len(tokens))
    return [_trained(*tokens[i], str(number // 2), rng) for number, i in enumerate(order)]


def make_tries(seed, vocab=320):
    """Sequences that continue random parts of each other, each with a prompt of random length."""
    rng = np.random.default_rng(seed)
    tokens = [each[:300] for each in random_sequences(rng, count=12, longest=140, vocabulary=vocab)]
    tokens = [each if len(each) > 1 else np.repeat(each, 2) for each in tokens]
    prompts = [int(rng.integers(1, len(each))) for each in tokens]
    return [_trained(*pair, str(i), rng) for i, pair in enumerate(zip(tokens, prompts, strict=True))]


def _trained(tokens, prompt, execution, rng):
    response = len(tokens) - prompt
    return TrainSequence(
        tokens=tokens,
        prompt_length=prompt,
        loss_mask=(rng.random(response) > 0.2).astype(np.float32),
        advantages=rng.normal(size=response).astype(np.float32),
        rollout_log_probs=np.full(response, -3.0, np.float32),
        execution=execution,
    )


def make_masked_sequences(vocab=320):
    """Like `make_sequences`; in two of three most tokens were drawn from a part of the vocabulary."""
    sequences = make_sequences(vocab=vocab)
    return [
        one if i % 3 == 2 else dataclasses.replace(one, sampling_mask=make_mask(one, vocab, seed=i))
        for i, one in enumerate(sequences)
    ]


def make_mask(sequence, vocab, seed):
    """Each response token among 0 (no mask) to 20 candidates; every tenth has almost the whole vocabulary."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 21, len(sequence.loss_mask)).astype(np.int32)
    lengths[::10] = vocab - 3
    own = sequence.tokens[sequence.prompt_length :]
    ids = [
        np.append(token, rng.permutation(np.delete(np.arange(vocab), token))[: length - 1])
        for token, length in zip(own, lengths, strict=True)
        if length
    ]
    return SamplingMask(np.concatenate(ids).astype(np.int32), lengths)


def excluded_logits(mask, count, vocab):
    """`[R, vocab]` minus infinity for tokens that could not be drawn, else 0."""
    excluded = torch.zeros(count, vocab)
    if mask is not None:
        for row, own in enumerate(np.split(mask.ids, np.cumsum(mask.lengths)[:-1])):
            if len(own):
                excluded[row] = -torch.inf
                excluded[row, own.astype(np.int64)] = 0
    return excluded


def make_spec(model, parallel=None, algorithm=None, adapter=None, **trainer):
    family = json.loads((Path(model) / "config.json").read_text())["model_type"]
    implementation = "torchtitan" if family in NATIVE else "transformers"
    defaults = {"steps": 1, "dtype": "float32", "lr": 1e-2, "eps": 1e-4, "max_tokens_per_rank": 100}
    defaults["share_prefixes"] = False
    if (algorithm or {}).get("type") in ("sft", "dpo", "bradley_terry"):
        defaults["global_batch_size"] = 1  # the tests make their own batches
    return resolved(
        {
            "model": {"path": str(model), "implementation": implementation, "adapter": adapter},
            "data": {},
            "rollout": {"temperature": TEMPERATURE},
            "algorithm": algorithm or {"type": "grpo", "entropy_coef": 0.1},
            "engine": {"dtype": "float32"},
            "deterministic": True,
            "trainer": defaults | trainer | {"parallel": parallel or {}},
        }
    )


NUMBERS = itertools.count(1)


def make_rank(model, spec, *, rank=0, world_size=1, port=None, optimizer_steps=10, critic_only=0, **folders):
    return TrainerRank(
        TrainerSetup(
            spec_json=spec.model_dump_json(),
            model_folder=str(model),
            rank=rank,
            device="cpu",
            world_size=world_size,
            master_addr="127.0.0.1",
            master_port=next(NUMBERS) if port is None else port,
            threads=1,
            optimizer_steps=optimizer_steps,
            critic_only=critic_only,
            **{f"{role}_folder": str(folder) for role, folder in folders.items() if folder is not None},
        )
    )


def plan(sequences, spec, optimizer_steps=1):
    return plan_steps(
        sequences,
        optimizer_steps=optimizer_steps,
        reduction=spec.trainer.reduction,
        max_batch_tokens=spec.trainer.max_tokens_per_rank,
        max_length=512,
        max_response_tokens=64,
        data_degree=spec.trainer.parallel.data_degree,
        share_prefixes=bool(spec.trainer.share_prefixes),
    )


class Reference:
    """The same step in plain transformers and torch, a sequence at a time."""

    def __init__(self, folder, spec):
        is_multimodal = "text_config" in json.loads((Path(folder) / "config.json").read_text())
        kind = (
            transformers.AutoModelForImageTextToText if is_multimodal else transformers.AutoModelForCausalLM
        )
        self.model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        self.spec = spec

    def log_probs(self, sequence):
        chosen, entropy, _ = self.statistics(sequence)
        return chosen, entropy

    def statistics(self, sequence):
        """Log-probs, entropies and sums of squared probabilities of the response."""
        tokens = torch.from_numpy(sequence.tokens.astype(np.int64))
        logits = self.model(input_ids=tokens[None]).logits[0].float() / TEMPERATURE
        logits = logits[sequence.prompt_length - 1 : -1]
        excluded = excluded_logits(sequence.sampling_mask, *logits.shape)
        everything = (logits + excluded).log_softmax(-1)
        chosen = everything.gather(1, tokens[sequence.prompt_length :, None])[:, 0]
        entropy = -(everything.exp() * everything.where(excluded == 0, 0)).sum(1)
        return chosen, entropy, everything.exp().square().sum(1)

    def gradients(self, sequences, scale, entropy_coef):
        """HF-named gradients of the policy-gradient loss at ratio 1 with an entropy bonus."""
        self.model.zero_grad()
        for i, sequence in enumerate(sequences):
            chosen, entropy = self.log_probs(sequence)
            advantages, mask = torch.from_numpy(sequence.advantages), torch.from_numpy(sequence.loss_mask)
            ratio = (chosen - chosen.detach()).exp()
            loss = -(ratio * advantages) - entropy_coef * entropy
            (scale[i] * (loss * mask).sum()).backward()
        named = self.model.named_parameters()
        return self.stored(
            {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in named}
        )

    def step(self):
        """HF-named weights after one AdamW step on the gradients at hand."""
        trainer = self.spec.trainer
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), trainer.max_grad_norm)
        named = list(self.model.named_parameters())
        decayed = [p for name, p in named if p.ndim > 1 and not name.endswith("bias")]
        others = [p for name, p in named if p.ndim == 1 or name.endswith("bias")]
        torch.optim.AdamW(
            [{"params": decayed}, {"params": others, "weight_decay": 0.0}],
            lr=trainer.lr,
            betas=trainer.betas,
            eps=trainer.eps,
            weight_decay=trainer.weight_decay,
        ).step()
        weights = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        return self.stored(weights), float(norm)

    def stored(self, tensors):
        """The tensors by the names that checkpoints have."""
        split = split_experts(tensors)
        return mixtral_names(split) if self.model.config.model_type in ("minimax_m2", "mixtral") else split


def split_experts(tensors):
    """transformers stacks experts in memory; on disk each has its own tensors."""
    result = {}
    for name, value in tensors.items():
        if f"{name}_bias" in tensors:  # gpt-oss's, as they are stored
            result[name] = value
        elif name.endswith("experts.gate_up_proj"):
            prefix, inner = name.removesuffix("gate_up_proj"), value.shape[1] // 2
            for i, expert in enumerate(value):
                result[f"{prefix}{i}.gate_proj.weight"] = expert[:inner]
                result[f"{prefix}{i}.up_proj.weight"] = expert[inner:]
        elif name.endswith("experts.down_proj"):
            prefix = name.removesuffix("down_proj")
            result |= {f"{prefix}{i}.down_proj.weight": expert for i, expert in enumerate(value)}
        else:
            result[name] = value
    return result


def mixtral_names(tensors):
    """Mixtral and MiniMax-M2 have names of their own for experts."""
    renamed = {"mlp": "block_sparse_moe", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    return {
        ".".join(renamed.get(part, part) for part in name.split(".")): value
        for name, value in tensors.items()
    }


def run_ranks(script, world_size, arguments, folder):
    """Run a test worker on `world_size` processes: `script RANK WORLD_SIZE PORT-LIST ARGUMENTS OUT`."""
    port, logs = free_port("127.0.0.1"), [folder / f"rank-{rank}.log" for rank in range(world_size)]
    given = [str(world_size), str(port), json.dumps(arguments), str(folder)]
    ranks = [rank_server().start([str(script), str(rank), *given], log) for rank, log in enumerate(logs)]
    wait_for_all(ranks, logs, f"{Path(script).name} on {world_size} ranks")
