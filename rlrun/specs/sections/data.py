"""`[data]`: where prompts come from."""

from pydantic import Field

from rlrun.specs.sections.section import PluginSection


class DataSpec(PluginSection):
    """A data source plugin, and how its rows are turned into prompts."""

    type: str = "jsonl"
    """Name of the data source (`rlrun plugins list`)."""
    shuffle: bool = True
    """Shuffle the rows with a new permutation for each epoch, drawn with `seed`. false: keep the order of the
    source."""
    apply_chat_template: bool = True
    """Render messages with the tokenizer's chat template; a plain string is rendered as one user message.
    false: use the text of the row as it is."""
    max_bad_share: float = Field(default=0.01, ge=0, le=1)
    """Share of rows that may be broken before the job stops. Broken rows are skipped, counted and named in
    the log."""


class EnvironmentSpec(PluginSection):
    """An environment in which the policy acts; its parameters are further keys of this table."""

    python: str | None = None
    """The Python interpreter that runs the environment, such as `/opt/games/bin/python` of a virtual
    environment with the libraries that it needs: Python 3.11 or newer, with pydantic. None: rlrun's own."""
    processes: int = Field(default=2, ge=1)
    """Number of processes of the environment on the driver's host, each of which runs many executions. One
    that dies or hangs only fails its own executions, and is started again."""
