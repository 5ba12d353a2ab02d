"""Shows the progress of a job: a live panel on a terminal, plain lines elsewhere."""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import TypeVar

from rich.console import Console as Terminal
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rlrun.runner.host.printed_text import printable
from rlrun.runner.host.rich_console import SafeConsole

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

BEGUN = " …"
"""The end of a message that a phase has begun, in the driver's log; another message says how long it took."""
_PARTS = {
    "rollout": "rollout",
    "train": "train",
    "log_prob": "log-probs",
    "reference": "reference",
    "teacher": "teacher",
    "values": "values",
    "weight_sync": "weights",
    "sleep": "sleep",
}
"""The parts of a step, in the metrics' names, which follow each other, with their names on the console."""
_RATE = re.compile(r"eval/(?P<dataset>[^/]+)/(?P<rate>reward|(?:pass|majority)@\d+)")
"""Matches the metrics of an evaluation that have intervals."""
_SHOWN_SECONDS = 0.1
"""Phases of the start that are shorter are not printed."""
_LONG_SECONDS = 2.0
"""Phases between steps are printed if they take longer; the panel counts seconds from here on."""
_PLAIN_SECONDS = 30.0
"""Without a terminal, unfinished work is reported at this interval."""


class Console:
    """The display of one launch, on standard error or on a given terminal."""

    def __init__(self, name: str, terminal: Terminal | None = None, *, quiet: bool = False) -> None:
        """`quiet`: only problems are shown; the driver's log has everything."""
        self._name = name
        self._quiet = quiet
        self._terminal = terminal or SafeConsole(stderr=True)
        self._live: Live | None = None
        self._steps = 0
        self._step = 0
        self._work = ""
        self._count = ""
        """Progress of the current work, as in `120/512, 8 s left`; empty if it is not counted."""
        self._work_start = self._last_report = time.monotonic()
        """When the current work began, and when a line last reported it."""
        self._first_done = 0
        """How much of the current work was done when it was first counted, by an earlier launch."""
        self._metrics: dict[str, float] = {}
        """The newest value of each metric."""
        self._step_metrics: Mapping[str, float] = {}
        """The metrics of the last step alone: a part of a step that it lacks took no time."""
        self._seconds_left: float | None = None
        """How long the remaining steps will take; None before the first one."""
        self._phases: dict[str, float] = {}
        """Start times of the current phases."""

    @property
    def width(self) -> int:
        """The number of columns of the terminal."""
        return self._terminal.width

    async def timed(self, phase: str, work: Awaitable[Result]) -> Result:
        """Awaits a phase, which a terminal shows while it lasts, and prints how long it took.

        Between steps only a long phase is printed. Without a terminal, a line every half minute says that the
        phase is not finished.
        """
        self._phases[phase] = start = time.monotonic()
        logger.info("%s%s", phase, BEGUN)  # `rlrun status` shows it while the phase lasts
        self._show_panel()
        reminder = asyncio.create_task(self._remind(phase, start))
        try:
            result = await work
        finally:
            reminder.cancel()
            del self._phases[phase]
        seconds = time.monotonic() - start
        line = f"  {phase}: {seconds:.1f} s"
        logger.info("%s", printable(line))
        if seconds >= (_LONG_SECONDS if self._steps else _SHOWN_SECONDS):
            self.show(line, style="dim")
        return result

    async def _remind(self, phase: str, start: float) -> None:
        while not self._terminal.is_terminal:
            await asyncio.sleep(_PLAIN_SECONDS)
            self.say(f"  {phase}: {time.monotonic() - start:.0f} s so far")

    def start(self, step: int, steps: int) -> None:
        """Begins to show progress, with `step` of `steps` done."""
        self._step, self._steps = step, steps
        self._show_panel()

    def _show_panel(self) -> None:
        if self._terminal.is_terminal and self._live is None and not self._quiet:
            self._live = Live(self, console=self._terminal, refresh_per_second=4, transient=True)
            self._live.start()

    def go_back(self, step: int) -> None:
        """Continues to show progress from an earlier step."""
        self._step = step

    def say(self, text: str, style: str = "") -> None:
        """Prints a line above the panel and into the driver's log."""
        logger.info("%s", printable(text))
        self.show(text, style)

    def problem(self, text: str, style: str = "") -> None:
        """Prints a line into the driver's log and, also if the console is quiet, on the terminal."""
        logger.info("%s", printable(text))
        self.show_problem(text, style)

    def show(self, text: str, style: str = "") -> None:
        """Prints a line that the log already has, or must not have."""
        if not self._quiet:
            self.show_problem(text, style)

    def show_problem(self, text: str, style: str = "") -> None:
        """Prints a line also if the console is quiet."""
        with suppress(OSError):  # the terminal was closed; the run continues, or saves, without it
            self._terminal.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def doing(self, work: str, done: int = 0, total: int = 0) -> None:
        """Shows the current work, and how much of it is done if `total` is given.

        Without a terminal, a line every half minute reports the progress of counted work.
        """
        now = time.monotonic()
        if work != self._work or not done:
            self._work, self._work_start, self._last_report, self._first_done = work, now, now, done
        elif total and not self._count:
            self._first_done = done
        self._count = f"{done}/{total}" if total else ""
        if self._first_done < done < total:
            seconds = (now - self._work_start) / (done - self._first_done) * (total - done)
            self._count += f", {format_duration(seconds)} left"
        if self._count and not self._terminal.is_terminal and now - self._last_report >= _PLAIN_SECONDS:
            self._last_report = now
            self.say(f"  {work} {self._count}: {now - self._work_start:.0f} s so far")

    def step(self, step: int, metrics: Mapping[str, float], seconds_left: float | None = None) -> None:
        """Shows a finished step. `seconds_left`: how long the remaining steps will take, if that is known."""
        self._step = step
        self._seconds_left = seconds_left
        self._metrics |= metrics
        self._step_metrics = metrics if "perf/step_time" in metrics else self._step_metrics
        line = self._line(metrics)
        logger.info("%s", printable(line))
        self.show(line if self._live is None or not self._steps else self._short_line(metrics))

    def close(self) -> None:
        """Removes the panel from the terminal."""
        if self._live is not None:
            with suppress(OSError):
                self._live.stop()
            self._live = None

    def __rich__(self) -> RenderableType:
        """Draws the live panel; rich calls this four times per second."""
        busy = (self._busy(), "cyan")
        if not self._steps:
            return Text.assemble((self._name, "bold"), "  ", busy)
        head = Text.assemble((self._name, "bold"), f"  step {self._step}/{self._steps}  ", busy)
        bar = Table.grid()  # a ProgressBar alone does not end its line
        width = min(60, self._terminal.width)
        bar.add_row(ProgressBar(total=max(self._steps, 1), completed=self._step, width=width))
        table = Table.grid(padding=(0, 2))
        for name, value in self._rows():
            table.add_row(Text(name, style="dim"), value)
        return Group(head, bar, table)

    def _busy(self) -> str:
        """Returns the current phases, or the current work, with their times."""
        now = time.monotonic()
        if self._phases:
            return ", ".join(f"{phase} ({now - start:.0f} s)" for phase, start in self._phases.items())
        seconds = now - self._work_start
        elapsed = f"({seconds:.0f} s)" if seconds >= _LONG_SECONDS else ""
        return " ".join(part for part in (self._work, self._count, elapsed) if part)

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("score", format_score(self._metrics)),
            ("speed", format_speed(self._step_metrics)),
            ("time", format_time_shares(self._step_metrics)),
        ]
        if evaluation := _evaluation(self._metrics):
            rows.append(("held out", evaluation))
        if self._seconds_left is not None and self._step < self._steps:
            rows.append(("left", format_duration(self._seconds_left)))
        return [(name, value) for name, value in rows if value]

    def _short_line(self, metrics: Mapping[str, float]) -> str:
        """Returns the line of a finished step that remains above the panel."""
        seconds = f"{metrics['perf/step_time']:.2f} s" if "perf/step_time" in metrics else ""
        parts = [
            f"step {self._step}/{self._steps}",
            format_score(metrics),
            _evaluation(metrics),
            format_lost_samples(metrics),
            format_dropped_groups(metrics),
            seconds,
        ]
        return "  ".join(part for part in parts if part)

    def _line(self, metrics: Mapping[str, float]) -> str:
        if not self._steps:
            return "\n".join(evaluation_lines(metrics))
        parts = [
            f"step {self._step}/{self._steps}",
            format_score(metrics),
            _evaluation(metrics),
            format_lost_samples(metrics),
            format_dropped_groups(metrics),
            format_speed(metrics),
            format_time_shares(metrics),
        ]
        if self._seconds_left is not None and self._step < self._steps:
            parts.append(f"{format_duration(self._seconds_left)} left")
        return "  ".join(part for part in parts if part)


def format_score(metrics: Mapping[str, float]) -> str:
    """Formats the reward with its standard deviation, or the loss if there is no reward."""
    if "rollout/reward/mean" in metrics:
        return (
            f"reward {metrics['rollout/reward/mean']:.3f} ± {metrics['rollout/reward/std']:.3f}"
            f"  length {metrics['rollout/response_len/mean']:.0f}"
        )
    return f"loss {metrics['train/loss']:.4f}" if "train/loss" in metrics else ""


def format_lost_samples(metrics: Mapping[str, float]) -> str:
    """Formats how many samples were left out because they did not finish."""
    late = metrics.get("rollout/dropped_samples/generation/timeout", 0)
    failed = metrics.get("rollout/failed", 0)
    parts = [f"{count:.0f} {why}" for count, why in ((late, "late"), (failed, "failed")) if count]
    return f"left out: {', '.join(parts)}" if parts else ""


def format_dropped_groups(metrics: Mapping[str, float]) -> str:
    """Formats how many groups the filters dropped, and which filters."""
    counts: dict[str, float] = {}
    for name, count in metrics.items():
        if name.startswith("rollout/dropped/") and count:
            filter_name = name.split("/")[2]
            counts[filter_name] = counts.get(filter_name, 0) + count
    if not counts:
        return ""
    return f"dropped {sum(counts.values()):.0f} groups ({', '.join(sorted(counts))})"


def format_speed(metrics: Mapping[str, float]) -> str:
    """Formats the seconds per step and the tokens per second, generated and trained."""
    if "perf/step_time" not in metrics:
        return ""
    parts = [f"{metrics['perf/step_time']:.2f} s/step"]
    for name in ("generated", "trained"):
        if value := metrics.get(f"perf/tokens_per_second/{name}"):
            parts.append(f"{value:,.0f} tok/s {name}")
    return ", ".join(parts)


def format_time_shares(metrics: Mapping[str, float]) -> str:
    """Formats the parts of a step's time in percent that add up to 100."""
    if not (total := metrics.get("perf/step_time")):
        return ""
    seconds = {label: metrics.get(f"perf/{name}_time", 0.0) for name, label in _PARTS.items()}
    seconds["other"] = max(total - sum(seconds.values()), 0.0)
    ends = [round(100 * end / sum(seconds.values())) for end in accumulate(seconds.values(), initial=0.0)]
    shown = zip(seconds, pairwise(ends), strict=True)
    return ", ".join(f"{label} {end - start} %" for label, (start, end) in shown if end > start)


def format_duration(seconds: float) -> str:
    """Formats a time as in `48 s`, `12 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _evaluation(metrics: Mapping[str, float]) -> str:
    """Formats the held-out rewards, and how many samples of an evaluation did not finish."""
    names = (name.split("/") for name in metrics if name.startswith("eval/"))
    datasets = sorted({parts[1] for parts in names if parts[2:] in (["reward"], ["failed"])})
    return ", ".join(_dataset_rewards(metrics, dataset) for dataset in datasets)


def evaluation_lines(metrics: Mapping[str, float]) -> list[str]:
    """Returns a line for each dataset with its rates, their 95 % intervals, and samples that are left out."""
    lines: dict[str, list[str]] = {}
    for name, value in metrics.items():
        if not (match := _RATE.fullmatch(name)):
            continue
        low, high = metrics.get(f"{name}/low"), metrics.get(f"{name}/high")
        interval = "" if low is None or high is None else f" ({low:.3f} to {high:.3f})"
        lines.setdefault(match["dataset"], []).append(f"{match['rate']} {value:.3f}{interval}")
    for dataset, parts in lines.items():
        if failed := metrics.get(f"eval/{dataset}/failed"):
            parts.append(f"left out: {failed:.0f} samples late or failed")
    return [f"{dataset}: {', '.join(parts)}" for dataset, parts in lines.items()]


def _dataset_rewards(metrics: Mapping[str, float], name: str) -> str:
    values = {key: metrics.get(f"eval/{name}/{key}") for key in ("reward", "pass@1", "failed")}
    parts = [f"{key} {values[key]:.3f}" for key in ("reward", "pass@1") if values[key] is not None]
    if values["failed"]:
        parts.append(f"{values['failed']:.0f} samples late or failed")
    return f"{name} {', '.join(parts)}" if parts else ""
