"""Which requests the engines have taken."""

from contextlib import ExitStack

import pytest

from rlrun.runner.contracts.pending_requests import PendingRequests


@pytest.mark.parametrize(
    ("capacity", "samples", "taken"),
    [
        (None, [8, 8, 8], [True, True, True]),
        (16, [8, 8, 8], [True, True, False]),
        (4, [8, 8], [True, False]),
        (8, [4, 8, 2], [True, False, False]),
    ],
)
async def test_engines_take_requests_in_order_as_far_as_they_have_room(
    capacity: int | None, samples: list[int], taken: list[bool]
) -> None:
    line = PendingRequests(capacity)
    with ExitStack() as stack:
        turns = [stack.enter_context(line.enter(count)) for count in samples]
        assert [turn.done() for turn in turns] == taken


async def test_an_answer_makes_room_for_the_next_request() -> None:
    line = PendingRequests(8)
    with ExitStack() as later:
        with line.enter(8):
            second, third = (later.enter_context(line.enter(4)) for _ in range(2))
            assert not second.done()
        assert second.done()
        assert third.done()


async def test_a_request_that_ends_while_it_queues_holds_up_no_other() -> None:
    line = PendingRequests(8)
    with ExitStack() as later:
        with line.enter(8):
            with line.enter(8):
                pass
            last = later.enter_context(line.enter(8))
        assert last.done()
