"""All checks of `rlrun audit`, in the order in which they are shown; docs/auditing.md explains each."""

from collections.abc import Collection, Sequence
from contextlib import closing

from rlrun.runner.audit import file_checks, group_checks, metric_checks, reward_checks, sample_checks
from rlrun.runner.audit.audited_run import AuditedRun
from rlrun.runner.audit.check import Check, Outcome
from rlrun.runner.records.run_folder import RunFolder

_WRITTEN = "the files are not what rlrun wrote: restore them, or find out what changed them"
_BUG = "what was trained on is not what was sampled: do not use this run; report it with the samples named"
_MISMATCH = "engine and trainer compute different policies: rlrun debug shows it token by token"

CHECKS: Sequence[Check] = (
    Check("samples_readable", "error", "samples", _WRITTEN, sample_checks.readable),
    Check("token_counts", "error", "samples with tokens", _WRITTEN, sample_checks.lengths),
    Check(
        "token_ids",
        "error",
        "samples with tokens",
        "the tokens are of another model: compare model.path with the folder in spec.lock.json",
        sample_checks.known_tokens,
    ),
    Check(
        "response_text",
        "error",
        "samples whose text rlrun decoded",
        "rewards read another text than the policy wrote: compare the tokenizer's files with the launch's",
        sample_checks.decoded,
    ),
    Check(
        "response_ending",
        "error",
        "single answers of engines",
        "compare the engine's end tokens (generation_config.json) with the tokenizer's, and rollout.stop",
        sample_checks.ended,
    ),
    Check(
        "length_limits",
        "error",
        "samples",
        "the engine ignored a limit of [rollout]; see its log and rlrun debug",
        sample_checks.within_limits,
    ),
    Check("loss_mask", "error", "samples with tokens", _BUG, sample_checks.masks),
    Check(
        "log_prob_range",
        "error",
        "samples with tokens",
        "the engine returned impossible log-probs: look for overflow in its dtype",
        sample_checks.log_probs,
    ),
    Check("turn_rewards", "error", "samples", _WRITTEN, sample_checks.turn_rewards),
    Check("groups_whole", "error", "groups", _BUG, group_checks.whole_groups),
    Check("trained_once", "error", "samples that were trained on", _BUG, group_checks.trained_once),
    Check(
        "weight_versions",
        "error",
        "samples with versions",
        "engines did not have the weights that they should have had: see their logs, and engine.weight_check",
        group_checks.versions,
    ),
    Check(
        "stated_staleness",
        "error",
        "steps",
        "lower rollout.max_staleness, or find the engine that took no update in its log",
        of_run=metric_checks.stated_staleness,
    ),
    Check(
        "data_order",
        "error",
        "samples",
        "the run cannot be repeated: seed, data or the order of its rows is not that of the lock",
        group_checks.data_order,
    ),
    Check(
        "labels",
        "error",
        "samples",
        "rewards compared with another label than the data's: check label_key and the data's file",
        group_checks.labels,
    ),
    Check(
        "prompt_tokens",
        "error",
        "samples whose prompts are stored",
        "the policy saw another prompt than the template renders: compare template and tokenizer files",
        group_checks.rendered,
    ),
    Check(
        "reward_sums",
        "error",
        "scored samples",
        "the reward that was trained on is not that of [[rewards]]: score the samples again with rlrun score",
        reward_checks.reward_sums,
    ),
    Check(
        "reward_values",
        "error",
        "scored samples",
        "the rewards, or the texts that they read, changed: compare versions in spec.lock.json",
        reward_checks.reward_values,
    ),
    Check(
        "rewards_differ",
        "warning",
        "steps",
        "read samples in rlrun view: the reward, its label or the difficulty of the prompts is wrong",
        of_run=reward_checks.rewards_differ,
    ),
    Check(
        "filters",
        "error",
        "groups",
        "the run trained on groups that [[filters]] excludes: it is not the run that its spec describes",
        reward_checks.filters,
    ),
    Check("advantages", "error", "samples with advantages", _BUG, reward_checks.advantages),
    Check("metric_lines", "error", "lines of metrics", _WRITTEN, of_run=metric_checks.lines),
    Check(
        "metrics_finite",
        "error",
        "steps",
        "lower trainer.lr or max_grad_norm, and go back to the checkpoint before the first of these steps",
        of_run=metric_checks.finite,
    ),
    Check(
        "metrics_recomputed",
        "error",
        "metrics",
        "metrics or samples were changed since they were written: trust neither for these steps",
        metric_checks.recomputed,
    ),
    Check(
        "log_prob_gap",
        "error",
        "steps",
        _MISMATCH,
        of_run=metric_checks.gap,
    ),
    Check(
        "stored_log_prob_gap",
        "error",
        "samples with log-probs of the trainer",
        _MISMATCH,
        metric_checks.stored_gap,
    ),
    Check(
        "first_ratio",
        "error",
        "steps",
        "the samples are not of the policy that is updated: look at weight_versions and log_prob_gap",
        of_run=metric_checks.first_ratio,
    ),
    Check(
        "policy_trains",
        "warning",
        "steps",
        "nothing is learnt: check trainer.lr, its schedule, trainer.freeze and rewards_differ",
        of_run=metric_checks.trains,
    ),
    Check(
        "weights_sent",
        "error",
        "updates of engines",
        "engines generate with old weights: see the driver's log and the engines'",
        of_run=metric_checks.updates_sent,
    ),
    Check(
        "alerts",
        "warning",
        "steps",
        "docs/alerts.md says what each alert means and what to do",
        of_run=metric_checks.alerts,
    ),
    Check(
        "spec_as_given",
        "error",
        "keys",
        "spec.lock.json was changed since the launch: restore it",
        of_run=file_checks.spec,
    ),
    Check("run_ending", "error", "ending", "rlrun status and rlrun logs show why", of_run=file_checks.ending),
    Check(
        "checkpoints",
        "error",
        "checkpoints",
        "move the damaged folder away: --resume continues from the one before (docs/running.md)",
        of_run=file_checks.checkpoints,
    ),
    Check(
        "log_errors",
        "warning",
        "logs",
        "read the lines around it: rlrun logs",
        of_run=file_checks.logs,
    ),
)


def audit(folder: RunFolder, skipped: Collection[str] = ()) -> list[Outcome]:
    """Returns the outcome of every check on a run, but those that are skipped.

    Raises RunFolderError if the run's lock cannot be read.
    """
    with closing(AuditedRun(folder)) as run:
        outcomes = [Outcome(check) for check in CHECKS if check.name not in skipped]
        for batch in run.batches():
            for outcome in outcomes:
                if outcome.check.of_batch is not None:
                    outcome.take(outcome.check.of_batch(run, batch))
        for outcome in outcomes:
            if outcome.check.of_run is not None:
                outcome.take(outcome.check.of_run(run))
    return outcomes
