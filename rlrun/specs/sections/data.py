"""`[data]`: where prompts come from."""

from pydantic import Field

from rlrun.specs.sections.section import PluginSection


class DataSpec(PluginSection):
    """A data source plugin and what the framework does with its rows."""

    type: str = "jsonl"
    """Name of the data source (`rlrun plugins list`)."""
    shuffle: bool = True
    """A seeded permutation for each epoch. false: the order of the source."""
    apply_chat_template: bool = True
    """Render messages (or a plain string as one user message) with the tokenizer's chat template."""
    max_bad_share: float = Field(default=0.01, ge=0, le=1)
    """Share of rows that may be broken (skipped, counted and named in the log) before the job stops."""
