"""Rewards in real processes: one that hangs, crashes, raises or returns nonsense loses only its sample."""

import asyncio
import json
import logging
import os
import select
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlrun.plugins.failures import Failure
from rlrun.plugins.types import Prompt, Row, Sample, Status
from rlrun.runner.contracts import environment
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.scoring.scorer import RewardError, Scorer, indices_of, unique_names, with_own_rewards
from rlrun.specs.sections.scoring import RewardSpec, ScoringSpec
from tests.conftest import InstallPlugin
from tests.waiting import PATIENCE

MOODY = """
    import os, time
    from pydantic import BaseModel, ConfigDict

    class Params(BaseModel):
        model_config = ConfigDict(extra="forbid")
        factor: float = 1.0

    class Moody:
        Params = Params
        api_version = 1

        def __init__(self, params):
            self.factor = params.factor

        def score(self, sample):
            match sample.text:
                case "hang": time.sleep(1000)
                case "spin":
                    while True: pass
                case "crash": os._exit(7)
                case "segfault": os.kill(os.getpid(), 11)
                case "silent":
                    os.closerange(0, 64)
                    time.sleep(1000)
                case "exit": raise SystemExit(3)
                case "raise": raise KeyError("no such thing")
                case "nan": return float("nan")
                case "none": return None
                case "print": print('{"sample": 0, "reward": 0, "value": 99}', flush=True)
                case "pid": return float(os.getpid())
                case "token": return float("RAY_AUTH_TOKEN" in os.environ)
                case "dict": return {"score": 1.0, "accuracy": 0.0}
                case "stdin": return float(len(input()))
                case "greedy": return float(len(bytearray(2**31)))
                case "deep": return self.score(sample)
                case "large": raise MemoryError
            return self.factor * len(sample.text)

    class Patient(Moody):
        late_score = -0.5
"""


WAITING = """
    import asyncio, os, time
    from pydantic import BaseModel, ConfigDict

    class Params(BaseModel):
        model_config = ConfigDict(extra="forbid")

    class Waiting:
        Params = Params
        api_version = 1

        def __init__(self, params):
            self.running = 0

        async def score(self, sample):
            self.running += 1
            try:
                match sample.text:
                    case "forever": await asyncio.sleep(1000)
                    case "block": time.sleep(1000)
                    case "crash": os._exit(7)
                    case "raise": raise KeyError("no such thing")
                await asyncio.sleep(0.01)
                return float(self.running)
            finally:
                self.running -= 1

    class Ranking:
        Params = Params
        api_version = 1

        def __init__(self, params):
            pass

        def score_group(self, samples):
            texts = [sample.text for sample in samples]
            if "crash" in texts:
                os._exit(7)
            if "few" in texts:
                return [1.0]
            return [float(sorted(texts).index(text)) for text in texts]
"""


LOSING = """
    from pydantic import BaseModel, ConfigDict
    from rlrun.plugins.failures import InfrastructureError

    class Params(BaseModel):
        model_config = ConfigDict(extra="forbid")

    class Losing:
        \"\"\"Loses its service as often as a sample's text says.\"\"\"

        Params = Params
        api_version = 1

        def __init__(self, params):
            self.losses = {}

        def score(self, sample):
            self.losses[sample.id] = self.losses.get(sample.id, 0) + 1
            if self.losses[sample.id] <= int(sample.text):
                raise InfrastructureError("the grader is down")
            return float(self.losses[sample.id])
"""


@pytest.fixture
def losing(install_plugin: InstallPlugin, monkeypatch: pytest.MonkeyPatch) -> RewardSpec:
    install_plugin("rewards", "losing", "losing_reward:Losing", LOSING)
    monkeypatch.setattr(environment, "FIRST_PAUSE", 0.0)
    return RewardSpec(type="losing")


@pytest.mark.parametrize("on_error", ["zero", "drop"])
async def test_a_reward_whose_service_is_down_is_computed_again_and_never_zero(
    losing: RewardSpec, on_error: str
) -> None:
    samples = samples_of("0", "2", "9", "1")
    async with scoring(losing, retries=2, on_error=on_error) as scorer:
        await scorer.score(samples)
    assert [sample.status.is_finished for sample in samples] == [True, True, False, True]
    assert [sample.reward for sample in samples if sample.status.is_finished] == [1, 3, 2]
    assert (samples[2].failure_type, scorer.errors) == (Failure.SERVICE, {"losing": 1})


async def test_a_reward_whose_service_is_always_down_ends_the_job(losing: RewardSpec) -> None:
    async with scoring(losing, on_error="zero") as scorer:
        with pytest.raises(JobError, match=r"reward 'losing' fails as a whole: .* 32 failed \(32 service\)"):
            await scorer.score(samples_of(*["9"] * 40))


@pytest.fixture
def waiting(install_plugin: InstallPlugin) -> RewardSpec:
    install_plugin("rewards", "waiting", "waiting_reward:Waiting", WAITING)
    return RewardSpec(type="waiting")


@pytest.fixture
def ranking(install_plugin: InstallPlugin) -> RewardSpec:
    install_plugin("rewards", "ranking", "waiting_reward:Ranking", WAITING)
    return RewardSpec(type="ranking")


@pytest.fixture
def moody(install_plugin: InstallPlugin) -> RewardSpec:
    install_plugin("rewards", "moody", "moody_reward:Moody", MOODY)
    return RewardSpec(type="moody")


def samples_of(*texts: str) -> list[Sample]:
    prompt = Prompt(Row("0", "question", label="4"), index=0, tokens=np.zeros(3, np.int32))
    empty = np.zeros(2, np.float32)
    return [
        Sample(f"0-{number}", prompt, np.zeros(2, np.int32), empty, empty, (), Status.COMPLETED, text)
        for number, text in enumerate(texts)
    ]


@asynccontextmanager
async def scoring(
    *rewards: RewardSpec, log_folder: Path | None = None, retries: int = 0, **settings: object
) -> AsyncIterator[Scorer]:
    scorer = Scorer(rewards, ScoringSpec.model_validate(settings), log_folder, retries=retries)
    await scorer.start()
    try:
        yield scorer
    finally:
        await scorer.close()


async def test_rewards_that_wait_run_side_by_side_within_a_limit(waiting: RewardSpec) -> None:
    samples = samples_of(*["x"] * 24)
    async with scoring(waiting, concurrency=8) as scorer:
        await scorer.score(samples)
    assert max(sample.reward for sample in samples) == 8


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        ("forever", "took longer than 0.5 s"),
        ("block", "did not let go"),
        ("crash", "exited with status 7"),
        ("raise", "KeyError"),
    ],
)
async def test_a_bad_wait_costs_its_own_sample(waiting: RewardSpec, bad: str, cause: str) -> None:
    samples = samples_of("a", bad, "ccc", "dddd")
    async with scoring(waiting, timeout=0.5, on_error="drop") as scorer:
        await scorer.score(samples)
    assert scorer.errors == {"waiting": 1}
    assert samples[1].failure is not None and cause in samples[1].failure
    assert all(samples[at].reward >= 1 for at in (0, 2, 3))


def groups_of(*groups: Sequence[str]) -> list[Sample]:
    found = []
    for number, texts in enumerate(groups):
        prompt = Prompt(Row(str(number), "question"), index=number, tokens=np.zeros(3, np.int32))
        found += [replace(one, prompt=prompt) for one in samples_of(*texts)]
    return found


async def test_a_reward_for_groups_sees_them_whole(ranking: RewardSpec, moody: RewardSpec) -> None:
    samples = groups_of(["c", "a", "b"], ["z"], *[["b", "a"]] * 20)
    async with scoring(ranking, moody, workers=2) as scorer:
        await scorer.score(samples)
    assert [sample.rewards["ranking"] for sample in samples[:6]] == [2, 0, 1, 0, 1, 0]
    assert {sample.rewards["moody"] for sample in samples} == {1}


@pytest.mark.parametrize(
    ("bad", "cause"), [("crash", "exited with status 7"), ("few", "1 scores for 2 samples")]
)
async def test_a_bad_group_costs_its_own_samples(ranking: RewardSpec, bad: str, cause: str) -> None:
    samples = groups_of(["b", "a"], ["x", bad], ["a", "b"])
    async with scoring(ranking, on_error="drop") as scorer:
        await scorer.score(samples)
    assert scorer.errors == {"ranking": 2}
    assert [sample.reward for sample in samples[:2] + samples[4:]] == [1, 0, 0, 1]
    assert all(cause in str(sample.failure) for sample in samples[2:4])


async def test_a_row_may_name_another_reward(moody: RewardSpec) -> None:
    samples = samples_of(*["42"] * 4)
    for sample, name in zip(samples, ["exact_match", " boxed_f1 ", "moody", "waiting"], strict=True):
        sample.prompt = replace(sample.prompt, row=Row("0", "q", label="42", metadata={"rm_type": name}))
    async with scoring(moody.model_copy(update={"type_key": "rm_type"}), on_error="drop") as scorer:
        await scorer.score(samples)
    assert [sample.reward for sample in samples[:3]] == [1, 0, 2]
    assert "no rewards plugin is named 'waiting'" in str(samples[3].failure)


async def test_rewards_do_not_get_rays_token(moody: RewardSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "x")
    samples = samples_of("token")
    async with scoring(moody) as scorer:
        await scorer.score(samples)
    assert samples[0].reward == 0


async def test_rewards_are_summed_by_weight(moody: RewardSpec) -> None:
    twice = RewardSpec.model_validate({"type": "moody", "weight": -0.5, "factor": 10})
    samples = samples_of("a", "four", "")
    async with scoring(moody, twice) as scorer:
        await scorer.score(samples)
    assert [sample.reward for sample in samples] == [1 - 5, 4 - 20, 0]
    assert samples[1].rewards == {"moody": 4, "moody_2": 40}
    assert not scorer.errors


async def test_weights_that_add_up_to_1_make_a_reward_of_1(moody: RewardSpec) -> None:
    """0.6 + 0.3 + 0.1, added in turn, is a little less."""
    rewards = [moody.model_copy(update={"weight": weight}) for weight in (0.6, 0.3, 0.1)]
    samples = samples_of("a")
    async with scoring(*rewards) as scorer:
        await scorer.score(samples)
    assert samples[0].reward == 1.0


async def test_many_samples_over_two_processes_keep_their_order(moody: RewardSpec) -> None:
    samples = samples_of(*("x" * (number % 7) for number in range(300)))
    async with scoring(moody, workers=2) as scorer:
        await asyncio.gather(scorer.score(samples[:100]), scorer.score(samples[100:]))
    assert [sample.reward for sample in samples] == [number % 7 for number in range(300)]


CAUSES = {
    "hang": "took longer than 0.5 s",
    "spin": "took longer than 0.5 s",
    "crash": "exited with status 7",
    "segfault": "was killed by SIGSEGV",
    "silent": "closed its end of the pipe",
    "exit": "SystemExit: 3",
    "raise": "KeyError: 'no such thing'",
    "nan": "returned nan; rewards are at most 1e+30 in magnitude",
    "none": "returned NoneType None, not a number",
    "stdin": "EOFError",
}
WITH_POLICIES = [*((bad, "drop") for bad in CAUSES), *((bad, "zero") for bad in ("hang", "crash", "raise"))]
"""What becomes of a sample follows from the policy, whatever the cause."""


@pytest.mark.parametrize(("bad", "policy"), WITH_POLICIES)
async def test_a_bad_reward_costs_its_own_sample(
    moody: RewardSpec, bad: str, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    samples = samples_of("a", "bb", bad, "dddd", bad)
    async with scoring(moody, timeout=0.5, on_error=policy) as scorer:
        with caplog.at_level(logging.WARNING):
            await scorer.score(samples)
    assert [sample.reward for sample in samples[:2]] == [1, 2]
    assert samples[3].reward == 4
    assert scorer.errors == {"moody": 2}
    for sample in (samples[2], samples[4]):
        assert sample.failure is not None and CAUSES[bad] in sample.failure
        assert f"reward 'moody' on sample {sample.id}" in sample.failure
        assert sample.failure in caplog.text
        assert sample.status is (Status.FAILED if policy == "drop" else Status.COMPLETED)
        assert np.isnan(sample.reward) if policy == "drop" else sample.reward == 0


@pytest.mark.parametrize(
    ("bad", "cause", "seconds"),
    [("hang", "took longer", 0.5), ("deep", "RecursionError", PATIENCE), ("large", "MemoryError", PATIENCE)],
)
async def test_a_late_score_counts_and_does_not_end_the_job(
    install_plugin: InstallPlugin, bad: str, cause: str, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    install_plugin("rewards", "patient", "moody_reward:Patient", MOODY)
    samples = samples_of("a", bad, "ccc")
    async with scoring(RewardSpec(type="patient"), timeout=seconds, on_error="stop") as scorer:
        with caplog.at_level(logging.WARNING):
            await scorer.score(samples)
    assert [sample.reward for sample in samples] == [1, -0.5, 3]
    assert scorer.errors == {"patient": 1}
    assert cause in caplog.text and "scored -0.5" in caplog.text


async def test_a_late_score_is_not_for_other_errors(install_plugin: InstallPlugin) -> None:
    install_plugin("rewards", "patient", "moody_reward:Patient", MOODY)
    async with scoring(RewardSpec(type="patient"), on_error="stop") as scorer:
        with pytest.raises(RewardError, match="KeyError"):
            await scorer.score(samples_of("raise"))


async def test_the_second_reward_is_scored_after_the_first_one_died(moody: RewardSpec) -> None:
    exact = RewardSpec.model_validate({"type": "moody", "factor": 0, "weight": 1})
    samples = samples_of("crash", "abc")
    async with scoring(moody, exact, on_error="zero") as scorer:
        await scorer.score(samples)
    assert scorer.errors == {"moody": 1, "moody_2": 1}
    assert [sample.reward for sample in samples] == [0, 3]


async def test_a_process_that_died_with_nothing_to_do_costs_no_sample(moody: RewardSpec) -> None:
    async with scoring(moody) as scorer:
        for _ in range(2):  # the second time it is the one that was put in its place
            process = scorer._processes[0]._process
            assert process is not None
            process.kill()
            await process.wait()
            samples = samples_of("four")
            await scorer.score(samples)
            assert samples[0].reward == 4
    assert not scorer.errors


@pytest.mark.parametrize("bad", ["hang", "crash", "raise", "nan"])
async def test_stop_names_plugin_sample_and_cause_and_scoring_can_go_on(moody: RewardSpec, bad: str) -> None:
    async with scoring(moody, timeout=0.5, on_error="stop") as scorer:
        with pytest.raises(RewardError, match=r"reward 'moody' on sample 0-1: .+scoring\.on_error"):
            await scorer.score(samples_of("a", bad, "ccc"))
        later = samples_of("four")
        await scorer.score(later)
    assert later[0].reward == 4


async def test_the_error_shows_the_end_of_the_log(moody: RewardSpec, tmp_path: Path) -> None:
    async with scoring(moody, on_error="stop", log_folder=tmp_path) as scorer:
        with pytest.raises(RewardError) as caught:
            await scorer.score(samples_of("print", "crash"))
    assert '"value": 99' in caught.value.details
    assert str(tmp_path / "reward-0.log") in caught.value.details


async def test_the_error_of_a_reward_that_raises_shows_where(moody: RewardSpec, tmp_path: Path) -> None:
    async with scoring(moody, on_error="stop", log_folder=tmp_path) as scorer:
        with pytest.raises(RewardError, match="KeyError: 'no such thing'") as caught:
            await scorer.score(samples_of("raise"))
    assert 'case "raise": raise KeyError' in caught.value.details


async def test_printed_text_is_not_taken_for_a_score(moody: RewardSpec) -> None:
    samples = samples_of("print", "a")
    async with scoring(moody) as scorer:
        await scorer.score(samples)
    assert [sample.reward for sample in samples] == [5, 1]


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        (None, "dict", r"'moody' returns several values \(score, accuracy\); choose one with `key`"),
        ("acc", "dict", r"'moody' returns score, accuracy, but `key` is 'acc'"),
        ("acc", "a", r"'moody' returns one number, so `key` \('acc'\) has nothing to choose from"),
    ],
)
async def test_a_key_that_does_not_fit_ends_the_job_under_any_policy(
    moody: RewardSpec, key: str | None, text: str, message: str
) -> None:
    async with scoring(moody.model_copy(update={"key": key}), on_error="drop") as scorer:
        with pytest.raises(RewardError, match=message):
            await scorer.score(samples_of(text, "a"))


async def test_a_key_picks_one_value(moody: RewardSpec) -> None:
    samples = samples_of("dict")
    async with scoring(moody.model_copy(update={"key": "score"})) as scorer:
        await scorer.score(samples)
    assert samples[0].reward == 1
    assert samples[0].reward_details == {"moody": {"score": 1.0, "accuracy": 0.0}}


async def test_a_reward_that_cannot_start_is_named(install_plugin: InstallPlugin) -> None:
    install_plugin("rewards", "broken", "broken_reward:Broken", "import not_installed_anywhere")
    with pytest.raises(JobError, match=r"'broken' of acme 1\.0 .*not_installed_anywhere"):
        await Scorer([RewardSpec(type="broken")], ScoringSpec(workers=2)).start()


async def test_close_leaves_no_process(moody: RewardSpec) -> None:
    samples = samples_of("pid")
    async with scoring(moody) as scorer:
        await scorer.score(samples)
    with pytest.raises(ProcessLookupError):
        os.kill(int(samples[0].reward), 0)


async def test_a_reward_that_wants_too_much_memory_costs_its_own_sample(moody: RewardSpec) -> None:
    samples = samples_of("greedy", "abc")
    async with scoring(moody, memory=1.5, on_error="zero") as scorer:
        await scorer.score(samples)
    assert [sample.reward for sample in samples] == [0, 3]
    assert samples[0].failure is not None and "MemoryError" in samples[0].failure


async def test_samples_that_were_never_finished_are_left_alone(moody: RewardSpec) -> None:
    samples = samples_of("crash", "crash", "abc")
    samples[0].status, samples[1].status = Status.FAILED, Status.ABORTED
    async with scoring(moody) as scorer:
        await scorer.score(samples)
    assert [np.isnan(sample.reward) for sample in samples] == [True, True, False]


async def test_samples_of_any_size_are_scored(moody: RewardSpec) -> None:
    samples = samples_of(*["x" * 10_000_000, "a"] * 4)
    async with scoring(moody, timeout=60) as scorer:
        await scorer.score(samples)
    assert [sample.reward for sample in samples] == [10_000_000, 1] * 4


async def test_a_hanging_sample_holds_up_one_process_only(moody: RewardSpec) -> None:
    """With a deadline that outlasts the test, the other process scores everything else."""
    async with scoring(moody, workers=2, timeout=1000) as scorer:
        stuck = asyncio.create_task(scorer.score(samples_of("hang")))
        others = samples_of(*["abc"] * 100)
        await scorer.score(others)
        assert not stuck.done()
        stuck.cancel()
    assert {sample.reward for sample in others} == {3}


async def test_without_rewards_there_is_nothing_to_start() -> None:
    async with scoring() as scorer:
        await scorer.score(samples_of("a"))


def test_the_process_dies_with_a_driver_that_is_killed(moody: RewardSpec) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert driver.stdout is not None
    child = int(float(driver.stdout.readline()))
    driver.kill()
    driver.wait(timeout=PATIENCE)
    assert gone_within(10, child)


DRIVER = """
import asyncio
from tests.runner.scoring.test_scoring import samples_of, scoring
from rlrun.specs.sections.scoring import RewardSpec

async def main():
    async with scoring(RewardSpec(type="moody")) as scorer:
        first, last = samples_of("pid", "hang")
        await scorer.score([first])
        print(first.reward, flush=True)
        await scorer.score([last])

asyncio.run(main())
"""


def gone_within(seconds: float, pid: int) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    return bool(select.select([descriptor], [], [], seconds)[0])


def test_the_worker_imports_neither_torch_nor_ray() -> None:
    code = "import sys, json, rlrun.runner.scoring.worker; print(json.dumps(list(sys.modules)))"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert not {"torch", "ray", "transformers"} & set(json.loads(out.stdout))


def test_rewards_of_one_type_get_names_of_their_own() -> None:
    specs = [RewardSpec(type=name) for name in ("format", "math", "format", "/home/ada/my.py:exact")]
    assert unique_names(specs) == ["format", "math", "format_2", "exact"]


async def test_samples_of_an_evaluation_are_scored_with_its_own_rewards(moody: RewardSpec) -> None:
    exact = RewardSpec(type="exact_match", weight=2.0)
    own = [moody, exact]
    scorer = Scorer([moody], ScoringSpec(), evaluated=[own, [exact], [moody]])
    await scorer.start()
    try:
        evaluated, trained, again = (samples_of(*["42"] * 20) for _ in range(3))
        row = Row("0", "q", label="42")
        for sample in evaluated + trained + again:
            sample.prompt = replace(sample.prompt, row=row)
        await asyncio.gather(
            scorer.score(trained),
            scorer.grader_of(own).score(evaluated),
            scorer.grader_of([exact]).score(again),
        )
    finally:
        await scorer.close()
    assert scorer.names == ["moody", "exact_match"]
    assert {tuple(sample.rewards.items()) for sample in trained} == {(("moody", 2.0),)}
    assert {sample.reward for sample in evaluated} == {4.0}
    assert {(tuple(sample.rewards), sample.reward) for sample in again} == {(("exact_match",), 2.0)}


def test_rewards_of_datasets_are_computed_once_and_equal_ones_as_often_as_given() -> None:
    math, short = RewardSpec(type="math"), RewardSpec(type="short", weight=0.5)
    specs = with_own_rewards([math], [[short, math], [math, math], [short]])
    assert specs == [math, short, math]
    assert indices_of([math, short, math], specs) == (0, 1, 2)
