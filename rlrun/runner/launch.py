"""A launch from spec to exit code: the run folder, the parts, the loop, the end.

claim folder ─▶ read inputs ∥ start Ray ∥ start rewards ─▶ start ranks ∥ engines ─▶ loop ─▶ export, report
                          any failure, Ctrl-C or SIGTERM ─▶ end every process ─▶ state.json, exit code
"""

import asyncio
import json
import logging
import os
import shutil
import signal
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from rlrun.plugins.registry import build
from rlrun.runner.assembly import make_job, start_parts, watch
from rlrun.runner.atomic import write_json, write_text
from rlrun.runner.background import cancel_all, in_background
from rlrun.runner.checkpoint import Checkpoints, clear_unfinished, read_driver, trainer_folder
from rlrun.runner.cluster.failures import first_cause
from rlrun.runner.cluster.processes import clean_up_after, end_now
from rlrun.runner.cluster.ray import Cluster
from rlrun.runner.console import Console
from rlrun.runner.errors import JobError
from rlrun.runner.journal import Journal
from rlrun.runner.lock import check_same_run, lock
from rlrun.runner.loop import Job, Progress, run
from rlrun.runner.model_files import fetch_model
from rlrun.runner.report import write_report
from rlrun.runner.run_folder import RunFolder, claim
from rlrun.runner.scoring import unique_names
from rlrun.specs.loading import LoadedSpec
from rlrun.specs.paths import shown_path

DONE, FAILED, INTERRUPTED = 0, 3, 130
DRIVER_LOG = "driver.log"

logger = logging.getLogger(__name__)


def launch(loaded: LoadedSpec, *, resume: bool = False, new: bool = False) -> int:
    """Run a job to its end; the exit code: 0 done, 3 failed, 130 interrupted.

    RunFolderError, before anything is started, where the run's name cannot be had.
    """
    folder = claim(Path(loaded.spec.runs_dir), loaded.spec.name, resume=resume, new=new)
    clean_up_after(folder.read_state())
    console = Console(folder.name)
    handlers = _log_to(folder, console)
    try:
        return asyncio.run(_supervise(loaded, folder, console, resume=resume))
    finally:
        for handler in handlers:
            logging.getLogger().removeHandler(handler)
            logging.getLogger("rlrun").removeHandler(handler)
            handler.close()


async def _supervise(loaded: LoadedSpec, folder: RunFolder, console: Console, *, resume: bool) -> int:
    """Run the job, stop it when asked to, and write down how it ended."""
    trackers = zip(unique_names(loaded.spec.trackers), loaded.spec.trackers, strict=True)
    journal = Journal(
        folder, console, [(name, build("trackers", one.type, one.params)) for name, one in trackers]
    )
    task = asyncio.create_task(_run(loaded, folder, console, journal, resume=resume))
    _stop_on_signals(task, console)
    code, status, error = DONE, "done", None
    try:
        await task
    except asyncio.CancelledError:
        code, status, error = INTERRUPTED, "interrupted", None
    except Exception as failure:
        code, status, error = FAILED, "failed", _explain(failure, folder, console)
    finally:
        console.close()
        journal.close(status, error)
    _conclude(folder, console, status)
    return code


async def _run(
    loaded: LoadedSpec, folder: RunFolder, console: Console, journal: Journal, *, resume: bool
) -> None:
    spec = loaded.spec
    async with AsyncExitStack() as stack:
        console.say(f"{folder.name}: starting; everything it leaves is in {folder.shown}")
        model = await in_background(fetch_model, spec.model)
        locking = asyncio.create_task(in_background(lock, loaded, model))
        parts = await start_parts(spec, model, folder, stack)
        _write_specs(loaded, folder, await locking)
        journal.note(parts.cluster.traces)
        checkpoints = Checkpoints(folder.checkpoints, spec.checkpoint.keep)
        job = make_job(spec, model, parts, journal, checkpoints)
        stack.push_async_callback(job.source.close)
        work = _train(job, folder, journal, loaded, resume=resume)

        def say(text: str) -> None:
            console.say(text)
            journal.note(parts.cluster.traces)

        await _watched(work, watch(spec, parts, say), parts.cluster)


async def _train(job: Job, folder: RunFolder, journal: Journal, loaded: LoadedSpec, *, resume: bool) -> None:
    """Load, run the loop, export."""
    progress = await _load(job, folder) if resume else Progress()
    journal.begin(progress.step, job.steps, loaded.spec.model_dump(mode="json"))
    await run(job, progress)
    await journal.flush()
    if loaded.spec.checkpoint.export_hf:
        journal.doing("exporting")
        await _export(job, folder)


async def _load(job: Job, folder: RunFolder) -> Progress:
    """Go on from the newest complete checkpoint, or from the beginning where there is none."""
    clear_unfinished(folder.checkpoints)
    newest = job.checkpoints.newest()
    if newest is None:
        logger.warning("there is no checkpoint to go on from: the run begins anew")
        folder.take_back(-1)
        return Progress()
    driver = read_driver(newest)
    progress = Progress(**driver["progress"])
    folder.take_back(progress.step)
    await job.trainer.load(trainer_folder(newest))
    await job.source.restore(driver["data"])
    logger.info("resumed from %s", newest)
    return progress


async def _export(job: Job, folder: RunFolder) -> None:
    temporary = folder.path / ".model.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        await job.trainer.export_hf(temporary)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise JobError(
            f"the model could not be written to {folder.model}: {error.strerror or error}; the checkpoints "
            "are untouched. Make room and run again with --resume"
        ) from error
    folder.set_aside(folder.model)
    temporary.rename(folder.model)


async def _watched(
    work: Coroutine[Any, Any, None], watching_over: Coroutine[Any, Any, None], cluster: Cluster
) -> None:
    """Run `work` while those watched over are well; the first cause of whatever goes wrong."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(watching_over)
    try:
        await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
        failures = [error for one in (watching, working) if one.done() and (error := one.exception())]
        if failures:
            if (death := await cluster.diagnose()) is not None:
                failures.append(death)
            raise first_cause(failures)
    finally:
        await cancel_all([working, watching])


def _write_specs(loaded: LoadedSpec, folder: RunFolder, locked: dict[str, Any]) -> None:
    """The spec as written and its lock; a resumed run's, where they differ, beside the first."""
    text = loaded.composition.files[-1].text if loaded.composition.files else ""
    if not folder.lock.exists():
        write_text(folder.spec, text)
        write_json(folder.lock, locked)
        return
    if changed := check_same_run(json.loads(folder.lock.read_text()), locked):
        logger.warning("resumed with another %s than the run began with", ", ".join(changed))
        aside = folder.next_aside()
        write_text(aside / "spec.toml", text)
        write_json(aside / "spec.lock.json", locked)


def _stop_on_signals(task: asyncio.Task[None], console: Console) -> None:
    """The first SIGINT or SIGTERM stops the job cleanly, the second at once."""
    asked = False

    def stop() -> None:
        nonlocal asked
        if asked:
            end_now()
            os._exit(INTERRUPTED)
        asked = True
        console.say("stopping; once more to stop at once")
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)


def _explain(failure: Exception, folder: RunFolder, console: Console) -> str:
    """Say what failed; what nobody foresaw leaves its trace in the driver's log."""
    logger.info("the job failed", exc_info=failure)
    console.close()
    if isinstance(failure, (JobError, ValueError, TimeoutError)):
        message = str(failure)
    else:
        trace = shown_path(folder.logs / DRIVER_LOG)
        message = f"unforeseen {type(failure).__name__}: {failure}; its trace is in {trace}"
    console.say(f"failed: {message}", style="bold red")
    if isinstance(failure, JobError) and failure.details:
        console.say(failure.details)
    return message


def _conclude(folder: RunFolder, console: Console, status: str) -> None:
    """The curve, and where everything is."""
    try:
        if curve := write_report(folder, folder.name):
            console.say(curve)
    except OSError as error:
        console.say(f"the report could not be written: {error}")
    console.say(f"{folder.name}: {status}; see {folder.shown}")


def _log_to(folder: RunFolder, console: Console) -> list[logging.Handler]:
    """Everything into the driver's log; our own warnings on the console too."""
    file = logging.FileHandler(folder.logs / DRIVER_LOG)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(file)
    shown = _Shown(console)
    logging.getLogger("rlrun").addHandler(shown)
    logging.getLogger("rlrun").setLevel(logging.INFO)
    return [file, shown]


class _Shown(logging.Handler):
    """Warnings as lines above the live panel."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """One record."""
        self._console.say(record.getMessage(), style="yellow")
