"""Runs a sweep whose trials are stand-ins for launches: `python -m tests.runner.sweeps.sweeping FOLDER HOLD
PARALLEL VALUES`, a process that tests can kill."""

import sys
from dataclasses import dataclass
from pathlib import Path

from rlrun.runner.sweeps.run_sweep import LaunchArguments, prepare_search, run_sweep
from rlrun.runner.sweeps.sweep_folder import SweepFolder
from rlrun.runner.sweeps.trials import Trial
from tests.runner.planning.test_plan import spec_of


@dataclass(frozen=True, slots=True)
class StandIns(LaunchArguments):
    """Starts tests.runner.sweeps.launching in place of launches."""

    hold: str = ""

    def command(self, folder: SweepFolder, trial: Trial, *, resume: bool) -> list[str]:
        """Returns the command of a stand-in."""
        command = [sys.executable, "-m", "tests.runner.sweeps.launching", str(folder.run_of(trial).path)]
        return [*command, self.hold, *["--resume"] * resume]


def main(path: str, hold: str, parallel: str, values: str) -> int:
    """Returns the exit code of the sweep."""
    folder = SweepFolder(Path(path))
    sweep = {"keys": {"rollout": {"function": {"type": values.split(",")}}}, "metric": "score"}
    with folder.claimed(resume=folder.record.exists()):
        next_trial = prepare_search(folder, spec_of(sweep=sweep))
        return run_sweep(folder, StandIns((), (), "", hold), next_trial, [{}] * int(parallel), print)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
