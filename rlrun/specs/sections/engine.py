"""`[engine]`: what generates; `[[engines]]`: other models that are asked."""

from typing import Annotated, Any, Literal

from pydantic import Field

from rlrun.specs.paths import PathMarker
from rlrun.specs.sections.section import Section


class SleepingSpec(Section):
    """How long sleeping engines take."""

    token_seconds: float = Field(default=0.01, gt=0)
    """Seconds for a token of a sample, whatever runs beside it."""
    mean_tokens: float = Field(default=200.0, ge=1)
    """Length of a response, on average; drawn by the sample's seed, and cut at `max_response_tokens`."""
    spread: float = Field(default=1.0, ge=0)
    """Standard deviation of the lengths over their mean."""


class EngineSpec(Section):
    """rlrun's own engine, SGLang servers, engines that run elsewhere, or nothing but their time."""

    type: Literal["native", "sglang", "external", "sleeping"] = "native"
    """`native`: rlrun's own engine, on CPU or one GPU. `sglang`: SGLang servers, which start and end with the
    job. `external`: engines at `urls`, which the job neither starts nor ends. `sleeping`: engines that answer
    after a while with tokens that nobody computed, for load tests."""
    count: int | None = Field(default=None, ge=1)
    """Engines; prompts are spread over them. None: one on each node, or as many as there are GPUs for."""
    tensor: int = Field(default=1, ge=1)
    """SGLang: ranks of one server that split each layer's matrices; on GPUs each on its own. Times `pp_size`
    of `[engine.sglang]` that is the GPUs of a server: some of one node's, or all of several nodes'."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Precision of weights and KV cache; log-probs are always float32."""
    max_running: int = Field(default=256, ge=1)
    """Samples decoded together in one engine; others wait."""
    max_cache_tokens: int | None = Field(default=None, ge=1)
    """Tokens of KV cache. None: room for `max_running` samples of full length."""
    port: int | None = Field(default=None, ge=1024, le=65535)
    """First port; engine i listens on port + i. None: free ports."""
    start_timeout: float = Field(default=600.0, gt=0)
    """Seconds an engine may take to answer; one that dies ends the job at once."""
    model: Annotated[str | None, PathMarker()] = None
    """SGLang: folder that servers start from, such as the policy's in FP8 (`rlrun convert hf-to-hf SRC DST
    --quantize fp8-block`); they are updated in FP8 then. None: the policy's."""
    sleep: bool | None = None
    """Colocated: weights and cache leave the devices while the trainer works there, and the trainer's state
    while engines do. None: on GPUs, where memory is scarce."""
    weight_sync: Literal["tensor", "broadcast", "disk"] | None = None
    """SGLang: how weights get to servers. `tensor`: through shared memory of the trainer's host, or of GPUs
    that both share. `broadcast`: a process group of trainer rank 0 and all servers (gloo, on GPUs NCCL).
    `disk`: safetensors in a folder that all see. None: `tensor` on one node; on several `broadcast`, or where
    trainer and servers share GPUs `disk`; for external engines `disk`."""
    weight_bucket: int | None = Field(default=None, ge=1)
    """SGLang: MiB of weights gathered and sent at a time; two such buckets are held, while one is on its way.
    None: 512; with `tensor` the whole model, which then stays in shared memory. With `tensor` on GPUs that
    trainer and servers share, buckets lie on these GPUs."""
    weight_delta: bool = False
    """SGLang: servers load only the files of `disk` that changed since the version before."""
    weight_check: Literal["sample", "all", "none"] = "sample"
    """SGLang on CPU: which tensors of every server are compared with what was sent, after each update.
    `sample`: all vectors, and the matrices of one layer in turn."""
    urls: tuple[Annotated[str, Field(pattern=r"^https?://[^\s]+$")], ...] = ()
    """External: an address for each engine. All serve the model already, and speak SGLang's protocol."""
    api_key: str | None = None
    """External: the key that they ask for, as `${env:NAME}`. None: they ask for none."""
    python: Annotated[str | None, PathMarker()] = None
    """SGLang: interpreter of the environment that has it. None: the one that runs rlrun."""
    environment: dict[str, str] = Field(default_factory=dict)
    """SGLang: environment variables of the server; secrets as `${env:NAME}`."""
    sglang: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the SGLang server as it names them, for instance `mem_fraction_static = 0.7`; checked
    against the installed server's own list."""
    router: Literal["rlrun", "sglang-router"] = "rlrun"
    """SGLang: who chooses the server that generates. `rlrun`: the one that has a session's cache, else the
    least busy. `sglang-router`: the router of that package, installed beside SGLang and started with the job;
    it is asked for one sample at a time."""
    sglang_router: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the sglang-router as it names them, for instance `policy = "cache_aware"`, its default;
    checked against the installed router's own list."""
    sleeping: SleepingSpec = SleepingSpec()
    """Sleeping engines: how long they take."""


class NamedEngineSpec(EngineSpec):
    """Engines of another model than the policy, which is never updated: a judge, a teacher."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]*$")
    """What `engine = "…"` of a reward or of `[teacher]` calls it."""
    path: Annotated[str | None, PathMarker("model")] = None
    """HF id, or a folder with config.json and safetensors; relative to the file that sets it. None: what the
    external engines serve."""
    revision: str | None = None
    """Branch, tag or commit of an HF id. None: the default branch."""
    max_length: int | None = Field(default=None, ge=1)
    """Tokens of what they are asked and answer, together. None: as many as the model was made for."""
