"""Suggests the key that was probably meant: by spelling, by section, or by its name in other trainers."""

import types
from collections.abc import Iterator, Sequence
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from rlrun.specs.problems.other_trainers import Counterpart, counterpart, keys_by_name
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.problems.spelling import nearest, plain

OTHER_VALUES = {
    **dict.fromkeys(("bf16", "fp16", "float16", "half"), "bfloat16"),
    "fp32": "float32",
    "fp8": "float8",
    "int4": "int4_qat",
    "vllm": "sglang",
}
"""What other programs call the values of rlrun's keys."""
OTHER_NAMES = {
    "adam_beta1": "trainer.betas",
    "adam_beta2": "trainer.betas",
    "clip_grad": "trainer.max_grad_norm",
    "grad_clip": "trainer.max_grad_norm",
    "gradient_clipping": "trainer.max_grad_norm",
    "lr_decay_style": "trainer.schedule",
    "lr_scheduler": "trainer.schedule",
    "lr_warmup_iters": "trainer.warmup_steps",
    "min_lr": "trainer.min_lr_ratio",
    "num_steps": "trainer.steps",
    "num_rollout": "trainer.steps",
    "total_steps": "trainer.steps",
    "num_epoch": "trainer.epochs",
    "num_steps_per_rollout": "trainer.optimizer_steps",
    "max_tokens_per_gpu": "trainer.max_tokens_per_rank",
    "precision": "trainer.dtype",
    "tp": "trainer.parallel.tensor",
    "tp_size": "trainer.parallel.tensor",
    "tensor_model_parallel_size": "trainer.parallel.tensor",
    "tensor_parallel_size": "trainer.parallel.tensor",
    "cp": "trainer.parallel.context",
    "context_parallel_size": "trainer.parallel.context",
    "pp": "trainer.parallel.pipeline",
    "pipeline_model_parallel_size": "trainer.parallel.pipeline",
    "ep": "trainer.parallel.expert",
    "expert_model_parallel_size": "trainer.parallel.expert",
    "data_parallel_size": "trainer.parallel.fsdp",
    "dp": "trainer.parallel.fsdp",
    "dp_shard": "trainer.parallel.fsdp",
    "dp_replicate": "trainer.parallel.replicate",
    "n": "rollout.samples_per_prompt",
    "n_samples_per_prompt": "rollout.samples_per_prompt",
    "rollout_batch_size": "rollout.batch_size",
    "over_sampling_batch_size": "rollout.oversample",
    "max_new_tokens": "rollout.max_response_tokens",
    "max_tokens": "rollout.max_response_tokens",
    "rollout_max_response_len": "rollout.max_response_tokens",
    "rollout_max_prompt_len": "rollout.max_prompt_tokens",
    "rollout_temperature": "rollout.temperature",
    "hf_checkpoint": "model.path",
    "model_name": "model.path",
    "model_name_or_path": "model.path",
    "prompt_data": "data.path",
    "train_file": "data.path",
    "dataset": "data",
    "input_key": "data.prompt_key",
    "save_interval": "checkpoint.interval",
    "eval_interval": "eval.interval",
    "eval_steps": "eval.interval",
    "colocate": "cluster.placement",
    "num_gpus": "cluster.gpus_per_node",
    "num_gpus_per_node": "cluster.gpus_per_node",
    "actor_num_gpus_per_node": "cluster.gpus_per_node",
    "num_nodes": "cluster.nodes",
    "actor_num_nodes": "cluster.nodes",
    "num_engines": "engine.count",
    "eps_clip": "algorithm.clip",
    "clip_eps": "algorithm.clip",
    "eps_clip_high": "algorithm.clip_high",
    "advantage_estimator": "algorithm.type",
    "reward_model": "rewards",
    "rm_type": "rewards",
    "pp_size": "trainer.parallel.pipeline",
    "ep_size": "trainer.parallel.expert",
    "kl_coef": "algorithm.kl.in_reward.coef",
    "critic_lr": "critic.lr",
    "ref_update_interval": "reference.update_interval",
    "mem_fraction_static": "engine.sglang.mem_fraction_static",
    "gpu_memory_utilization": "engine.sglang.mem_fraction_static",
    "teacher_model": "teacher.path",
    "evaluation": "eval",
    "validation": "eval",
    "ckpt": "checkpoint",
    "save": "checkpoint",
    "policy": "model",
    "actor": "trainer",
    "optimization": "trainer",
    "train": "trainer",
    "generation": "rollout",
    "sampling": "rollout",
    "inference": "engine",
    "ref": "reference",
    "resources": "cluster",
    "logging": "trackers",
    "wandb": "trackers",
}
"""Maps the name of a setting in other trainers to its key in rlrun, beside the table in `other_trainers`."""

COMPOSITION_KEYS = ("extends", "vars", "profiles")
"""Top-level keys of a file that describe how the spec is composed and are not part of the spec."""

_ORDINARY_NAMES = {"type", "path", "name", "key"}
"""Names that many sections have, so that they do not identify a section."""


_DEEP = 3
"""How many tables a key is in if nobody writes its name without them."""


class KeyIndex:
    """Index of every key of a spec by the last part of its path; keys of plugins are added once known."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._homes: dict[str, list[str]] = {name: [name] for name in COMPOSITION_KEYS}
        self.add(model, "")

    def add(self, model: type[BaseModel], prefix: str) -> None:
        """Adds the keys of a model whose table is at `prefix` (empty, or ending in a dot)."""
        for name, field in model.model_fields.items():
            self._homes.setdefault(name, []).append(prefix + name)
            for inner in section_models(field.annotation):
                self.add(inner, f"{prefix}{name}.")

    def paths(self) -> Iterator[str]:
        """Yields the dotted path of every key, without the indices of arrays."""
        for homes in self._homes.values():
            yield from homes

    def counterpart(self, path: KeyPath) -> Counterpart | None:
        """Returns what the setting of another trainer at `path` is here; None for a key of another section.

        The exact name of another trainer's setting counts more than a key that is spelt like it: TRL's `beta`
        is not Adam's. Nor is it a key deep inside the algorithm's tables, such as that of a divergence.
        """
        name = plain(str(path[-1]))
        is_here = any(home.count(".") < _DEEP for home in self._homes.get(name, ()))
        if found := counterpart(table_name(path), shared_parts=2):
            return found
        return None if is_here or name in _ORDINARY_NAMES else counterpart(name)

    def suggest(self, path: KeyPath, valid: Sequence[str]) -> str | None:
        """Returns the key probably meant by the unknown key at `path`: a name in the same table, or a path.

        The order: a very similar key of the same table, the same name in another section, a name of other
        trainers, a similar key of the same table, a very similar key or other trainers' name anywhere.
        """
        name = plain(str(path[-1]))
        if similar := nearest(name, valid, 0.85):
            return similar
        if name in self._homes and name not in _ORDINARY_NAMES:
            return self._homes[name][0]
        if name in OTHER_NAMES:
            return relative_to(OTHER_NAMES[name], path)
        if similar := nearest(name, valid):
            return similar
        if similar := nearest(name, self._homes, 0.85):
            return self._homes[similar][0]
        others = {**keys_by_name(), **OTHER_NAMES}
        similar = nearest(name, others, 0.85)
        return relative_to(others[similar], path) if similar else None


def relative_to(key: str, path: KeyPath) -> str:
    """Returns a full path without its section where `path` is in the same section."""
    section, _, leaf = key.rpartition(".")
    return leaf if section == table_name(path[:-1]) else key


def table_name(path: KeyPath) -> str:
    """Returns a path without indices: `eval.datasets`, as in a header, for `("eval", "datasets", 0)`."""
    return ".".join(part for part in path if isinstance(part, str))


def all_models(model: type[BaseModel]) -> set[type[BaseModel]]:
    """Returns a model and every model inside it."""
    inner = [section for field in model.model_fields.values() for section in section_models(field.annotation)]
    return {model}.union(*map(all_models, inner))


def section_models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yields the models inside an annotation such as `tuple[RewardSpec, ...]` or `X | None`."""
    if isinstance(annotation, type) and not get_origin(annotation):
        if issubclass(annotation, BaseModel):
            yield annotation
    elif get_origin(annotation) in (Union, types.UnionType, tuple, list):
        for inner in get_args(annotation):
            yield from section_models(inner)
