"""A launch from spec to exit code: the run folder, the start of the job, the loop, the end.

check files, GPUs, models ─▶ claim folder ─▶ check a resume ─┐
┌────────────────────────────────────────────────────────────┘
└▶ read inputs ∥ start Ray ∥ start rewards ─▶ start ranks ∥ engines ─▶ attempts ─▶ report
                 Ctrl-C, SIGTERM, SIGHUP ─▶ the loop saves ─┐
                                                any failure ┴▶ end every process ─▶ state.json, exit code
"""

import asyncio
import logging
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rlrun.models.hub import say_nothing
from rlrun.models.low_precision import note_on
from rlrun.plugins.registry import build
from rlrun.plugins.staged_data import stage_data
from rlrun.plugins.validation import needs_of
from rlrun.runner.checkpoints.folder import newest_step
from rlrun.runner.checkpoints.reading import DamagedCheckpoint
from rlrun.runner.cluster.elastic_ranks import with_present_ranks
from rlrun.runner.cluster.host_gpus import check_gpus
from rlrun.runner.cluster.scratch import Scratch, remove_leftovers, scratch_folder
from rlrun.runner.cluster.start import Models
from rlrun.runner.contracts.errors import JobError, LaunchRefused, MachinesFailed
from rlrun.runner.contracts.exit_codes import ExitCode
from rlrun.runner.host.atomic_files import write_json, write_text
from rlrun.runner.host.background import finish_when_cancelled, in_background
from rlrun.runner.host.failures import run_watched
from rlrun.runner.host.garbage import rare_collections
from rlrun.runner.host.memory import MemoryWatch, host_memory
from rlrun.runner.host.model_files import ModelFiles
from rlrun.runner.host.printed_text import print_text
from rlrun.runner.job.assembly import start_job
from rlrun.runner.job.attempts import Attempts, roll_out_alone
from rlrun.runner.job.evaluation_only import evaluate_alone
from rlrun.runner.job.model_fetch import fetch_models
from rlrun.runner.job.preflight import check_files
from rlrun.runner.job.resume_checks import check_resume, is_done, steps_of
from rlrun.runner.job.served_evaluation import evaluate_served
from rlrun.runner.job.signals import (
    held_signals,
    released_signals,
    start_again_on_signal,
    stop_on_signals,
)
from rlrun.runner.job.stopping import StopRequest, resume_hint
from rlrun.runner.job.watching import diagnose_engines, memory_of, watch
from rlrun.runner.planning.device_map import available_cores
from rlrun.runner.planning.planned_model import resolve_for_job
from rlrun.runner.records.claim import check_name, claim_folder
from rlrun.runner.records.console import Console
from rlrun.runner.records.driver_log import DRIVER_LOG, hide_secrets, start_logging
from rlrun.runner.records.journal import Journal
from rlrun.runner.records.learning_curve import write_curve
from rlrun.runner.records.lock import check_same_run, keep_choices, make_lock, read_lock
from rlrun.runner.records.run_folder import RunFolder, run_folder
from rlrun.runner.scoring.scorer import unique_names
from rlrun.runner.storage.mirror import open_mirror, uploading
from rlrun.runner.storage.restore import StoredRun, is_unstored, stored_run
from rlrun.specs.derived.agent_programs import program_limit
from rlrun.specs.derived.sample_limits import sample_limits
from rlrun.specs.derived.shared_prefixes import SharingChoice
from rlrun.specs.paths import display_path
from rlrun.specs.problems.codes import Code
from rlrun.specs.reading.loading import LoadedSpec
from rlrun.specs.sections.job import Spec

logger = logging.getLogger(__name__)


def launch(
    loaded: LoadedSpec,
    *,
    resume: bool = False,
    new: bool = False,
    quiet: bool = False,
    verbose: bool = False,
) -> ExitCode:
    """Runs a job to its end, and returns how it ended.

    `quiet` shows only problems on the console, and `verbose` also the messages of the driver's log.
    Before anything is started, raises SpecError if files of the model or the data cannot be used or GPUs are
    missing, RunFolderError if the run's name cannot be used, and LaunchRefused if models cannot be downloaded
    or a run cannot be resumed.
    """
    start_again_on_signal()
    say = say_nothing if quiet else _say_early
    stored = stored_run(loaded.spec, loaded.spec.name)
    here = resume and not (stored is not None and stored.is_elsewhere(run_folder(loaded.spec)))
    check_name(Path(loaded.spec.runs_dir), loaded.spec.name, resume=here, new=new)
    if stored is not None and not resume and not new:
        stored.check_empty()
    _stage(loaded.spec, say)
    check_files(loaded, online=True, say=say)
    models = None
    if loaded.spec.eval.server is None:
        loaded = _with_present_ranks(loaded)
        check_gpus(loaded)
        models = fetch_models(loaded.spec, say)
    policy = None if models is None else models.policy
    given, (loaded, sharing) = loaded, resolve_for_launch(loaded, policy)
    runs_dir = Path(loaded.spec.runs_dir)
    with ExitStack() as stack:
        stack.enter_context(held_signals())
        folder = stack.enter_context(
            claim_folder(
                runs_dir, loaded.spec.name, resume=here, new=new, is_free=partial(is_unstored, loaded.spec)
            )
        )
        if stored is not None and resume:
            _restore(stored, folder, say)
        locked = None
        if folder.lock.exists():
            before = read_lock(folder.lock)
            with released_signals():  # hashing a large model takes a while, and nothing was changed yet
                loaded, sharing = resolve_for_launch(keep_choices(given, before), policy)
                locked = check_resume(loaded, policy, folder, before)
            if is_done(steps := steps_of(loaded.spec), folder):
                more = f"{steps} of {steps} steps; raise trainer.steps to go on" if steps else "evaluated"
                say(f"{folder.name} is done: {more}")
                return ExitCode.DONE
        remove_leftovers()
        scratch = stack.enter_context(scratch_folder())
        console = Console(folder.name, quiet=quiet)
        hide = partial(hide_secrets, loaded.spec.model_dump(mode="json"))
        handlers = start_logging(folder, console, hide, verbose=verbose)
        stack.callback(_stop_logging, handlers)
        _allow_open_files()
        launched = _Launch(loaded, sharing, models, folder, scratch, locked, resume=resume)
        return asyncio.run(_supervise(launched, console, hide))


def _with_present_ranks(loaded: LoadedSpec) -> LoadedSpec:
    """Returns the spec with as many ranks as there are devices for. Raises LaunchRefused if the cluster does
    not say what it has.
    """
    try:
        return with_present_ranks(loaded)
    except ValueError as error:
        raise LaunchRefused(str(error), Code.CLUSTER) from error


def _stage(spec: Spec, say: Callable[[str], None]) -> None:
    """Copies data in object stores to this machine. Raises LaunchRefused where that fails."""
    try:
        stage_data(spec, say)
    except ValueError as error:
        raise LaunchRefused(f"data: {error}", Code.DATA) from error


def _restore(stored: StoredRun, folder: RunFolder, say: Callable[[str], None]) -> None:
    """Copies the newest step of an object store to a folder that does not have it."""
    if stored.is_ahead_of(folder):
        say(f"{folder.name}: restoring step {stored.newest} from {stored.url}")
        with released_signals():
            stored.restore(folder)


def _stop_logging(handlers: Sequence[logging.Handler]) -> None:
    for handler in handlers:
        logging.getLogger().removeHandler(handler)
        logging.getLogger("rlrun").removeHandler(handler)
        handler.close()


def resolve_for_launch(
    loaded: LoadedSpec, model: ModelFiles | None
) -> tuple[LoadedSpec, SharingChoice | None]:
    """Returns the spec that the job runs with, and its choice of shared prefixes if it leaves that open.

    `model`: the policy's files; None if a server elsewhere has them.
    """
    resolved = resolve_for_job(loaded.spec, model)
    return replace(loaded, spec=resolved.spec), resolved.sharing


def _say_early(text: str) -> None:
    """Shows a line before the run has a console."""
    print_text(text, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class _Launch:
    """A launch that was not refused."""

    loaded: LoadedSpec
    """With the defaults that follow from the rest of the spec and from the models."""
    sharing: SharingChoice | None
    models: Models | None
    """None if the model is served elsewhere (`[eval.server]`)."""
    folder: RunFolder
    scratch: Scratch
    locked: dict[str, Any] | None
    """The lock of this launch, if it resumes a run that has one."""
    resume: bool


async def _supervise(launch: _Launch, console: Console, hide: Callable[[str], str]) -> ExitCode:
    """Runs the job, stops it on request, and records how it ended.

    Raises LaunchRefused, with state.json as it was, if the run cannot be resumed.
    """
    loaded, folder, scratch = launch.loaded, launch.folder, launch.scratch
    before = folder.read_state()
    trackers = zip(unique_names(loaded.spec.trackers), loaded.spec.trackers, strict=True)
    journal = Journal(
        folder,
        console,
        [(name, build("trackers", section.type, section.params)) for name, section in trackers],
        keeps_rollouts=loaded.spec.debug.keeps_rollouts,
    )
    journal.note({"scratch": str(scratch.path)} | _ranks(loaded))
    stop = StopRequest()
    task = asyncio.create_task(_run(launch, console, journal, stop=stop))
    stop_on_signals(task, stop, console.say, loaded.spec.checkpoint.stop_timeout)
    code, status, error, failed, refused = ExitCode.DONE, "done", None, None, False
    try:
        await task
        if stop.asked:
            code, status = _stopped_code(stop), "interrupted"
    except asyncio.CancelledError:
        code, status = _stopped_code(stop), "interrupted"
    except LaunchRefused:
        refused = bool(before)
        raise
    except Exception as failure:
        error, failed = _explain(failure, folder, console, hide), failure
        if stop.from_outside:
            code, status = _stopped_code(stop), "interrupted"
        else:
            machines = isinstance(failure, MachinesFailed)
            code, status = ExitCode.MACHINES_FAILED if machines else ExitCode.FAILED, "failed"
    finally:
        console.close()
        if refused:
            journal.withdraw(before)
        else:
            journal.close(status, error, None if failed is None else _code_of(failed))
    _conclude(folder, console, status, advise=not isinstance(failed, DamagedCheckpoint))
    return code


def _stopped_code(stop: StopRequest) -> ExitCode:
    return ExitCode.START_AGAIN if stop.by_scheduler else ExitCode.INTERRUPTED


async def _run(launch: _Launch, console: Console, journal: Journal, *, stop: StopRequest) -> None:
    if launch.models is None:
        await _run_served(launch, console, journal, stop=stop)
        return
    loaded, folder, resume = launch.loaded, launch.folder, launch.resume
    spec, model, stack = loaded.spec, launch.models.policy, AsyncExitStack()
    try:
        console.say(f"{folder.name}: starting; all its files go to {folder.shown}")
        locking = asyncio.create_task(_lock(launch))
        for line in start_notes(loaded, model, launch.sharing):
            console.say(line)
        running = await start_job(spec, launch.models, folder, launch.scratch, stack, timed=console.timed)
        _write_specs(loaded, folder, await locking)
        journal.save_tokens(running.inputs.tokenizer.pieces)
        journal.note(running.note())

        def say(text: str) -> None:
            console.say(text)
            journal.note(running.note())

        mirror = open_mirror(spec, folder)
        if spec.debug.mode == "eval":
            work = evaluate_alone(spec, running, folder, journal, say, stop=stop)
        elif spec.debug.mode == "rollout":
            work = roll_out_alone(spec, running, folder, journal, stop=stop, resume=resume, mirror=mirror)
        else:
            attempts = Attempts(
                loaded, model, running, folder, journal=journal, say=say, stop=stop, mirror=mirror
            )
            work = attempts.run(resume=resume)
        memory = MemoryWatch(partial(memory_of, running))
        with rare_collections(), memory.named_in_failures():
            watching = watch(spec, running, stop, say, memory)
            async with uploading(mirror, spec.checkpoint.stop_timeout):
                await run_watched(work, watching, partial(diagnose_engines, running))
                if mirror is not None and (summary := mirror.summary()):
                    console.say(f"{folder.name}: {summary}")
                if stop.cause is not None:
                    raise MachinesFailed(stop.cause)
    finally:
        # a job that is told to stop while it ends still ends everything
        await finish_when_cancelled(stack.aclose())


def _ranks(loaded: LoadedSpec) -> dict[str, Any]:
    """Returns what state.json says of elastic ranks."""
    if loaded.spec.trainer.parallel.min_fsdp is None:
        return {}
    specs = (loaded.spec, loaded.asked or loaded.spec)
    return {"ranks": [spec.trainer.parallel.world_size for spec in specs]}


async def _run_served(launch: _Launch, console: Console, journal: Journal, *, stop: StopRequest) -> None:
    """Runs an evaluation of a model that is served elsewhere."""
    stack = AsyncExitStack()
    try:
        console.say(f"{launch.folder.name}: starting; all its files go to {launch.folder.shown}")
        for line in launch.loaded.choices(None):
            console.say(line)
        console.say(sample_limits(launch.loaded.spec, rollout=True))
        _write_specs(launch.loaded, launch.folder, await _lock(launch))
        with rare_collections():
            await evaluate_served(
                launch.loaded.spec,
                launch.folder,
                journal,
                console.say,
                stack,
                timed=console.timed,
                stop=stop,
            )
    finally:
        await finish_when_cancelled(stack.aclose())


async def _lock(launch: _Launch) -> dict[str, Any]:
    """Returns the lock of a launch; hashing the files of a large model takes as long as the job's start."""
    if launch.locked is not None:
        return launch.locked
    policy = None if launch.models is None else launch.models.policy
    return await in_background(make_lock, launch.loaded, policy)


def start_notes(loaded: LoadedSpec, model: ModelFiles, sharing: SharingChoice | None) -> Iterator[str]:
    """Yields what users should know before the job starts: code that may run, precision, engines, shared
    prefixes, limits. `rlrun plan` says the same of the same spec.
    """
    spec = loaded.spec
    for file in model.code or ():
        yield f"may run {model.folder / file.name}: {file.size:,} bytes, SHA-256 {file.sha256}"
    if (precision := spec.trainer.low_precision) is not None:
        yield note_on(precision, on_cpu=not spec.cluster.gpus_per_node)
    yield from loaded.choices(sharing)
    if (programs := program_limit(spec.rollout.function, available_cores(), host_memory().total)) is not None:
        yield str(programs)
    yield sample_limits(spec, rollout=needs_of(spec).rollout)


def _write_specs(loaded: LoadedSpec, folder: RunFolder, locked: dict[str, Any]) -> None:
    """Writes the spec and its lock; if a resumed run's spec differs, writes them beside the first ones."""
    text = loaded.composition.files[-1].text if loaded.composition.files else ""
    if not folder.lock.exists():
        write_text(folder.spec, text)
        write_json(folder.lock, locked)
        return
    if changed := check_same_run(read_lock(folder.lock), locked):
        logger.warning("the spec changed since the run began: %s", "; ".join(map(str, changed)))
        aside = folder.next_aside()
        write_text(aside / "spec.toml", text)
        write_json(aside / "spec.lock.json", locked)


def _allow_open_files() -> None:
    """Raises the limit of open files: every open request is a connection, here and in its engine."""
    _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # not every system accepts "infinity"
        resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))


def _explain(failure: Exception, folder: RunFolder, console: Console, hide: Callable[[str], str]) -> str:
    """Shows and returns the error message; writes the traceback to the driver's log."""
    logger.info("the job failed", exc_info=failure)
    console.close()
    code = _code_of(failure)
    if code != Code.BUG:
        message = hide(str(failure))
    else:
        trace = display_path(folder.logs / DRIVER_LOG)
        message = hide(f"unexpected {type(failure).__name__}: {failure}; its traceback is in {trace}")
    # the code has a line of its own, because some messages end with a command to copy
    console.problem(f"failed: {message}\nsee rlrun explain {code}", style="bold red")
    if isinstance(failure, JobError) and failure.details:
        console.problem(hide(failure.details))
    return message


def _code_of(failure: Exception) -> Code:
    """Returns the kind of a failure; an exception that rlrun does not expect is a bug."""
    if isinstance(failure, JobError):
        return failure.code
    return Code.JOB if isinstance(failure, (ValueError, TimeoutError)) else Code.BUG


def _conclude(folder: RunFolder, console: Console, status: str, *, advise: bool) -> None:
    """Shows the learning curve and the run's folder.

    `advise`: unless the job is done, says where a resumed run continues. The error of a damaged checkpoint
    has already said that.
    """
    try:
        if curve := write_curve(folder, folder.name, console.width):
            console.show(curve)
    except OSError as error:
        console.say(f"the learning curve could not be written: {error}")
    console.say(f"{folder.name}: {status}; its files are in {folder.shown}")
    if status != "done" and folder.evaluated.exists():
        console.say(f"rlrun resume {folder.argument} continues with the samples that are finished")
    elif status != "done" and advise:
        console.say(
            resume_hint(folder.read_state()["step"], newest_step(folder.checkpoints), folder.argument)
        )
