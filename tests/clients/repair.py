"""Real agent programs against the endpoint: each repairs a function, and the policy plays a script.

    make agent-clients                                  # installs them into build/clients, and runs them all
    python -m tests.clients.repair CLIENT FOLDER        # FOLDER: where npm installed the programs

Needs root, for a network namespace without a network. Prints JSON: the policy's answers, the samples that
they became, and how many these would be without `same_history`.
"""

import asyncio
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rlrun.plugins.agent_task import AgentTask
from rlrun.plugins.authoring.rollout_testing import ScriptedSession
from rlrun.plugins.generation import Generation, Trajectory
from rlrun.plugins.rollouts.agent.rollout import Agent, AgentParams
from rlrun.plugins.types import Row

TASK = "The function add in calc.py is wrong. Repair it and run test_calc.py."
BUG, FIX = "return a - b", "return a + b"
FILES = {
    "calc.py": f"def add(a, b):\n    {BUG}\n",
    "test_calc.py": 'from calc import add\nassert add(2, 3) == 5\nprint("all is well")\n',
}
SHELL = ("ls", "cat calc.py", f"sed -i 's/{BUG}/{FIX}/' calc.py", "python3 test_calc.py")
SAMPLES = {"claude": 1, "codex": 1, "opencode": 2}
"""The samples of one execution; opencode asks for a title, too."""
NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of unshare(2)."""


class Policy(ScriptedSession):
    """A policy that lists, reads, edits and tests, in the tools that a client offers, and then says so."""

    def __init__(self, folder: Path) -> None:
        super().__init__([""], row=Row("0", TASK), max_new_tokens=200_000)
        self.folder = folder
        self.max_tokens = 400_000

    async def generate(self, tokens: Any, *arguments: Any) -> Generation:
        """Answers by the number of its earlier answers in the conversation."""
        [text] = self.chat.decode_batch([tokens], special=True)
        calls = calls_for(text.partition("\n")[0], self.folder)
        turn = text.count("I go on.")
        if not calls:
            answer = "A repair"
        elif turn < len(calls):
            name, given = calls[turn]
            body = json.dumps({"name": name, "arguments": given})
            answer = f"<think>\nstep {turn}\n</think>\n\nI go on.\n<tool_call>{body}</tool_call>"
        else:
            answer = "The function is repaired."
        self._answers = [*self._answers[: len(self.made)], answer]
        return await super().generate(tokens, *arguments)


def calls_for(tools: str, folder: Path) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """Returns the calls of the repair in the tools that a prompt begins with; none without tools."""
    names = (
        {tool["function"]["name"] for tool in json.loads(tools.removeprefix("tools: "))}
        if "tools: " in tools
        else ()
    )
    path = str(folder / "calc.py")
    if "Bash" in names:
        edit = {"file_path": path, "old_string": BUG, "new_string": FIX}
        run = [("Bash", {"command": command, "description": "Run it"}) for command in SHELL]
        return [run[0], ("Read", {"file_path": path}), ("Edit", edit), run[3]]
    if "exec_command" in names:
        return [("exec_command", {"cmd": command}) for command in SHELL]
    if "bash" in names:
        return [("bash", {"command": command, "description": "Run it"}) for command in SHELL]
    return []


@dataclass
class Program:
    """How one program is started."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


def program(name: str, programs: Path, task: AgentTask, home: Path) -> Program:
    """Returns how a client is started on the task."""
    server = task.base_url.removesuffix("/v1")
    if name == "claude":
        options = ["--model", "policy", "--allowedTools", "Bash", "Read", "Edit", "--output-format", "json"]
        environment = {
            "ANTHROPIC_BASE_URL": server,
            "ANTHROPIC_API_KEY": task.api_key,
            "CLAUDE_CONFIG_DIR": str(home / "claude"),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",
        }
        return Program([str(programs / "claude"), "-p", TASK, *options], environment)
    if name == "codex":
        (home / "codex").mkdir()
        provider = f'{{name="p",base_url="{task.base_url}",env_key="POLICY_KEY",wire_api="responses"}}'
        options = ["--skip-git-repo-check", "--json", "--dangerously-bypass-approvals-and-sandbox"]
        settings = ["-c", 'model_provider="p"', "-c", f"model_providers.p={provider}", "-m", "policy"]
        environment = {"CODEX_HOME": str(home / "codex"), "POLICY_KEY": task.api_key}
        return Program([str(programs / "codex"), "exec", *options, *settings, TASK], environment)
    assert name == "opencode", f"unknown client {name}"
    provider_options = {"baseURL": task.base_url, "apiKey": task.api_key}
    model = {"name": "policy", "limit": {"context": 200_000, "output": 8000}}
    provider_table = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "p",
        "options": provider_options,
        "models": {"policy": model},
    }
    config = {"provider": {"p": provider_table}, "model": "p/policy", "small_model": "p/policy"}
    config |= {"autoupdate": False, "share": "disabled"}
    environment = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    command = [str(programs / "opencode"), "run", "--model", "p/policy", "--format", "json", TASK]
    return Program(command, environment, {"opencode.json": json.dumps(config)})


class Repair:
    """The agent: one program in a folder with the function."""

    def __init__(self, name: str, programs: Path, folder: Path) -> None:
        self.name, self.programs, self.folder = name, programs, folder
        self.code = -1
        self.output = ""

    async def run(self, task: AgentTask) -> Mapping[str, Any]:
        """Runs the program to its end."""
        home = self.folder.with_name("home")
        home.mkdir()
        started = program(self.name, self.programs, task, home)
        for path, text in {**FILES, **started.files}.items():
            (self.folder / path).write_text(text, "utf-8")
        await (await asyncio.create_subprocess_exec("git", "init", "-q", ".", cwd=self.folder)).wait()
        process = await asyncio.create_subprocess_exec(
            *started.command,
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "HOME": str(home), **started.environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), 300)
        self.code, self.output = process.returncode or 0, output.decode(errors="replace")
        return {}


async def repair(name: str, programs: Path, **params: Any) -> tuple[list[Trajectory], Policy, Repair]:
    """Lets a client repair the function; returns the samples."""
    with TemporaryDirectory(prefix="repair-") as scratch:
        folder = Path(scratch) / "code"
        folder.mkdir()
        policy, client = Policy(folder), Repair(name, programs, folder)
        rollout = Agent(AgentParams(command=("none",), **params))
        rollout._agent = client  # type: ignore[assignment]
        try:
            samples = await rollout.run(policy)
        finally:
            await rollout.close()
        assert FIX in (folder / "calc.py").read_text("utf-8"), client.output[-2000:]
    return samples, policy, client


def check_samples(samples: Sequence[Trajectory], policy: Policy) -> None:
    """Asserts that each answer of the policy is trained once, with its own tokens, and nothing else is."""
    trained = []
    for sample in samples:
        tokens, _, mask, _ = sample.response()
        text = "".join(chr(token) if kept else "\1" for token, kept in zip(tokens, mask > 0, strict=True))
        trained += [part for part in text.split("\1") if part]
    drawn = ["".join(map(chr, made.tokens)) for made in policy.made]
    assert sorted(trained) == sorted(drawn)


def leave_network() -> None:
    """Moves this process into a network namespace in which there is only itself."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "no network namespace: are you root?")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def main() -> None:
    """Runs one client."""
    name, programs = sys.argv[1], Path(sys.argv[2]).resolve()
    leave_network()
    samples, policy, client = asyncio.run(repair(name, programs))
    check_samples(samples, policy)
    assert client.code == 0, client.output[-2000:]
    assert len(samples) == SAMPLES[name], f"{len(samples)} samples"
    apart, *_ = asyncio.run(repair(name, programs, same_history=()))
    counts = {
        "answers": len(policy.made),
        "samples": len(samples),
        "samples_without_same_history": len(apart),
    }
    print(json.dumps({"client": name, **counts}))


if __name__ == "__main__":
    main()
