"""What an SGLang server needs to start."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class SglangSetup:
    """One SGLang server, in a Python environment that need not be ours."""

    python: str
    """Interpreter that has sglang."""
    model_folder: str
    """Local Hugging Face folder."""
    dtype: Literal["float32", "bfloat16"]
    max_running: int
    """Samples decoded together; others wait."""
    max_cache_tokens: int | None
    """Tokens of KV cache. None: the server's own choice, by memory."""
    max_length: int | None
    """Prompt and response together. None: the model's own limit."""
    log: Path
    """Where the server's output goes; its last error is read from there."""
    secrets: Path
    """A `.yaml` file for the keys, which other users may not read; a command line they may."""
    api_key: str = field(repr=False)
    """Asked of whoever generates or changes weights."""
    host: str = "127.0.0.1"
    port: int | None = None
    """None: a free one."""
    tensor: int = 1
    """Ranks that split each layer's matrices."""
    gpus: tuple[str, ...] = ()
    """Ids of its GPUs on this node, as CUDA knows them; none: those that this process sees."""
    nodes: int = 1
    """Nodes that it lies on, each with a setup of its own."""
    node: int = 0
    """This one among them; the first answers requests."""
    meeting: str | None = None
    """`host:port` where the parts on several nodes meet: of the first."""
    seed: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the server, as in `[engine.sglang]`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Set for the server on top of this process's own."""
    start_timeout: float = 600.0
    """Seconds it may take to answer."""
