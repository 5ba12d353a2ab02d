"""The Python interface: specs, plans, functions of a notebook, and a job from spec to curve."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rlrun
from rlrun.api.jobs import plugin_file
from rlrun.plugins.registry import build
from rlrun.runner.contracts.errors import JobError
from rlrun.specs.local_code import ALLOW_LOCAL
from rlrun.specs.problems.findings import SpecError

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


def test_the_package_imports_nothing_until_a_name_is_used() -> None:
    code = "import rlrun, sys; print(len([name for name in sys.modules if name.startswith('rlrun')]))"
    assert subprocess.check_output([sys.executable, "-c", code]).split() == [b"1"]
    assert {"load", "runs", "reward", "filter", "data", "environment"} == set(dir(rlrun))
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = rlrun.lode


def test_a_recipe_with_overrides_is_planned() -> None:
    job = rlrun.load("quickstart", {"trainer.steps": 3, "rollout.temperature": 0.5})
    assert (job.spec.trainer.steps, job.spec.rollout.temperature) == (3, 0.5)
    assert job.validate() == []
    assert job.plan()["batch"]["prompts"] == job.spec.rollout.batch_size


def test_a_table_is_a_spec_whose_paths_start_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"prompt": "1 + 1 = ?", "label": "2"}\n')
    spec = {
        "name": "table",
        "model": {"path": "Qwen/Qwen3-0.6B"},
        "data": {"path": "rows.jsonl"},
        "rollout": {"batch_size": 1, "stop": ['"', "\n"]},
        "rewards": [{"type": "math"}, {"type": "length", "max_tokens": 64, "buffer": 16, "weight": 0.5}],
        "trainer": {"steps": 1, "lr": 1e-6},
    }
    job = rlrun.load(spec)
    assert job.spec.rollout.stop == ('"', "\n")
    assert job.spec.data.params["path"] == str(tmp_path / "rows.jsonl")
    assert [reward.type for reward in job.spec.rewards] == ["math", "length"]
    with pytest.raises(SpecError) as caught:
        rlrun.load(spec | {"trainer": {"steps": 1, "lrs": 1e-6}})
    assert "lrs" in str(caught.value.problems[0])


def test_functions_of_a_notebook_reach_other_processes(tmp_path: Path, monkeypatch) -> None:
    """The function uses a name of the notebook; another process finds neither in any file."""
    monkeypatch.setenv("RLRUN_CACHE", str(tmp_path / "cache"))
    notebook = {"__name__": "__main__", "rlrun": rlrun, "BONUS": 2.0}
    code = (
        "@rlrun.reward\ndef long(sample, *, factor: float = 1.0):\n    return BONUS + factor * len(sample)\n"
    )
    exec(code, notebook)
    name = plugin_file(notebook["long"])
    assert name == plugin_file(notebook["long"])
    script = (
        "from rlrun.plugins.registry import build; import sys\n"
        "print(build('rewards', sys.argv[1], {'factor': 3.0}).score('four'))"
    )
    environment = os.environ | {ALLOW_LOCAL: "1"}
    answer = subprocess.check_output([sys.executable, "-c", script, name], env=environment, text=True)
    assert float(answer) == 14.0
    with pytest.raises(TypeError, match=r"decorate it with @rlrun\.reward"):
        plugin_file(len)


@rlrun.reward
def brief(sample):
    return -float(len(sample.tokens))


def test_a_function_of_a_file_is_named_by_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW_LOCAL, "1")
    name = plugin_file(brief)
    assert name == f"{__file__}:brief"
    job = rlrun.load("quickstart", rewards=[brief])
    assert [reward.type for reward in job.spec.rewards] == [name]
    assert build("rewards", name, {})


def test_a_launch_that_fails_before_its_run_exists_raises_with_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = rlrun.load("quickstart")
    with pytest.raises(JobError, match=r"^there is no run runs/quickstart to resume"):
        job.launch(resume=True)


@pytest.mark.slow
def test_a_detached_launch_is_found_and_stopped_by_its_name(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rlrun", "launch", "quickstart", "--detach", "--name", "apart"]
    started = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=True)
    assert "rlrun status apart, rlrun logs -f apart, rlrun stop apart" in started.stdout
    (run,) = rlrun.runs(tmp_path / "runs")
    assert f"apart runs as process {run.state['pid']}" in started.stdout
    next(run.stream())
    assert run.stop()["status"] == "interrupted"


@pytest.mark.slow
def test_the_notebook_runs_from_spec_to_curve(tmp_path: Path) -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    script = "\n".join([*code, "print(len(table), status, stopped)"])
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "4 done interrupted"
    assert (tmp_path / "curve.png").stat().st_size > 5000
