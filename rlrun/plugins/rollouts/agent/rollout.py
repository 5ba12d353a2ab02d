"""Runs an agent, which is a class or a command, and serves the policy to it at an HTTP endpoint."""

import logging
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from rlrun.plugins.agent_task import AgentTask
from rlrun.plugins.failures import PolicyError, failure_of
from rlrun.plugins.generation import Trajectory
from rlrun.plugins.protocols import Agent as AgentPlugin
from rlrun.plugins.registry import build
from rlrun.plugins.rollouts.agent.address import address_in, check_address
from rlrun.plugins.rollouts.agent.command_agent import run_command
from rlrun.plugins.rollouts.agent.credit import AnsweredTurn, give_credit
from rlrun.plugins.rollouts.agent.endpoint import Endpoint, Served, relayed_engines
from rlrun.plugins.rollouts.agent.history import RULES, History, Rule
from rlrun.plugins.rollouts.agent.message_images import messages_for_agent
from rlrun.plugins.rollouts.agent.program_limits import LimitExceeded, ProgramLimits
from rlrun.plugins.rollouts.agent.program_sandbox import HOST, ProgramSandbox, problem_of
from rlrun.plugins.rollouts.agent.program_watch import ProgramWatch
from rlrun.plugins.rollouts.agent.record import Conversation, Record, Thinking
from rlrun.plugins.rollouts.agent.request import Settings
from rlrun.plugins.rollouts.agent.turn_deadline import TurnDeadline
from rlrun.plugins.rollouts.tool_calls import Syntax
from rlrun.plugins.session import Session
from rlrun.plugins.types import Status
from rlrun.specs.engine_names import EngineNames
from rlrun.specs.sections.rollout import AgentSpec
from rlrun.specs.sections.section import Section

logger = logging.getLogger(__name__)


class AgentParams(Section):
    """Selects the agent, and sets how its conversations are recorded."""

    agent: AgentSpec | None = None
    """The agent as a plugin: a table `[rollout.function.agent]` with `type` and the agent's own keys."""
    command: tuple[str, ...] | None = Field(default=None, min_length=1)
    """The agent as a program and its arguments, started for each execution. The program reads the task as
    JSON from its standard input, has OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL and
    ANTHROPIC_API_KEY in its environment, and may print a JSON object as its last line."""
    max_programs: int | None = Field(default=None, ge=1)
    """Maximum number of programs that run at once, or of executions of a class, in training and evaluations
    together. Further executions wait, and their deadlines begin when they start. None: for programs 8 per
    core of the driver's host, and at most as many as fit into half of its memory with 256 MiB for each; no
    limit for a class."""
    turn_timeout: float | None = Field(default=None, gt=0)
    """Seconds that the agent may take for a turn: until its first request, from an answer to its next
    request, and from its last answer to its end. The time of the policy's answers does not count. An
    execution that takes longer ends, is counted as late and is not trained. None: only
    `rollout.request_timeout` ends it."""
    limits: ProgramLimits = ProgramLimits()
    """What a program may take of the driver's host, as a table. A program that exceeds a limit is ended with
    all its processes, as an error of the policy."""
    sandbox: ProgramSandbox = HOST
    """What isolates a program from the host, as a table: `{ type = "bubblewrap" }`."""
    max_turns: int = Field(default=1000, ge=1)
    """Number of answers of the policy in an execution, in all its conversations together. Further requests
    are refused, and the execution is truncated."""
    environment: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], ...] = ()
    """Further variables of rlrun's environment to pass to the program, such as `["HTTPS_PROXY"]`. PATH, HOME,
    USER, LOGNAME, SHELL, LANG, LANGUAGE, LC_*, TZ, TMPDIR and TERM are always passed; others, which may hold
    keys and tokens, are not."""
    engines: EngineNames = ()
    """Names of `[[engines]]` that the agent may ask as well, with the key of its execution, for instance a
    simulated user or a judge. A program finds the address of `user` in RLRUN_ENGINE_USER_URL; a class asks
    `task.engine("user").chat(messages)`. Their answers are not trained."""
    host: Annotated[str, AfterValidator(check_address)] = "127.0.0.1"
    """The address at which the policy is served to the agent. Agents that run on other hosts or in containers
    need an IP address of the driver's host that they can reach, or a network (`10.0.0.0/8`) in which that
    host has exactly one address. Requests need the execution's key, but are not encrypted."""
    syntax: Syntax = "auto"
    """How the policy writes tool calls: `hermes` (Qwen3), `qwen3_coder`, `glm`, `minimax_m2`, `kimi_k2`,
    `deepseek_v3`, `mistral`, `gpt_oss`, `llama3` or `pythonic` (Llama 4). `auto` recognises each."""
    same_history: tuple[Rule, ...] = RULES
    """Changes of earlier messages by the agent that do not begin another sample. `call_ids`: an answer with
    calls is known by the ids that they were given, whatever became of their arguments; `white_space` around
    texts; `reminders`: `<system-reminder>` parts that come and go; `headers`: the block of Claude Code that
    names the conversation, which the policy is not shown."""
    other_settings: Settings = "refuse"
    """What becomes of a request that sets what the job decides to another value (temperature, top_p, top_k,
    seed, penalties, `n`, a forced `tool_choice`, a form of the answer): `refuse` answers with the error 400,
    and `ignore` lets the job's settings stand. `max_tokens` and stop strings always apply."""
    trained_models: tuple[str, ...] = ("*",)
    """Patterns of the model's names in requests whose conversations are trained, such as `["policy"]` for an
    agent that asks its sub-agents under another name. Every name means the policy."""
    side_calls: Literal["train", "leave_out"] = "train"
    """What becomes of conversations without tools in an execution that has some with tools, such as titles
    and summaries. `train`: they are samples of the execution as well."""
    thinking: Thinking = "keep"
    """`keep`: the policy's thoughts of earlier turns stay in the conversation. `template`: the chat template
    decides, and each further question begins another sample, since the template may drop thoughts there."""

    cross_entropy: float = Field(default=0.0, ge=0)
    """Weight of the cross-entropy of what the agent says between two answers, such as results of tools,
    beside the loss of the policy's own tokens: the policy also learns to predict it. 0: only its own tokens
    are trained."""

    @model_validator(mode="after")
    def _one_agent(self) -> "AgentParams":
        if (self.agent is None) == (self.command is None):
            raise ValueError(
                "needs either a table [rollout.function.agent] or a command, not both or neither"
            )
        for name in ("environment", "limits", "sandbox"):
            if name in self.model_fields_set and getattr(self, name) and self.command is None:
                raise ValueError(f"{name} is for a command; an agent's class runs in rlrun's own process")
        return self


class Agent:
    """Runs an agent for each execution; the agent uses the policy as any server of OpenAI's chat completions
    or responses, or of Anthropic's messages.

    Each of its conversations with the policy becomes a training sample, with the tokens that the policy read
    and generated, and the log-probs and loss mask of those that it generated. All samples of one execution
    together count once in the loss. The table that the agent returns becomes `info` of each sample, where
    the reward `noted` reads it; its rewards and weights of single answers become those of turns (`credit`).
    """

    Params = AgentParams
    api_version = 1
    example: ClassVar[dict[str, Any]] = {"agent": {"type": "solve_and_select"}}

    def __init__(self, params: AgentParams) -> None:
        """Raises PluginError if the agent cannot be constructed, and ValueError if this host has no address
        where the policy is to be served, or cannot run programs in the sandbox.
        """
        if problem := problem_of(params.sandbox):
            raise ValueError(f'sandbox.type = "{params.sandbox.type}": {problem}')
        self.params = params
        self._endpoint = Endpoint(address_in(params.host))
        self._agent: AgentPlugin | None = None
        self._watch = ProgramWatch()
        self._has_warned = False
        """Whether the console says that a program exceeded a limit; the log has all of them."""
        if params.agent is not None:
            self._agent = build("agents", params.agent.type, params.agent.params)

    async def run(self, session: Session) -> list[Trajectory]:
        """Runs one execution. An engine's error fails it, even if the agent handled that error.

        After a PolicyError of the agent, its samples so far have the error's reward. Raises CreditError for
        rewards or weights that do not fit the answers.
        """
        params = self.params
        history = History(params.same_history)
        record = Record(session.chat, params.thinking, history, params.cross_entropy)
        turns = TurnDeadline(params.turn_timeout)
        served = Served(
            session, record, turns, params.syntax, params.other_settings, params.max_turns, params.engines
        )
        served.begun = session.version
        url = await self._endpoint.url()
        key = self._endpoint.open(served)
        try:
            async with served.turns:
                info = await self._act(_task(session, url, key, params.engines))
        except TimeoutError:
            if not served.turns.expired:
                raise
            served.aborted, info = True, {"turn_timeout": 1}
        except Exception as error:  # the boundary to the agent
            info = self._info_after(error, served)
        finally:
            self._endpoint.close_key(key)
            conversations = record.close()
        if served.error is not None:
            raise served.error
        if not conversations and not served.own and served.turns.expired:
            raise TimeoutError(f"no request within turn_timeout = {self.params.turn_timeout:g} s")
        if not conversations and not served.own:
            raise ValueError("the agent received no answer from the policy: it must request at least one")
        if not served.aborted:  # answers after the deadline are empty, so the agent counts others
            answers = _turns_of(served.own) if served.own else record.turns
            info = give_credit(info, answers, session.id)
        trajectories = served.own or self._trained(conversations)
        trained = sum(len(turn.tokens) for trajectory in trajectories for turn in trajectory.turns)
        share = trained / max(trained, served.sampled_tokens, 1)
        for trajectory in trajectories:
            trajectory.info = {**info, "samples": len(trajectories), "trained_share": share}
            if served.aborted:
                trajectory.status = Status.ABORTED
            elif served.out_of_turns and trajectory.status is Status.COMPLETED:
                trajectory.status = Status.TRUNCATED
        return trajectories

    def _info_after(self, error: Exception, served: Served) -> Mapping[str, Any]:
        """Returns what the samples note if the agent's error is one of the policy; raises any other error.

        An agent that fails after it was refused a turn has exceeded this limit.
        """
        if served.out_of_turns and not failure_of(error).is_infrastructure:
            error = LimitExceeded(
                f"it asked for more than max_turns = {self.params.max_turns} and failed: {error}"
            )
        if not isinstance(error, PolicyError):
            raise error
        if isinstance(error, LimitExceeded) and not served.answers:  # the policy has no part in it
            raise RuntimeError(
                f"{error}, before the policy answered: raise rollout.function.limits"
            ) from None
        level = logging.WARNING if isinstance(error, LimitExceeded) and not self._has_warned else logging.INFO
        self._has_warned |= level == logging.WARNING
        logger.log(level, "execution %s ends with an error of the policy: %s", served.session.id, error)
        return error.info()

    def _trained(self, conversations: Sequence[Conversation]) -> list[Trajectory]:
        """Returns the samples of the conversations that are trained. Raises ValueError if there are none."""
        uses_tools = any(conversation.tools for conversation in conversations)
        leaves_out = uses_tools and self.params.side_calls == "leave_out"
        trained = [
            conversation.trajectory
            for conversation in conversations
            if any(fnmatchcase(conversation.model, pattern) for pattern in self.params.trained_models)
            and (conversation.tools or not leaves_out)
        ]
        if not trained:
            names = ", ".join(sorted({conversation.model for conversation in conversations}))
            patterns = list(self.params.trained_models)
            raise ValueError(f"the agent asked {names}, and trained_models = {patterns} trains none of these")
        return trained

    async def close(self) -> None:
        """Stops the endpoint and closes the agent."""
        await self._endpoint.close()
        close = getattr(self._agent, "close", None)
        if close is not None:
            await close()

    async def _act(self, task: AgentTask) -> Mapping[str, Any]:
        if self._agent is not None:
            return dict(await self._agent.run(task) or {})
        params = self.params
        assert params.command is not None, "an agent or a command is set"
        return await run_command(
            params.command, task, params.limits, self._watch, params.environment, sandbox=params.sandbox
        )


def _turns_of(trajectories: Sequence[Trajectory]) -> list[AnsweredTurn]:
    """Returns the turns of trajectories that the agent assembled, in order. Their numbers are negative,
    because the ids of responses do not name them.
    """
    places = [(trajectory, index) for trajectory in trajectories for index in range(len(trajectory.turns))]
    return [AnsweredTurn(-number, *place) for number, place in enumerate(places, 1)]


def _task(session: Session, url: str, key: str, engines: Sequence[str]) -> AgentTask:
    row = session.prompt.row
    messages = messages_for_agent(row)
    addresses = relayed_engines(url, key, engines)
    return AgentTask(session.id, messages, row.label, row.metadata, session.seed, url, key, addresses)
