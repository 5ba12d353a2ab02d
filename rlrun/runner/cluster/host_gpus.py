"""Counts the GPUs of this host as Ray does, before Ray is started."""

from collections.abc import Iterator

from rlrun.runner.cluster.placement import place
from rlrun.runner.cluster.ray_environment import ray  # sets the variables that Ray reads on import
from rlrun.runner.planning.plan import make_plan, plan_for_mode
from rlrun.runner.planning.planned_model import resolve_on_this_host
from rlrun.specs.problems.codes import Code
from rlrun.specs.problems.findings import Finding, SpecError, coded
from rlrun.specs.reading.loading import LoadedSpec
from rlrun.specs.sections.job import Spec


def check_gpus(loaded: LoadedSpec) -> None:
    """Raises SpecError if a job that starts Ray on this host needs more GPUs than this host has."""
    spec = resolve_on_this_host(loaded.spec).spec
    findings = coded(gpu_findings(spec, gpus_here()), Code.CLUSTER)
    if findings:
        raise SpecError([loaded.composition.locate(finding) for finding in findings])


def gpu_findings(spec: Spec, available: int) -> Iterator[Finding]:
    """Yields a finding if the job's processes need more GPUs than the host has on which it starts Ray."""
    if spec.cluster.address is not None:
        return
    required = round(place(plan_for_mode(make_plan(spec), spec.debug.mode)).required["GPU"])
    if required > available:
        yield Finding(
            ("cluster", "gpus_per_node"),
            f"the job needs {required} GPUs, and this host has {available} (CUDA_VISIBLE_DEVICES counts)",
            "lower cluster.gpus_per_node (0: CPUs), trainer.parallel or engine.count (see rlrun plan), or "
            "join a Ray cluster (cluster.address)",
        )


def gpus_here() -> int:
    """Returns the number of GPUs that Ray would offer if it were started on this host."""
    manager = ray._private.accelerators.get_accelerator_manager_for_resource("GPU")
    if manager is None:
        return 0
    visible = manager.get_current_process_visible_accelerator_ids()
    count = int(manager.get_current_node_num_accelerators())
    return count if visible is None else min(count, len(visible))
