"""`[model]`: the policy that is trained."""

from typing import Annotated, Any, Literal

from pydantic import Field

from rlrun.specs.paths import ModelPath, PathMarker
from rlrun.specs.sections.section import Section


class ModelSpec(Section):
    """The policy: a Hugging Face model folder or id."""

    path: ModelPath
    """Hugging Face id, or a folder with config.json, tokenizer and safetensors; relative to the file that
    sets it. Such a folder may be in an object store, `s3://bucket/model`, from which a launch copies it."""
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face id. None: the default branch, whose commit is recorded in
    spec.lock.json."""
    adapter: Annotated[str | None, PathMarker()] = None
    """Folder of a LoRA adapter in peft's layout that training starts from, relative to the file that sets it.
    `[trainer.lora]` must describe it. None: adapters start at zero."""
    chat_template_args: dict[str, Any] = Field(default_factory=dict)
    """Additional variables of the chat template, for instance `{ enable_thinking = false }` for Qwen3."""
    implementation: Literal["torchtitan", "transformers"] = "torchtitan"
    """The library whose layers are trained. Unset: `transformers` for model families that the trainer has no
    layers for (docs/families.md), if the model is on this host."""
    trust_remote_code: bool = False
    """Run the model folder's own Python files where its tokenizer or its config needs them (Kimi, Moonlight).
    They are printed before they run, with sizes and hashes, which spec.lock.json keeps: a run with a changed
    file is not resumed. The model's layers never come from such files."""
    random_init: bool = False
    """Start from random weights drawn with `seed`, and read only config.json and the tokenizer."""
