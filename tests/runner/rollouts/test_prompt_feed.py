import asyncio

from rlrun.runner.rollouts.prompt_feed import PromptFeed, split_state
from tests.runner.loop_fakes import Prompts


async def taken(feed: PromptFeed, count: int) -> list[int]:
    return [(await feed.take()).index for _ in range(count)]


async def test_the_place_is_before_the_first_batch_with_an_unfinished_prompt() -> None:
    feed = PromptFeed(Prompts().ahead(2))
    assert feed.state() == {"place": 0, "finished": []}
    assert await taken(feed, 5) == [0, 1, 2, 3, 4]
    for index in (4, 1, 3):
        feed.finish(index)
    assert feed.state() == {"place": 0, "finished": [1, 3, 4]}
    feed.finish(0)
    feed.finish(0)
    assert feed.state() == {"place": 2, "finished": [3, 4]}
    feed.finish(2)
    assert feed.state() == {"place": 4, "finished": [4]}
    for index in (5, 5):
        feed.finish(index)
    assert feed.state() == {"place": 6, "finished": []}
    await feed.close()


async def test_what_is_finished_before_anything_is_read_is_never_handed_out() -> None:
    feed = PromptFeed(Prompts().ahead(2))
    feed.finish(0)
    assert await taken(feed, 1) == [1]
    await feed.restore({"place": 4})
    feed.finish(4)
    assert await taken(feed, 1) == [5]
    await feed.close()


async def test_a_prompt_goes_to_one_of_those_who_wait_for_it() -> None:
    feed = PromptFeed(Prompts().ahead(2))
    assert await taken(feed, 2) == [0, 1]
    prompts = await asyncio.gather(*(feed.take() for _ in range(4)))
    assert [prompt.index for prompt in prompts] == [2, 3, 4, 5]
    await feed.close()


async def test_a_restored_feed_hands_out_what_was_unfinished_and_nothing_twice() -> None:
    feed = PromptFeed(Prompts().ahead(2))
    await taken(feed, 5)
    for index in (0, 1, 3):
        feed.finish(index)
    resumed = PromptFeed(Prompts().ahead(2))
    await resumed.restore(feed.state())
    assert await taken(resumed, 4) == [2, 4, 5, 6]
    resumed.finish(2)
    assert resumed.state() == {"place": 4, "finished": []}
    await feed.close()
    await resumed.close()


def test_a_place_without_finished_prompts_is_that_of_a_synchronous_job() -> None:
    assert split_state({"place": 3}) == ({"place": 3}, set())
    assert split_state({"place": 3, "finished": [5]}) == ({"place": 3}, {5})


async def test_what_was_finished_before_it_is_read_again_is_never_handed_out() -> None:
    feed = PromptFeed(Prompts().ahead(2))
    await feed.restore({"place": 0, "finished": [5]})
    assert feed.state() == {"place": 0, "finished": [5]}
    feed.finish(3)
    assert await taken(feed, 4) == [0, 1, 2, 4]
    assert feed.state() == {"place": 0, "finished": [3, 5]}
    assert await taken(feed, 1) == [6]
    await feed.close()


async def test_held_prompts_are_passed_over_and_stay_unfinished() -> None:
    feed = PromptFeed(Prompts().ahead(2))
    feed.hold([1])
    assert await taken(feed, 2) == [0, 2]
    feed.finish(0)
    assert feed.state() == {"place": 0, "finished": [0]}
    feed.finish(1)
    assert feed.state() == {"place": 2, "finished": []}
    await feed.close()
