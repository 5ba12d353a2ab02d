"""What a person sees while the job runs: a live panel on a terminal, plain lines elsewhere."""

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
        self._metrics: dict[str, float] = {}
        """The newest value of each."""
        self._last: Mapping[str, float] = {}
        """Those of the last step: a part that it did not have took none of its time."""
        self._seconds: float | None = None
        self._clock = time.monotonic()
        self._phases: dict[str, float] = {}
        """Phases of the start that are under way, and when they began."""

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        return self._terminal.width

    async def timed(self, phase: str, work: Awaitable[Result]) -> Result:
        """Await a phase of the start, shown on a terminal while it lasts; a line says how long it took."""
        self._phases[phase] = begun = time.monotonic()
        self._show_panel()
        try:
            result = await work
        finally:
            del self._phases[phase]
        if (seconds := time.monotonic() - begun) >= _SHOWN_SECONDS:
            self.say(f"  {phase}: {seconds:.1f} s", style="dim")
        return result

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

    def doing(self, what: str) -> None:
        """What the job is busy with; shown on a terminal only."""
        self._doing = what

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
        if not self._steps:
            now = time.monotonic()
            running = (f"{phase} ({now - begun:.0f} s)" for phase, begun in self._phases.items())
            return Text.assemble((self._name, "bold"), "  ", (", ".join(running), "cyan"))
        head = Text.assemble(
            (self._name, "bold"), f"  step {self._step}/{self._steps}  ", (self._doing, "cyan")
        )
        bar = Table.grid()  # a bar by itself leaves its line open
        width = min(60, self._terminal.width)
        bar.add_row(ProgressBar(total=max(self._steps, 1), completed=self._step, width=width))
        table = Table.grid(padding=(0, 2))
        for name, value in self._rows():
            table.add_row(Text(name, style="dim"), value)
        return Group(head, bar, table)

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
        parts = [f"step {self._step}/{self._steps}", score(metrics), _evaluation(metrics), seconds]
        return "  ".join(part for part in parts if part)

    def _line(self, metrics: Mapping[str, float]) -> str:
        parts = [
            f"step {self._step}/{self._steps}",
            score(metrics),
            _evaluation(metrics),
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
    sets = sorted(
        name.split("/")[1] for name in metrics if name.startswith("eval/") and name.endswith("/reward")
    )
    return ", ".join(
        f"{name} reward {metrics[f'eval/{name}/reward']:.3f}, pass@1 {metrics[f'eval/{name}/pass@1']:.3f}"
        for name in sets
    )
