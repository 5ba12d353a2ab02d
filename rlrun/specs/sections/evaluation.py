"""`[eval]`: held-out datasets."""

import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from rlrun.specs.sections.data import DataSpec
from rlrun.specs.sections.rollout import RolloutFunctionSpec
from rlrun.specs.sections.scoring import RewardSpec
from rlrun.specs.sections.section import Section, derived


class EvalSampling(Section):
    """How evaluations sample: the keys that a dataset takes from `[eval]` where it does not have them, and
    `[eval]` from `[rollout]`.
    """

    samples_per_prompt: int = derived(ge=1)
    """Number of samples per prompt; pass@k is reported for k up to this number."""
    temperature: float = derived(ge=0)
    """Sampling temperature; 0 is greedy."""
    top_p: float = derived(gt=0, le=1)
    """Probability mass of nucleus sampling; 1 turns it off."""
    top_k: int = derived(ge=-1)
    """Number of likeliest tokens to sample from; -1 turns it off."""
    max_prompt_tokens: int = derived(ge=1)
    """Maximum length of a prompt in tokens; longer prompts are not evaluated, and the console shows their
    number."""
    max_response_tokens: int = derived(ge=1)
    """Maximum length of a response in tokens."""
    min_response_tokens: int = derived(ge=0)
    """Minimum length of a response: end-of-sequence tokens are suppressed before it. Unset: that of
    `[eval]` or `[rollout]`, or `max_response_tokens` where that is smaller."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = derived()
    """Strings that end a response; `[]` for none."""
    stop_token_ids: tuple[Annotated[int, Field(ge=0)], ...] = derived()
    """Ids of tokens that end a response, in addition to the model's end-of-sequence tokens."""


SAMPLING_KEYS = tuple(EvalSampling.model_fields)


class EvalDatasetSpec(EvalSampling, DataSpec):
    """A held-out dataset. Settings that are not given come from `[eval]`, then from `[rollout]`."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the dataset in the metrics: `eval/<name>/reward`."""
    rewards: tuple[RewardSpec, ...] = derived()
    """The rewards of this dataset's samples, `[[eval.datasets.rewards]]`, in place of all of `[[rewards]]`;
    `[]` for none. Unset: `[[rewards]]`."""
    function: RolloutFunctionSpec = derived()
    """The rollout plugin that answers this dataset's prompts, `[eval.datasets.function]`. Unset:
    `[rollout.function]`."""
    pass_threshold: float = 1.0
    """Reward from which a sample counts as passed, for pass@k."""


def server_address(url: str) -> str:
    """Returns the address of a server. Raises ValueError if no path can be appended to it, or if it holds
    credentials, which would be written wherever the address is.
    """
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_host = False
    if not has_host:
        raise ValueError("is not an address with a host: write one such as http://127.0.0.1:8000/v1")
    if "@" in parts.netloc:
        raise ValueError(
            "holds credentials, which would be written to the run: remove them, and name the variable of a "
            "key (api_key, or --api-key-env)"
        )
    if parts.query or parts.fragment:
        raise ValueError("has a query behind its path, where /chat/completions is appended: remove it")
    return url


def server_key(key: str) -> str:
    """Returns the key of a server. Raises ValueError, without the key, if no header can hold it."""
    if not re.fullmatch(r"[!-~]([ -~]*[!-~])?", key):
        raise ValueError(
            "the server's key is empty, or has a line break, a space at an end, or letters that are not "
            "ASCII: export it again"
        )
    return key


class EvalServerSpec(Section):
    """A running server with OpenAI's `/chat/completions` (vLLM, SGLang, llama.cpp, a provider). Its model is
    evaluated in place of `[model]`, without engines of the job. Prompts go there as messages, so that the
    server's own chat template is used. Samples have no token ids and no log-probs, and
    `max_prompt_tokens` has no effect."""

    url: Annotated[str, Field(pattern=r"^https?://[^\s]+$"), AfterValidator(server_address)]
    """Address before `/chat/completions`, such as `https://api.example.com/v1`."""
    model: str = Field(min_length=1)
    """Name of the model on the server."""
    api_key: str | None = None
    """Key of the server, as `${env:NAME}`. None: it needs no key."""
    concurrency: int = Field(default=32, ge=1)
    """Maximum number of samples that are requested at the same time."""
    timeout: float = Field(default=600.0, gt=0)
    """Seconds that the server may take for one answer."""
    retry_seconds: float = Field(default=600.0, ge=0)
    """Seconds for which a request is repeated after errors that pass: no connection, no answer in `timeout`,
    HTTP 408, 409, 425, 429 and 5xx. Pauses grow, and last as long as the server's `Retry-After`. A sample
    without an answer counts as failed, not as wrong."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of each request under the server's own names, such as `{ reasoning_effort = "low" }`."""


class EvalSpec(EvalSampling):
    """When and how the policy is evaluated: before training, every `interval` steps, and at the end.

    Settings of sampling that are not given come from `[rollout]`.
    """

    interval: int | None = Field(default=None, ge=1)
    """Steps between evaluations. None: only before training and at the end."""
    before_training: bool = True
    """Evaluate the initial policy before the first step."""
    datasets: tuple[EvalDatasetSpec, ...] = ()
    """The held-out datasets, `[[eval.datasets]]`."""
    server: EvalServerSpec | None = None
    """`rlrun eval`: the server whose model is evaluated, `[eval.server]`. None: the engines of the job."""
