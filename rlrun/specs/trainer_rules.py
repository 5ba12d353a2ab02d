"""Rules of `[trainer]`: settings that nothing would read, and those that do not go together."""

from collections.abc import Iterator

from rlrun.specs.job import Spec
from rlrun.specs.optimizer_rules import optimizer_sections
from rlrun.specs.positions import KeyPath
from rlrun.specs.problems import Finding
from rlrun.specs.rules import Rule, no_effect

OFFLOAD: KeyPath = ("trainer", "offload")


def offloading(spec: Spec) -> Iterator[Finding]:
    """State can be kept off a GPU where there is one, and steps be taken on the host by some optimizers."""
    if spec.trainer.offload == "none":
        return
    if not spec.cluster.gpus_per_node:
        why = "there are no GPUs, so everything lies in host memory"
        yield no_effect(OFFLOAD, why, "remove it", (("cluster", "gpus_per_node"),))
    for name, section in optimizer_sections(spec):
        if spec.trainer.offload == "all" and section.optimizer == "muon":
            message = "would have Muon's matrix products done by the host, which takes minutes a step"
            others: tuple[KeyPath, ...] = ((name, "optimizer"),)
            yield Finding(OFFLOAD, message, 'use offload = "optimizer"', None, "all", others=others)


TRAINER_RULES: tuple[Rule, ...] = (offloading,)
