"""The features of a job that do not go with every other one; the rows of the table name them."""

from rlrun.models.adapters import EXPERT_TARGETS
from rlrun.models.architecture import INEXACT_PARTS as INEXACT
from rlrun.models.architecture import Architecture
from rlrun.models.families.table import family_named
from rlrun.models.object_store import is_address
from rlrun.specs.derived.conflicts.feature import (
    Feature,
    Job,
    Test,
    above_one,
    equal,
    given,
    missing,
    model_with,
    on,
    unequal,
)
from rlrun.specs.derived.engine_groups import has_prefill_servers, policy_groups
from rlrun.specs.derived.engine_layout import sleeps
from rlrun.specs.derived.old_policy import old_log_probs_of
from rlrun.specs.derived.on_policy_target import rounds_as_target
from rlrun.specs.derived.sampling_mask import cuts_vocabulary, records_mask
from rlrun.specs.derived.served_adapters import shares_policy, teacher_shares_policy
from rlrun.specs.derived.server_size import stages_of
from rlrun.specs.derived.weight_sync import carrier_of, shares_gpus, shares_memory
from rlrun.specs.sections.weight_carriers import DISK, NotCarried, WeightCarrier, takes
from rlrun.specs.sections.weight_carriers import NATIVE as NATIVE_CARRIER

_TYPE, _GPUS = "engine.type", "cluster.gpus_per_node"


def _algorithm(name: str, test: Test) -> Feature:
    """Returns a feature of the algorithm."""
    return Feature(
        name, "algorithm.type", lambda job: job.needs is not None and test(job), None, ("algorithm",)
    )


def _type(name: str, *types: str, off: str | None = None) -> Feature:
    """Returns the feature of one or several types of engines."""
    return Feature(name, _TYPE, lambda job: job.spec.engine.type in types, off, (_GPUS,))


def _server(name: str, key: str, test: Test, off: str | None = None, *related: str) -> Feature:
    """Returns a feature of the policy's SGLang servers."""
    return Feature(
        name, key, lambda job: job.spec.engine.type == "sglang" and test(job), off, (_TYPE, *related)
    )


def _sent(name: str, key: str, test: Test, off: str | None = None) -> Feature:
    """Returns a feature of engines that are sent weights."""
    return Feature(
        name,
        key,
        lambda job: carrier_of(job.spec) is not NATIVE_CARRIER and test(job),
        off,
        (_TYPE, "cluster"),
    )


def _is_folder(key: str) -> Feature:
    """Returns the feature of a model in a folder or an object store, rather than on the Hugging Face hub."""

    def is_folder(job: Job) -> bool:
        path = str(job.value(key) or "")
        return path.startswith("/") or is_address(path)

    return Feature(f"a folder as {key}", key, is_folder, None)


# The job and its machines
NO_GPUS = Feature("GPUs", _GPUS, lambda job: not job.has_gpus, None, is_absence=True)
SEVERAL_NODES = above_one("cluster.nodes")
NOT_COLOCATED = missing(equal("cluster.placement", "colocated"))
NOT_DISAGGREGATED = missing(equal("cluster.placement", "disaggregated"))
DETERMINISTIC = on("deterministic")
UNSAVED_OPTIMIZER = Feature(
    "checkpoint.optimizer = false",
    "checkpoint.optimizer",
    lambda job: (
        not job.spec.checkpoint.optimizer
        and (
            job.spec.trainer.reset_optimizer == "never"
            or (job.needs is not None and job.needs.critic and job.spec.critic.reset_optimizer == "never")
        )
    ),
    "true",
    ("trainer.reset_optimizer", "critic.reset_optimizer"),
)
EXACT = on("true_on_policy")
EXACT_ON_CPUS = EXACT.when(lambda job: not job.has_gpus, "true_on_policy on CPUs", _GPUS)
EXACT_ON_GPUS = EXACT.when(lambda job: rounds_as_target(job.spec), "true_on_policy on GPUs", _GPUS)
UNREPLACED = equal("rollout.replace_dropped", False)
NO_INTERVAL = missing(on("checkpoint.interval"))
SAVES_ONCE = NO_INTERVAL.when(
    lambda job: job.spec.checkpoint.keep_best is None, NO_INTERVAL.name, "checkpoint.keep_best"
)
NOT_TRAINING_SAVED = missing(equal("debug.mode", "train"))
NO_TRAINER = (equal("debug.mode", "rollout"), equal("debug.mode", "eval"))
EVALUATION = Feature("[eval]", "eval", lambda job: job.spec.eval.model_fields_set - {"datasets"})
NO_DATASETS = missing(on("eval.datasets"))
SUBMITTED, UNEQUAL_NODES = on("submit", "[submit]"), on("cluster.node_gpus")
KUBERAY, SSH = equal("submit.type", "kuberay", None), equal("submit.type", "ssh", None)
SKYPILOT = equal("submit.type", "skypilot", None)
GRID = equal("sweep.search", "grid", '"optuna"')

# The policy's model
# Without a value to set instead: the trainer has no layers of its own for most of these families.
TRANSFORMERS = equal("model.implementation", "transformers", None)
RANDOM = on("model.random_init")
MODEL_FOLDER, TEACHER_FOLDER = _is_folder("model.path"), _is_folder("teacher.path")
REFERENCE_FOLDER, CRITIC_FOLDER = _is_folder("reference.path"), _is_folder("critic.path")
VISION = model_with("a vision tower", lambda model: model.tower is not None, "trainer.vision_tower", '"none"')
GIVEN_TOWER = Feature(
    "trainer.vision_tower",
    "trainer.vision_tower",
    lambda job: job.value("trainer.vision_tower") in ("frozen", "trained"),
)
NO_TOWER = model_with(
    "a vision tower", lambda model: model.vision is None and not model.stored_tensors, is_absence=True
)
UNREPORTED_EXPERTS = model_with(
    "experts that native engines compute by transformers' layers",
    lambda model: model.experts is not None and _lacks(model, "native_engine"),
)
NO_EXPERTS = model_with("a mixture of experts", lambda model: model.experts is None, is_absence=True)
NO_EXPERT_BIAS = model_with(
    "a bias of experts in the family's checkpoints",
    lambda model: model.experts is not None and not model.experts.correction_bias,
    is_absence=True,
)
DELTA_NET = model_with("Gated DeltaNet", lambda model: model.delta is not None)
LATENT_ATTENTION = model_with("latent attention", lambda model: model.latent is not None)
SPARSE_ATTENTION = model_with("sparse attention", lambda model: model.indexer is not None)
ATTENTION_SINKS = model_with("attention sinks", lambda model: model.sinks)
JOINT_NORMS = model_with("norms over all heads", lambda model: model.joint_qk_norm)
WINDOWS = model_with("windows of attention", lambda model: any(model.windows))
SCALED_POSITIONS = model_with("scaled positions (rope_scaling)", lambda model: model.rope.type != "default")
INEXACT_PARTS = tuple(model_with(name, has_part) for name, has_part in INEXACT.items())
NOT_DENSE_QWEN3 = model_with(
    "a model other than dense Qwen3", lambda model: not family_named(model.family).server.on_policy_target
)
WITHOUT_ADAPTERS = model_with(
    "a family without adapters (docs/families.md)", lambda model: _lacks(model, "adapters")
)
WITHOUT_PRECISION = model_with(
    "a family without low precision (docs/families.md)", lambda model: _lacks(model, "precision")
)

# Parallelism
PARALLEL = "trainer.parallel"
TENSOR, CONTEXT = above_one(f"{PARALLEL}.tensor"), above_one(f"{PARALLEL}.context")
PIPELINE, EXPERT = above_one(f"{PARALLEL}.pipeline"), above_one(f"{PARALLEL}.expert")
ONE_RANK = Feature(
    "several ranks",
    f"{PARALLEL}.fsdp",
    lambda job: job.spec.trainer.parallel.world_size == 1,
    None,
    is_absence=True,
)
NOTHING_GATHERED = Feature(
    "ranks that gather parameters",
    f"{PARALLEL}.fsdp",
    lambda job: job.spec.trainer.parallel.fsdp * job.spec.trainer.parallel.context == 1,
    None,
    (f"{PARALLEL}.context",),
    is_absence=True,
)
ASYNC_TENSOR = on(f"{PARALLEL}.async_tensor")
OVERLAPPING = ASYNC_TENSOR.when(
    lambda job: job.spec.trainer.parallel.tensor > 1, ASYNC_TENSOR.name, f"{PARALLEL}.tensor"
)
NO_SEQUENCE_PARALLEL = missing(on(f"{PARALLEL}.sequence_parallel"), "true")
SYMMETRIC_MEMORY = on(f"{PARALLEL}.symmetric_memory")
DEEPEP = equal(f"{PARALLEL}.token_dispatcher", "deepep", '"standard"')
SPLIT_BACKWARD = tuple(
    equal(f"{PARALLEL}.pipeline_schedule", schedule, '"1F1B"').when(
        lambda job: job.spec.trainer.parallel.pipeline > 1, schedule, f"{PARALLEL}.pipeline"
    )
    for schedule in ("InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
)

# The trainer
COMPILE = on("trainer.compile")
SELECTIVE = equal("trainer.activation_checkpointing", "selective", '"full"')
FLOAT32 = equal("trainer.dtype", "float32", '"bfloat16"')
FLOAT32_HEAD = equal("trainer.head_dtype", "float32", '"model"')
ALL_FLOAT32 = Feature(
    "trainer and engines in float32",
    "trainer.dtype",
    lambda job: job.needs is not None and _precisions(job) == {"float32"},
    None,
    ("engine.dtype",),
)
OFFLOAD = unequal("trainer.offload", "none", "trainer.offload")
OFFLOAD_ALL = equal("trainer.offload", "all", '"optimizer"')
MUON = equal("trainer.optimizer", "muon", '"adamw"')
WARM_UP = Feature(
    "a warm-up",
    "trainer.warmup_steps",
    lambda job: job.value("trainer.warmup_steps") or job.value("trainer.warmup_ratio"),
    None,
    ("trainer.warmup_ratio",),
)
MUON_ANYWHERE = (equal("trainer.optimizer", "muon", None), equal("critic.optimizer", "muon", None))
STATELESS = equal("trainer.optimizer", "adamw_stateless", None)
EIGHT_BITS = (equal("trainer.optimizer", "adamw_8bit", None), equal("critic.optimizer", "adamw_8bit", None))
FLASH_3 = equal("trainer.flash_attention", "FA3")
OTHER_ATTENTION = unequal("trainer.flash_attention", "FA3")
MICRO_BATCH_SIZE = on("trainer.micro_batch_size")
SHARED_PREFIXES = on("trainer.share_prefixes")
MTP = on("trainer.mtp_loss")
BALANCING = equal("trainer.moe.balancing", "bias", '"off"')
REPLAY = unequal("trainer.moe.routing_replay", "off", "trainer.moe.routing_replay")
TRAINER_REPLAY = equal("trainer.moe.routing_replay", "trainer")
ENGINE_REPLAY = equal("trainer.moe.routing_replay", "engine", '"off"')
ENGINE_REPLAY_WITHOUT_BIAS = ENGINE_REPLAY.when(
    lambda job: not job.spec.trainer.moe.balancing_export, ENGINE_REPLAY.name, "trainer.moe.balancing_export"
)
NATIVE_REPLAY = ENGINE_REPLAY.when(
    lambda job: job.spec.engine.type == "native", ENGINE_REPLAY.name, "engine.type"
)
OLD_FROM_ENGINES = Feature(
    'trainer.old_log_probs = "rollout"',
    "trainer.old_log_probs",
    lambda job: job.needs is not None and old_log_probs_of(job.spec, job.needs) == "rollout",
    '"trainer"',
    ("rollout.mode", "rollout.partial", "algorithm"),
)

BALANCING_UNDER_REPLAY = BALANCING.when(
    lambda job: job.value("trainer.moe.routing_replay") == "engine" and job.spec.trainer.moe.balancing_export,
    "trainer.moe.balancing with routing of the engines",
    "trainer.moe.routing_replay",
    "trainer.moe.balancing_export",
)
GIVEN_BALANCING_EXPORT = given("trainer.moe.balancing_export").when(
    lambda job: job.spec.trainer.moe.balancing_export and job.spec.trainer.moe.balancing != "off",
    "trainer.moe.balancing_export = true",
    "trainer.moe.balancing",
)

# Low precision
PRECISION = on("trainer.precision")
PRECISION_ON_CPUS = PRECISION.when(lambda job: not job.has_gpus, "trainer.precision on CPUs", _GPUS)
FLOAT8, INT4 = equal("trainer.precision", "float8"), equal("trainer.precision", "int4_qat")
NVFP4 = equal("trainer.precision", "nvfp4")

# LoRA
LORA = on("trainer.lora", "[trainer.lora]")
LORA_BASE = on("trainer.lora.base")
COMPILED_ADAPTERS = COMPILE.when(
    lambda job: job.spec.trainer.lora is not None, "trainer.compile of adapters", "trainer.lora"
)
EXPERT_ADAPTERS = Feature(
    "adapters of experts",
    "trainer.lora.targets",
    lambda job: set(EXPERT_TARGETS).intersection(job.value("trainer.lora.targets") or ()),
    None,
)
EXPERT_ADAPTERS_IN_NATIVE = EXPERT_ADAPTERS.when(
    lambda job: job.spec.engine.type == "native", "adapters of experts in native engines", _TYPE
)
EXPERT_ADAPTERS_IN_SGLANG = EXPERT_ADAPTERS.when(
    lambda job: job.spec.engine.type == "sglang", "adapters of experts in SGLang servers", _TYPE
)
ADAPTERS_ALONE = equal("engine.lora_sync", "adapters", '"merged"')

# Rollouts
SYNC, ASYNC = missing(equal("rollout.mode", "async")), equal("rollout.mode", "async", '"sync"')
NEVER_STALE = Feature(
    'rollout.mode = "async" or rollout.partial',
    "rollout.mode",
    lambda job: job.spec.rollout.mode == "sync" and not job.spec.rollout.partial,
    None,
    ("rollout.partial",),
    is_absence=True,
)
PROBE = on("rollout.probe_samples")
NO_FILTERS = missing(on("filters")).when(lambda job: not job.value("rollout.probe_samples"), "filters")
RARE_UPDATES = above_one("rollout.weight_update_interval")
SLEEPING = Feature("engines that sleep", "engine.sleep", lambda job: sleeps(job.spec), "false")
UPDATED_WHILE_RUNNING = ASYNC.when(
    lambda job: job.spec.rollout.weight_update == "during",
    'rollout.weight_update = "during"',
    "rollout.weight_update",
)
PARTIAL, NO_PARTIAL = on("rollout.partial"), missing(on("rollout.partial"), "true")
TEMPERATURE = Feature(
    "another temperature than 1",
    "rollout.temperature",
    lambda job: job.spec.rollout.temperature != 1,
    "1",
)
WHOLE_VOCABULARY = Feature(
    "top_p or top_k",
    "rollout.top_p",
    lambda job: not cuts_vocabulary(job.spec),
    None,
    ("rollout.top_k",),
    is_absence=True,
)
MASKS = Feature(
    "sampling masks (top_p, top_k)",
    "rollout.sampling_mask",
    lambda job: job.needs is not None and records_mask(job.spec, job.needs),
    None,
    ("rollout.top_p", "rollout.top_k", "algorithm"),
)

# Algorithms
GENERATES = _algorithm("an algorithm that generates responses", lambda job: job.needed("rollout"))
DEMONSTRATIONS = _algorithm(
    "an algorithm that generates no samples (SFT, DPO, KTO)", lambda job: not job.needed("rollout")
)
PAIRS = _algorithm("an algorithm of pairs (DPO)", lambda job: job.needed("pairs"))
SCORES = _algorithm("an algorithm that trains a reward model", lambda job: job.needed("scores"))
LABELS = _algorithm("an algorithm of labelled responses (KTO)", lambda job: job.needed("labels"))
NOT_COMPARED = _algorithm(
    "an algorithm that learns from groups of equal rewards",
    lambda job: (
        job.needed("rollout")
        and (not job.needed("group_relative") or job.needed("greedy_reward") or job.needed("teacher"))
    ),
)
NO_PAIRS = _algorithm("an algorithm that reads no pairs", lambda job: not job.needed("reads_pairs"))
NO_RATIO = _algorithm(
    "a loss without a ratio", lambda job: not (job.needed("rollout") and job.needed("old_log_probs"))
)
CRITIC = _algorithm("an algorithm with a critic", lambda job: job.needed("critic"))
NO_REFERENCE = _algorithm("an algorithm without a reference", lambda job: not job.needed("reference"))
NO_TEACHER = _algorithm("an algorithm without a teacher", lambda job: not job.needed("teacher"))
NO_CRITIC = _algorithm("an algorithm without a critic", lambda job: not job.needed("critic"))
CORRECTION = Feature(
    "algorithm.correction",
    "algorithm.correction",
    lambda job: job.needed("trainer_log_probs"),
    related=("algorithm.type",),
)
OLD_INTERPOLATED = equal("trainer.old_log_probs", "interpolated", '"trainer"')
OLD_GIVEN_FROM_ENGINES = equal("trainer.old_log_probs", "rollout", '"trainer"').when(
    lambda job: job.needed("old_log_probs"),
    'trainer.old_log_probs = "rollout"',
)
BOOTSTRAPPING = on("algorithm.bootstrap_truncated").when(
    lambda job: job.needed("critic"), "algorithm.bootstrap_truncated"
)
CUT_VOCABULARY = tuple(
    Feature(f"rollout.{name}", f"rollout.{name}", test, None, ("rollout.sampling_mask",))
    for name, test in (
        ("top_p", lambda job: job.spec.rollout.top_p < 1 and _may_record_masks(job)),
        ("top_k", lambda job: job.spec.rollout.top_k >= 1 and _may_record_masks(job)),
    )
)
TURN_REWARDS_TO_GO = equal("algorithm.turn_rewards", "to_go")
NO_TURN_REWARDS = Feature(
    "a rollout that gives turns no rewards (single_turn, multi_turn_tools)",
    "rollout.function.type",
    lambda job: job.spec.rollout.function.type in ("single_turn", "multi_turn_tools"),
    '"environment"',
)
WORKERS = Feature(
    'agent.type = "workers"',
    "rollout.function.type",
    lambda job: (
        isinstance(agent := job.spec.rollout.function.params.get("agent"), dict)
        and agent.get("type") == "workers"
    ),
    None,
)
TRUNCATED_UNTRAINED = missing(equal("rollout.truncated", "train"))
OTHER_REDUCTION = unequal("trainer.reduction", "per_sample_mean")
RESPONSE_KEY = on("data.response_key").when(
    lambda job: job.spec.data.type == "jsonl", "data.response_key", "data.type"
)
REJECTED_KEY = on("data.rejected_key").when(
    lambda job: job.spec.data.type == "jsonl", "data.rejected_key", "data.type"
)

# Reference, teacher and critic
REFERENCE, TEACHER, SECTION_OF_CRITIC = (
    Feature(f"[{name}]", name, given(name).holds) for name in ("reference", "teacher", "critic")
)
SERVED_REFERENCE, SERVED_TEACHER = on("reference.engine"), on("teacher.engine")
TEACHER_OF_A_SOURCE = on("teacher.sources")
USED_SERVED_REFERENCE = SERVED_REFERENCE.when(lambda job: job.needed("reference"), SERVED_REFERENCE.name)
USED_SERVED_TEACHERS = tuple(
    served.when(lambda job: job.needed("teacher"), served.name)
    for served in (SERVED_TEACHER, TEACHER_OF_A_SOURCE)
)
TEACHER_IS_POLICY = on("teacher.weights")
NOT_AVERAGED = missing(equal("teacher.weights", "average"))
TEACHER_PROMPT = on("teacher.prompt")
NO_TEACHER_PROMPT = missing(TEACHER_PROMPT, '"…"')
NO_SOLUTIONS = Feature(
    "{solution} in teacher.prompt",
    "teacher.prompt",
    lambda job: "{solution}" not in str(job.value("teacher.prompt")),
    None,
    is_absence=True,
)
OTHER_PROMPTS = tuple(
    equal("rollout.function.type", name, '"single_turn"') for name in ("agent", "environment")
)
TEACHER_TOKENIZER = on("teacher.tokenizer")
NOT_SINGLE_TURN = unequal("rollout.function.type", "single_turn", 'a rollout other than "single_turn"')
TEACHER_BESIDE_POLICY = Feature(
    "teacher.adapter of the policy's model",
    "teacher.adapter",
    lambda job: teacher_shares_policy(job.spec),
    None,
    ("teacher.path", "teacher.engine"),
)

# Engines
NATIVE, SGLANG = _type("native engines", "native"), _type("SGLang servers", "sglang", off='"native"')
EXTERNAL = _type("external engines", "external")
NOT_NATIVE = _type("engines that are not native", "sglang", "external", off='"native"')
NOT_SGLANG = _type("engines that are not SGLang's", "native", "external", off='"sglang"')
SGLANG_ON_CPUS = SGLANG.when(lambda job: not job.has_gpus, "SGLang servers on CPUs")
SGLANG_ROUTER = _server(
    'engine.router = "sglang-router"',
    "engine.router",
    lambda job: job.spec.engine.router == "sglang-router",
    '"rlrun"',
)
RUNNING_ROUTER = on("engine.router_url")
KEYLESS_SGLANG = SGLANG.when(lambda job: not job.value("engine.router_url"), SGLANG.name)
OWN_ROUTER = _server(
    'engine.router = "rlrun"', "engine.router", lambda job: job.spec.engine.router == "rlrun"
)
SPLIT_SERVER = above_one("engine.tensor")
COUNT = given("engine.count")
SERVER_STAGES = _server(
    "pipeline stages of a server",
    "engine.sglang",
    lambda job: any(stages_of(group.section) > 1 for group in policy_groups(job.spec)),
)
ELASTIC = on("engine.min_count")
ELASTIC_RANKS = on("trainer.parallel.min_fsdp")
COUNT_ON_SHARED_GPUS = Feature(
    "engine.count on the trainer's GPUs",
    "engine.count",
    lambda job: job.gives("engine.count") and shares_gpus(job.spec),
)
OWN_LAYOUTS = tuple(given(f"{role}.parallel") for role in ("critic", "teacher"))
NO_ENGINE_RESTARTS = equal("fault_tolerance.engine_restarts", 0)
MEMORY_OF_A_JOINED_HOST = Feature(
    "weights in the memory of one host of cluster.address",
    "cluster.nodes",
    lambda job: job.spec.cluster.address is not None and shares_memory(job.spec),
    None,
    ("cluster.address", _TYPE),
)
ADAPTERS_OF_POLICY = Feature(
    "[[engines]] that the policy's servers serve",
    "engines",
    lambda job: any(map(shares_policy, job.spec.engines)),
    None,
)
GROUPS = _server("engine.groups", "engine.groups", lambda job: job.spec.engine.groups)
PREFILL_SERVERS = GROUPS.when(
    lambda job: has_prefill_servers(job.spec), "prefill and decode on servers of their own"
)
UNLIKE_SERVERS = GROUPS.when(
    lambda job: len({group.section.tensor for group in policy_groups(job.spec)}) > 1,
    "groups of servers with different tensor",
)
OTHER_PYTHON = on("engine.python")
SPECULATION, NO_SPECULATION = (
    on("engine.speculative.algorithm"),
    missing(on("engine.speculative.algorithm"), '"ngram"'),
)
NATIVE_SPECULATION = SPECULATION.when(
    lambda job: job.spec.engine.type == "native", "speculation in native engines", _TYPE
)
SGLANG_SPECULATION = SPECULATION.when(
    lambda job: job.spec.engine.type == "sglang", "speculation in SGLang servers", _TYPE
)
DRAFT_MODEL = SPECULATION.when(
    lambda job: job.spec.engine.speculative.algorithm != "ngram", "speculation with a draft model"
)
DRAFT_WITHIN_POLICY = SPECULATION.when(
    lambda job: job.spec.engine.speculative.algorithm in ("ngram", "mtp"), 'speculation by "ngram" or "mtp"'
)
KEPT_SAMPLES = on("engine.kept_samples").when(
    lambda job: job.spec.engine.type == "native",
    "engine.kept_samples",
    _TYPE,
)

# Weights to the engines
SERVED_MODEL = on("engine.model")
IN_HOST_MEMORY_OF_NODES = SEVERAL_NODES.when(
    lambda job: shares_memory(job.spec), SEVERAL_NODES.name, "cluster.placement"
)
SHARED_GPUS = SGLANG.when(
    lambda job: shares_gpus(job.spec), "SGLang servers on the trainer's GPUs", "cluster.placement"
)
LORA_BASE_OF_SERVERS = _server(
    "trainer.lora.base", "trainer.lora.base", lambda job: job.value("trainer.lora.base"), ""
)
OTHER_MODEL_OF_SERVERS = _server("engine.model", "engine.model", lambda job: job.spec.engine.model, "")
FILES, ELEMENTS = (equal("engine.weight_delta", "files"), equal("engine.weight_delta", "elements", '"off"'))
NOT_FROM_FILES = missing(
    Feature(
        'engine.weight_sync = "disk"',
        "engine.weight_sync",
        lambda job: carrier_of(job.spec) is DISK,
        None,
        (_TYPE, "cluster"),
    )
)
CHECKED = unequal("engine.weight_check", "none", "engine.weight_check")
NOT_FROM_DISK = Feature(
    'SGLang servers with engine.weight_sync = "disk"',
    "engine.weight_sync",
    lambda job: job.spec.engine.type == "native" or carrier_of(job.spec) is not DISK,
    None,
    (_TYPE,),
    is_absence=True,
)
SENT_EXTERNAL = _sent("external engines", _TYPE, lambda job: job.spec.engine.type == "external")
SENT_SLEEPERS = _sent("engine.sleep", "engine.sleep", lambda job: sleeps(job.spec), "false")
SENT_MTP = _sent(
    'engine.speculative.algorithm = "mtp"',
    "engine.speculative.algorithm",
    lambda job: job.spec.engine.speculative.algorithm == "mtp",
)
SENT_QUANTISED = _sent(
    "servers with quantised weights",
    "engine.model",
    lambda job: job.spec.engine.model or any("quantization" in name for name in _arguments(job)),
)
SENT_FLOAT32 = _sent(
    'engine.dtype = "float32"',
    "engine.dtype",
    lambda job: job.spec.engine.given("dtype") == "float32",
    '"bfloat16"',
)
SENT_TOWER = _sent(
    "native engines of a trained vision tower",
    "trainer.vision_tower",
    lambda job: job.spec.engine.type == "native" and job.value("trainer.vision_tower") == "trained",
)
BESIDE_CARRIERS = {
    "sglang": SGLANG,
    "external": EXTERNAL,
    "several nodes": IN_HOST_MEMORY_OF_NODES,
    "shared GPUs": SHARED_GPUS,
}
"""What the limits of carriers name."""
SERVERS_SYNC = given("engine.weight_sync").when(
    lambda job: not takes("native", job.value("engine.weight_sync")), "engine.weight_sync"
)
SLEEP = on("engine.sleep")
COLOCATED_EXTERNAL = EXTERNAL.when(lambda job: job.spec.cluster.placement == "colocated", "external engines")


def chosen(carrier: WeightCarrier) -> Feature:
    """Returns the feature of a carrier that the spec names; native engines ignore those of servers."""
    feature = equal("engine.weight_sync", carrier.name)
    return feature.when(
        lambda job: job.spec.engine.type in ("sglang", "external", *carrier.engines), feature.name, _TYPE
    )


def carried(carrier: WeightCarrier, limit: NotCarried) -> Feature:
    """Returns the feature of engines that get weights by a carrier, and not all payloads of it."""

    def holds(job: Job) -> bool:
        spec = job.spec
        is_far = spec.cluster.nodes > 1 or not limit.across_nodes
        return carrier_of(spec) is carrier and spec.engine.type in (*limit.engines, None) and is_far

    key = _TYPE if limit.instead is None else "engine.weight_sync"
    return Feature(limit.by, key, holds, limit.instead, (_TYPE, "cluster"))


def _may_record_masks(job: Job) -> bool:
    """Returns whether the spec does not forbid sampling masks."""
    return job.spec.rollout.given("sampling_mask") is not False


def _lacks(model: Architecture, support: str) -> bool:
    """Returns whether a family of the trainer's own layers does not offer something."""
    row = family_named(model.family).support
    return row is not None and not getattr(row, support)


def _arguments(job: Job) -> set[str]:
    """Returns the names of the arguments of all of the policy's servers."""
    return {name for group in policy_groups(job.spec) for name in group.section.sglang}


def _precisions(job: Job) -> set[str | None]:
    """Returns the precisions that trainer and engines have, where the spec says so."""
    spec = job.spec
    sections = (spec.engine, *spec.engines) if job.needed("rollout") else ()
    return {spec.trainer.given("dtype"), *(section.given("dtype") for section in sections)}
