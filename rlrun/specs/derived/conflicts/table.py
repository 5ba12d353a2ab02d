"""What does not go together: pairs of features of a job, each with the reason.

`rlrun validate`, `plan --sweep` and `launch` read the rows whose two features hold, derived defaults avoid
them (reading.py), and docs/combinations.md shows them. A new feature adds its predicate to features.py, and
its rows here. What is computed from numbers, names or files is a rule (rlrun/specs/rules).
"""

from rlrun.models.families.table import WITH_TOWER
from rlrun.specs.derived.conflicts import features as f
from rlrun.specs.derived.conflicts.feature import Feature, above_one, equal, given, missing, on
from rlrun.specs.derived.conflicts.row import Topic, no_effect, refused, untried
from rlrun.specs.derived.default_engine import SERVER_KEYS, SGLANG_KEYS
from rlrun.specs.problems.codes import Code
from rlrun.specs.sections.rollout import RolloutSpec
from rlrun.specs.sections.trainer import DEGREE_OF
from rlrun.specs.sections.weight_carriers import CARRIERS, CHOSEN


def _given(section: str, *keys: str) -> tuple[Feature, ...]:
    return tuple(given(f"{section}.{key}") for key in keys)


_JOB = (
    refused(on("trainer.epochs"), on("trainer.steps"), "both give the length of the job"),
    no_effect(given("checkpoint.keep"), f.SAVES_ONCE, "the only checkpoint is the one at the end"),
    no_effect(
        on("checkpoint.asynchronous"),
        f.SAVES_ONCE,
        "the only checkpoint is the one at the end, after all training",
    ),
    no_effect(
        given("checkpoint.start_optimizer"), missing(on("checkpoint.start_from")), "no state is loaded"
    ),
    refused(
        f.UNSAVED_OPTIMIZER,
        f.DETERMINISTIC,
        "a resumed run would continue with an empty optimizer",
        'set optimizer = true, or reset_optimizer = "rollout" under [trainer] (and [critic])',
    ),
    no_effect(given("checkpoint.mirror_required"), missing(on("checkpoint.mirror")), "nothing is uploaded"),
    no_effect(on("checkpoint.push"), equal("checkpoint.export_hf", False), "the final model is not written"),
    no_effect(on("checkpoint.push"), equal("debug.mode", "rollout"), "nothing is trained"),
    no_effect(on("checkpoint.keep_best"), f.NO_TRAINER, "the weights stay the same, and so does the result"),
    no_effect(
        on("checkpoint.start_from"),
        f.NO_TRAINER,
        "engines serve the model of model.path, and nothing is trained",
    ),
    no_effect(on("checkpoint.start_from"), on("debug.step"), "the step starts from its own run's checkpoint"),
    no_effect(
        _given("debug", "rollouts", "step", "fraction"),
        f.NOT_TRAINING_SAVED,
        "no other mode trains on saved samples",
    ),
    no_effect(on("debug.profile.steps"), f.NO_TRAINER, "there is no trainer to record"),
    no_effect(on("hooks"), f.NO_TRAINER, "hooks are called in steps that train"),
    no_effect(on("model.revision"), f.MODEL_FOLDER, "only models on the Hugging Face hub have revisions"),
    no_effect(on("teacher.revision"), f.TEACHER_FOLDER, "only models on the Hugging Face hub have revisions"),
    no_effect(on("reference.revision"), missing(on("reference.path")), "the reference is model.path's model"),
    no_effect(
        on("reference.revision"), f.REFERENCE_FOLDER, "only models on the Hugging Face hub have revisions"
    ),
    no_effect(on("critic.revision"), missing(on("critic.path")), "the critic starts as the policy"),
    no_effect(on("critic.revision"), f.CRITIC_FOLDER, "only models on the Hugging Face hub have revisions"),
)
_ROLLOUTS = (
    no_effect(
        given("rollout.max_staleness"),
        f.NEVER_STALE,
        "no sample is dropped for its age then",
        'remove it, or set mode = "async" or partial = true',
    ),
    no_effect(given("rollout.weight_update"), f.SYNC, "nothing is generated while weights are updated"),
    no_effect(f.PARTIAL, f.ASYNC, "unfinished samples are never stopped: they continue with newer weights"),
    no_effect(
        _given("rollout", "mask_off_policy", "buffer"),
        f.NO_PARTIAL,
        "no unfinished sample is kept for the next step",
    ),
    refused(
        f.ASYNC,
        f.NOT_DISAGGREGATED,
        "asynchronous engines run at the same time as the trainer and cannot share its devices",
        'set cluster.placement = "disaggregated"',
    ),
    refused(
        f.RARE_UPDATES,
        f.SLEEPING,
        "engines that sleep give up their weights, and get those of the trainer when they wake up",
        'remove it, or set engine.sleep = false or cluster.placement = "disaggregated"',
    ),
    refused(
        on("rollout.mask_off_policy"),
        f.RARE_UPDATES,
        "between two updates no token is of the trainer's weights, and a step would have nothing to train on",
    ),
    refused(
        f.UNREPLACED, (f.ASYNC, f.PARTIAL), "a batch is made of the groups that are ready, of any prompts"
    ),
    no_effect(f.UNREPLACED, f.NO_FILTERS, "nothing is dropped"),
    refused(f.PROBE, f.PARTIAL, "a group that is kept unfinished continues with all of its samples"),
    refused(
        f.PROBE,
        f.NOT_COMPARED,
        "its advantages are not only differences of a group's rewards, so that equal ones teach, too",
    ),
    refused(f.PROBE, f.TURN_REWARDS_TO_GO, "the rewards of turns may differ where those of samples do not"),
    refused(f.DETERMINISTIC, f.ASYNC, "what an asynchronous job trains on depends on timing"),
    refused(f.DETERMINISTIC, f.PARTIAL, "which samples are unfinished depends on timing"),
    refused(f.DETERMINISTIC, f.WORKERS, "all executions of a batch would need a worker at once"),
    no_effect(
        on("rollout.max_concurrency"),
        f.DETERMINISTIC,
        "a deterministic job always submits whole batches",
        "remove it; engine.max_running limits how many samples an engine decodes at once",
    ),
)
_ALGORITHMS = (
    no_effect(
        (
            on("rewards"),
            on("filters"),
            *(given(name) for name in ("scoring", "engine", "eval", "fault_tolerance", "debug")),
            *(
                given(f"rollout.{name}")
                for name in RolloutSpec.model_fields
                if name not in ("max_prompt_tokens", "max_response_tokens")
            ),
            given("trainer.optimizer_steps"),
            given("cluster.placement"),
        ),
        f.DEMONSTRATIONS,
        "{algorithm} trains on the rows of the data and generates no samples",
    ),
    no_effect(
        f.RESPONSE_KEY, f.GENERATES, "{algorithm} generates responses and does not read those of the data"
    ),
    no_effect(f.REJECTED_KEY, f.NO_PAIRS, "{algorithm} does not read rejected responses"),
    no_effect(given("trainer.old_log_probs"), f.NO_RATIO, "the loss of {algorithm} reads no old log-probs"),
    refused(
        f.OLD_GIVEN_FROM_ENGINES,
        f.CORRECTION,
        "it compares log-probs of the trainer with those of the engine",
    ),
    no_effect(
        f.TRAINER_REPLAY,
        (f.OLD_FROM_ENGINES, f.OLD_INTERPOLATED),
        "the trainer runs no pass for old log-probs whose routing could be replayed",
    ),
    no_effect(
        f.BOOTSTRAPPING,
        f.TRUNCATED_UNTRAINED,
        "truncated samples are not trained",
        "remove it, or remove rollout.truncated",
    ),
    no_effect(
        f.TURN_REWARDS_TO_GO,
        f.NO_TURN_REWARDS,
        "the whole reward of a sample belongs to its end",
    ),
    refused(f.OTHER_REDUCTION, f.PAIRS, "the loss of {algorithm} has one term per pair"),
    refused(f.OTHER_REDUCTION, f.LABELS, "the loss of {algorithm} has one term per response"),
    no_effect(f.FLOAT32_HEAD, f.ALL_FLOAT32, "logits are float32 without it"),
    refused(
        f.CRITIC,
        f.TRANSFORMERS,
        "its layers do not have the critic that {algorithm} needs",
        "choose an algorithm without a critic",
    ),
    refused(
        f.SCORES,
        f.TRANSFORMERS,
        "its layers do not have the head that {algorithm} trains",
        "choose a family that torchtitan computes",
    ),
    refused(
        f.LORA,
        f.SCORES,
        "the head that {algorithm} trains has no adapter, and would stay as it starts",
    ),
    refused(f.MTP, f.SCORES, "the model that {algorithm} trains predicts no tokens"),
)
_OTHER_MODELS = (
    no_effect(f.REFERENCE, f.NO_REFERENCE, "{algorithm} does not use a reference with these settings"),
    no_effect(f.TEACHER, f.NO_TEACHER, "{algorithm} does not use a teacher with these settings"),
    no_effect(f.SECTION_OF_CRITIC, f.NO_CRITIC, "{algorithm} does not use a critic with these settings"),
    no_effect(
        _given("teacher", "revision", "parallel"),
        f.SERVED_TEACHER,
        "engines serve the teacher, and the trainer does not load it",
    ),
    no_effect(
        on("teacher.adapter"),
        f.SERVED_TEACHER,
        "engines serve the teacher, and the trainer does not load it",
        "remove it, and set `adapter` in the table of [[engines]]",
    ),
    refused(
        on("reference.path"),
        f.LORA,
        "the reference is the frozen model beneath the adapters, so that it needs no memory",
        "remove it, or serve that model with [[engines]] and name it as reference.engine",
    ),
    no_effect(
        _given("reference", "path", "revision", "update_interval"),
        f.SERVED_REFERENCE,
        "engines serve the reference, and the trainer does not load it",
    ),
    no_effect(
        _given("teacher", "revision", "parallel"),
        f.TEACHER_BESIDE_POLICY,
        "the teacher is the policy's model with another adapter, in the policy's layout",
        "remove it, or add teacher.path",
    ),
    no_effect(
        _given("teacher", "adapter", "revision", "parallel"),
        f.TEACHER_IS_POLICY,
        "the teacher is the policy itself, in the policy's layout",
    ),
    no_effect(
        given("teacher.update_rate"),
        f.NOT_AVERAGED,
        "the teacher's weights do not follow the policy's",
    ),
    no_effect(
        given("teacher.max_prompt_tokens"),
        f.NO_TEACHER_PROMPT,
        "the teacher reads the policy's prompt",
    ),
    no_effect(
        given("teacher.success_reward"),
        f.NO_SOLUTIONS,
        "the teacher's prompt shows no solution",
    ),
    refused(
        f.TEACHER_PROMPT,
        f.OTHER_PROMPTS,
        "its conversations begin with prompts of their own, which the teacher's would replace",
        "remove it, or choose another rollout",
    ),
    refused(
        f.TEACHER_TOKENIZER,
        (f.SERVED_TEACHER, f.TEACHER_OF_A_SOURCE, f.TEACHER_IS_POLICY, on("teacher.adapter")),
        "a tokenizer of its own is read for a whole model of teacher.path alone",
        "remove it, or set teacher.path instead",
    ),
    refused(
        f.TEACHER_TOKENIZER,
        f.TEACHER_PROMPT,
        "the teacher reads the row's own prompt, in its tokens",
        "remove one of them",
    ),
    refused(
        f.TEACHER_TOKENIZER,
        f.NOT_SINGLE_TURN,
        "the teacher reads one response to the row's prompt, without results of tools",
        "remove it, or choose another rollout",
    ),
    refused(
        f.TEACHER_TOKENIZER,
        f.DEMONSTRATIONS,
        "the rows' own responses are tokenised for the policy alone",
        "remove it, or let the policy generate",
    ),
    refused(
        f.TEACHER_TOKENIZER,
        f.MASKS,
        "a sampling mask names the policy's tokens, and the teacher's log-probs are over all of its own",
        "remove top_p and top_k of [rollout]",
    ),
    *(
        refused(
            f.TEMPERATURE,
            served,
            f"engines give the log-probs of a {name} at temperature 1",
            f"set 1, or let the trainer load the {name} instead of engines",
        )
        for name, served in (
            ("teacher", (f.SERVED_TEACHER, f.TEACHER_OF_A_SOURCE)),
            ("reference", f.SERVED_REFERENCE),
        )
    ),
)
_WITHOUT_MASKS = "remove top_p and top_k, or set rollout.sampling_mask = false with an algorithm.correction"
_EVALUATION = (
    no_effect(
        f.EVALUATION,
        f.NO_DATASETS,
        "there is nothing to evaluate on",
        "add a table [[eval.datasets]], or remove [eval]",
    ),
)
_SUBMISSION = (
    refused(
        f.UNEQUAL_NODES,
        f.SUBMITTED,
        "schedulers are asked for nodes that are alike",
        "start Ray on the nodes and set cluster.address, or take as many GPUs of each node",
    ),
    no_effect(
        given("submit.hours"),
        (f.KUBERAY, f.SSH, f.SKYPILOT),
        "nothing there ends an attempt after a time",
        "remove it",
    ),
    no_effect(
        given("submit.memory_gb"), f.SSH, "no scheduler there gives a job a part of the memory", "remove it"
    ),
    no_effect(
        on("submit.setup"),
        f.KUBERAY,
        "Ray starts in the pods before rlrun, with what their image has",
        "put it into submit.image",
    ),
)
_SWEEP = (
    no_effect(
        given("sweep.trials"),
        f.GRID,
        "a grid has one trial for each combination of values",
        'remove it, or set search = "optuna"',
    ),
)
_SAMPLING = (
    no_effect(
        given("rollout.sampling_mask"),
        f.WHOLE_VOCABULARY,
        "tokens are drawn from the whole vocabulary",
        "remove it, or set top_p or top_k",
    ),
    refused(
        f.SGLANG_ROUTER,
        f.MASKS,
        "sglang-router does not pass requests for sampling masks on to the servers",
        f"remove it, {_WITHOUT_MASKS}",
    ),
    refused(
        f.SGLANG_SPECULATION,
        f.MASKS,
        "SGLang records no sampling masks with speculative decoding",
        f"remove it, {_WITHOUT_MASKS}",
    ),
    *(
        refused(
            served,
            f.MASKS,
            f"engines give the log-probs of a {name} over the whole vocabulary only",
            f"let the trainer hold the {name}, {_WITHOUT_MASKS}",
        )
        for name, served in (("teacher", f.USED_SERVED_TEACHERS), ("reference", f.USED_SERVED_REFERENCE))
    ),
)
_PROCESS_KEYS = ("count", "min_count", "max_running", "max_cache_tokens", "port")
_ENGINES = (
    no_effect(
        (*_given("engine", *(key for key in SGLANG_KEYS if key != "weight_sync")), f.SERVERS_SYNC),
        f.NATIVE,
        "only SGLang servers read this key",
        'remove it, or set type = "sglang"',
    ),
    no_effect(
        _given("engine", "model", "weight_check", *SERVER_KEYS),
        f.EXTERNAL,
        "rlrun does not start them, and the key is about the start of SGLang servers",
        'remove it, or set type = "sglang"',
    ),
    no_effect(
        _given("engine", "urls"),
        (f.NATIVE, f.SGLANG),
        "rlrun starts them, and knows where they are",
        'remove it, or set type = "external"',
    ),
    no_effect(
        given("engine.api_key"),
        (f.NATIVE, f.KEYLESS_SGLANG),
        "rlrun starts them, and makes their key",
        'remove it, or set type = "external"',
    ),
    no_effect(
        given("engine.kept_samples"),
        (f.SGLANG, f.EXTERNAL),
        "only native engines read how many ended samples to keep",
        'remove it, or set type = "native"',
    ),
    no_effect(
        given("engine.speculative"),
        f.EXTERNAL,
        "only native engines and SGLang servers that rlrun starts speculate",
        'remove it, or set type = "native"',
    ),
    no_effect(
        _given("engine", *_PROCESS_KEYS),
        f.EXTERNAL,
        "rlrun does not start them, so their number and sizes are what they were started with",
        "remove it",
    ),
    no_effect(
        given("engine.adapter", "engines.adapter"),
        f.EXTERNAL,
        "rlrun does not load their model",
        "remove it",
    ),
    no_effect(f.COUNT, f.GROUPS, "each group has a number of servers", "set count in [[engine.groups]]"),
    no_effect(
        (on("engine.sglang_router"), f.RUNNING_ROUTER),
        f.OWN_ROUTER,
        "it does not start an SGLang router",
        'remove it, or add router = "sglang-router" beside it',
    ),
    no_effect(on("engine.sglang_router"), f.RUNNING_ROUTER, "the router runs already", "remove it"),
    refused(
        f.DRAFT_MODEL,
        f.NATIVE,
        "the native engine has no draft models, it guesses from texts only",
        'use "ngram", or set type = "sglang"',
    ),
    refused(
        f.SPECULATION,
        f.SGLANG_ON_CPUS,
        "SGLang draws no samples while it verifies drafts on a CPU: it takes the likeliest tokens",
        'remove it, or set type = "native" and algorithm = "ngram"',
    ),
    no_effect(
        (on("engine.speculative.draft_tokens"), on("engine.speculative.draft_model")),
        f.NO_SPECULATION,
        "there is no speculation without an algorithm",
    ),
    no_effect(
        on("engine.speculative.draft_model"),
        f.DRAFT_WITHIN_POLICY,
        "it has no draft model in a folder of its own",
        "remove it",
    ),
)
_WEIGHTS = (
    *(
        refused(f.chosen(carrier), f.BESIDE_CARRIERS[limit.beside], limit.reason, limit.cure)
        for carrier in CHOSEN.values()
        for limit in carrier.limits
    ),
    no_effect(
        f.FILES,
        f.NOT_FROM_DISK,
        "no other engine can be sent some of the files",
        'use "elements", or set `weight_sync = "disk"`',
    ),
    *(
        refused(f.ELEMENTS, f.carried(carrier, carrier.no_elements), carrier.no_elements.reason)
        for carrier in CARRIERS
        if carrier.no_elements is not None
    ),
    refused(
        f.ELEMENTS,
        f.SENT_EXTERNAL,
        "servers that rlrun does not start lack its function that applies the changes",
    ),
    refused(
        f.ELEMENTS, f.SENT_SLEEPERS, "engines that sleep give up their weights, so they need all of them"
    ),
    refused(
        f.ELEMENTS,
        f.SENT_MTP,
        "servers also give changes to the MTP layer's model, whose embedding and head would change twice",
    ),
    refused(
        f.ELEMENTS,
        f.SENT_QUANTISED,
        "servers with quantised weights hold them in another form than they are sent",
    ),
    refused(
        f.ELEMENTS,
        f.SENT_FLOAT32,
        "in float32 an optimizer step changes nearly every weight; bfloat16 changes few",
    ),
    refused(
        f.PREFILL_SERVERS,
        f.UPDATED_WHILE_RUNNING,
        "a decode server cannot compute the caches of its samples again when it gets new weights",
        'set rollout.weight_update = "between"',
    ),
    untried(
        f.PREFILL_SERVERS,
        (f.SGLANG_ROUTER, f.DETERMINISTIC, f.MASKS, f.ENGINE_REPLAY, f.LORA),
        "caches that servers hand to one another were not compared with it",
    ),
    refused(
        f.UNLIKE_SERVERS,
        f.NOT_FROM_FILES,
        "every server is handed as many parts of the weights as it has ranks, and files are read whole",
        'give every group the same tensor, or set engine.weight_sync = "disk"',
    ),
    refused(
        f.UNLIKE_SERVERS,
        f.CHECKED,
        "checksums are of the parts that the ranks of one size of server hold",
        'give every group the same tensor, or set engine.weight_check = "none"',
    ),
    refused(
        f.UNLIKE_SERVERS,
        f.ELEMENTS,
        "changes are handed to as many ranks as each server has",
        'give every group the same tensor, or set engine.weight_delta = "off"',
    ),
    refused(f.ELEMENTS, f.SENT_TOWER, "native engines read the vision tower's weights whole"),
    no_effect(f.SLEEP, f.COLOCATED_EXTERNAL, "they hold no memory that they could free"),
    no_effect(f.SLEEP, f.NOT_COLOCATED, "engines do not share devices with the trainer"),
    refused(
        f.KEPT_SAMPLES,
        f.DETERMINISTIC,
        "the rounding of a later turn depends on what is cached, so deterministic jobs keep nothing",
    ),
    refused(f.DETERMINISTIC, f.SGLANG_ON_CPUS, "they sample reproducibly only on a GPU"),
    refused(
        f.SGLANG_ROUTER,
        f.DETERMINISTIC,
        "the router chooses engines by timing, and which requests are batched together changes the rounding",
    ),
    refused(
        f.SGLANG_ROUTER,
        f.ENGINE_REPLAY,
        "sglang-router drops the field of a request that asks for routed experts",
        'remove it, or set trainer.moe.routing_replay to "trainer" or "off"',
    ),
)
_ELASTIC = (
    refused(
        f.ELASTIC,
        f.NOT_DISAGGREGATED,
        "engines that come and go cannot share the trainer's devices",
        'set cluster.placement = "disaggregated"',
    ),
    refused(f.ELASTIC, f.DETERMINISTIC, "which engine generates a sample depends on which ones are there"),
    refused(f.ELASTIC, f.NO_ENGINE_RESTARTS, "an engine that joins again is one that is started again"),
    refused(f.ELASTIC, f.GROUPS, "all engines have to be alike, so that any of them can be missing"),
    refused(f.ELASTIC, f.SGLANG_ROUTER, "the list of its servers begins with all of them"),
    refused(f.ELASTIC, f.ADAPTERS_OF_POLICY, "plugins are told the addresses of servers only once"),
    refused(
        f.ELASTIC,
        f.MEMORY_OF_A_JOINED_HOST,
        "an engine that joins may be on any host of the cluster",
        "set cluster.nodes to the number of nodes that the job may have, which is then above 1",
    ),
)
_ELASTIC_RANKS = (
    refused(
        f.ELASTIC_RANKS,
        f.DETERMINISTIC,
        "sums over another number of ranks round differently",
    ),
    refused(
        f.ELASTIC_RANKS,
        f.COUNT_ON_SHARED_GPUS,
        "the engines have to become fewer with the ranks whose GPUs they share",
        "remove engine.count: as many engines as fit are started",
    ),
    *(
        refused(
            f.ELASTIC_RANKS,
            own,
            "it uses all trainer ranks, and does not become smaller with them",
            f"remove {own.key}: its layout then follows the trainer's",
        )
        for own in f.OWN_LAYOUTS
    ),
)
_PARALLELISM = (
    *(
        no_effect(
            given(f"{f.PARALLEL}.{setting}"),
            missing(above_one(f"{f.PARALLEL}.{degree}"), "2"),
            "the degree is 1",
            f"remove it, or raise {degree}",
        )
        for setting, degree in DEGREE_OF.items()
    ),
    no_effect(given(f"{f.PARALLEL}.reshard_after_forward"), f.ONE_RANK, "one rank does not shard parameters"),
    refused((f.DEEPEP, f.ASYNC_TENSOR, f.SYMMETRIC_MEMORY), f.NO_GPUS, "it exchanges data among GPUs"),
    refused(f.DEEPEP, f.FLOAT32, "DeepEP only exchanges bfloat16"),
    refused(f.DEEPEP, f.PRECISION, "the products of low precision need padded tokens of each expert"),
    no_effect(f.SYMMETRIC_MEMORY, f.NOTHING_GATHERED, "fsdp and context are 1", "remove it, or raise fsdp"),
    refused(f.SYMMETRIC_MEMORY, f.ASYNC_TENSOR, "a process has either NCCL's symmetric memory or torch's"),
    refused(f.OVERLAPPING, f.NO_SEQUENCE_PARALLEL, "it overlaps the gathers and reductions of the sequence"),
    refused(f.OVERLAPPING, (f.LORA, f.COMPILE, f.PRECISION), "it replaces the plain products of matrices"),
    refused(
        (f.CONTEXT, f.PIPELINE),
        f.TRANSFORMERS,
        "its layers see whole sequences, and all of them are on one stage",
        "use the other kinds of parallelism, which docs/families.md shows by family",
    ),
    refused(
        (f.SYMMETRIC_MEMORY, f.ASYNC_TENSOR, f.DEEPEP, f.COMPILE),
        f.TRANSFORMERS,
        "only the trainer's own layers are built for it",
    ),
    refused(f.REPLAY, f.TRANSFORMERS, "its routers neither record nor replay their choices"),
    refused(f.RANDOM, f.TRANSFORMERS, "its layers are read from files"),
    refused(f.OFFLOAD_ALL, f.TRANSFORMERS, "its layers cannot keep parameters in host memory"),
)
_TRAINER = (
    no_effect(f.OFFLOAD, f.NO_GPUS, "all state is already in host memory"),
    refused(
        f.OFFLOAD_ALL,
        f.MUON_ANYWHERE,
        "the host would compute Muon's matrix products, which takes minutes per step",
    ),
    refused(
        f.OFFLOAD_ALL,
        f.EIGHT_BITS,
        "the host would convert the state to 8 bits and back, which takes minutes per step",
    ),
    no_effect(f.FLASH_3, f.NO_GPUS, "its kernels are for GPUs"),
    no_effect(f.FLASH_3, f.FLOAT32, "attention in float32 does not use it"),
    no_effect(given("trainer.kept_logits"), (f.FLOAT32, f.FLOAT32_HEAD), "logits in float32 are not kept"),
    refused(
        f.ENGINE_REPLAY,
        f.EXTERNAL,
        "they do not report routed experts",
        'set routing_replay = "off", or set engine.type = "sglang" or "native"',
    ),
    refused(
        f.NATIVE_REPLAY,
        f.UNREPORTED_EXPERTS,
        "their routers do not report the experts",
        'set routing_replay = "trainer" or "off", or set engine.type = "sglang"',
    ),
    no_effect(
        _given("trainer.moe", "balancing_rate", "balancing_export"),
        missing(f.BALANCING),
        "there is no bias of experts",
    ),
    refused(f.BALANCING, f.TRANSFORMERS, "its layers have no bias of experts"),
    no_effect(
        f.BALANCING,
        f.ENGINE_REPLAY_WITHOUT_BIAS,
        "engines choose the experts, and are not sent the bias (balancing_export = false)",
        "remove it, or set balancing_export = true",
    ),
    refused(
        f.COMPILE,
        f.SELECTIVE,
        "it cannot choose operations inside of compiled layers",
        'remove it, or set activation_checkpointing = "full" or "none"',
    ),
    refused(f.COMPILE, f.SPLIT_BACKWARD, "it cannot split the backward passes of compiled layers"),
    no_effect(
        (given("trainer.max_tokens_per_rank"), on("trainer.max_logprob_tokens_per_rank")),
        f.MICRO_BATCH_SIZE,
        "it cuts micro-batches by samples, not by tokens",
    ),
    refused(
        on("trainer.max_logprob_tokens_per_rank"),
        f.TRAINER_REPLAY,
        "the experts that old log-probs were computed with are kept on the rank that trains on the sample",
    ),
)
_OPTIMIZERS = (
    no_effect(
        given("trainer.momentum"),
        (equal("trainer.optimizer", "adamw"), equal("trainer.optimizer", "adamw_8bit"), f.STATELESS),
        "it has no momentum",
        "remove it, or choose another optimizer",
    ),
    no_effect(
        (
            given("trainer.betas"),
            equal("trainer.reset_optimizer", "rollout"),
            equal("checkpoint.optimizer", False),
        ),
        f.STATELESS,
        "it has no moments",
        "remove it, or choose another optimizer",
    ),
    no_effect(
        _given("trainer", "betas", "eps"),
        equal("trainer.optimizer", "sgd"),
        "it has neither betas nor eps",
        "remove it, or choose another optimizer",
    ),
    no_effect(
        given("trainer.min_lr_ratio"),
        equal("trainer.schedule", "constant"),
        "it never decays",
        'remove it, or set schedule = "cosine", "linear" or "wsd"',
    ),
    no_effect(
        given("trainer.schedule_steps"),
        equal("trainer.schedule", "constant"),
        "it never decays",
        'remove it, or set schedule = "cosine", "linear" or "wsd"',
    ),
    no_effect(
        given("trainer.warmup_start_ratio"),
        missing(f.WARM_UP),
        "nothing rises",
        "remove it, or set trainer.warmup_steps",
    ),
    no_effect(
        _given("trainer", "decay_steps", "decay_curve"),
        missing(equal("trainer.schedule", "wsd")),
        "other schedules do not read it",
    ),
    refused(on("trainer.warmup_ratio"), given("trainer.warmup_steps"), "both give the length of the warm-up"),
)
_PREFIXES = (
    refused(f.SHARED_PREFIXES, f.TRANSFORMERS, "the layers of transformers see each sequence by itself"),
    refused(f.SHARED_PREFIXES, f.DELTA_NET, "the recurrent state passes through each sequence by itself"),
    refused(
        f.SHARED_PREFIXES,
        f.WINDOWS,
        "some layers see a window of each sequence, and windows have no branches",
    ),
    refused(
        f.SHARED_PREFIXES,
        f.VISION,
        "prefixes are compared by tokens, and the tokens of different images are alike",
    ),
    refused(
        f.SHARED_PREFIXES, f.CONTEXT, "context-parallel ranks cut sequences without regard to their branches"
    ),
    refused(
        f.SHARED_PREFIXES, f.ENGINE_REPLAY, "engines may choose other experts for the prompt of each sample"
    ),
    refused(
        f.SHARED_PREFIXES,
        f.EXACT_ON_GPUS,
        "on GPUs the kernel's parts are merged, which rounds once more than engines do",
    ),
    refused(
        f.SHARED_PREFIXES,
        f.MTP,
        "the MTP layer reads the token that follows, and after a shared prefix there are several",
    ),
)
_MTP = (
    refused(f.MTP, f.TRANSFORMERS, "transformers builds no MTP layer"),
    refused(f.LORA, f.MTP, "only adapters are trained, and an MTP layer has none"),
    untried(f.PRECISION, f.MTP, "an MTP layer was not compared with a reference in low precision"),
    untried(f.COMPILE, f.MTP, "an MTP layer was not compared with a reference compiled"),
    refused(
        f.TENSOR, f.MTP, "tensor-parallel ranks cut the sequence, and the MTP layer reads the next token"
    ),
    refused(
        f.CONTEXT, f.MTP, "context-parallel ranks cut the sequence, and the MTP layer reads the next token"
    ),
    refused(f.PIPELINE, f.MTP, "the last stage, which would have the MTP layer, has no embedding"),
)
_PRECISION = (
    refused(f.FLOAT32, f.PRECISION, "low precision replaces products in bfloat16"),
    refused(f.PRECISION, f.TRANSFORMERS, "only products of the trainer's own layers are replaced"),
    refused(f.COMPILE, f.PRECISION_ON_CPUS, "the products that CPUs compute instead are not compiled"),
    refused(
        f.NVFP4,
        f.NO_GPUS,
        "it needs those of compute capability 10.0 (Blackwell); torchao has no NVFP4 products for CPUs",
        'use "mxfp8" or "float8" to try low precision on a CPU',
    ),
    no_effect(given("trainer.float8_recipe"), missing(f.FLOAT8), "it is a recipe of float8"),
    no_effect(given("trainer.int4_group"), missing(f.INT4), "no matrices are rounded to INT4"),
    refused(
        f.INT4,
        f.LORA,
        "adapters are added after the matrices are rounded, and engines would have to round the sum again",
        'remove one of the two; [trainer.lora] base = "nf4" trains adapters on a base in 4 bits',
    ),
)
_EXACTNESS = (
    refused(
        f.CUT_VOCABULARY,
        f.EXACT,
        "the trainer compares log-probs over the whole vocabulary",
        "add `sampling_mask = false` under [rollout], or remove top_p and top_k",
    ),
    refused(f.TENSOR, f.EXACT, "ranks that split a sum round it differently"),
    refused(f.CONTEXT, f.EXACT, "it splits a sequence's attention"),
    refused(f.PRECISION, f.EXACT, "engines multiply in another precision"),
    refused(f.LORA, f.EXACT, "engines round the sum of matrices and adapters"),
    refused(f.COMPILE, f.EXACT, "the compiler chooses other kernels"),
    refused(f.EXACT, f.TRANSFORMERS, "its layers compute with other operators than engines"),
    refused(f.RARE_UPDATES, f.EXACT, "between two updates engines have other weights than the trainer"),
    refused(f.ASYNC, f.EXACT, "weights change between the generation of a sample and its training"),
    refused(f.SERVED_MODEL, f.EXACT, "engines have to serve the trainer's own weights"),
    refused(f.NOT_NATIVE, f.EXACT_ON_CPUS, "only native engines compute with the trainer's operators there"),
    refused(f.NOT_SGLANG, f.EXACT_ON_GPUS, "native engines sum in an order that depends on the batch there"),
    refused(
        f.OTHER_PYTHON,
        f.EXACT_ON_GPUS,
        "the trainer computes with the kernels of the SGLang in its own environment",
    ),
    refused(f.SPLIT_SERVER, f.EXACT_ON_GPUS, "servers that split a sum round it differently"),
    refused(f.SPECULATION, f.EXACT_ON_GPUS, "servers verify drafts with other kernels"),
    refused(
        f.ELEMENTS,
        f.EXACT_ON_GPUS,
        "servers hold embeddings and norms in float32, and deltas are of bfloat16",
    ),
    refused(f.FLOAT32, f.EXACT_ON_GPUS, "servers multiply in bfloat16"),
    refused(f.FLOAT32_HEAD, f.EXACT_ON_GPUS, "servers compute bfloat16 logits"),
    refused(
        f.OTHER_ATTENTION,
        f.EXACT_ON_GPUS,
        "servers compute attention with FlashAttention 3",
    ),
    refused(f.PIPELINE, f.EXACT_ON_GPUS, "stages exchange hidden states in bfloat16"),
    refused(
        f.EXACT_ON_CPUS,
        f.INEXACT_PARTS,
        "rlrun has no operators for this part whose results do not depend on the batch",
    ),
    refused(
        f.EXACT_ON_GPUS,
        f.NOT_DENSE_QWEN3,
        "on GPUs SGLang's layers of other families do not round as rl_on_policy_target says, or the trainer "
        "has no layers that do",
    ),
    untried(
        f.EXACT_ON_GPUS, f.SCALED_POSITIONS, "their angles were not compared with those of SGLang's servers"
    ),
)
_LORA = (
    refused(f.LORA, f.TRANSFORMERS, "adapters are made for the trainer's own matrices"),
    refused(
        f.MUON,
        f.LORA,
        "Muon is for whole matrices",
        'use "adamw", "adamw_8bit" or "sgd", or remove [trainer.lora]',
    ),
    refused(f.OFFLOAD_ALL, f.LORA, "only the state of the adapters can be in host memory"),
    refused(f.RANDOM, f.LORA, "adapters belong to a model that was trained"),
    refused(f.BALANCING, f.LORA, "the bias of experts is a part of the frozen model"),
    refused(f.LORA_BASE, f.PRECISION, "the matrices are decoded to trainer.dtype"),
    untried(
        f.COMPILE, f.LORA_BASE, "compiled layers that decode their matrices were not compared with others"
    ),
    untried(
        f.COMPILED_ADAPTERS,
        (f.CONTEXT, f.PIPELINE, f.EXPERT),
        "compiled adapters were tried on data- and tensor-parallel ranks",
    ),
    no_effect(
        on("trainer.freeze"), f.LORA, "only adapters are trained, and every parameter of the model is frozen"
    ),
    refused(
        f.PRECISION,
        f.EXPERT_ADAPTERS,
        "low precision and adapters each replace the experts' module, and there is none with both",
        "remove it, or the experts' names from trainer.lora.targets",
    ),
    no_effect(given("engine.lora_sync"), missing(f.LORA), "no adapters are trained"),
)
_SENT_ADAPTERS = (
    refused(f.ADAPTERS_ALONE, f.EXTERNAL, "external engines only take whole models"),
    *(
        refused(f.ADAPTERS_ALONE, f.carried(carrier, carrier.no_adapters), carrier.no_adapters.reason)
        for carrier in CARRIERS
        if carrier.no_adapters is not None
    ),
    refused(
        f.ADAPTERS_ALONE,
        f.EXPERT_ADAPTERS_IN_NATIVE,
        "native engines merge adapters of single matrices, not those of experts, which are in stacks",
    ),
    untried(
        f.ADAPTERS_ALONE,
        f.EXPERT_ADAPTERS_IN_SGLANG,
        "SGLang was tried with adapters of single matrices, not those of experts, which are in stacks",
    ),
    refused(
        f.ADAPTERS_ALONE,
        f.LORA_BASE_OF_SERVERS,
        "the adapters belong to the base in 4 or 8 bits (trainer.lora.base), which servers do not have",
    ),
    refused(
        f.ADAPTERS_ALONE,
        f.OTHER_MODEL_OF_SERVERS,
        "the adapters belong to the policy's own model, and servers start from engine.model",
    ),
    untried(
        f.ADAPTERS_ALONE,
        f.SGLANG_ROUTER,
        "every request names its adapter, which the sglang-router was not tried with",
    ),
    untried(f.ADAPTERS_ALONE, f.SERVER_STAGES, "a server's pipeline stages were not tried with adapters"),
)
_MODEL = (
    refused((f.REPLAY, f.BALANCING, f.EXPERT), f.NO_EXPERTS, "the model is dense", "remove it"),
    refused(
        f.GIVEN_BALANCING_EXPORT,
        f.NO_EXPERT_BIAS,
        "engines load such checkpoints, and there is no tensor to send the bias in",
        "remove it",
    ),
    no_effect(
        f.BALANCING_UNDER_REPLAY,
        f.NO_EXPERT_BIAS,
        "engines choose the experts, and the bias cannot be sent to them",
        "remove it",
    ),
    refused(
        f.GIVEN_TOWER,
        f.NO_TOWER,
        "rlrun computes none for the model's family",
        f"remove it; families with one: {', '.join(WITH_TOWER)}",
    ),
    refused(f.GIVEN_TOWER, f.TRANSFORMERS, "its layers compute text only"),
    refused(f.CONTEXT, f.VISION, "context-parallel ranks have parts of an image's tokens"),
    refused(f.PIPELINE, f.VISION, "only the first stage would have images, and later stages expect text"),
    untried(f.LORA, (f.WITHOUT_ADAPTERS, f.VISION), "adapters of such models were not compared with peft"),
    untried(
        f.PRECISION,
        (f.WITHOUT_PRECISION, f.VISION),
        "low precision of such models was not compared with bfloat16",
    ),
    refused(
        f.OVERLAPPING,
        (f.LATENT_ATTENTION, f.ATTENTION_SINKS, f.DELTA_NET, f.JOINT_NORMS),
        "only plain projections of queries, keys and values are overlapped",
    ),
    untried(f.COMPILE, f.SPARSE_ATTENTION, "layers that share chosen keys were not compared compiled"),
    refused(f.NATIVE_SPECULATION, f.DELTA_NET, "the native engine cannot roll the recurrent states back"),
)
TOPICS = (
    Topic("The job", Code.CONFLICT, _JOB),
    Topic("Rollouts", Code.ROLLOUT, _ROLLOUTS),
    Topic("Algorithms", Code.ALGORITHM, _ALGORITHMS),
    Topic("Reference, teacher and critic", Code.ALGORITHM, _OTHER_MODELS),
    Topic("Evaluation", Code.CONFLICT, _EVALUATION),
    Topic("Submitting", Code.CONFLICT, _SUBMISSION),
    Topic("Sweeps", Code.SWEEP, _SWEEP),
    Topic("Top-p and top-k", Code.ALGORITHM, _SAMPLING),
    Topic("Kinds of engines", Code.ENGINE, _ENGINES, each="engine"),
    Topic("Elastic engines", Code.ENGINE, _ELASTIC),
    Topic("Weights to the engines", Code.ENGINE, _WEIGHTS),
    Topic("Elastic ranks", Code.LAYOUT, _ELASTIC_RANKS),
    Topic("Parallelism", Code.LAYOUT, _PARALLELISM),
    Topic("The trainer", Code.TRAINER, _TRAINER),
    Topic("Optimizers", Code.TRAINER, _OPTIMIZERS, each="trainer"),
    Topic("Shared prefixes", Code.TRAINER, _PREFIXES),
    Topic("The MTP layer", Code.TRAINER, _MTP),
    Topic("Low precision", Code.TRAINER, _PRECISION),
    Topic("true_on_policy", Code.TRAINER, _EXACTNESS),
    Topic("LoRA", Code.ADAPTER, _LORA),
    Topic("Adapters alone to the engines", Code.ADAPTER, _SENT_ADAPTERS),
    Topic("The policy's model", Code.MODEL, _MODEL),
)
"""The whole table."""
