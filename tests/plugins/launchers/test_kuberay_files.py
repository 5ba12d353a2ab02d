"""What the KubeRay launcher writes, checked with KubeRay's own schema, and how it reads a RayJob.

rayjob-1.7.0.json is the schema of `v1` in helm-chart/kuberay-operator/crds/ray.io_rayjobs.yaml of KubeRay
1.7.0 (Apache-2.0), without descriptions, defaults and formats; what occurs twice is in `$defs`.
"""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from rlrun.plugins.launchers.kuberay import KubeRay, KubeRayParams, read_rayjob
from rlrun.plugins.submission import SchedulerError, Submission
from rlrun.plugins.testing import check_plugin

JOB = Submission(
    name="Math_v2",
    folder=Path("/shared/my runs/.submitted/math"),
    working_folder=Path("/shared/work"),
    nodes=3,
    gpus=8,
    cpus=64,
)
PARAMS: dict[str, Any] = {"image": "registry.example/rlrun:1", "mounts": {"/shared": "team"}}
SCHEMA = Path(__file__).parent / "rayjob-1.7.0.json"


def files(job: Submission = JOB, **params: Any) -> dict[str, str]:
    return KubeRay(KubeRayParams(**(PARAMS | params))).files(job)


def manifest(job: Submission = JOB, **params: Any) -> dict[str, Any]:
    return yaml.safe_load(files(job, **params)["rayjob.yaml"])  # type: ignore[no-any-return]


def pod(job: Submission = JOB, **params: Any) -> dict[str, Any]:
    """The spec of the head's pod."""
    return manifest(job, **params)["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]  # type: ignore[no-any-return]


def container(job: Submission = JOB, **params: Any) -> dict[str, Any]:
    return pod(job, **params)["containers"][0]  # type: ignore[no-any-return]


def closed(schema: Any) -> Any:
    """Returns the schema as the API server applies it with strict validation: unknown fields are errors."""
    if isinstance(schema, list):
        return [closed(value) for value in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    if schema.pop("x-kubernetes-int-or-string", False):
        schema.pop("anyOf", None)
        schema["type"] = ["integer", "string"]
    return schema


def faults(document: Mapping[str, Any]) -> list[str]:
    schema = closed(json.loads(SCHEMA.read_text()))
    schema["properties"]["metadata"] = {"type": "object"}
    errors = Draft202012Validator(schema).iter_errors(document)
    return [f"{'/'.join(map(str, error.absolute_path))}: {error.message}" for error in errors]


def test_the_contract_of_launchers() -> None:
    check_plugin("launchers", "kuberay")


@pytest.mark.parametrize(
    ("changes", "params"),
    [
        pytest.param({}, {}, id="three nodes"),
        pytest.param({"nodes": 1, "gpus": 0}, {}, id="one node without GPUs"),
        pytest.param({"memory_gb": 100.5, "stop_seconds": 599.5}, {}, id="numbers that are not whole"),
        pytest.param({"secrets": ("KEY",), "environment": {"A": "it's"}}, {"secret": "keys"}, id="variables"),
        pytest.param({}, {"mounts": {"/shared": "team", "/data": "/mnt/data"}}, id="a path of the nodes"),
        pytest.param(
            {},
            {
                "labels": {"kueue.x-k8s.io/queue-name": "training"},
                "pod": {"priorityClassName": "low", "tolerations": [{"key": "gpu", "operator": "Exists"}]},
            },
            id="what the site needs",
        ),
    ],
)
def test_the_rayjob_is_valid_for_kuberay(changes: dict[str, Any], params: dict[str, Any]) -> None:
    assert faults(manifest(replace(JOB, **changes), **params)) == []


@pytest.mark.parametrize(
    ("params", "fault"),
    [
        ({"pod": {"tolerations": {"key": "gpu"}}}, "is not of type 'array'"),
        ({"pod": {"nodeSelektor": {}}}, "'nodeSelektor' was unexpected"),
    ],
)
def test_the_schema_can_refuse_a_rayjob(params: dict[str, Any], fault: str) -> None:
    assert any(fault in message for message in faults(manifest(**params)))


def test_each_node_is_a_pod_with_its_devices() -> None:
    cluster = manifest(replace(JOB, memory_gb=100.5))["spec"]["rayClusterSpec"]
    [workers] = cluster["workerGroupSpecs"]
    assert [workers[key] for key in ("replicas", "minReplicas", "maxReplicas")] == [2, 2, 2]
    assert workers["template"] == cluster["headGroupSpec"]["template"]
    assert workers["rayStartParams"] == {"num-cpus": "64", "num-gpus": "8"}
    resources = {"cpu": "64", "memory": "100500M", "nvidia.com/gpu": "8"}
    assert container(replace(JOB, memory_gb=100.5))["resources"] == {
        "requests": resources,
        "limits": resources,
    }


def test_one_node_is_the_head_alone() -> None:
    assert "workerGroupSpecs" not in manifest(replace(JOB, nodes=1))["spec"]["rayClusterSpec"]


def test_a_pod_that_is_deleted_waits_until_the_attempt_has_saved() -> None:
    job = replace(JOB, stop_seconds=100.5)
    hook = container(job)["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[-3:] == ["release", "/shared/my runs/.submitted/math", "--seconds=131"]
    assert pod(job)["terminationGracePeriodSeconds"] == 161
    assert {"name": "RAY_JOB_STOP_WAIT_TIME_S", "value": "131"} in container(job)["env"]
    assert "--grace=131" in files(job)["job.sh"]


def test_secrets_are_named_and_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "a value")
    job = replace(JOB, secrets=("KEY",))
    reference = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "KEY"}}}
    assert reference in container(job, secret="keys")["env"]
    assert not any("a value" in text for text in files(job, secret="keys").values())
    with pytest.raises(ValueError, match=r"submit\.secret has no value: .* KEY"):
        files(job)


@pytest.mark.parametrize(
    ("path", "source", "volume"),
    [
        ("/shared", "team", {"persistentVolumeClaim": {"claimName": "team"}}),
        ("/shared/my runs", "/mnt/runs", {"hostPath": {"path": "/mnt/runs", "type": "Directory"}}),
    ],
)
def test_what_is_mounted(path: str, source: str, volume: dict[str, Any]) -> None:
    spec = pod(mounts={"/shared": "team"} | {path: source})
    [mount] = [each for each in spec["containers"][0]["volumeMounts"] if each["mountPath"] == path]
    assert {"name": mount["name"], **volume} in spec["volumes"]


@pytest.mark.parametrize("field", ["folder", "working_folder"])
def test_a_folder_that_the_pods_would_not_have_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=r"/home/u is below no path of submit\.mounts \(/shared\)"):
        files(replace(JOB, **{field: Path("/home/u")}))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"mounts": {}}, "at least 1 item"),
        ({"mounts": {"shared": "team"}}, "'shared' is not an absolute path of the pods"),
        ({"pod": {"volumes": [], "hostNetwork": True}}, "rlrun sets volumes itself"),
    ],
)
def test_parameters_are_checked(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        KubeRayParams(**(PARAMS | params))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Math_v2", "rlrun-math-v2-"),
        ("x" * 60, f"rlrun-{'x' * 35}-"),
        (f"{'x' * 34}_y", f"rlrun-{'x' * 34}-"),
    ],
)
def test_names_are_those_that_kubernetes_takes(name: str, expected: str) -> None:
    found = manifest(replace(JOB, name=name))["metadata"]["generateName"]
    assert found == expected
    assert len(found) + 5 <= 47


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param(0, ["exit 0"], id="done"),
        pytest.param(75, ["exit 75"], id="preempted: the job fails, so that KubeRay repeats it"),
        pytest.param(69, ["exit 69"], id="a node was lost"),
        pytest.param(
            3,
            ["job stop --address=http://127.0.0.1:8265 --no-wait raysubmit_1", "exit 3"],
            id="failed: the job is stopped, so that KubeRay does not",
        ),
        pytest.param(
            130, ["job stop --address=http://127.0.0.1:8265 --no-wait raysubmit_1", "exit 130"], id="stopped"
        ),
    ],
)
def test_the_script_says_by_the_state_of_its_job_whether_it_is_repeated(
    tmp_path: Path, code: int, expected: list[str]
) -> None:
    """The attempt is a program that ends with `code`; `ray` shows its arguments and fails."""
    programs = {"python": f'[ "$2" = -m ] && exit {code}; exec python3 "$@"', "ray": 'echo "$@"; exit 1'}
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    job = replace(JOB, folder=tmp_path, working_folder=tmp_path, python=str(tmp_path / "python"))
    script = files(job, mounts={str(tmp_path): "team"})["job.sh"]
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"metadata": {"job_submission_id": "raysubmit_1"}}),
    }
    ended = subprocess.run(["bash", "-c", script], env=environment, check=False).returncode
    printed = (tmp_path / "output.txt").read_text().splitlines()
    assert [*printed, f"exit {ended}"] == expected


def answer(**status: Any) -> str:
    return json.dumps({"kind": "RayJob", "status": status})


@pytest.mark.parametrize(
    ("text", "phase", "about"),
    [
        ("", "ended", "Kubernetes no longer has it"),
        ('{"kind": "RayJob"}', "waiting", "not yet seen by KubeRay"),
        (answer(jobDeploymentStatus="Initializing"), "waiting", "Initializing"),
        (answer(jobDeploymentStatus="Suspended", failed=2), "waiting", "Suspended, 2 failed"),
        (answer(jobDeploymentStatus="Running", jobStatus="RUNNING"), "running", "Running (RUNNING)"),
        (answer(jobDeploymentStatus="Retrying", failed=1), "waiting", "Retrying, 1 failed"),
        (answer(jobDeploymentStatus="Complete", jobStatus="STOPPED"), "ended", "Complete (STOPPED)"),
        (
            answer(jobDeploymentStatus="ValidationFailed", reason="ValidationFailed", message="no name\nx"),
            "ended",
            "ValidationFailed (ValidationFailed, no name)",
        ),
    ],
)
def test_a_rayjob_is_read(text: str, phase: str, about: str) -> None:
    state = read_rayjob(text)
    assert (state.phase, state.about) == (phase, about)


@pytest.mark.parametrize("text", ["[]", '{"status": 1}', '{"status": null}'])
def test_something_else_than_a_rayjob_is_refused(text: str) -> None:
    with pytest.raises(SchedulerError, match="something that is not a RayJob"):
        read_rayjob(text)
