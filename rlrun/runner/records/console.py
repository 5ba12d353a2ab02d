"""What a person sees while the job runs: a live panel on a terminal, plain lines elsewhere."""

import asyncio
import logging
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

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

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
"""What the driver waits for in a step, one after the other, and its name on the console."""
_SHOWN_SECONDS = 0.1
"""Shorter phases of the start are not worth a line."""
_LONG_SECONDS = 2.0
"""Between steps, only phases that take longer get a line; the panel shows the seconds of longer work."""
_PLAIN_SECONDS = 30.0
"""Without a terminal, unfinished work is mentioned once in this time."""
_SMOOTHING = 0.8
"""How much of the time a step takes comes from the steps before, for the time left."""


class Console:
    """One launch's view on standard error, or on the terminal given."""

    def __init__(self, name: str, terminal: Terminal | None = None) -> None:
        self._name = name
        self._terminal = terminal or Terminal(stderr=True)
        self._live: Live | None = None
        self._steps = 0
        self._step = 0
        self._doing = ""
        self._count = ""
        """How far the work is, as in `120/512`; empty where it is not counted."""
        self._since = self._said = time.monotonic()
        """When the work began, and when a line last mentioned unfinished work."""
        self._metrics: dict[str, float] = {}
        """The newest value of each."""
        self._last: Mapping[str, float] = {}
        """Those of the last step: a part that it did not have took none of its time."""
        self._seconds: float | None = None
        self._clock = time.monotonic()
        self._phases: dict[str, float] = {}
        """Phases that are under way, and when they began."""

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        return self._terminal.width

    async def timed(self, phase: str, work: Awaitable[Result]) -> Result:
        """Awaits a phase, which a terminal shows while it lasts, and prints how long it took.

        Between steps only a long phase is printed. Without a terminal, a line every half a minute says that
        the phase is not finished.
        """
        self._phases[phase] = begun = time.monotonic()
        self._show_panel()
        reminder = asyncio.create_task(self._remind(phase, begun))
        try:
            result = await work
        finally:
            reminder.cancel()
            del self._phases[phase]
        seconds = time.monotonic() - begun
        if seconds >= (_LONG_SECONDS if self._steps else _SHOWN_SECONDS):
            self.say(f"  {phase}: {seconds:.1f} s", style="dim")
        return result

    async def _remind(self, phase: str, begun: float) -> None:
        while not self._terminal.is_terminal:
            await asyncio.sleep(_PLAIN_SECONDS)
            self.say(f"  {phase}: {time.monotonic() - begun:.0f} s so far")

    def start(self, step: int, steps: int) -> None:
        """Begin to show progress, `step` of `steps` done."""
        self._step, self._steps = step, steps
        self._clock = time.monotonic()
        self._show_panel()

    def _show_panel(self) -> None:
        if self._terminal.is_terminal and self._live is None:
            self._live = Live(self, console=self._terminal, refresh_per_second=4, transient=True)
            self._live.start()

    def go_back(self, step: int) -> None:
        """Show progress from an earlier step on."""
        self._step = step
        self._clock = time.monotonic()

    def say(self, text: str, style: str = "") -> None:
        """One line, above the panel, and in the driver's log."""
        logger.info("%s", text)
        self.show(text, style)

    def show(self, text: str, style: str = "") -> None:
        """The same for what the log has already, or should not have."""
        with suppress(OSError):  # the terminal was closed; the run goes on, or saves, without it
            self._terminal.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def doing(self, what: str, done: int = 0, total: int = 0) -> None:
        """Shows what the job is busy with, and how much of it is done where `total` is given.

        Without a terminal, a line every half a minute says how far counted work is.
        """
        now = time.monotonic()
        if what != self._doing or not done:
            self._doing, self._since, self._said = what, now, now
        self._count = f"{done}/{total}" if total else ""
        if self._count and not self._terminal.is_terminal and now - self._said >= _PLAIN_SECONDS:
            self._said = now
            self.say(f"  {what} {self._count}: {now - self._since:.0f} s so far")

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show a finished step."""
        if step > self._step:
            elapsed = time.monotonic() - self._clock
            before = elapsed if self._seconds is None else self._seconds
            self._seconds = _SMOOTHING * before + (1 - _SMOOTHING) * elapsed
        self._clock = time.monotonic()
        self._step = step
        self._metrics |= metrics
        self._last = metrics if "perf/step_time" in metrics else self._last
        line = self._line(metrics)
        logger.info("%s", line)
        self.show(line if self._live is None else self._short_line(metrics))

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            with suppress(OSError):
                self._live.stop()
            self._live = None

    def __rich__(self) -> RenderableType:
        """The live panel, drawn again four times a second."""
        busy = (self._busy(), "cyan")
        if not self._steps:
            return Text.assemble((self._name, "bold"), "  ", busy)
        head = Text.assemble((self._name, "bold"), f"  step {self._step}/{self._steps}  ", busy)
        bar = Table.grid()  # a bar by itself leaves its line open
        width = min(60, self._terminal.width)
        bar.add_row(ProgressBar(total=max(self._steps, 1), completed=self._step, width=width))
        table = Table.grid(padding=(0, 2))
        for name, value in self._rows():
            table.add_row(Text(name, style="dim"), value)
        return Group(head, bar, table)

    def _busy(self) -> str:
        """The phases that are under way, or what the job is busy with, and since when."""
        now = time.monotonic()
        if self._phases:
            return ", ".join(f"{phase} ({now - begun:.0f} s)" for phase, begun in self._phases.items())
        seconds = now - self._since
        since = f"({seconds:.0f} s)" if seconds >= _LONG_SECONDS else ""
        return " ".join(part for part in (self._doing, self._count, since) if part)

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("score", score(self._metrics)),
            ("speed", speed(self._last)),
            ("time", shares(self._last)),
        ]
        if evaluation := _evaluation(self._metrics):
            rows.append(("held out", evaluation))
        if self._seconds is not None:
            rows.append(("left", self._left()))
        return [(name, value) for name, value in rows if value]

    def _short_line(self, metrics: Mapping[str, float]) -> str:
        """What stays above the panel of a finished step."""
        seconds = f"{metrics['perf/step_time']:.2f} s" if "perf/step_time" in metrics else ""
        parts = [
            f"step {self._step}/{self._steps}",
            score(metrics),
            _evaluation(metrics),
            lost(metrics),
            seconds,
        ]
        return "  ".join(part for part in parts if part)

    def _line(self, metrics: Mapping[str, float]) -> str:
        parts = [
            f"step {self._step}/{self._steps}",
            score(metrics),
            _evaluation(metrics),
            lost(metrics),
            speed(metrics),
            shares(metrics),
        ]
        if self._seconds is not None and self._step < self._steps:
            parts.append(f"left {self._left()}")
        return "  ".join(part for part in parts if part)

    def _left(self) -> str:
        return duration((self._seconds or 0.0) * (self._steps - self._step))


def score(metrics: Mapping[str, float]) -> str:
    """How good the policy is: reward and its spread, or the loss where there is no reward."""
    if "rollout/reward/mean" in metrics:
        return (
            f"reward {metrics['rollout/reward/mean']:.3f} ± {metrics['rollout/reward/std']:.3f}"
            f"  length {metrics['rollout/response_len/mean']:.0f}"
        )
    return f"loss {metrics['train/loss']:.4f}" if "train/loss" in metrics else ""


def lost(metrics: Mapping[str, float]) -> str:
    """Says how many samples were left out because they did not come to an end."""
    late = metrics.get("rollout/dropped_samples/generation/timeout", 0)
    failed = metrics.get("rollout/failed", 0)
    parts = [f"{count:.0f} {why}" for count, why in ((late, "late"), (failed, "failed")) if count]
    return f"left out: {', '.join(parts)}" if parts else ""


def speed(metrics: Mapping[str, float]) -> str:
    """Tokens a second, generated and trained, and seconds a step."""
    if "perf/step_time" not in metrics:
        return ""
    parts = [f"{metrics['perf/step_time']:.2f} s/step"]
    for name in ("generated", "trained"):
        if value := metrics.get(f"perf/tokens_per_second/{name}"):
            parts.append(f"{value:,.0f} tok/s {name}")
    return ", ".join(parts)


def shares(metrics: Mapping[str, float]) -> str:
    """Where a step's time goes, in percent that add up to 100."""
    if not (total := metrics.get("perf/step_time")):
        return ""
    seconds = {label: metrics.get(f"perf/{name}_time", 0.0) for name, label in _PARTS.items()}
    seconds["other"] = max(total - sum(seconds.values()), 0.0)
    ends = [round(100 * end / sum(seconds.values())) for end in accumulate(seconds.values(), initial=0.0)]
    shown = zip(seconds, pairwise(ends), strict=True)
    return ", ".join(f"{label} {end - start} %" for label, (start, end) in shown if end > start)


def duration(seconds: float) -> str:
    """`48 s`, `12 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _evaluation(metrics: Mapping[str, float]) -> str:
    """The held-out rewards; an evaluation of which no sample finished shows that."""
    found = (name.split("/") for name in metrics if name.startswith("eval/"))
    sets = sorted({parts[1] for parts in found if parts[2:] in (["reward"], ["failed"])})
    return ", ".join(_evaluated(metrics, name) for name in sets)


def _evaluated(metrics: Mapping[str, float], name: str) -> str:
    values = {key: metrics.get(f"eval/{name}/{key}") for key in ("reward", "pass@1", "failed")}
    parts = [f"{key} {values[key]:.3f}" for key in ("reward", "pass@1") if values[key] is not None]
    if values["failed"]:
        parts.append(f"{values['failed']:.0f} samples late or failed")
    return f"{name} {', '.join(parts)}" if parts else ""
