"""`[rollout]`: how samples are drawn from the policy."""

from typing import Annotated, Literal

from pydantic import Field

from rlrun.specs.sections.section import PluginSection, Section

USUAL_PROMPT_TOKENS = 4096
"""The longest prompt where the spec sets no limit and the model has room for it."""
LEAST_SECONDS = 600.0
"""Seconds that a sample may take where the spec sets no limit and its response is short."""
SLOWEST_TOKENS = 5.0
"""Tokens of one sample per second, as slow as a full engine on a GPU gets; longer responses get more time."""


class ToolSpec(PluginSection):
    """A tool that the policy may call; its parameters stand beside `type`."""


class AgentSpec(PluginSection):
    """An agent that asks the policy; its parameters stand beside `type`."""


class RolloutFunctionSpec(PluginSection):
    """How a prompt is answered; the parameters of the plugin stand beside `type`."""

    type: str = "single_turn"
    """Name of the rollout (`rlrun plugins list`)."""


class BufferSpec(PluginSection):
    """What partial rollouts do with the groups that they kept."""

    type: str = "fifo"
    """Name of the strategy (`rlrun plugins list`)."""


class RolloutSpec(Section):
    """Prompts a step, samples a prompt, and the sampling settings."""

    batch_size: int = Field(default=32, ge=1)
    """P: prompts whose groups are trained on in one step."""
    samples_per_prompt: int = Field(default=8, ge=1)
    """n: samples drawn for each prompt (a group)."""
    oversample: int | None = Field(default=None, ge=1)
    """Groups submitted at a time while fewer than `batch_size` are in flight or kept. None: `batch_size`."""
    max_attempts: int = Field(default=8, ge=1)
    """Ends the job when a step tried this many times `batch_size` groups and filters still left too few."""
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Longer prompts are dropped, and the console says how many when the data is loaded. None: what the
    longest response leaves of the model's positions (and of `engine.max_cache_tokens`), at most 4096."""
    max_response_tokens: int = Field(default=1024, ge=1)
    """Longest response, all turns and what is given between them; one that reaches it is truncated."""
    max_turn_tokens: int | None = Field(default=None, ge=1)
    """Longest answer of one turn, in rollouts of several turns and their evaluations; a sample whose turn
    reaches it is truncated there. None: what the earlier turns leave of `max_response_tokens`."""
    min_response_tokens: int = Field(default=0, ge=0)
    """No end-of-sequence before this many tokens, or as many as a turn or an evaluation may have."""
    temperature: float = Field(default=1.0, gt=0, le=10)
    """Divides the logits; the trainer's log-probs are taken at the same temperature."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling; 1 is off."""
    top_k: int = Field(default=-1, ge=-1)
    """Samples among the k likeliest tokens; -1 is off."""
    sampling_mask: bool | None = None
    """With `top_p` or `top_k`: engines record which tokens each token was drawn from, and the trainer takes
    all log-probs over the same tokens, so that the ratio is exact. None: on, unless an `algorithm.correction`
    is set or the algorithm has no ratio. SGLang needs a `top_k` for it."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Strings that end a response."""
    stop_token_ids: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Tokens that end a response, besides the model's own end-of-sequence tokens."""
    truncated: Literal["train", "mask", "drop"] = "train"
    """What becomes of a response that reached `max_response_tokens` or `max_turn_tokens`."""
    request_timeout: float | None = Field(default=None, gt=0)
    """Seconds a sample may take before it is dropped, counted and replaced, with all turns and tools of its
    execution. Time in which a request waits for engines to have room (`engine.max_running` samples each) does
    not count. None: 600, or as long as the longest response takes at 5 tokens per second."""
    function: RolloutFunctionSpec = RolloutFunctionSpec()
    """How a prompt is answered: in one go, over several turns with tools, or by an agent of your own."""
    mode: Literal["sync", "async"] = "sync"
    """`sync`: generation and training alternate. `async`: engines generate while the trainer works, and take
    new weights in mid-sample; needs `cluster.placement = "disaggregated"`."""
    max_staleness: int = Field(default=1, ge=1)
    """Asynchronous and partial: a sample is trained on at most so many weight versions after the one that
    began it; one that took longer is dropped and counted."""
    weight_update: Literal["during", "between"] = "during"
    """Asynchronous: engines take new weights `during` generation, and a sample may be of several versions; or
    `between`: nothing is begun until what runs is done, and every sample is of one."""
    partial: bool = False
    """Keep what a step does not need, finished groups and unfinished ones with their tokens: the next step
    takes it first, and samples go on where they stood, by newer weights."""
    mask_off_policy: bool = False
    """Partial: tokens that older weights made than the trainer's are not trained on."""
    buffer: BufferSpec = BufferSpec()
    """Partial: which of the kept groups go on first, and which are given up."""
    max_concurrency: int | None = Field(default=None, ge=1)
    """Samples that engines are asked for at a time, all engines together; whole groups wait. None: all."""

    @property
    def prompt_limit(self) -> int:
        """Tokens of the longest prompt (rlrun.specs.derived.lengths.fitted fits it to the model)."""
        return self.max_prompt_tokens or USUAL_PROMPT_TOKENS

    def seconds_for(self, response_tokens: int) -> float:
        """Returns the seconds that a sample with a response of at most so many tokens may take."""
        if self.request_timeout is not None:
            return self.request_timeout
        return max(LEAST_SECONDS, response_tokens / SLOWEST_TOKENS)
