"""The settings that an SGLang server is started with."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rlrun.runner.host.remote_code import CodeFile
from rlrun.runner.weights.carriers.disk.updates import DELTA_LOADER
from rlrun.runner.weights.deltas import server_path
from rlrun.specs.derived.sglang_arguments import flag_name
from rlrun.specs.sections.engine import EngineRole

_LOADERS = "custom-weight-loader"
"""SGLang's argument for functions that load weights."""


@dataclass(frozen=True, slots=True)
class SglangSetup:
    """Settings of one SGLang server, or of its part on one node."""

    python: str
    """Interpreter of an environment that has sglang; it may differ from this process's environment."""
    model_folder: str
    """Local Hugging Face folder."""
    dtype: Literal["float32", "bfloat16"]
    max_running: int
    """Limit of samples decoded together; further samples wait."""
    max_cache_tokens: int | None
    """Tokens of KV cache. None: the server decides by its memory."""
    max_length: int | None
    """Tokens of prompt and response together. None: the model's own limit."""
    log: Path
    """File for the server's output; its last error is read from there."""
    secrets: Path
    """A `.yaml` file for the keys, which other users may not read, unlike a command line."""
    api_key: str = field(repr=False)
    """The key that generation and updates of the weights need."""
    host: str = "127.0.0.1"
    port: int | None = None
    """Port to listen on; None: a free one."""
    tensor: int = 1
    """Ranks that split each layer's matrices."""
    gpus: tuple[str, ...] = ()
    """CUDA's ids of its GPUs on this node; empty: those that this process sees."""
    nodes: int = 1
    """Number of nodes that the server runs on; each has its own setup."""
    node: int = 0
    """Number of this node among them; node 0 answers requests."""
    meeting: str | None = None
    """`host:port` on node 0 if the parts on several nodes meet."""
    role: EngineRole = "regular"
    bootstrap_port: int | None = None
    """Port on which a prefill server meets decode servers."""
    seed: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the server, as in `[engine.sglang]`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that are added to those of this process."""
    code: tuple[CodeFile, ...] | None = None
    """The model folder's Python files that the server may run; None: none may."""
    start_timeout: float = 600.0
    """Seconds that it may take to answer."""


def with_delta_loader(setup: SglangSetup) -> SglangSetup:
    """Returns the settings of a server that applies weight deltas with a function of rlrun, which it loads by
    name, besides weight loaders and Python paths of the spec.
    """
    loaders, arguments = [DELTA_LOADER], {}
    for name, value in setup.arguments.items():
        if flag_name(name) == _LOADERS:
            loaders += value if isinstance(value, list) else [value]
        else:
            arguments[name] = value
    folder = str(Path(server_path.__file__).parent)
    path = os.pathsep.join(filter(None, [folder, setup.environment.get("PYTHONPATH")]))
    return replace(
        setup,
        arguments={**arguments, _LOADERS: loaders},
        environment={**setup.environment, "PYTHONPATH": path},
    )
