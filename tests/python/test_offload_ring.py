"""The ring of a device's slots against a lane of copies that is as late, or as early, as events allow."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import overlace  # noqa: E402
from overlace.offload._native import Piece  # noqa: E402
from overlace.offload._ring import Block, DeviceRing, HostRing, Weight  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

CPU = torch.device("cpu")


class SlowLane:
    """Copies run when an event behind them is awaited, not before: who does not wait sees what was there."""

    def __init__(self) -> None:
        self.queue: list = []
        self.done = 0

    def copy(self, to, source):
        self.queue.append((to, source))

    def copied(self):
        return len(self.queue)

    def used(self):
        return None

    def copy_after(self, event):
        pass

    def use_after(self, event):
        while self.done < event:
            to, source = self.queue[self.done]
            to.copy_(source)
            self.done += 1

    wait = use_after


class EarlyLane(SlowLane):
    """Copies run at once: what is queued while its slot is in use overwrites it."""

    def copy(self, to, source):
        to.copy_(source)


class ForgetfulLane(SlowLane):
    """Computation does not wait for copies."""

    def use_after(self, event):
        pass


def tensors(count: int) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(2)
    return [
        [torch.randn(5 + i, 7, generator=generator), torch.randint(0, 99, (i,), generator=generator).to(torch.int16)]
        for i in range(count)
    ]


def blocks_of(values: list[list[torch.Tensor]]) -> list[Block]:
    return [
        Block(
            f"b.{i}",
            [
                Weight(str(j), t.dtype, tuple(t.shape), tuple(t.stride()), Piece(t.nbytes, memory=t.data_ptr()))
                for j, t in enumerate(listed)
            ],
        )
        for i, listed in enumerate(values)
    ]


def walk(ring: DeviceRing, values, order, passes: int, held: int) -> int:
    """Uses each block of the order, `held` at a time; how many were wrong when they came or when they went."""
    wrong, in_use = 0, []

    def differs(block: int, views) -> bool:
        return any(not torch.equal(a, b) for a, b in zip(views, values[block], strict=True))

    for _ in range(passes):
        for block in [*order, *[None] * held]:
            if len(in_use) == held or (block is None and in_use):
                last, views = in_use.pop(0)
                wrong += differs(last, views)
                ring.release(last)
            if block is not None:
                views = ring.acquire(block)
                wrong += differs(block, views)
                in_use.append((block, views))
    return wrong


@pytest.mark.parametrize("lane", [SlowLane, EarlyLane])
@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [0, 1, 2, 1], [3], [0, 1]])
@pytest.mark.parametrize("is_file", [False, True])
def test_every_byte_is_right_and_stays(tmp_path: Path, lane, slots, order, is_file):
    values = tensors(5)
    blocks = blocks_of(values)
    source: object = values.__getitem__
    if is_file:
        named = {f"{i}.{j}": t for i, listed in enumerate(values) for j, t in enumerate(listed) if t.numel()}
        save_file(named, str(tmp_path / "m.safetensors"))
        source = HostRing(blocks, order, slots + 1, is_fixed=False)
    ring = DeviceRing(blocks, order, slots, CPU, lane(), source)
    assert walk(ring, values, order, 3, slots - 1 if len(order) >= slots else 1) == 0
    ring.acquire(order[0])
    ring.restart()
    assert walk(ring, values, order, 2, 1) == 0
    assert ring.stats()["blocks"] == 5 * len(order) + 1
    ring.close()


def test_a_lane_that_forgets_is_noticed():
    values = tensors(4)
    ring = DeviceRing(blocks_of(values), [0, 1, 2, 3], 2, CPU, ForgetfulLane(), values.__getitem__)
    assert walk(ring, values, [0, 1, 2, 3], 2, 1) > 0


def test_each_copy_waits_for_who_used_its_slot():
    """The events, in order: a copy into a slot comes behind the mark of the computation that used it."""
    said: list[str] = []

    class Recorder(EarlyLane):
        def copy(self, to, source):
            said.append("copy")
            super().copy(to, source)

        def used(self):
            said.append("used")
            return len(said)

        def copy_after(self, event):
            assert event == len(said)
            said.append("after")

    values = [listed[:1] for listed in tensors(4)]
    ring = DeviceRing(blocks_of(values), [0, 1, 2, 3], 2, CPU, Recorder(), values.__getitem__)
    assert said == ["used", "after", "copy", "copy"]  # who had the slots' memory before
    assert walk(ring, values, [0, 1, 2, 3], 1, 1) == 0
    assert said[4:] == ["used", "after", "copy"] * 4


def test_blocks_out_of_turn():
    values = tensors(3)
    ring = DeviceRing(blocks_of(values), [0, 1, 2], 2, CPU, EarlyLane(), values.__getitem__)
    for call, text in (
        (lambda: ring.acquire(2), "block stream: block b.2 was asked for, wanted b.0, the next of the order"),
        (lambda: ring.release(0), "block stream: block b.0 was released, wanted none: none is in use"),
    ):
        with pytest.raises(overlace.Desync) as raised:
            call()
        assert str(raised.value) == text
    ring.acquire(0)
    ring.acquire(1)
    with pytest.raises(overlace.Desync, match=r"b.2 was asked for while all 2 slots are in use; wanted b.0 released"):
        ring.acquire(2)
    with pytest.raises(overlace.Desync, match=r"b.1 was released, wanted b.0"):
        ring.release(1)
