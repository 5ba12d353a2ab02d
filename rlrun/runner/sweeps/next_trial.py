"""Decides which trial of a sweep runs next: the next one of a grid, or one that Optuna chooses."""

from collections.abc import Sequence

from rlrun.runner.contracts.errors import RunFolderError
from rlrun.runner.sweeps.optuna_search import suggest
from rlrun.runner.sweeps.run_sweep import NextTrial, is_pending
from rlrun.runner.sweeps.sweep_folder import SweepFolder, TrialState
from rlrun.runner.sweeps.trials import Trial, objective, trial_of, trials_of
from rlrun.specs.derived.sweep_trials import allows, axes_of
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.sweep_section import SweepSpec


def prepare_search(folder: SweepFolder, spec: Spec) -> NextTrial:
    """Writes the list of trials, with those of earlier launches, and returns the choice of the next one.

    Trials that are done are not run again; each of the others is run once. Raises RunFolderError if a trial
    has values that `[sweep.keys]` does not allow: sweep.json cannot set other keys of the spec.
    """
    assert spec.sweep is not None
    metric, larger = objective(spec)
    known = folder.trials()
    wanted = trials_of(spec.sweep, known) if spec.sweep.search == "grid" else known
    if spec.sweep.search == "optuna":
        _check_values(folder, known, spec.sweep)
    new = [trial for trial in wanted if trial not in known]
    folder.write([*known, *new], metric, larger=larger)
    pending = [state.trial for state in folder.states() if is_pending(state) and state.trial in wanted]

    def next_trial(states: Sequence[TrialState]) -> Trial | None:
        if pending:
            return pending.pop(0)
        assert spec.sweep is not None
        if spec.sweep.search == "grid" or len(states) >= (spec.sweep.trials or 0):
            return None
        values = suggest(axes_of(spec.sweep), states, larger=larger, seed=spec.seed)
        trial = trial_of(len(states), values)
        folder.write([*(state.trial for state in states), trial], metric, larger=larger)
        return trial

    return next_trial


def _check_values(folder: SweepFolder, trials: Sequence[Trial], sweep: SweepSpec) -> None:
    for trial in trials:
        if not allows(axes_of(sweep), trial.values):
            raise RunFolderError(
                f"the trial {trial.name} of {folder.shown} has values that [sweep.keys] does not allow: "
                "change the keys back, or start another sweep (--name)"
            )
