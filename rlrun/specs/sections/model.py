"""`[model]`: the policy that is trained."""

from typing import Any, Literal

from pydantic import Field

from rlrun.specs.paths import ModelPath
from rlrun.specs.sections.section import Section


class ModelSpec(Section):
    """A Hugging Face folder or id."""

    path: ModelPath
    """HF id, or a folder with config.json, tokenizer and safetensors; relative to the file that sets it."""
    revision: str | None = None
    """Branch, tag or commit of an HF id. None: the default branch, its commit pinned in spec.lock.json."""
    chat_template_args: dict[str, Any] = Field(default_factory=dict)
    """Variables of the chat template beside its usual ones: `{ enable_thinking = false }` for Qwen3."""
    implementation: Literal["torchtitan", "transformers"] = "torchtitan"
    """Whose layers are trained. transformers: a fallback for families that the trainer does not have, by
    data parallelism alone.
    """
    random_init: bool = False
    """Start from random weights drawn with `seed`; only config.json and the tokenizer are read."""
