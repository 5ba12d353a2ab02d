"""Images in later turns: tools return them, and agents send them; tokens and images stay together."""

from typing import Any

import numpy as np

from rlrun.plugins.authoring.rollout_testing import IMAGE, IMAGE_TOKENS, ScriptedSession
from rlrun.plugins.generation import Trajectory
from rlrun.plugins.images import checked_image
from rlrun.plugins.registry import build
from rlrun.plugins.types import Group, Row
from rlrun.runner.batches.sequences import images_of, to_sequences
from rlrun.runner.contracts.carriers import ImagePatches
from rlrun.runner.contracts.placeholders import collapse
from rlrun.runner.rollouts.grouping import groups_of
from tests.conftest import InstallPlugin
from tests.pictures import picture
from tests.plugins.rollouts.test_agent import HI, Client, run

FIRST, SECOND, THIRD = (checked_image(picture(seed=seed)) for seed in range(3))
CAMERA = """
    from pydantic import BaseModel, ConfigDict
    from rlrun.plugins.images import ToolResult, checked_image
    from tests.pictures import picture

    class Params(BaseModel):
        model_config = ConfigDict(extra="forbid")

    class Camera:
        Params = Params
        api_version = 1
        schema = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {}}}

        def __init__(self, params):
            pass

        async def call(self, arguments):
            return ToolResult("here", tuple(checked_image(picture(seed=seed)) for seed in arguments["seeds"]))
"""


def assert_placed(trajectory: Trajectory, session: ScriptedSession) -> None:
    """Every request had one placeholder for each token of its images, and so has the sample."""
    for tokens, images in zip(session.asked, session.asked_images, strict=True):
        assert (tokens == IMAGE).sum() == IMAGE_TOKENS * len(images)
        collapse(tokens, images)
    tokens, _, mask, _ = trajectory.response()
    assert not mask[tokens == IMAGE].any()
    assert (tokens == IMAGE).sum() == IMAGE_TOKENS * len(trajectory.response_images())


async def test_the_policy_sees_the_images_that_a_tool_returns(install_plugin: InstallPlugin) -> None:
    install_plugin("tools", "camera", "acme_camera:Camera", CAMERA)
    looks = [
        f'<tool_call>{{"name": "look", "arguments": {{"seeds": {s}}}}}</tool_call>' for s in ([1, 2], [])
    ]
    session = ScriptedSession([*looks, "a cat"], row=Row("0", "q", images=(FIRST,)))
    rollout = build("rollouts", "multi_turn_tools", {"tools": [{"type": "camera"}]})
    trajectory = await rollout.run(session)
    assert_placed(trajectory, session)
    assert [image.image for image in session.asked_images[-1]] == [FIRST, SECOND, THIRD]
    [group] = groups_of([session.prompt], [[[trajectory]]], session.chat)
    check_training_sequence(group)


def check_training_sequence(group: Group) -> None:
    """The images of prompt and response are in order, and begin where their placeholders do."""
    placed = images_of([group])
    patches = {
        image.image.digest: ImagePatches(np.zeros((4, 2), np.float32), (1, 2, 2), image.image.digest)
        for image in placed
    }
    [sequence] = to_sequences([group], patches)
    assert [image.digest for image in sequence.images] == [FIRST.digest, SECOND.digest, THIRD.digest]
    starts = np.flatnonzero(sequence.tokens == IMAGE)[::IMAGE_TOKENS]
    assert list(sequence.image_starts) == starts.tolist()


async def test_images_after_the_last_answer_are_not_part_of_a_sample() -> None:
    session = ScriptedSession(["a", "b"], row=Row("0", "q"))
    trajectory = Trajectory(session.prompt.tokens)
    for image in (FIRST, SECOND):
        trajectory.add(await session.generate(trajectory.tokens(), images=trajectory.images))
        placed = session.chat.place([image])
        _, tokens = session.chat.follow_up([{"role": "user", "content": [{"type": "image"}]}], images=placed)
        trajectory.give(tokens, placed)
    assert [image.image for image in trajectory.images] == [FIRST, SECOND]
    assert [image.image for image in trajectory.response_images()] == [FIRST]


def shows(*urls: str) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"role": "user", "content": [{"type": "text", "text": "look"}, *parts]}


async def test_agents_send_images_as_data_urls() -> None:
    """The second request continues the first; the third shows another image, so it is another sample."""

    async def act(client: Client) -> None:
        first = await client.say(shows(FIRST.data_url()))
        await client.say(shows(FIRST.data_url()), first, shows(SECOND.data_url(), THIRD.data_url()))
        await client.say(shows(THIRD.data_url()), first, HI)

    [one, other], session = await run(act, ["a cat", "two dogs", "a fish"])
    assert [len(images) for images in session.asked_images] == [1, 3, 1]
    assert [image.image for image in one.prompt_images or ()] == [FIRST]
    assert [image.image for image in one.response_images()] == [SECOND, THIRD]
    assert [image.image for image in other.prompt_images or ()] == [THIRD]
    tokens, images = session.asked[1], session.asked_images[1]
    assert len(collapse(tokens, images)) == len(tokens) - 3 * (IMAGE_TOKENS - 1)


async def test_an_image_that_cannot_be_used_is_refused() -> None:
    async def act(client: Client) -> None:
        for url, reason in [
            ("https://example.org/a.png", "must begin with data:image"),
            ("data:image/png;base64,AAAA", "not an image"),
        ]:
            status, answer = await client.post({"messages": [shows(url)]})
            assert (status, reason in answer["error"]["message"]) == (400, True)
        await client.say(HI)

    await run(act, ["fine"])
