"""The messages of a channel: every cut is noticed, and frames that wait are joined."""

import asyncio

import pytest

from rlrun.runner.contracts import channel_frames
from rlrun.runner.contracts.channel_frames import Frame, FrameWriter, read_frames

FRAMES = [Frame(7, 0, b'{"input_ids":[5]}'), Frame(2**40, 200, b"x" * 300), Frame(8, 0, b"")]


async def messages_of(frames: list[Frame]) -> list[bytes]:
    """The messages that a writer makes of frames that are queued at once."""
    sent: list[bytes] = []

    async def send(message: bytes) -> None:
        sent.append(message)

    writer = FrameWriter(send)
    for frame in frames:
        writer.put(frame)
    await writer.flush()
    return sent


async def test_frames_that_are_queued_together_are_one_message() -> None:
    [message] = await messages_of(FRAMES)
    assert list(read_frames(message)) == FRAMES


async def test_a_long_message_ends_after_a_whole_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_frames, "_JOINED_BYTES", 310)
    messages = await messages_of([*FRAMES, *FRAMES])
    assert [[frame.call for frame in read_frames(message)] for message in messages] == [
        [7, 2**40],
        [8, 7, 2**40],
        [8],
    ]


async def test_every_cut_is_an_error() -> None:
    [message] = await messages_of(FRAMES[:1])
    for length in range(1, len(message)):
        with pytest.raises(ValueError, match="is cut off at byte"):
            list(read_frames(message[:length]))
    assert list(read_frames(b"")) == []


async def test_a_frame_that_comes_while_a_message_is_sent_is_in_the_next_one() -> None:
    sent: list[list[int]] = []
    second_sent = asyncio.Event()

    async def send(message: bytes) -> None:
        sent.append([frame.call for frame in read_frames(message)])
        if len(sent) == 1:
            writer.put(Frame(2, 0, b"b"))
            writer.put(Frame(3, 0, b"c"))
        else:
            second_sent.set()

    writer = FrameWriter(send)
    running = asyncio.create_task(writer.run())
    writer.put(Frame(1, 0, b"a"))
    await second_sent.wait()
    running.cancel()
    assert sent == [[1], [2, 3]]
