"""A process that is killed at any moment of a save leaves the checkpoint before, or the new one whole."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import torch

from rlrun.runner.checkpoints.folder import checkpoints_in, clear_unfinished
from rlrun.runner.checkpoints.reading import open_checkpoint
from rlrun.runner.checkpoints.saving import Checkpoints, trainer_folder
from tests.runner.real_trainer import DRIVER, RealTrainer
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


def test_killed_at_any_moment_a_save_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fault.killed_saves", str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True
    )
    kills = int(done.stdout)
    print(f"{kills} moments")
    assert kills > 30
    steps = [newest_after_a_kill(tmp_path / str(number)) for number in range(kills + 1)]
    assert steps == sorted(steps)  # once the new one is there it stays
    assert {steps[0], steps[-1]} == {1, 2}


def newest_after_a_kill(folder: Path) -> int:
    """Goes on as a resume does: clears up, loads the newest checkpoint, saves the next."""
    clear_unfinished(folder)
    assert [path.name for path in folder.iterdir()] == [path.name for path in checkpoints_in(folder).values()]
    step, newest = list(checkpoints_in(folder).items())[-1]
    asyncio.run(go_on(folder, step, newest))
    assert list(checkpoints_in(folder)) == [step + 1]
    return step


async def go_on(folder: Path, step: int, newest: Path) -> None:
    trainer = RealTrainer(0)
    assert await open_checkpoint(newest, trainer) == DRIVER  # type: ignore[arg-type]
    await trainer.load(trainer_folder(newest))
    assert torch.equal(trainer.weights["w"], RealTrainer(step).weights["w"])
    await Checkpoints(folder, keep=1).save(trainer, step + 1, DRIVER)  # type: ignore[arg-type]
