"""Lists the rules that translate several of slime's flags together, by their name in flags.toml."""

from collections.abc import Callable, Mapping

from rlrun.converters.slime import correction_flags as corrections
from rlrun.converters.slime import objective_flags as objective
from rlrun.converters.slime import optimizer_flags as optimizer
from rlrun.converters.slime import records_flags as records
from rlrun.converters.slime import rollouts_flags as rollouts
from rlrun.converters.slime import servers_flags as servers
from rlrun.converters.slime import sources_flags as sources
from rlrun.converters.slime.draft import Draft
from rlrun.converters.slime.evaluation_flags import evaluation
from rlrun.converters.slime.layout_flags import environment, layout
from rlrun.converters.slime.own_functions import own_functions
from rlrun.converters.slime.servers_flags import speculation

RULES: Mapping[str, Callable[[Draft], None]] = {
    "run_name": records.run_name,
    "model": servers.model,
    "steps": optimizer.steps,
    "batches": optimizer.batches,
    "algorithm": objective.algorithm,
    "clipping": objective.clipping,
    "engine": servers.engine,
    "topology": servers.topology,
    "speculation": speculation,
    "weight_sync": servers.weight_sync,
    "sleeping": servers.sleeping,
    "rollout_function": rollouts.rollout_function,
    "partial": rollouts.partial,
    "lengths": rollouts.lengths,
    "template": rollouts.template,
    "debug": rollouts.debug,
    "determinism": rollouts.determinism,
    "kl_in_reward": objective.kl_in_reward,
    "kl_in_loss": objective.kl_in_loss,
    "reference": objective.reference,
    "correction": corrections.correction,
    "off_policy_masking": corrections.off_policy_masking,
    "old_log_probs": corrections.old_log_probs,
    "distillation": objective.distillation,
    "rewards": sources.rewards,
    "filters": sources.filters,
    "time_limits": rollouts.time_limits,
    "evaluation": evaluation,
    "layout": layout,
    "environment": environment,
    "optimizer_settings": optimizer.optimizer_settings,
    "schedule": optimizer.schedule,
    "warmup_share": optimizer.warmup_share,
    "micro_batches": optimizer.micro_batches,
    "logits_chunk": optimizer.logits_chunk,
    "freeze": optimizer.freeze,
    "routing": optimizer.routing,
    "dropout": optimizer.dropout,
    "low_precision": optimizer.low_precision,
    "balancing": optimizer.balancing,
    "multi_token": optimizer.multi_token,
    "checkpoints": records.checkpoints,
    "trackers": records.trackers,
    "data": sources.data,
    "images": sources.images,
    "own_functions": own_functions,
}
"""The importer runs all rules in this order; each rule reads the flags that it needs."""
