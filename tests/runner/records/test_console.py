import asyncio
import io
import logging
from pathlib import Path

import pytest
from rich.console import Console as Terminal

from rlrun.runner.records.console import (
    Console,
    format_duration,
    format_score,
    format_speed,
    format_time_shares,
)
from rlrun.runner.records.driver_log import start_logging
from rlrun.runner.records.run_folder import RunFolder

STEP = {
    "rollout/reward/mean": 0.5,
    "rollout/reward/std": 0.25,
    "rollout/response_len/mean": 12.0,
    "perf/step_time": 2.0,
    "perf/rollout_time": 0.5,
    "perf/train_time": 1.4,
    "perf/overhead_time": 0.01,
    "perf/tokens_per_second/generated": 12345.6,
}
HELD_OUT = {"eval/held-out/reward": 0.75, "eval/held-out/pass@1": 0.7}


def test_a_quiet_console_shows_only_problems() -> None:
    file = io.StringIO()
    console = Console("run", Terminal(file=file, width=300), quiet=True)
    console.start(0, 2)
    console.say("starting")
    console.step(1, STEP)
    console.problem("failed: the disk is full")
    console.close()
    assert file.getvalue() == "failed: the disk is full\n"


@pytest.mark.parametrize(
    ("quiet", "verbose", "lines"),
    [
        pytest.param(False, False, ["late"], id="warnings"),
        pytest.param(True, False, ["late"], id="warnings are problems"),
        pytest.param(False, True, ["compiled", "late", "step 1"], id="all messages, and lines once"),
    ],
)
def test_messages_of_the_log_on_the_console(
    tmp_path: Path, quiet: bool, verbose: bool, lines: list[str]
) -> None:
    file = io.StringIO()
    console = Console("run", Terminal(file=file, width=300), quiet=quiet)
    (tmp_path / "logs").mkdir()
    handlers = start_logging(RunFolder(tmp_path), console, str, verbose=verbose)
    try:
        logging.getLogger("rlrun.x").info("compiled")
        logging.getLogger("rlrun.x").warning("late")
        if verbose:
            console.say("step 1")
    finally:
        for name in ("", "rlrun"):
            for handler in handlers:
                logging.getLogger(name).removeHandler(handler)
    assert file.getvalue().splitlines() == lines


def test_without_a_terminal_every_step_is_a_plain_line() -> None:
    file = io.StringIO()
    console = Console("run", Terminal(file=file, width=300))
    console.start(0, 2)
    console.step(1, STEP, 75.0)
    console.step(2, STEP | HELD_OUT, 0.0)
    console.close()
    first, second = file.getvalue().splitlines()
    assert first.startswith("step 1/2  reward 0.500 ± 0.250  length 12  2.00 s/step, 12,346 tok/s generated")
    assert "rollout 25 %, train 70 %, other 5 %" in first
    assert first.endswith("  75 s left")
    assert "held-out reward 0.750, pass@1 0.700" in second
    assert "left" not in second
    assert "\x1b" not in file.getvalue()


def test_samples_that_were_left_out_are_on_the_line_of_their_step() -> None:
    file = io.StringIO()
    console = Console("run", Terminal(file=file, width=300))
    console.start(0, 2)
    counts = {"rollout/dropped_samples/generation/timeout": 3, "rollout/failed": 2}
    counts |= {"rollout/dropped/nonzero_std/all_equal": 5, "rollout/dropped/length/long": 2}
    console.step(1, STEP | counts | HELD_OUT | {"eval/held-out/failed": 4, "eval/held-out/late": 1})
    console.step(2, STEP | {"rollout/failed": 0, "eval/none/failed": 6, "eval/none/late": 6})
    first, second = file.getvalue().splitlines()
    assert "left out: 3 late, 2 failed  dropped 7 groups (length, nonzero_std)" in first
    assert "held-out reward 0.750, pass@1 0.700, 4 samples late or failed" in first
    assert "left out" not in second
    assert "dropped" not in second
    assert "none 6 samples late or failed" in second


def test_the_panel_says_what_is_left_before_the_last_step() -> None:
    for step, is_shown in ((1, True), (2, False)):
        console = Console("run", Terminal(file=io.StringIO(), width=80))
        console.start(0, 2)
        console.step(step, STEP, 2.0 - step)
        terminal = Terminal(file=io.StringIO(), width=80)
        terminal.print(console)
        assert ("left" in terminal.file.getvalue()) is is_shown


@pytest.mark.parametrize("width", [60, 200])
def test_the_panel_shows_the_reward_at_any_width(width: int) -> None:
    console = Console("run", Terminal(file=io.StringIO(), width=width))
    console.start(0, 2)
    console.step(1, STEP | HELD_OUT)
    terminal = Terminal(file=io.StringIO(), width=width)
    terminal.print(console)
    lines = terminal.file.getvalue().splitlines()
    assert any(line.startswith("score     reward 0.500 ± 0.250  length 12") for line in lines)
    assert all(len(line) <= width for line in lines)


async def test_phases_of_the_start_are_shown_with_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    console = Console("run", Terminal(file=file, width=100, force_terminal=True, no_color=True))
    now = [10.0]
    monkeypatch.setattr("rlrun.runner.records.console.time.monotonic", lambda: now[0])

    async def load() -> str:
        now[0] += 2.5
        panel = Terminal(file=io.StringIO(), width=100)
        panel.print(console)
        assert "starting Ray (2 s)" in panel.file.getvalue()
        return "loaded"

    assert await console.timed("starting Ray", load()) == "loaded"
    console.close()
    assert "starting Ray: 2.5 s" in file.getvalue()


def test_no_color_leaves_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    file = io.StringIO()
    console = Console("run", Terminal(file=file, width=100, force_terminal=True))
    console.say("failed", style="red")
    assert "\x1b[31m" not in file.getvalue()


def test_a_terminal_gets_a_live_panel_and_finished_steps_as_lines() -> None:
    file = io.StringIO()
    console = Console("run", Terminal(file=file, width=100, force_terminal=True))
    console.start(0, 2)
    console.doing("rollout")
    console.step(1, STEP | HELD_OUT)
    console.close()
    shown = file.getvalue()
    assert "step 1/2  reward 0.500 ± 0.250  length 12  held-out reward 0.750, pass@1 0.700  2.00 s" in shown
    terminal = Terminal(file=io.StringIO(), width=100)
    terminal.print(console)
    panel = terminal.file.getvalue()
    assert "step 1/2" in panel
    assert "rollout 25 %" in panel


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_said_and_every_step_is_logged(terminal: bool, caplog: pytest.LogCaptureFixture) -> None:
    console = Console("run", Terminal(file=io.StringIO(), width=300, force_terminal=terminal))
    with caplog.at_level("INFO", "rlrun"):
        console.start(0, 2)
        console.step(1, STEP | HELD_OUT)
        console.say("engine 0 died; started again")
        console.show("a curve")
        console.close()
    step, said = caplog.messages
    assert step.startswith("step 1/2  reward 0.500")
    assert "held-out reward 0.750" in step
    assert said == "engine 0 died; started again"


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (
            {"rollout": 1.0, "train": 0.6, "weight_sync": 0.4, "overhead": 0.9},
            "rollout 50 %, train 30 %, weights 20 %",
        ),
        ({"rollout": 1.01, "train": 0.95, "overhead": 0.3}, "rollout 50 %, train 48 %, other 2 %"),
        (
            {"train": 1.3, "log_prob": 0.3, "values": 0.3},
            "train 65 %, log-probs 15 %, values 15 %, other 5 %",
        ),
        ({"rollout": 1.5, "train": 0.6, "overhead": 0.1}, "rollout 71 %, train 29 %"),
    ],
)
def test_shares_of_a_step_add_up_to_100_percent(parts: dict[str, float], text: str) -> None:
    """The overhead is measured separately, and part of it lies within the other parts."""
    found = format_time_shares(
        {"perf/step_time": 2.0} | {f"perf/{name}_time": value for name, value in parts.items()}
    )
    assert found == text
    assert sum(int(part.split()[-2]) for part in found.split(", ")) == 100


def test_a_part_of_an_earlier_step_takes_nothing_of_this_one() -> None:
    console = Console("run", Terminal(file=io.StringIO(), width=100, force_terminal=True))
    console.start(0, 3)
    console.step(1, STEP | {"perf/reference_time": 0.1})
    console.step(2, STEP)
    terminal = Terminal(file=io.StringIO(), width=100)
    terminal.print(console)
    console.close()
    assert "rollout 25 %, train 70 %, other 5 %" in terminal.file.getvalue()


def test_supervised_training_shows_its_loss() -> None:
    assert format_score({"train/loss": 1.5}) == "loss 1.5000"


def test_nothing_measured_shows_nothing() -> None:
    assert (format_score({}), format_speed({}), format_time_shares({})) == ("", "", "")


@pytest.mark.parametrize(
    ("seconds", "text"), [(3, "3 s"), (89, "89 s"), (120, "2 min"), (3600, "60 min"), (12000, "3 h 20 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def shown(console: Console, width: int = 100) -> str:
    terminal = Terminal(file=io.StringIO(), width=width)
    terminal.print(console)
    return terminal.file.getvalue()


def test_the_panel_says_how_far_counted_work_is_and_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [10.0]
    monkeypatch.setattr("rlrun.runner.records.console.time.monotonic", lambda: now[0])
    console = Console("run", Terminal(file=io.StringIO(), width=100))
    console.start(0, 2)
    console.doing("evaluation", 1, 512)
    assert "step 0/2  evaluation 1/512\n" in shown(console).replace(" \n", "\n")
    now[0] += 4
    console.doing("evaluation", 120, 512)
    assert "step 0/2  evaluation 120/512, 13 s left (4 s)" in shown(console)
    console.doing("rollout")
    assert "120/512" not in shown(console)
    assert "(4 s)" not in shown(console)


def test_without_a_terminal_counted_work_is_mentioned_every_half_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [10.0]
    monkeypatch.setattr("rlrun.runner.records.console.time.monotonic", lambda: now[0])
    file = io.StringIO()
    console = Console("run", Terminal(file=file, width=100))
    console.start(0, 2)
    for done in range(1, 71):
        now[0] += 1
        console.doing("evaluation", done, 512)
    assert file.getvalue().splitlines() == [
        "  evaluation 31/512, 8 min left: 30 s so far",
        "  evaluation 61/512, 8 min left: 60 s so far",
    ]


@pytest.mark.parametrize(("seconds", "printed"), [(1.9, ""), (2.5, "  saving: 2.5 s\n")])
async def test_between_steps_only_long_phases_are_printed(
    seconds: float, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [10.0]
    monkeypatch.setattr("rlrun.runner.records.console.time.monotonic", lambda: now[0])
    file = io.StringIO()
    console = Console("run", Terminal(file=file, width=100))
    console.start(0, 2)
    console.doing("training")

    async def save() -> None:
        now[0] += seconds
        assert f"step 0/2  saving ({seconds:.0f} s)" in shown(console)

    await console.timed("saving", save())
    assert file.getvalue() == printed


async def test_without_a_terminal_a_phase_that_takes_long_is_mentioned_before_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rlrun.runner.records.console._PLAIN_SECONDS", 0.0)
    file = io.StringIO()
    console = Console("run", Terminal(file=file, width=100))

    async def load() -> None:
        for _ in range(3):  # the console's own task gets its turns
            await asyncio.sleep(0)

    await console.timed("loading the trainer", load())
    assert file.getvalue().startswith("  loading the trainer: 0 s so far\n")
