"""Makes the settings that each kind of engine is started with, from the spec, the plan and its process."""

import json
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlrun.converters.families.stored_adapter import read_stored_adapter
from rlrun.models.adapters import adapters
from rlrun.models.config_json import architecture
from rlrun.runner.cluster.ray_process import Process
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.sglang.setup import SglangSetup, with_delta_loader
from rlrun.runner.host.model_files import ModelFiles
from rlrun.runner.planning.plan import EnginePlan, Plan
from rlrun.runner.prompts.image_processor import PROCESSOR_FILE
from rlrun.specs.derived.engine_groups import policy_groups
from rlrun.specs.derived.engine_layout import sleeps
from rlrun.specs.derived.kept_samples import kept_samples
from rlrun.specs.derived.lora_sync import keeps_host_copy, sends_adapters, server_room
from rlrun.specs.derived.on_policy_target import target_arguments
from rlrun.specs.derived.recurrent_servers import recurrent_settings
from rlrun.specs.derived.served_adapters import adapters_beside_policy, shares_policy
from rlrun.specs.derived.sglang_arguments import flag_name
from rlrun.specs.derived.speculation import (
    has_draft_weights,
    native_draft_tokens,
    sglang_speculation,
)
from rlrun.specs.reading.secret_references import reveal
from rlrun.specs.sections.engine import EngineSpec, NamedEngineSpec
from rlrun.specs.sections.job import Spec

Setup = EngineSetup | SglangSetup

_GRAPH_ARGUMENTS = ("cuda-graph-backend-prefill", "cuda-graph-backend-decode", "cuda-graph-config")
"""Arguments of SGLang that choose how its CUDA graphs are captured."""


@dataclass(frozen=True, slots=True)
class ServedModelSetup:
    """The model that the engines of `[engine]`, or of one of `[[engines]]`, serve."""

    section: EngineSpec
    model: ModelFiles
    max_length: int | None
    """Tokens of the longest sample; None: the model's own limit."""
    cache_tokens: int | None
    """Tokens of KV cache of each engine; None: as many as fit into its memory."""
    key: str = field(repr=False)
    """The key that the engines ask their clients for."""
    weights_folder: Path | None = None
    """Folder that new weights are read from, if they travel by disk."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """The folders of the adapters that servers have from their start, by name."""

    @property
    def is_policy(self) -> bool:
        """Whether these are the engines of `[engine]`."""
        return not isinstance(self.section, NamedEngineSpec)

    @property
    def keeps_port(self) -> bool:
        """Whether engines keep their port when they are restarted, since plugins know their addresses."""
        return not self.is_policy or bool(self.adapters)


def policy_model_setup(spec: Spec, plan: Plan, model: ModelFiles, weights_folder: Path) -> ServedModelSetup:
    """Returns the model of `[engine]`, with a new key. Its servers take as many tokens as the longest sample,
    or as a model of `[[engines]]` that is an adapter of it.
    """
    key = secrets.token_hex(16)
    lengths = [
        section.max_length or architecture(model.config()).max_positions
        for section in spec.engines
        if shares_policy(section)
    ]
    longest = max([plan.max_sample_tokens, *lengths])
    folders = adapters_beside_policy(spec)
    return ServedModelSetup(spec.engine, model, longest, plan.cache_tokens, key, weights_folder, folders)


def named_model_setup(section: NamedEngineSpec, model: ModelFiles) -> ServedModelSetup:
    """Returns the model of one of `[[engines]]`, with a new key."""
    key = secrets.token_hex(16)
    adapters = {} if section.adapter is None else {section.name: section.adapter}
    return ServedModelSetup(section, model, section.max_length, None, key, adapters=adapters)


def engine_setup(
    spec: Spec, served: ServedModelSetup, engine: EnginePlan, process: Process, node: int
) -> Setup:
    """Returns the settings for the process that holds a planned engine, or its part on node number `node`."""
    if served.section.type == "sglang":
        if served.is_policy:
            served = replace(served, section=policy_groups(spec)[engine.group].section)
        return _sglang_setup(spec, served, engine, process, node)
    return _native_setup(spec, served, engine, process)  # on one node only


def reports_experts(spec: Spec, served: ServedModelSetup) -> bool:
    """Returns whether the engines report which experts tokens were routed to."""
    return served.is_policy and spec.trainer.moe.routing_replay == "engine"


def _native_setup(spec: Spec, served: ServedModelSetup, engine: EnginePlan, process: Process) -> EngineSetup:
    return EngineSetup(
        model_folder=str(served.model.folder),
        adapter=next(iter(served.adapters.values()), None),
        dtype=served.section.dtype,
        head_dtype=spec.trainer.head_dtype,
        max_running=served.section.max_running,
        max_cache_tokens=served.section.max_cache_tokens,
        kept_samples=kept_samples(spec, served.section),
        draft_tokens=native_draft_tokens(served.section),
        max_length=served.max_length,
        host=process.host,
        port=engine.port,
        threads=engine.threads,
        seed=spec.seed,
        device="cpu" if engine.location.gpu is None else "cuda",
        api_key=served.key,
        job=spec.name if served.is_policy else None,
        code=served.model.code,
        weight_folders=() if served.weights_folder is None else (str(served.weights_folder),),
        true_on_policy=spec.true_on_policy and served.is_policy,
    )


def _sglang_setup(
    spec: Spec, served: ServedModelSetup, engine: EnginePlan, process: Process, node: int
) -> SglangSetup:
    on_cpu = engine.location.gpu is None
    section = served.section
    recurrent = recurrent_settings(section, served.model.folder, on_cpu=on_cpu)
    setup = SglangSetup(
        python=section.python or sys.executable,
        model_folder=section.model or str(served.model.folder),
        dtype=section.dtype,
        max_running=section.max_running,
        # On a GPU the server itself takes the memory that the weights leave.
        max_cache_tokens=section.max_cache_tokens or (served.cache_tokens if on_cpu else None),
        max_length=served.max_length,
        log=process.log,
        secrets=process.log.with_suffix(".keys.yaml"),
        api_key=served.key,
        host=process.host,
        port=engine.port,
        tensor=section.tensor,
        gpus=process.gpus,
        nodes=len(engine.nodes),
        node=node,
        role=engine.role,
        seed=spec.seed,
        device="cpu" if on_cpu else "cuda",
        code=served.model.code,
        arguments={setting.name: setting.value for setting in recurrent if not setting.is_variable}
        | _arguments(spec, served),
        environment={setting.name: setting.value for setting in recurrent if setting.is_variable}
        | _pausable_graphs(spec, served)
        | reveal(section.environment),
        start_timeout=section.start_timeout,
    )
    applies_deltas = served.is_policy and section.weight_delta == "elements"
    return with_delta_loader(setup) if applies_deltas else setup


def _arguments(spec: Spec, served: ServedModelSetup) -> dict[str, Any]:
    """Returns the server's further arguments: those of the spec, and those that other keys imply."""
    graphs = {"cuda_graph_backend_prefill": "disabled"} if _pausable_graphs(spec, served) else {}
    experts = {"enable_return_routed_experts": True} if reports_experts(spec, served) else {}
    sleeping = _sleeping(served) if sleeps(spec) and served.is_policy else {}
    head = {"enable_fp32_lm_head": True} if spec.trainer.head_dtype == "float32" else {}
    return (
        graphs
        | _image_processor(served)
        | _adapters(spec, served)
        | sglang_speculation(served.section)
        | (target_arguments(spec) if served.is_policy else {})
        | served.section.sglang
        | experts
        | sleeping
        | head
    )


def _sleeping(served: ServedModelSetup) -> dict[str, bool]:
    """Returns the arguments of a server that releases its memory. Its draft model gets no update that would
    bring the weights back, so they are copied to host memory.
    """
    backup = {"enable_draft_weights_cpu_backup": True} if has_draft_weights(served.section) else {}
    return {"enable_memory_saver": True} | backup


def _image_processor(served: ServedModelSetup) -> dict[str, str]:
    """Returns the argument that makes a server prepare images as the trainer's processes do.

    By default it takes torchvision's processor, which rounds differently when it scales images.
    """
    reads_images = (served.model.folder / PROCESSOR_FILE).is_file()
    return {"image_processor_backend": "pil"} if reads_images else {}


def _adapters(spec: Spec, served: ServedModelSetup) -> dict[str, Any]:
    if served.is_policy:
        return _policy_adapters(spec, served.model, served.adapters)
    return _named_adapters(spec, served.adapters)


def _policy_adapters(spec: Spec, model: ModelFiles, folders: Mapping[str, str]) -> dict[str, Any]:
    """Returns the arguments of a server that is sent adapters; none if it is sent merged weights.

    `folders`: the adapters that it has besides those of the policy, by name. They are pinned: the server
    never evicts them, and has them after a restart.
    """
    if spec.trainer.lora is None:
        return {}
    config, lora = model.config(), spec.trainer.lora.shape
    family = str(config.get("model_type"))
    if not sends_adapters(spec, family):
        return {}
    own = adapters(architecture(config), lora)
    ranks = [lora.rank]
    for folder in folders.values():
        stored = read_stored_adapter(Path(folder))
        own += stored.matrices(architecture(config))
        ranks.append(stored.lora.rank)
    arguments = {
        "enable_lora": True,
        "max_lora_rank": max(ranks),
        "lora_target_modules": list(dict.fromkeys(adapter.target for adapter in own)),
        "max_loras_per_batch": server_room(spec),
        "max_loaded_loras": server_room(spec),
    }
    backup = {"enable_weights_cpu_backup": True} if keeps_host_copy(spec, family) else {}
    return arguments | backup | _pinned_paths(folders) | _adapter_backend(spec)


def _named_adapters(spec: Spec, folders: Mapping[str, str]) -> dict[str, Any]:
    """Returns the arguments of a server that has only these adapters, by name. It needs room for one more,
    because SGLang never pins all of its room.
    """
    if not folders:
        return {}
    room = {"enable_lora": True, "max_loras_per_batch": len(folders) + 1}
    return room | _pinned_paths(folders) | _adapter_backend(spec)


def _pinned_paths(folders: Mapping[str, str]) -> dict[str, Any]:
    paths = [
        json.dumps({"lora_name": name, "lora_path": folder, "pinned": True})
        for name, folder in folders.items()
    ]
    return {"lora_paths": paths} if paths else {}


def _adapter_backend(spec: Spec) -> dict[str, str]:
    return {} if spec.cluster.gpus_per_node else {"lora_backend": "torch_native"}


def _pausable_graphs(spec: Spec, served: ServedModelSetup) -> dict[str, str]:
    """Returns the variable that makes a sleeping server free its CUDA graphs, too.

    With it, SGLang 0.5.23 refuses to start with its default graphs for prefill ("breakable"), so rlrun turns
    these off (`_arguments`), unless the spec configures the server's graphs itself.
    """
    sleeping_on_gpus = sleeps(spec) and served.is_policy and bool(spec.cluster.gpus_per_node)
    configured = any(flag_name(name) in _GRAPH_ARGUMENTS for name in served.section.sglang)
    return {"SGLANG_MEMORY_SAVER_CUDA_GRAPH": "1"} if sleeping_on_gpus and not configured else {}
