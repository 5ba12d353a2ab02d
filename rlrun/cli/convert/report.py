"""Prints what `rlrun convert` shows: plans, progress, results, descriptions and differences."""

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from rlrun.cli.output import plain_table, table_console
from rlrun.converters.convert.conversion import Conversion
from rlrun.converters.convert.describe import Description
from rlrun.converters.convert.differences import Difference
from rlrun.runner.host.printed_text import print_text
from rlrun.runner.host.rich_console import SafeConsole

_SHOWN = 20
"""Maximum number of names to print in a list."""
_PLAIN_SECONDS = 30.0
"""Interval of the lines that report progress without a terminal."""


class Meter:
    """Counts bytes that several threads have processed, and shows the progress."""

    def __init__(self, bar: Progress, work: str, total: int, visible: bool = True) -> None:
        self.seconds = 0.0
        self._bar = bar
        self._work = work
        self._total = total
        self._done = 0
        self._reported_at = 0.0
        """Seconds between the start of the work and the last plain line."""
        self._task = bar.add_task(work, total=total, visible=visible, start=False)
        self._began: float | None = None
        self._lock = threading.Lock()

    def advance(self, nbytes: int) -> None:
        """Adds bytes that have been processed."""
        with self._lock:
            if self._began is None:
                self._began = time.perf_counter()
                self._bar.start_task(self._task)
            self.seconds = time.perf_counter() - self._began
            self._done += nbytes
            if self._bar.disable and self.seconds >= self._reported_at + _PLAIN_SECONDS:
                self._reported_at = self.seconds
                done, total = gigabytes(self._done), gigabytes(self._total)
                print_text(f"{self._work}: {done} of {total} after {self.seconds:.0f} s", file=sys.stderr)
        self._bar.advance(self._task, nbytes)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{(task.speed or 0) / 1e9:.2f} GB/s")


@contextmanager
def progress(total: int, verify: bool) -> Iterator[tuple[Meter, Meter]]:
    """Yields meters of bytes written and compared: bars on a terminal, else a line every half minute."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        _Amount(),
        _Rate(),
        TimeRemainingColumn(),
    )
    console = SafeConsole(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        yield Meter(bar, "writing", total), Meter(bar, "comparing", total, visible=verify)


class _Amount(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.completed / 1e9:.1f}/{(task.total or 0) / 1e9:.1f} GB")


def print_plan(conversion: Conversion, destination: Path, commit: str | None, full: bool) -> None:
    """Prints what will be written; with `full`, every file and every tensor."""
    source = conversion.source
    step = f", step {source.step}" if source.step is not None else ""
    revision = f", commit {commit}" if commit else ""
    print_text(f"{source.format}: {source.folder}{step}{revision}")
    weights = [file for file in conversion.files if file.tensors]
    tensors = sum(len(file.tensors) for file in weights)
    files = f"{len(weights)} file{'s' if len(weights) > 1 else ''}"
    print_text(
        f"{conversion.target}: {destination}: {tensors} tensors, {gigabytes(conversion.nbytes)} in {files}"
    )
    mapped = conversion.mapped
    left_out = mapped.unknown + (mapped.passed if conversion.target == "dcp" else [])
    for verdict, names in (("missing", mapped.missing), ("left out", left_out)):
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            print_text(f"{verdict}: {', '.join(names[:_SHOWN])}{more}")
    if full:
        for file in conversion.files:
            print_text(f"  {file.name}  {gigabytes(file.size)}")
            for tensor in file.tensors:
                content = tensor.content.tensor
                print_text(f"    {tensor.name}  {_short(content.dtype)} {list(content.shape)}")


def print_result(conversion: Conversion, written: Meter, destination: Path, verified: bool) -> None:
    """Prints what was written, and how fast."""
    new_bytes = conversion.nbytes - conversion.resumed
    rate = f", {new_bytes / written.seconds / 1e9:.2f} GB/s" if written.seconds else ""
    resumed = f"; {gigabytes(conversion.resumed)} had already been written" if conversion.resumed else ""
    compared = "; read back and compared: equal" if verified else ""
    print_text(
        f"wrote {destination}: {gigabytes(new_bytes)} in {written.seconds:.1f} s{rate}{resumed}{compared}"
    )


def print_description(description: Description) -> None:
    """Prints a summary of a checkpoint and its tensors by name; the layers' tensors share a line."""
    dtypes = ", ".join(f"{name} {count:,}" for name, count in description.dtypes.items())
    facts = {
        "path": description.path,
        "format": f"{description.format}, {description.layout}",
        "family": description.family or "unknown (no config.json)",
        "step": description.step,
        "parameters": f"{description.parameters:,} ({dtypes})",
        "size": f"{gigabytes(description.nbytes)} in {description.tensors} tensors",
    }
    for name, value in facts.items():
        if value is not None:
            print_text(f"{name:10}  {value}")
    table = plain_table("tensor", "count", "shape", "dtype", "numbers")
    for branch in description.branches:
        shape = "×".join(map(str, branch.shape)) or "scalar"
        table.add_row(branch.name, str(branch.count), shape, branch.dtype, f"{branch.parameters:,}")
    _console().print(table)


def print_differences(rows: Sequence[Difference]) -> None:
    """Prints every tensor that differs, and the numbers of equal and different tensors."""
    table = plain_table("tensor", "largest difference", "changed")
    different = [row for row in rows if row.differs]
    for row in different:
        table.add_row(row.name, row.note or f"{row.largest:.3g}", "" if row.note else f"{row.changed:.2%}")
    if different:
        _console().print(table)
    print_text(f"{len(rows) - len(different)} tensors equal, {len(different)} different")


def gigabytes(nbytes: int) -> str:
    """Formats a number of bytes: `"1.23 GB"`, `"45.6 MB"`, `"789 bytes"`."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}" if nbytes < 1000 * size else f"{nbytes / size:,.0f} {unit}"
    return f"{nbytes} bytes"


def _console() -> SafeConsole:
    """Returns a console that does not fold the names of tensors."""
    return table_console()


def _short(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
