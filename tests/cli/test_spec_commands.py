"""validate, plan, init, schema, plugins: the commands that look at specs."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from rlrun.cli.main import own_commands
from rlrun.cli.schema import spec_schema
from rlrun.cli.spec_page import spec_pages
from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.derived.shared_prefixes import NOT_SHARED
from rlrun.specs.local_code import ALLOW_LOCAL
from rlrun.specs.paths import RECIPES
from rlrun.specs.reading import loading
from tests.cli.cli_outcome import Command
from tests.waiting import PATIENCE

SPECS = Path(__file__).parents[1] / "specs"
BASE = SPECS / "base.toml"
BROKEN = f"""extends = "{BASE.as_posix()}"
nmae = "x"
[trainer]
steps = "10"
learning_rte = 1e-6
"""
BIN = str(Path(sys.executable).parent)
DOCS = Path(__file__).parents[2] / "docs"

IMPORTED = Path(__file__).parents[1] / "converters"
HEAVY = (
    "torch",
    "numpy",
    "mpmath",
    "ray",
    "transformers",
    "torchtitan",
    "reasoning_gym",
    "aiohttp",
    "matplotlib",
)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["validate", str(BASE)],
        ["validate", str(SPECS / "full.toml")],
        ["validate", "gspo-30b-a3b"],
        ["validate", "ppo"],
        ["import", "trl", str(IMPORTED / "trl" / "lora_math.py")],
        ["import", "verl", str(IMPORTED / "verl" / "dapo.sh")],
        ["import", "prime-rl", str(IMPORTED / "prime_rl" / "math.toml")],
    ],
)
def test_nothing_heavy_is_imported(arguments: list[str]) -> None:
    script = (
        "import sys; from rlrun.cli.main import run\n"
        f"sys.argv = ['rlrun', *{arguments!r}]\n"
        "try: run()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        f"heavy = [name for name in {HEAVY} if name in sys.modules]\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr


def test_help_names_every_command(rlrun: Command) -> None:
    outcome = rlrun("--help")
    assert outcome.code == 0
    assert len(own_commands()) >= 20
    for name in own_commands():
        assert f" {name} " in outcome.out


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("rlrun va", ["validate"]),
        ("rlrun launch quick", ["quickstart", "quickstart-sft"]),
        ("rlrun plan mi", ["mine.toml"]),
        ("rlrun status sec", ["second"]),
        ("rlrun sweep status lr", ["lrs-sweep"]),
        ("rlrun view f", ["first"]),
        ("rlrun view lr", ["lrs-sweep"]),
    ],
)
def test_a_shell_completes_commands_recipes_files_runs_and_sweeps(
    tmp_path: Path, words: str, completions: list[str]
) -> None:
    (tmp_path / "mine.toml").touch()
    for name in ("first", "second"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "state.json").touch()
    (tmp_path / "runs" / "lrs-sweep").mkdir()
    (tmp_path / "runs" / "lrs-sweep" / "sweep.json").touch()
    position = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    environment = os.environ | {"_RLRUN_COMPLETE": "complete_bash"} | position
    command = [Path(sys.executable).with_name("rlrun")]
    answer = subprocess.check_output(command, cwd=tmp_path, env=environment, text=True)
    assert answer.split() == completions


def test_the_version(rlrun: Command) -> None:
    outcome = rlrun("--version")
    assert (outcome.code, outcome.out) == (0, f"rlrun {version('rlrun')}\n")


def test_help_shows_brackets_as_they_are(rlrun: Command) -> None:
    assert "[profiles.NAME]" in rlrun("validate", "--help").out
    assert "[[rewards]]" in rlrun("score", "--help").out


def test_an_unknown_command_is_exit_2(rlrun: Command) -> None:
    outcome = rlrun("lanch")
    assert outcome.code == 2
    assert "launch" in outcome.err


def test_validate(rlrun: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "multiplies_bfloat16", lambda: False)
    outcome = rlrun("validate", BASE)
    limits = "a prompt of 3072 (longer ones are dropped), and a response of 1024; it may take 600 s"
    engines = "[engine] uses native engines: the cluster has no GPUs"
    sharing = "trainer.share_prefixes is on: 8 samples share a prompt; 2.9 times fewer tokens with prompts of"
    sharing += f" 3,072 tokens and responses of 1,024, the longest; {NOT_SHARED}"
    dtypes = "trainer.dtype and engine.dtype are float32: this processor has no instructions for bfloat16,"
    dtypes += " which would be several times slower"
    assert (
        outcome.out
        == f"{BASE}: valid\n{engines}\n{dtypes}\n{sharing}\na sample may have 4096 tokens: {limits}\n"
    )
    assert (outcome.code, outcome.err) == (0, "")


def test_validate_reports_every_problem(
    rlrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.toml").write_text(BROKEN)
    outcome = rlrun("validate", "broken.toml")
    assert outcome.code == 2
    assert outcome.out == ""
    assert "broken.toml:4:9: trainer.steps: must be a whole number" in outcome.err
    assert outcome.err.endswith("3 problems; rlrun explain E0201 E0203\n")


def test_validate_as_json(rlrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "multiplies_bfloat16", lambda: True)
    good = rlrun("validate", BASE, "--json")
    engines = ["[engine] uses native engines: the cluster has no GPUs"]
    found = json.loads(good.out)
    [sharing] = found.pop("shared_prefixes")
    assert sharing.startswith("trainer.share_prefixes is on: 8 samples share a prompt")
    dtypes = ["trainer.dtype and engine.dtype are bfloat16: this processor has instructions for bfloat16"]
    assert found == {"valid": True, "problems": [], "warnings": [], "engines": engines, "dtypes": dtypes}
    warned = rlrun("validate", BASE, "--json", "--set", "name=hf_abcdefghijklmnop1234567890")
    [warning] = json.loads(warned.out)["warnings"]
    assert "looks like a secret" in warning["message"] and "hf_abc" not in json.dumps(warning)
    assert "warning: --set name:1" in warned.err and "hf_abc" not in warned.err
    spec = tmp_path / "broken.toml"
    spec.write_text(BROKEN)
    bad = rlrun("validate", spec, "--json")
    problem = json.loads(bad.out)["problems"][-1]
    assert bad.code == 2
    assert (problem["line"], problem["column"], problem["key"]) == (5, 1, "trainer.learning_rte")
    assert problem["suggestion"] == "lr"
    unknown = rlrun("validate", "quikstart", "--json")
    assert unknown.code == 2
    assert 'did you mean "quickstart"?' in json.loads(unknown.out)["problems"][0]["message"]


def test_validate_explains_where_values_come_from(rlrun: Command) -> None:
    outcome = rlrun("validate", BASE, "--set", "trainer.lr=3e-5", "--explain", "trainer")
    lines = outcome.out.splitlines()
    assert "trainer.lr = 3e-05  (--set trainer.lr:1)" in lines
    assert f"trainer.steps = 10  ({BASE.relative_to(Path.cwd())}:12)" in lines
    assert "trainer.parallel.fsdp = 1  (default)" in lines
    assert "trainer.epochs = unset  (default)" in lines
    why = "samples are generated with the weights that are trained on them"
    assert f'trainer.old_log_probs = "trainer"  (derived: {why})' in lines
    one = json.loads(rlrun("validate", BASE, "--explain", "rewards.0.type", "--json").out)
    assert one == [
        {"key": "rewards.0.type", "value": "exact_match", "origin": f"{BASE.relative_to(Path.cwd())}:9"}
    ]


def test_explaining_an_unknown_key_is_exit_2(rlrun: Command) -> None:
    outcome = rlrun("validate", BASE, "--explain", "trainer.lrr")
    assert outcome.code == 2
    assert "did you mean trainer.lr?" in outcome.err


def test_a_recipe_that_is_not_there(rlrun: Command) -> None:
    outcome = rlrun("validate", "no-such-recipe")
    assert outcome.code == 2
    assert 'no recipe is named "no-such-recipe"' in outcome.err


def test_colours_on_a_terminal(rlrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlrun.cli.error_report._colours", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    spec = tmp_path / "broken.toml"
    spec.write_text(BROKEN)
    outcome = rlrun("validate", spec)
    assert "\x1b[" in outcome.err
    assert "must be a whole number" in outcome.err


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("seed=99999999999", "must be less than 2147483648"),
        ("rewards.5.type=math", "rewards has no element 5: it has 1, counted from 0"),
        ('engines=[{name="Judge", path="a/b"}]', '"Judge" is not a valid name [E0206]\n'),
        (
            'engines=[{name="Judge", path="a/b"}]',
            "  use lowercase letters, digits, underscores and hyphens; begin with a letter",
        ),
        ('engine={type="external", urls=["10.0.0.7:30000"]}', '"10.0.0.7:30000" is not an address'),
        ("model.path=C:\\models", r'model.path="C:\\models"'),
    ],
)
def test_what_set_gets_wrong_is_told_as_it_was_written(rlrun: Command, setting: str, message: str) -> None:
    outcome = rlrun("validate", BASE, "--set", setting)
    assert outcome.code == 2
    assert message in outcome.err


def test_plan_shows_numbers_and_places(rlrun: Command) -> None:
    outcome = rlrun("plan", SPECS / "full.toml")
    assert outcome.code == 0
    for expected in (
        "P·n = 32 = G·S",
        "2 · ⌊rows / 8⌋",
        "4 trainer ranks = fsdp 2 × tensor 2",
        "GPU 5",
        "rank 3",
        "port 30001",
    ):
        assert expected in outcome.out, expected


def test_a_model_that_is_not_known_leaves_memory_out_of_the_plan(rlrun: Command, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    unknown = ("plan", BASE, "--set", f"model.path={tmp_path}")
    assert "memory and time are not planned" in rlrun(*unknown).out
    assert json.loads(rlrun(*unknown, "--json").out)["sizing"] is None


def test_plan_as_json(rlrun: Command) -> None:
    plan = json.loads(rlrun("plan", SPECS / "full.toml", "--json").out)
    assert plan["batch"] == {
        "prompts": 8,
        "samples_per_prompt": 4,
        "global_batch_size": 16,
        "optimizer_steps": 2,
    }
    place = {"pipeline": 0, "replicate": 0, "fsdp": 1, "context": 0, "tensor": 1}
    assert plan["ranks"][3]["coordinates"] == place
    places = [engine["places"] for engine in plan["engines"]]
    assert places == [[{"node": 0, "gpu": 4}], [{"node": 0, "gpu": 5}]]
    assert plan["optimizer_steps"] is None


MODEL = ("--set", "model.path=package:quickstart/model", "--set", "rollout.max_response_tokens=64")
MODEL = (*MODEL, "--set", "rollout.max_prompt_tokens=64")


def test_plan_shows_memory_disk_and_time(rlrun: Command) -> None:
    outcome = rlrun("plan", BASE, *MODEL, "--set", "cluster.gpus_per_node=1", "--gpu", "L4")
    assert outcome.code == 0
    for expected in (
        "training: ",
        "% of L4 (22 GiB)",
        "1,049,984 × ",
        "generation: ",
        "KV cache",
        "disk for checkpoints",
        "GPU-hours",
        "assumed: prompts of 16 and responses of 32 tokens on average",
    ):
        assert expected in outcome.out, expected
    assert "warning" not in outcome.out


def test_plan_warns_where_it_does_not_fit(rlrun: Command) -> None:
    overrides = ("--set", "trainer.max_tokens_per_rank=1000000", "--set", "cluster.gpus_per_node=1")
    outcome = rlrun("plan", BASE, *MODEL, *overrides, "--gpu", "L4")
    assert outcome.code == 0
    assert "warning: training needs" in outcome.out
    assert 'to fit, set trainer.activation_checkpointing = "full": then training' in outcome.out


def test_plan_sweeps_layouts(rlrun: Command) -> None:
    arguments = ("plan", BASE, *MODEL, "--set", "cluster.gpus_per_node=4", "--set", "trainer.parallel.fsdp=4")
    outcome = rlrun(*arguments, "--gpu", "L4", "--sweep")
    assert outcome.code == 0
    assert "layouts fit L4; fastest first" in outcome.out
    assert "slower layouts and variants are not shown" in outcome.out
    assert "among layouts within 2 % of each other" in outcome.out
    assert "price" in rlrun(*arguments, "--gpu", "L4", "--sweep", "--price", "2.5").out
    assert "to use the first: --set 'cluster.placement=" in outcome.out
    lines = [line.split("│") for line in outcome.out.splitlines() if line.startswith("│")]
    assert all(line[-2].strip() for line in lines), "a row without a phase has its other cells in place"
    rows = json.loads(rlrun(*arguments, "--gpu", "L4", "--sweep", "--json").out)
    first = [
        f"{key}={value}".replace("'", "").replace(":", " =") for key, value in rows[0]["settings"].items()
    ]
    assert rlrun("plan", BASE, *MODEL, "--set", "cluster.gpus_per_node=4", *options(first)).code == 0


def test_a_job_on_many_nodes_is_planned_before_there_is_a_cluster(rlrun: Command) -> None:
    nodes = (
        "--set",
        "cluster.nodes=8",
        "--set",
        "cluster.gpus_per_node=1",
        "--set",
        "trainer.parallel.fsdp=8",
    )
    planned = rlrun("plan", BASE, *MODEL, *nodes, "--gpu", "L4", "--price", "2.5")
    assert planned.code == 0, planned.err
    assert "2.5 per GPU-hour" in planned.out
    assert "need cluster.address" in rlrun("validate", BASE, *MODEL, *nodes).err


def test_tables_are_not_folded_in_a_pipe(rlrun: Command) -> None:
    lines = rlrun("plan", BASE, *MODEL).out.splitlines()
    assert any("of full length, in" in line and "of cache; more if shorter" in line for line in lines)


def options(overrides: list[str]) -> list[str]:
    return [part for override in overrides for part in ("--set", override)]


def test_plan_says_how_often_to_save_on_nodes_that_fail(rlrun: Command) -> None:
    gpus = ("--set", "cluster.gpus_per_node=1", "--gpu", "L4")
    arguments = ("plan", BASE, *MODEL, *gpus, "--node-failures", "100", "--restart", "60")
    outcome = rlrun(*arguments)
    for expected in ("time between failures", "4.17 days", "60 s", "largest goodput"):
        assert expected in outcome.out
    saving = json.loads(rlrun(*arguments, "--json").out)["saving"]
    assert (saving["node_seconds"], saving["restart_seconds"], saving["nodes"]) == (360_000, 60, 1)
    assert 0.8 < saving["best_goodput"] < 1.0
    assert "omit --deep, --sweep and --simulate" in rlrun(*arguments, "--sweep").err


@pytest.mark.parametrize(
    "option", ["--node-failures", "--restart", "--price", "--prompt-tokens", "--response-tokens", "--spread"]
)
def test_numbers_of_a_plan_are_finite(rlrun: Command, option: str) -> None:
    outcome = rlrun("plan", BASE, *MODEL, option, "inf")
    assert outcome.code == 2
    assert "must be a finite number" in outcome.err


@pytest.mark.slow  # tests/runner/planning/test_sweep.py simulates as much
def test_plan_simulates_splits_and_modes(rlrun: Command) -> None:
    arguments = ("plan", BASE, *MODEL, "--set", "cluster.gpus_per_node=4", "--set", "trainer.parallel.fsdp=4")
    outcome = rlrun(*arguments, "--gpu", "L4", "--simulate")
    assert outcome.code == 0
    for expected in ("8 steps simulated", "sync", "async ≤ 1", "engines", "colocated"):
        assert expected in outcome.out
    rows = json.loads(rlrun(*arguments, "--gpu", "L4", "--simulate", "--json").out)
    assert [row["step_seconds"] for row in rows] == sorted(row["step_seconds"] for row in rows)


def test_plan_compares_layouts_on_gpus_alone(rlrun: Command) -> None:
    outcome = rlrun("plan", BASE, *MODEL, "--sweep")
    assert outcome.code == 2
    assert "set cluster.gpus_per_node" in outcome.err


def test_plan_traces_the_layout_that_the_spec_has(rlrun: Command) -> None:
    outcome = rlrun("plan", BASE, "--deep", "--sweep")
    assert outcome.code == 2
    assert "omit --sweep and --simulate" in outcome.err


def test_plan_of_an_unknown_gpu(rlrun: Command) -> None:
    outcome = rlrun("plan", BASE, "--gpu", "A100")
    assert outcome.code == 2
    assert "known GPUs: L4, RTX-4090" in outcome.err


def test_plan_as_json_has_memory(rlrun: Command) -> None:
    plan = json.loads(rlrun("plan", BASE, *MODEL, "--json").out)
    assert [phase["name"] for phase in plan["sizing"]["phases"]] == ["training", "generation"]
    assert plan["sizing"]["estimate"]["step_seconds"] > 0


def test_plan_of_demonstrations(rlrun: Command) -> None:
    overrides = ("algorithm.type=sft", "trainer.global_batch_size=8", "rewards=[]")
    outcome = rlrun("plan", BASE, *(part for override in overrides for part in ("--set", override)))
    assert outcome.code == 0
    assert "no engines" in outcome.out


@pytest.mark.parametrize("options", [(), ("--gpus", 4), ("--gpus", 6, "--nodes", 2, "--algorithm", "rloo")])
def test_init_writes_a_spec_that_validates(
    rlrun: Command, tmp_path: Path, options: tuple[object, ...]
) -> None:
    path = tmp_path / "first.toml"
    assert rlrun("init", path, *options, "--model", "Qwen/Qwen3-4B").code == 0
    assert rlrun("validate", path).code == 0
    assert rlrun("plan", path, *MODEL).code == 0
    again = rlrun("init", path)
    assert again.code == 2
    assert "already exists" in again.err


def test_init_of_a_file_of_problems(rlrun: Command, tmp_path: Path) -> None:
    path = tmp_path / "first.toml"
    assert rlrun("init", path, "--data", SPECS / "rows.jsonl").code == 0
    found = load_checked_spec([path]).spec
    assert (found.data.type, found.rewards[0].type) == ("jsonl", "math")
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"id": 7, "Question": "1 + 1?", "final_answer": 2}\n')
    assert rlrun("init", tmp_path / "own.toml", "--data", questions).code == 0
    params = load_checked_spec([tmp_path / "own.toml"]).spec.data.params
    assert params["prompt_template"] == "{Question}\nPut the final answer in \\boxed{}."
    assert params["label_key"] == "final_answer"
    questions.write_text('{"id": 7, "final_answer": 2}\n')
    unknown = rlrun("init", tmp_path / "second.toml", "--data", questions)
    assert (unknown.code, "no column (id, final_answer) looks like the prompt" in unknown.err) == (2, True)
    missing = rlrun("init", tmp_path / "second.toml", "--data", tmp_path / "gone.jsonl")
    assert (missing.code, "there is no file" in missing.err) == (2, True)
    both = rlrun("init", tmp_path / "second.toml", "--data", SPECS / "rows.jsonl", "--task", "x")
    assert (both.code, "give only one of them" in both.err) == (2, True)


def test_init_takes_the_names_of_columns_and_a_reward_for_rows_without_label(
    rlrun: Command, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"Frage": "1 + 1?"}\n{"Frage": "2 + 2?", "Lösung": 4}\n')
    data = ("--data", rows)
    guessed = rlrun("init", tmp_path / "no.toml", *data)
    assert (guessed.code, "set it with --prompt-key" in guessed.err) == (2, True)
    unlabelled = rlrun("init", tmp_path / "no.toml", *data, "--prompt-key", "Frage")
    assert (unlabelled.code, "set it with --label-key, or choose a --reward" in unlabelled.err) == (2, True)
    missing = rlrun("init", tmp_path / "no.toml", *data, "--prompt-key", "frage")
    assert "--prompt-key frage: there is no such column; columns: Frage, Lösung" in missing.err
    stray = rlrun("init", tmp_path / "no.toml", "--task", "chain_sum", "--label-key", "Lösung")
    assert (stray.code, "apply to the rows of --data" in stray.err) == (2, True)
    assert not (tmp_path / "no.toml").exists()
    own = rlrun("init", tmp_path / "own.toml", *data, "--prompt-key", "Frage", "--label-key", "Lösung")
    assert own.code == 0
    assert load_checked_spec([tmp_path / "own.toml"]).spec.data.params["label_key"] == "Lösung"
    assert (
        rlrun("init", tmp_path / "any.toml", *data, "--prompt-key", "Frage", "--reward", "random").code == 0
    )
    any_label = load_checked_spec([tmp_path / "any.toml"]).spec
    assert (any_label.rewards[0].type, "label_key" in any_label.data.params) == ("random", False)


def test_init_leaves_nothing_that_is_not_valid(rlrun: Command, tmp_path: Path) -> None:
    path = tmp_path / "first.toml"
    outcome = rlrun("init", path, "--algorithm", "gpro")
    assert outcome.code == 2
    assert 'there is no algorithm "gpro"' in outcome.err
    assert f"{path} was not written" in outcome.err
    assert not path.exists()


@pytest.mark.parametrize(
    ("algorithm", "recipe"),
    [("sft", "sft"), ("dpo", "sft"), ("kto", "sft"), ("on_policy_distillation", "distillation")],
)
def test_init_names_a_recipe_for_jobs_of_another_shape(
    rlrun: Command, tmp_path: Path, algorithm: str, recipe: str
) -> None:
    outcome = rlrun("init", tmp_path / "first.toml", "--algorithm", algorithm)
    assert outcome.code == 2
    assert f'extends = "package:{recipe}.toml"' in outcome.err


def test_init_makes_a_name_of_any_file_s(rlrun: Command, tmp_path: Path) -> None:
    path = tmp_path / "my first job!.toml"
    assert rlrun("init", path).code == 0
    assert load_checked_spec([path]).spec.name == "my-first-job"


def test_recipes_are_listed(rlrun: Command) -> None:
    lines, names = rlrun("recipes").out.splitlines(), sorted(path.stem for path in RECIPES.glob("*.toml"))
    assert [line.split()[0] for line in lines[:-3]] == names
    listed = json.loads(rlrun("recipes", "--json").out)
    assert sorted(recipe["name"] for recipe in listed) == names
    assert all(Path(recipe["path"]).is_file() and recipe["about"] for recipe in listed)


def test_init_asks_in_a_terminal(rlrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    answers = iter(["Qwen/Qwen3-4B", "countdown", "2"])
    monkeypatch.setattr("typer.prompt", lambda question, default: next(answers))
    path = tmp_path / "first.toml"
    assert rlrun("init", path).code == 0
    found = load_checked_spec([path]).spec
    assert (found.model.path, found.cluster.gpus_per_node) == ("Qwen/Qwen3-4B", 2)
    assert found.data.params["task"] == "countdown"
    answers = iter(["Qwen/Qwen3-4B", "countdown", "two"])
    assert "'two' is not a number of GPUs" in rlrun("init", tmp_path / "second.toml").err


def test_init_refuses_what_no_toml_string_holds(rlrun: Command, tmp_path: Path) -> None:
    assert rlrun("init", tmp_path / "a.toml", "--model", 'a"b').code == 2
    assert rlrun("init", tmp_path / "gone" / "a.toml").code == 2
    assert list(tmp_path.iterdir()) == []


def test_schema_describes_every_key(rlrun: Command) -> None:
    schema = json.loads(rlrun("schema").out)
    assert schema == spec_schema()
    for name, definition in schema["$defs"].items():
        for key, field in definition["properties"].items():
            assert field.get("description"), f"{name}.{key} has no docstring"
    assert "grpo" in schema["$defs"]["AlgorithmSpec"]["properties"]["type"]["enum"]
    (grpo,) = (
        each["then"]["properties"]
        for each in schema["$defs"]["AlgorithmSpec"]["allOf"]
        if each["if"]["properties"]["type"]["const"] == "grpo"
    )
    assert grpo["clip"]["default"] == 0.2
    assert all(field.get("description") for field in grpo.values())
    assert schema["$defs"]["EngineSpec"]["properties"]["sglang"]["default"] == {}


def test_a_schema_is_written_in_place_of_an_older_one(rlrun: Command, tmp_path: Path) -> None:
    path = tmp_path / "rlrun.schema.json"
    path.write_text("old")
    assert rlrun("schema", "-o", path).out == ""
    assert json.loads(path.read_text()) == spec_schema()


@pytest.mark.skipif(shutil.which("taplo", path=BIN) is None, reason="taplo is not installed")
def test_an_editor_checks_the_file_of_init(rlrun: Command, tmp_path: Path) -> None:
    """Even Better TOML uses taplo, which finds the schema by the first line of the file."""
    path = tmp_path / "job.toml"
    rlrun("init", path)
    check = [f"{BIN}/taplo", "check", path]
    good = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert good.returncode == 0, good.stderr
    path.write_text(path.read_text().replace("lr = 1e-6", 'lr = "1e-6"'))
    bad = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (bad.returncode, '"1e-6" is not of type "number"' in bad.stderr) == (1, True)


def test_quiet_and_verbose_commands(rlrun: Command, tmp_path: Path) -> None:
    for command in ("validate", "plan"):
        quiet = rlrun(command, "quickstart", "-q")
        assert (quiet.code, quiet.out) == (0, "")
        verbose = rlrun(command, "quickstart", "-v", "--set", "trainer.lr=3e-5").out
        assert "trainer.lr = 3e-05  (--set trainer.lr:1)\n" in verbose
        assert "(default)" not in verbose
    (tmp_path / "broken.toml").write_text(BROKEN)
    assert "3 problems" in rlrun("validate", tmp_path / "broken.toml", "-q").err


def test_the_pages_of_the_spec_are_current() -> None:
    paths = [DOCS / "spec.md", *(DOCS / "spec").glob("*.md")]
    written = {path.relative_to(DOCS).as_posix(): path.read_text("utf-8") for path in paths}
    assert written == spec_pages(), "run: rlrun schema --markdown docs"


def test_the_pages_of_the_spec_replace_older_ones(rlrun: Command, tmp_path: Path) -> None:
    (tmp_path / "spec.md").write_text("old")
    assert rlrun("schema", "--markdown", tmp_path).out == ""
    paths = list(tmp_path.rglob("*.md"))
    assert {path.relative_to(tmp_path).as_posix(): path.read_text() for path in paths} == spec_pages()


def test_plugins_list(rlrun: Command) -> None:
    outcome = rlrun("plugins", "list")
    assert re.search(r"^  grpo +\S.*group", outcome.out, re.MULTILINE)
    assert re.search(r"^  ifbench .*\(rlrun-ifbench ", outcome.out, re.MULTILINE)
    kinds = {entry["kind"] for entry in json.loads(rlrun("plugins", "list", "--json").out)}
    assert kinds == {
        "algorithms",
        "data",
        "rewards",
        "filters",
        "rollouts",
        "tools",
        "agents",
        "environments",
        "buffers",
        "trackers",
        "launchers",
    }


def test_plugins_show(rlrun: Command) -> None:
    outcome = rlrun("plugins", "show", "grpo")
    assert "clip: number > 0 < 1 = 0.2" in outcome.out
    assert [each["kind"] for each in json.loads(rlrun("plugins", "show", "reasoning_gym", "--json").out)] == [
        "data",
        "rewards",
    ]
    wrong = rlrun("plugins", "show", "gpro")
    assert wrong.code == 2
    assert 'did you mean "grpo"?' in wrong.err


def test_a_folder_is_trusted_once(rlrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(ALLOW_LOCAL, raising=False)
    own = tmp_path / "own"
    own.mkdir(mode=0o755)
    (own / "mine.py").write_text("import rlrun\n\n\n@rlrun.reward\ndef one(sample):\n    return 1.0\n")
    (own / "job.toml").write_text(f'extends = "{BASE}"\n[[rewards]]\ntype = "mine.py:one"\n')
    assert rlrun("validate", own / "job.toml").code == 2
    assert rlrun("plugins", "trust").out == "no folder is trusted\n"
    assert f"specs in {own} may now name plugins" in rlrun("plugins", "trust", own).out
    assert rlrun("plugins", "trust").out == f"{own}\n"
    assert rlrun("validate", own / "job.toml").code == 0
    monkeypatch.chdir(own)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"response": "1"}\n')
    assert json.loads(rlrun("score", rows, "--reward", "mine.py:one").out)["reward"] == 1.0
    assert "is trusted no longer" in rlrun("plugins", "trust", own, "--remove").out
    monkeypatch.delenv(ALLOW_LOCAL)
    assert rlrun("validate", own / "job.toml").code == 2
    assert "is not trusted" in rlrun("plugins", "trust", own, "--remove").err


def test_folders_that_are_never_trusted(
    rlrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "home" / "open").mkdir(parents=True)
    (tmp_path / "home" / "open").chmod(0o777)
    for folder, reason in (
        (tmp_path / "home" / "open", "others may write"),
        (tmp_path / "home", "has everything that you download"),
        (Path("/"), "has everything that you download"),
        (tmp_path / "gone", "is not a folder"),
    ):
        outcome = rlrun("plugins", "trust", folder)
        assert (outcome.code, reason in outcome.err) == (2, True), outcome.err
    assert rlrun("plugins", "trust").out == "no folder is trusted\n"
