"""Trainer ranks that load a model, save a checkpoint and export it, in processes of their own."""

import multiprocessing
import os
from pathlib import Path

from rlrun.runner.contracts.carriers import TrainerSetup
from rlrun.runner.host.network import free_port
from rlrun.runner.trainer.roles.rank import TrainerRank
from tests.resolved_specs import resolved

SPAWN = multiprocessing.get_context("spawn")
DEADLINE = 240


def save_on_ranks(world_size, cases):
    """Each case: `{"model": folder, "parallel": …, "run": folder}`, with `lora` and `adapter` for adapters,
    and `tower` for models that see.

    All cases share one process group.
    """
    port = free_port("127.0.0.1")
    ranks = [SPAWN.Process(target=_work, args=(rank, world_size, port, cases)) for rank in range(world_size)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(DEADLINE)
        rank.kill()
    assert [rank.exitcode for rank in ranks] == [0] * world_size


def _work(rank, world_size, port, cases):
    os.environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    for case in cases:
        trainer = TrainerRank(
            TrainerSetup(
                spec_json=_spec(case).model_dump_json(),
                model_folder=str(case["model"]),
                rank=rank,
                device="cpu",
                world_size=world_size,
                master_addr="127.0.0.1",
                master_port=port,
                threads=1,
                optimizer_steps=1,
            )
        )
        run = Path(case["run"])
        trainer.save(run / "checkpoints" / "step-3" / "trainer")
        trainer.export_hf(run / "model")
    trainer.close()


def _spec(case):
    return resolved(
        {
            "model": {"path": str(case["model"]), "adapter": case.get("adapter")},
            "data": {},
            "engine": {"dtype": "float32"},
            "trainer": {
                "steps": 1,
                "dtype": "float32",
                "share_prefixes": False,
                "parallel": case["parallel"],
                "lora": case.get("lora"),
            }
            | ({"vision_tower": case["tower"]} if case.get("tower") else {}),
        }
    )
