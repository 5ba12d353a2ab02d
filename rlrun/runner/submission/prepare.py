"""Derives what a scheduler is asked for from a spec and its plan."""

from collections import defaultdict
from math import ceil
from pathlib import Path

from rlrun.plugins.submission import Submission
from rlrun.runner.cluster.placement import place
from rlrun.runner.cluster.ray_variables import RAY_SERVERS
from rlrun.runner.planning.plan import Plan, make_plan
from rlrun.runner.planning.planned_model import resolve_on_this_host
from rlrun.runner.submission.folder import SubmissionFolder
from rlrun.specs.problems.findings import SpecError
from rlrun.specs.reading.loading import LoadedSpec
from rlrun.specs.reading.reference import as_document

_NODE_TIMEOUT_S = 10.0
"""A scheduler replaces a lost node by starting the job again, so that the job need not wait for one."""


def prepare(loaded: LoadedSpec, folder: SubmissionFolder, working_folder: Path) -> Submission:
    """Returns the job to submit. Raises SpecError if the spec leaves open what only the nodes know."""
    spec = loaded.spec
    if spec.submit is None:
        raise SpecError(
            [
                loaded.problem(
                    "submit", "is missing", 'add a table [submit] with `type = "slurm"` (docs/cluster.md)'
                )
            ]
        )
    if spec.cluster.threads is None:
        message = "has no value, and the cores of the nodes are not known here"
        cure = "set the number of threads of each rank and each engine"
        raise SpecError([loaded.problem("cluster.threads", message, cure)])
    asked = spec.submit
    return Submission(
        name=spec.name,
        folder=folder.path,
        working_folder=working_folder,
        nodes=spec.cluster.nodes,
        gpus=spec.cluster.gpus_per_node,
        cpus=asked.cpus or planned_cpus(make_plan(resolve_on_this_host(spec).spec)),
        python=asked.python,
        memory_gb=asked.memory_gb,
        hours=asked.hours,
        stop_seconds=spec.checkpoint.stop_timeout,
        idle_attempts=asked.idle_attempts,
        environment=asked.environment,
        secrets=asked.secrets,
        setup=asked.setup,
        ray_variables=RAY_SERVERS,
    )


def planned_cpus(plan: Plan) -> int:
    """Returns the cores that Ray reserves on the fullest node of a plan."""
    placement = place(plan)
    cores: defaultdict[int, float] = defaultdict(float)
    for bundle, node in zip(placement.bundles, placement.nodes, strict=True):
        cores[node] += bundle.cpus
    return max(1, ceil(max(cores.values(), default=1.0)))


def submitted_spec(loaded: LoadedSpec) -> str:
    """Returns the spec that every attempt launches, with all `--set` and profiles, as a TOML document.

    The file may change while the job waits. Paths are absolute. The attempt names the Ray cluster.
    """
    given = loaded.spec.model_dump(mode="json", exclude_unset=True)
    given.pop("submit", None)
    given.get("cluster", {}).pop("address", None)
    given["name"] = loaded.spec.name
    given["runs_dir"] = str(Path(loaded.spec.runs_dir).absolute())
    given["fault_tolerance"] = {"node_timeout": _NODE_TIMEOUT_S} | given.get("fault_tolerance", {})
    return as_document(given)
