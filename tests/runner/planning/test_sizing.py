"""Which jobs fit, what the warnings say, and that estimates move the right way."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlrun.converters.families.stored_adapter import StoredAdapter
from rlrun.models.adapters import LoraShape, adapter_tensors, adapters
from rlrun.plugins.validation import needs_of
from rlrun.runner.planning.fit import COMFORTABLE
from rlrun.runner.planning.hardware import GIB, GPUS, find_gpu, local_cpu
from rlrun.runner.planning.plan import make_plan
from rlrun.runner.planning.savings import fitting, phase_bytes
from rlrun.runner.planning.sizing import size_job
from rlrun.runner.planning.step_time import (
    LOW_PRECISION_SPEEDUP,
    PlannedJob,
    Workload,
    step_training_seconds,
    training_tokens,
)
from tests.resolved_specs import resolved
from tests.runner.planning.test_memory import QWEN3_8B, QWEN3_30B_A3B


def planned_job(device: str = "H100-80GB", **changes: Any) -> PlannedJob:
    document: dict[str, Any] = {
        "model": {"path": "Qwen/Qwen3-8B"},
        "data": {"path": "rows.jsonl"},
        "rewards": [{"type": "math"}],
        "rollout": {"max_prompt_tokens": 1024, "max_response_tokens": 8192, "batch_size": 32},
        "trainer": {"steps": 100, "parallel": {"fsdp": 8}},
        "cluster": {"gpus_per_node": 8},
        "engine": {"max_cache_tokens": 100_000},
    }
    for key, value in changes.items():
        document[key] = document.get(key, {}) | value if isinstance(value, dict) else value
    spec = resolved(document, QWEN3_8B)
    gpu = local_cpu(2) if not spec.cluster.gpus_per_node else find_gpu(device)
    return PlannedJob(spec, make_plan(spec, cores=2), needs_of(spec), QWEN3_8B, gpu, Workload(256, 2048))


def test_colocated_native_engines_keep_their_memory() -> None:
    together = size_job(planned_job(engine={"sleep": False}))
    apart = size_job(planned_job(cluster={"gpus_per_node": 16, "placement": "disaggregated"}))
    training, generation = (phase.bytes for phase in apart.phases)
    assert together.phases[0].bytes == training + generation
    assert together.phases[0].part_bytes("engines (memory kept)") == generation
    assert together.phases[1].bytes < generation + training


def test_engines_that_sleep_leave_the_device_to_the_trainer_and_the_other_way_round() -> None:
    training, update, generation = size_job(planned_job()).phases
    beside = size_job(planned_job(engine={"sleep": False})).phases
    assert training.part_bytes("sleeping engines") == generation.part_bytes("CUDA and NCCL") + 1536 * 2**20
    assert training.bytes < beside[0].bytes
    assert generation.bytes < beside[1].bytes
    assert generation.part_bytes("KV cache") == beside[1].part_bytes("KV cache")
    assert update.part_bytes("trainer") > training.part_bytes("optimizer")
    assert update.part_bytes("weights") == generation.part_bytes("weights")


def test_buffers_of_exchanges_stay_while_engines_generate() -> None:
    expert = {"fsdp": 8, "expert": 8, "token_dispatcher": "deepep"}
    job = replace(planned_job(trainer={"parallel": expert}), model=QWEN3_30B_A3B)
    training, _, generation = size_job(job).phases
    buffer = 8 * 9216 * (2 * QWEN3_30B_A3B.hidden + 8 * 8)  # ranks × longest sample × a token
    assert training.part_bytes("exchange buffers") == buffer
    plain = replace(planned_job(trainer={"parallel": {"fsdp": 8, "expert": 8}}), model=QWEN3_30B_A3B)
    without = size_job(plain).phases[2]
    kept = generation.part_bytes("trainer (memory released)") - without.part_bytes(
        "trainer (memory released)"
    )
    assert kept == buffer
    overlapped = planned_job(trainer={"parallel": {"fsdp": 4, "tensor": 2, "async_tensor": True}})
    rows = 9216 // 2
    assert size_job(overlapped).phases[0].part_bytes("exchange buffers") == 2 * rows * QWEN3_8B.hidden * 2


def test_gathered_layers_stay_in_symmetric_memory() -> None:
    plain, symmetric = (
        size_job(planned_job(trainer={"parallel": {"fsdp": 8, "symmetric_memory": used}})).phases
        for used in (False, True)
    )
    gathered = plain[0].part_bytes("gathered layers")
    kept = symmetric[2].part_bytes("trainer (memory released)") - plain[2].part_bytes(
        "trainer (memory released)"
    )
    assert kept == gathered > 0


def test_a_layout_that_does_not_fit_is_reported_with_a_cure() -> None:
    found = size_job(planned_job(device="L40S"))
    assert any("training needs" in warning and "L40S has 44 GiB" in warning for warning in found.warnings)
    [cure] = [warning for warning in found.warnings if warning.startswith("to fit, ")]
    assert cure.startswith('to fit, set trainer.activation_checkpointing = "full": then training')
    assert size_job(planned_job(device="B200", trainer={"max_tokens_per_rank": 4096})).warnings == ()


ADVISED = {
    "activations": (
        "H100-80GB",
        {"dtype": "bfloat16", "parallel": {"fsdp": 8}, "max_tokens_per_rank": 40_000},
    ),
    "one GPU": ("H100-80GB", {"parallel": {"fsdp": 1}}),
    "frozen weights": ("L40S", {"lora": {"rank": 16}, "parallel": {"fsdp": 1}, "max_tokens_per_rank": 4096}),
}


@pytest.mark.parametrize("name", ADVISED)
def test_settings_that_are_advised_let_training_fit(name: str) -> None:
    device, trainer = ADVISED[name]
    lengths = {"max_prompt_tokens": 512, "max_response_tokens": 2048}
    gpus = {"gpus_per_node": trainer["parallel"]["fsdp"]}
    job = planned_job(device, trainer=trainer, cluster=gpus, rollout=lengths)
    [advice] = [warning for warning in size_job(job).warnings if warning.startswith("to fit, ")]
    assert "fsdp" not in advice
    found = fitting(job, COMFORTABLE)
    assert found is not None
    smaller, settings = found
    assert all(key in advice for key in settings)
    assert not [warning for warning in size_job(smaller).warnings if " needs " in warning]
    if name == "frozen weights":
        assert settings["trainer.lora.base"] == "nf4"
    if name == "activations":
        assert settings == {"trainer.activation_checkpointing": "full"}


def test_a_job_that_almost_fills_its_devices_is_warned_of() -> None:
    job = planned_job()
    needed = phase_bytes(job, "training")
    for share, warned in ((0.85, False), (0.95, True)):
        device = replace(job.device, memory=int(needed / share))
        messages = size_job(replace(job, device=device)).warnings
        assert any("leaves little for what is not counted" in text for text in messages) == warned


def test_a_cache_smaller_than_requested_is_reported() -> None:
    found = size_job(planned_job(engine={"max_cache_tokens": 10_000_000}))
    assert any("of the 10,000,000 tokens that the spec asks for" in warning for warning in found.warnings)


def test_disk_counts_the_checkpoint_in_the_making() -> None:
    model = 12 * 8_190_735_360
    final = size_job(planned_job()).disk
    assert size_job(planned_job(checkpoint={"interval": 5, "keep": 3})).disk - final == 3 * model
    assert final - size_job(planned_job(checkpoint={"export_hf": False})).disk == 4 * 8_190_735_360


BEST = {"keep_best": "eval/easy/reward"}


@pytest.mark.parametrize(
    ("checkpoint", "length", "checkpoints"),
    [
        ({}, {"steps": 100}, 1),
        ({"interval": 5}, {"steps": 100}, 3),
        ({"interval": 30, "keep": 100}, {"steps": 100}, 4),  # a job never writes more than these
        ({"interval": 30, "keep": "all"}, {"steps": 100}, 4),
        ({"interval": 1000, "keep": "all"}, {"steps": 100}, 1),
        ({"interval": 30, "keep": 2}, {"steps": None, "epochs": 3}, 3),
        ({"interval": 30, "keep": "all"}, {"steps": None, "epochs": 3}, None),
        ({"interval": 30, **BEST}, {"steps": 100}, 4),
        ({"interval": 30, **BEST}, {"steps": 60}, 3),  # those of steps 30, 40 and 60
        (BEST, {"steps": 100}, 3),
        (BEST | {"keep": "all"}, {"steps": None, "epochs": 3}, None),
    ],
)
def test_a_plan_counts_the_checkpoints_that_are_on_disk_at_once(
    checkpoint: dict[str, Any], length: dict[str, Any], checkpoints: int | None
) -> None:
    evaluation = {"interval": 40, "datasets": [{"name": "easy", "path": "rows.jsonl"}]}
    settings = {"checkpoint": checkpoint | {"export_hf": False}, "trainer": length, "eval": evaluation}
    sizing = size_job(planned_job(**settings))
    assert sizing.checkpoints == checkpoints
    assert sizing.disk == 12 * 8_190_735_360 * (checkpoints or 1)


def test_a_reference_waits_in_host_memory() -> None:
    kl = {"type": "grpo", "kl": {"in_loss": {"coef": 0.01}}}
    assert size_job(planned_job(algorithm=kl)).reference == size_job(planned_job()).phases[0].part_bytes(
        "parameters"
    )
    assert size_job(planned_job()).reference == 0


def test_a_checkpoint_that_is_written_meanwhile_is_copied_to_host_memory() -> None:
    train = size_job(planned_job()).phases[0]
    assert size_job(planned_job()).staged == 0
    meanwhile = {"checkpoint": {"asynchronous": True}}
    policy = train.part_bytes("parameters") + train.part_bytes("optimizer")
    assert size_job(planned_job(**meanwhile)).staged == policy
    assert size_job(planned_job(algorithm={"type": "ppo"}, **meanwhile)).staged == pytest.approx(
        2 * policy, rel=0.1
    )
    kl = {"type": "grpo", "kl": {"in_loss": {"coef": 0.01}}}
    moving = planned_job(algorithm=kl, reference={"update_interval": 5}, **meanwhile)
    assert size_job(moving).staged == policy + train.part_bytes("parameters")


def test_copies_in_host_memory_count_on_a_cpu_host() -> None:
    host: dict[str, Any] = {"cluster": {"gpus_per_node": 0}, "trainer": {"parallel": {"fsdp": 2}}}
    kl = {"type": "grpo", "kl": {"in_loss": {"coef": 0.01}}}
    train = size_job(planned_job(**host, algorithm=kl, checkpoint={"asynchronous": True})).phases[0]
    assert train.part_bytes("reference") == train.part_bytes("parameters")
    assert train.part_bytes("unfinished checkpoint") == train.part_bytes("parameters") + train.part_bytes(
        "optimizer"
    )


SELF = {"algorithm": {"type": "gkd", "top_k": 32}, "rewards": []}


def test_a_teacher_that_is_the_policy_takes_host_memory_and_a_pass() -> None:
    sizes = {
        weights: size_job(planned_job(**SELF, teacher={"weights": weights, "prompt": "{prompt} {label}"}))
        for weights in ("initial", "current", "average")
    }
    copy = sizes["initial"].teacher
    assert copy > 0 and sizes["current"].teacher == 0 and sizes["average"].teacher == copy
    told: dict[str, Any] = {"weights": "initial", "prompt": "{prompt} {solution}"}
    rewards = {"rewards": [{"type": "math"}]}
    plain = planned_job(**SELF, teacher={"weights": "initial"})
    more = planned_job(**SELF | rewards, teacher=told)
    assert step_training_seconds(more) > 1.2 * step_training_seconds(plain)
    whole = {"checkpoint": {"asynchronous": True}}
    staged = [
        size_job(planned_job(**SELF, **whole, teacher={"weights": weights})).staged
        for weights in ("initial", "average")
    ]
    assert staged[1] == staged[0] + copy


def test_the_teacher_s_top_tokens_take_the_driver_s_memory() -> None:
    size = size_job(planned_job(**SELF, teacher={"weights": "initial"})).top_tokens
    samples = planned_job().plan.batch.samples
    assert size == samples * 8192 * (32 * 4 + 33 * 4)
    assert size_job(planned_job()).top_tokens == 0


@pytest.mark.parametrize("algorithm", ["dpo", "kto"])
def test_a_row_with_two_responses_is_two_sequences(algorithm: str) -> None:
    def tokens(name: str, *, share: bool) -> float:
        rows: dict[str, Any] = {"data": {"response_key": "good"}, "rewards": []}
        if name == "dpo":
            rows["data"]["rejected_key"] = "bad"
        changes = rows | {"algorithm": {"type": name}, "trainer": {"global_batch_size": 16}}
        return training_tokens(replace(planned_job(**changes), load=Workload(2048, 512)), share=share)

    assert tokens(algorithm, share=False) == 2 * tokens("sft", share=False) == 16 * 2 * (2048 + 512)
    assert tokens(algorithm, share=True) == 16 * (2048 + 2 * 512)


JUDGES = {"name": "judge", "path": "j", "type": "sglang", "tensor": 2, "count": 2, "max_length": 4096}


def test_adapters_take_two_thirds_of_the_time_of_whole_training() -> None:
    whole, adapted = (
        step_training_seconds(planned_job(trainer={"parallel": {"fsdp": 8}} | lora))
        for lora in ({}, {"lora": {"rank": 16}})
    )
    assert 0.66 < adapted / whole < 0.75


def judged(**changes: Any) -> PlannedJob:
    return replace(planned_job(engines=[JUDGES], **changes), named_models={"judge": QWEN3_8B})


ADAPTED = 36 * 2 * 8 * 18_432
"""Bytes of a slot of rank 8 for q, k and v of Qwen3-8B, in bfloat16."""
POLICY = {"rank": 8, "targets": ["q_proj", "v_proj"]}
ALONE = {"type": "sglang", "sleep": False}
JUDGE = {"name": "judge", "type": "sglang", "adapter": "a"}


def served(rank: int, **changes: Any) -> PlannedJob:
    """A job with the policy's adapters, and those of a judge with `rank`."""
    lora = LoraShape(rank, 16, ("q_proj", "v_proj"))
    shapes = {tensor.name: tensor.shape for tensor in adapter_tensors(adapters(QWEN3_8B, lora))}
    stored = StoredAdapter(Path("a"), replace(lora, targets=()), shapes, "", lists_targets=True)
    job = planned_job(trainer={"parallel": {"fsdp": 8}, "lora": POLICY}, **changes)
    models = {"judge": QWEN3_8B} if job.spec.engines and job.spec.engines[0].path else {}
    return replace(job, named_models=models, adapters={"judge": stored})


@pytest.mark.parametrize(
    ("changes", "of_policy", "of_judge"),
    [
        ({"engine": ALONE}, 2 * ADAPTED, None),
        ({"engine": ALONE, "engines": [JUDGE]}, 3 * ADAPTED, None),
        ({"engine": ALONE | {"sglang": {"max_loras_per_batch": 6}}}, 6 * ADAPTED, None),
        (
            {"engine": ALONE, "engines": [JUDGE | {"path": "m"}], "cluster": {"gpus_per_node": 9}},
            2 * ADAPTED,
            2 * ADAPTED,
        ),
        (
            {
                "engine": ALONE | {"lora_sync": "merged"},
                "engines": [JUDGE | {"path": "m", "type": "native"}],
                "cluster": {"gpus_per_node": 9},
            },
            0,
            0,
        ),
    ],
    ids=["the policy's versions", "a judge beside them", "own room", "a judge of its own", "merged"],
)
def test_servers_have_room_for_adapters(
    changes: dict[str, Any], of_policy: int, of_judge: int | None
) -> None:
    phases = {phase.name: phase for phase in size_job(served(8, **changes)).phases}
    assert phases["generation"].part_bytes("adapters") == of_policy
    if of_judge is not None:
        assert phases["judge"].part_bytes("adapters") == of_judge


def test_a_judge_of_a_larger_rank_enlarges_all_slots() -> None:
    generation = size_job(served(32, engine=ALONE, engines=[JUDGE])).phases[1]
    assert generation.part_bytes("adapters") == 3 * 4 * ADAPTED


def test_servers_that_sleep_keep_their_adapters_and_copy_the_frozen_model() -> None:
    asleep = size_job(served(8, engine={"type": "sglang"}))
    training, update, generation = asleep.phases
    assert training.part_bytes("sleeping engines") == 1536 * 2**20 + 2 * ADAPTED
    assert update.part_bytes("adapters") == generation.part_bytes("adapters") == 2 * ADAPTED
    assert not update.part_bytes("weight buckets")
    assert asleep.host_copy == generation.part_bytes("weights")
    merged = size_job(served(8, engine={"type": "sglang", "lora_sync": "merged"}))
    assert merged.host_copy == size_job(served(8, engine=ALONE)).host_copy == 0
    assert size_job(served(8, engine={"type": "native"})).host_copy == asleep.host_copy


def test_engines_of_other_models_have_a_phase_on_gpus_of_their_own() -> None:
    found = size_job(judged(cluster={"gpus_per_node": 12}))
    assert found.phases[:-1] == size_job(planned_job()).phases
    judge = found.phases[-1]
    assert judge.name == "judge"
    assert judge.part_bytes("weights") == 8_190_735_360  # two bytes each, over two GPUs
    assert judge.bytes == pytest.approx(0.85 * 79 * GIB, rel=0.01)
    small = judged(cluster={"gpus_per_node": 12})
    small = replace(small, device=replace(small.device, memory=4 * GIB))
    assert any(line.startswith("judge needs") for line in size_job(small).warnings)


def test_engines_of_other_models_take_part_of_a_host_all_the_time() -> None:
    host: dict[str, Any] = {"cluster": {"gpus_per_node": 0}, "trainer": {"parallel": {"fsdp": 2}}}
    found = size_job(judged(**host))
    for phase in found.phases:
        assert phase.part_bytes("engines of judge") >= 2 * 2 * 8_190_735_360


def test_weight_buckets_lie_on_gpus_that_are_shared() -> None:
    engine = {"type": "sglang", "weight_bucket": 64, "sleep": False}
    for phase in size_job(planned_job(engine=engine)).phases:
        assert phase.part_bytes("weight buckets") == 2 * 64 * 2**20
    asleep = size_job(planned_job(engine=engine | {"sleep": True})).phases
    assert [phase.part_bytes("weight buckets") > 0 for phase in asleep] == [False, True, False]
    stages = planned_job(engine=engine, trainer={"parallel": {"pipeline": 2, "fsdp": 4}})
    assert size_job(stages).phases[0].part_bytes("weight buckets") == (3 * 64 + 64 // 4) * 2**20
    more_servers = planned_job(engine={"type": "sglang", "count": 8}, trainer={"parallel": {"fsdp": 4}})
    assert size_job(more_servers).phases[1].part_bytes("weight buckets") == 0


def seconds(part: str, **changes: Any) -> float:
    return size_job(planned_job(**changes)).estimate.parts[part]


def test_estimates_move_the_right_way() -> None:
    assert seconds("training", rollout={"batch_size": 64}) == pytest.approx(2 * seconds("training"), rel=0.1)
    assert seconds("generation", device="H200") < seconds("generation")
    assert seconds("training", trainer={"optimizer_steps": 2}) > 1.2 * seconds("training")
    doubled = planned_job(cluster={"nodes": 2, "address": "x:1"}, trainer={"parallel": {"fsdp": 16}})
    assert size_job(doubled).estimate.step_seconds < size_job(planned_job()).estimate.step_seconds
    on_gpus, on_disk = {"type": "sglang"}, {"type": "sglang", "weight_sync": "disk"}
    assert seconds("weight sync", engine=on_gpus) < seconds("weight sync", engine=on_disk)
    whole = size_job(planned_job()).estimate
    assert whole.device_hours == pytest.approx(whole.step_seconds * 100 * 8 / 3600)


def test_longer_answers_take_longer() -> None:
    short, long = planned_job(), replace(planned_job(), load=Workload(256, 4096))
    assert size_job(long).estimate.step_seconds > 1.8 * size_job(short).estimate.step_seconds


def test_on_a_host_all_processes_share_its_memory() -> None:
    found = size_job(
        planned_job(cluster={"gpus_per_node": 0}, trainer={"parallel": {"fsdp": 2}}, engine={"count": 2})
    )
    assert found.phases[0].part_bytes("parameters") == pytest.approx(4 * 8_190_735_360, rel=0.001)
    assert found.phases[1].part_bytes("weights") == 2 * 2 * 8_190_735_360


def test_devices_are_plausible() -> None:
    for device in GPUS.values():
        assert 20 * GIB < device.memory < 300 * GIB
        assert 1e14 < device.flops < 1e16
        assert device.link < device.bandwidth


@pytest.mark.parametrize(("name", "found"), [("h100", "H100-80GB"), ("L4", "L4"), ("A100-40gb", "A100-40GB")])
def test_a_gpu_may_be_named_in_short(name: str, found: str) -> None:
    assert find_gpu(name).name == found
    with pytest.raises(ValueError, match="unknown GPU A100"):
        find_gpu("A100")


def test_auxiliary_models_live_on_the_trainers_gpus() -> None:
    plain = size_job(planned_job()).phases[0]
    with_critic = size_job(planned_job(algorithm={"type": "ppo"})).phases[0]
    policy = plain.part_bytes("parameters") + plain.part_bytes("gradients") + plain.part_bytes("optimizer")
    assert with_critic.part_bytes("critic") == pytest.approx(policy, rel=0.1)
    teacher = {"teacher": {"path": "Qwen/Qwen3-8B"}, "algorithm": {"type": "on_policy_distillation"}}
    taught = replace(planned_job(**teacher, rewards=[]), teacher=QWEN3_8B)
    assert size_job(taught).phases[0].part_bytes("teacher") == plain.part_bytes("parameters")
    assert size_job(taught).estimate.parts["training"] > size_job(planned_job()).estimate.parts["training"]


def test_an_sglang_server_takes_its_share_of_the_device() -> None:
    engine = {"type": "sglang", "max_cache_tokens": 10**9}
    apart = {"gpus_per_node": 16, "placement": "disaggregated"}
    usual = size_job(planned_job(engine=engine, cluster=apart)).phases[1].bytes
    assert usual == pytest.approx(0.85 * 79 * GIB, rel=0.01)
    less = engine | {"sglang": {"mem_fraction_static": 0.5}}
    assert size_job(planned_job(engine=less, cluster=apart)).phases[1].bytes == pytest.approx(
        0.5 * 79 * GIB, rel=0.01
    )


@pytest.mark.parametrize(
    ("device", "precision", "reported"),
    [
        (
            "A100-80GB",
            "float8",
            "float8 (rowwise) needs GPUs of compute capability 8.9, and A100-80GB has 8.0",
        ),
        ("H100-80GB", "float8", None),
        ("H200", "mxfp8", "mxfp8 needs GPUs of compute capability 10.0, and H200 has 9.0"),
        ("B200", "nvfp4", None),
    ],
)
def test_a_gpu_may_lack_a_precision(device: str, precision: str, reported: str | None) -> None:
    warnings = size_job(planned_job(device, trainer={"precision": precision})).warnings
    found = [warning for warning in warnings if "capability" in warning]
    assert len(found) == (reported is not None)
    assert reported is None or found[0].startswith(reported)


def test_low_precision_takes_the_memory_of_bfloat16_and_less_time() -> None:
    plain, fast = (size_job(planned_job(trainer=own)) for own in ({}, {"precision": "float8"}))
    assert fast.phases == plain.phases and fast.disk == plain.disk
    ratio = plain.estimate.parts["training"] / fast.estimate.parts["training"]
    assert ratio == pytest.approx(LOW_PRECISION_SPEEDUP)
    rounded = size_job(planned_job(trainer={"precision": "int4_qat"}))
    assert rounded.estimate.parts["training"] == plain.estimate.parts["training"]
