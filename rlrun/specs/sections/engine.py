"""`[engine]`: the engines of the policy; `[[engines]]`: engines that serve other models."""

from typing import Annotated, Any, Literal

from pydantic import Field

from rlrun.specs.paths import PathMarker
from rlrun.specs.sections.section import Section, derived
from rlrun.specs.sections.weight_carriers import ChosenCarrier, EngineType, described

Dtype = Literal["float32", "bfloat16"]
EngineRole = Literal["regular", "prefill", "decode"]


class SpeculativeSpec(Section):
    """Speculative decoding: several guessed tokens of a sample are verified in one pass of the model. It
    changes neither the distribution of the tokens nor their log-probs."""

    algorithm: Literal["ngram", "mtp", "eagle", "eagle3", "dflash", "standalone"] | None = None
    """What guesses tokens. `ngram`: texts that began alike; the native engine looks in the prompt, in the
    sample itself and in the other answers to its prompt, and guesses only where that has been right often
    enough to save time. SGLang on GPUs: also `mtp`, the policy's own layers for multi-token prediction;
    `eagle`, `eagle3` and `dflash`, a `draft_model` that was trained for the policy's hidden states;
    `standalone`, a smaller model with the same vocabulary as `draft_model`. None: no speculation."""
    draft_tokens: int | None = Field(default=None, ge=1, le=64)
    """Most tokens that are guessed at a time. None: 8 with the native engine; with SGLang 11 for `ngram`, 15
    for `dflash` or what its `draft_model` was trained for, 3 for the others, and 7 for those of Llama."""
    draft_model: Annotated[str | None, PathMarker()] = None
    """SGLang: folder of the model that guesses. It is not trained, and gets no updates: as the policy moves
    away from it, its guesses get worse, never the tokens."""


class EngineGroupSpec(Section):
    """Some of the policy's SGLang servers, with settings of their own over those of `[engine]`. With groups,
    the policy has the servers of all groups, which take the GPUs in their order; every server gets new
    weights."""

    count: int = Field(default=1, ge=1)
    """Number of servers in the group."""
    role: EngineRole = "regular"
    """What the group's servers do for a sample. `regular`: everything. `prefill`: they compute the cache of
    its prompt, and hand it to a server of a group with `decode`, which generates the tokens. Servers of these
    two roles need each other, and SGLang's transfer backend (`disaggregation_transfer_backend`)."""
    tensor: int | None = Field(default=None, ge=1)
    """Number of ranks in each server, as `engine.tensor`. None: `engine.tensor`."""
    sglang: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the group's servers, over those of `[engine.sglang]`."""


class EngineSpec(Section):
    """The engines that generate samples from the policy: rlrun's own, SGLang servers, or servers that run
    elsewhere."""

    type: EngineType | None = None
    """The kind of engine. `native`: rlrun's own engine, on CPUs or on one GPU. `sglang`: SGLang servers,
    which start and end with the job. `external`: running servers at `urls`, which the job neither starts nor
    stops. None: on GPUs `sglang` where it is installed or one of its keys is set, else `native`; a resumed
    run keeps the engines that it began with."""
    count: int | None = Field(default=None, ge=1)
    """Number of engines; requests are spread over them. None: one engine per node on CPUs, and as many as fit
    on GPUs."""
    min_count: int | None = Field(default=None, ge=1)
    """Elastic engines: the job begins as soon as the cluster has room for this many of the policy's `count`
    engines. The others join when there is room for them. An engine whose node is lost leaves, and joins again
    when the cluster has room; the job goes on with the others. With fewer than this many, the job waits
    `fault_tolerance.node_timeout` seconds for one to join. None: the job needs all engines."""
    tensor: int = Field(default=1, ge=1)
    """SGLang: number of ranks in one server that split each layer's matrices, on GPUs one rank per GPU.
    `tensor` times `pp_size` of `[engine.sglang]` is the number of GPUs of one server: either within one node,
    or all GPUs of several nodes."""
    dtype: Dtype = derived()
    """Precision of weights and KV cache. Log-probs are always float32. Unset: `bfloat16` on GPUs, on
    processors with instructions for it (as for `trainer.dtype`), for external engines, and with
    `weight_delta = "elements"`; else `float32`. With `true_on_policy`: `trainer.dtype`."""
    max_running: int = Field(default=256, ge=1)
    """Maximum number of samples that one engine decodes at the same time; further requests wait in its
    queue."""
    max_cache_tokens: int | None = Field(default=None, ge=1)
    """Size of the KV cache in tokens. None: enough for `max_running` samples of full length."""
    kept_samples: int = derived(ge=0)
    """Native: how many samples that have ended keep their place in the engine's KV cache until new weights
    arrive, so that the next turn of a conversation computes only its new tokens. Running samples come first.
    Models with Gated DeltaNet also keep a recurrent state of each. Unset: `max_running`; 0 with the rollout
    `single_turn`, which has no later turns, with `deterministic`, because log-probs then depend on rounding
    on what the cache holds, and for other models than the policy."""
    speculative: SpeculativeSpec = SpeculativeSpec()
    """Native and SGLang: speculative decoding."""
    port: int | None = Field(default=None, ge=1024, le=65535)
    """Port of the first engine; engine i listens on `port` + i. None: free ports are chosen."""
    start_timeout: float = Field(default=600.0, gt=0)
    """Seconds that an engine may take to start and answer. An engine that dies while it starts ends the job
    at once."""
    model: Annotated[str | None, PathMarker()] = None
    """SGLang: folder of the model that servers load at the start, for instance the policy in FP8 (`rlrun
    convert hf-to-hf SRC DST --quantize fp8-block`). Weight updates then arrive in FP8 too. None: the policy's
    folder."""
    sleep: bool = derived()
    """Colocated engines: weights and KV cache leave the devices while the trainer computes, and the trainer's
    state leaves them while engines generate. Unset: true on GPUs, where memory is scarce, and false on
    CPUs."""
    weight_sync: ChosenCarrier | None = derived(
        description=f"How new weights reach the engines. {described()} Unset: for SGLang `tensor` on one "
        "node and on shared GPUs; on several nodes otherwise `broadcast`, or `disk` where servers use GPUs "
        "that no trainer rank uses too; for external engines `disk`; native engines use shared memory of the "
        "trainer's host, and on several nodes read a folder."
    )
    weight_bucket: Annotated[int, Field(ge=1)] | None = derived()
    """SGLang: MiB of weights that are gathered and sent together. Two buckets exist at a time, because one is
    filled while the other is sent. With `tensor` on GPUs that trainer and servers share, a bucket is in GPU
    memory. Unset: 512, or with `tensor` in host memory the whole model, which then stays there."""
    weight_delta: Literal["off", "files", "elements"] = "off"
    """What engines get of new weights. `off`: everything. `files`: the files that changed since the last
    version, for SGLang with `weight_sync = "disk"`. `elements`: the elements that changed, which in bfloat16
    are few at the learning rates of reinforcement learning; for SGLang servers that get weights through
    `disk`, or through `tensor` in host memory, and for native engines on several nodes. An engine that was
    started again gets everything. The trainer's first rank keeps a copy of the weights in host memory."""
    weight_check: Literal["sample", "all", "none"] = "sample"
    """SGLang: which tensors of every server are compared with the sent ones after each update, by checksums
    that are computed where the buckets are. `sample`: all vectors, and the matrices of one layer, a different
    one each time."""
    lora_sync: Literal["adapters", "merged"] = derived()
    """With `[trainer.lora]`: what engines get at an update. `adapters`: only the adapters, for the frozen
    model that they have. SGLang servers have the adapters of several versions at once, and a running request
    keeps those that it began with. `merged`: the whole model with the adapters merged into it. Unset:
    `adapters` where the engines can take them, else `merged`; `rlrun plan` shows which, and why."""
    urls: tuple[Annotated[str, Field(pattern=r"^https?://[^\s]+$")], ...] = ()
    """External engines: the URL of each engine. All of them must already serve the model, and speak SGLang's
    HTTP protocol."""
    api_key: str | None = None
    """The API key of external engines, or of the router at `router_url`, as `${env:NAME}`. None: they need no
    key."""
    python: Annotated[str | None, PathMarker()] = None
    """SGLang: path of the Python interpreter whose environment has SGLang installed. `rlrun validate` and
    `plan` run it, to check the server's arguments, only with `--allow-local-plugins`. None: the interpreter
    that runs rlrun."""
    environment: dict[str, str] = Field(default_factory=dict)
    """SGLang: environment variables of the server; write secrets as `${env:NAME}`."""
    sglang: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the SGLang server under SGLang's own names, for instance `mem_fraction_static = 0.7`. They
    are checked against the arguments of the installed server."""
    groups: tuple[EngineGroupSpec, ...] = ()
    """SGLang: groups of the policy's servers, each with a number of servers and arguments of its own. They
    take the GPUs in their order. Empty: all servers are alike."""
    router: Literal["rlrun", "sglang-router"] = "rlrun"
    """SGLang: what chooses the server of a request. `rlrun`: the server that has the session's KV cache, else
    the least busy one. `sglang-router`: the router of that package, which must be installed beside SGLang and
    is started with the job. It receives a separate request for each sample of a group."""
    router_url: Annotated[str | None, Field(pattern=r"^https?://[^\s]+$")] = None
    """SGLang: address of an sglang-router that runs already. The job's servers join its list, and leave it at
    the end. None: the job starts the router."""
    sglang_router: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the sglang-router under its own names, for instance `policy = "cache_aware"`, which is its
    default. They are checked against the arguments of the installed router."""


class NamedEngineSpec(EngineSpec):
    """Engines that serve another model than the policy, for instance a judge or a teacher. Their weights are
    never updated."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]*$")
    """Name that `engine = "…"` of a reward, of `[teacher]` or of `[reference]`, and `engines` of
    `[rollout.function]`, refer to."""
    path: Annotated[str | None, PathMarker("model")] = None
    """Hugging Face id, or a folder with config.json and safetensors, relative to the file that sets it. None:
    the model that the external engines serve, or the policy's with `adapter`."""
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face id. None: the default branch."""
    adapter: Annotated[str | None, PathMarker()] = None
    """Folder of a LoRA adapter in peft's layout. With `path` the engines serve that model with the adapter.
    Without `path` the policy's own SGLang servers serve the policy's frozen model with this adapter, so that
    no second model is loaded; they must get adapters alone (`lora_sync`). None: the model has no adapter."""
    max_length: int | None = Field(default=None, ge=1)
    """Maximum number of tokens of a request and its answer together. None: the maximum length of the
    model."""
