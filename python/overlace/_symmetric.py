"""Tensors in the symmetric heap, and what kernels of the caller need to reach peers."""

from __future__ import annotations

import bisect
import ctypes as c
import dataclasses
import math
from collections.abc import Sequence

import torch

from overlace._library import call
from overlace.errors import InvalidArgument, Unsupported

_HANDLE_BYTES = 176  # sizeof(ChannelPod); the library refuses another size
_WORDS = 17  # OVL_WORD_BASES; the library refuses another number


class _Buffer(c.Structure):
    _fields_ = (("offset", c.c_uint64), ("bytes", c.c_uint64))


class _OnGpu:
    """Memory of a GPU, for torch.as_tensor."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


@dataclasses.dataclass(frozen=True)
class DeviceHandle:
    """pod: a ChannelPod of overlace/handle_pod.h, by value for CUDA kernels. first_id, ids: signals given with it.
    words: the fields of the pod, then first_id and the bases of the heaps (enum ovl_word of overlace/capi_words.h)."""

    pod: bytes
    first_id: int
    ids: int
    words: tuple[int, ...]

    def tensor(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """The words as an int64 tensor on a device, for kernels that take tensors (`overlace.triton`)."""
        return torch.tensor(self.words, dtype=torch.int64, device=device)


class Symmetric:
    """What one context has in the heap."""

    def __init__(
        self, runtime: c.c_void_p, team: c.c_void_p, channel: c.c_void_p, rank: int, size: int, device: torch.device
    ) -> None:
        self._runtime, self._team, self._channel = runtime, team, channel
        self._rank, self._size, self._device = rank, size, device
        self._begins: list[int] = []  # addresses, ascending
        self._buffers: dict[int, _Buffer] = {}

    def _address(self, buffer: _Buffer, rank: int) -> int | None:
        address = c.c_void_p()
        call("ovl_peer_ptr", self._team, buffer, rank, c.byref(address))
        return address.value

    def _bytes_at(self, address: int, num_bytes: int) -> torch.Tensor:
        if self._device.type == "cuda":
            return torch.as_tensor(_OnGpu(address, num_bytes), device=self._device)
        return torch.frombuffer((c.c_uint8 * num_bytes).from_address(address), dtype=torch.uint8)

    def empty(self, shape: int | Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        if not all(isinstance(n, int) and n >= 0 for n in sizes):
            raise InvalidArgument(f"empty_symmetric: shape is {sizes}, wanted numbers of 0 or more")
        if not isinstance(dtype, torch.dtype):
            raise InvalidArgument(f"empty_symmetric: dtype is {dtype!r}, wanted a torch.dtype")
        num_bytes = math.prod(sizes) * dtype.itemsize
        buffer = _Buffer()
        call("ovl_heap_alloc", self._runtime, c.c_uint64(max(num_bytes, 1)), c.c_uint64(0), b"torch", c.byref(buffer))
        address = self._address(buffer, self._rank)
        assert address is not None  # of this rank
        bisect.insort(self._begins, address)
        self._buffers[address] = buffer
        return self._bytes_at(address, max(num_bytes, 1))[:num_bytes].view(dtype).view(sizes)

    def begin_of(self, what: str, t: torch.Tensor) -> int:
        address = t.data_ptr()
        place = bisect.bisect_right(self._begins, address) - 1
        if place >= 0 and address < self._begins[place] + self._buffers[self._begins[place]].bytes:
            return self._begins[place]
        raise InvalidArgument(
            f"{what}: the tensor {list(t.shape)} lies in no memory of empty_symmetric of this context, wanted what it "
            "returned or a view of that"
        )

    def check_reached(self, what: str, t: torch.Tensor) -> None:
        buffer = self._buffers[self.begin_of(what, t)]
        for rank in range(self._size):
            if self._address(buffer, rank) is None:
                raise Unsupported(
                    f"{what}: loads and stores of rank {self._rank} do not reach rank {rank}, wanted ranks they reach"
                )

    def peer(self, t: torch.Tensor, rank: int) -> torch.Tensor:
        if not isinstance(rank, int) or not 0 <= rank < self._size:
            raise InvalidArgument(f"peer: rank is {rank!r}, wanted 0 to {self._size - 1}")
        begin = self.begin_of("peer", t)
        buffer = self._buffers[begin]
        address = self._address(buffer, rank)
        if address is None:
            raise Unsupported(
                f"peer: rank is {rank}, which loads and stores of rank {self._rank} do not reach, wanted one they do"
            )
        whole = self._bytes_at(address, buffer.bytes)
        offset = t.data_ptr() - begin
        aligned = whole[offset : offset + (buffer.bytes - offset) // t.element_size() * t.element_size()]
        return aligned.view(t.dtype).as_strided(t.shape, t.stride())

    def free(self, t: torch.Tensor) -> None:
        begin = self.begin_of("free", t)
        call("ovl_heap_free", self._runtime, self._buffers.pop(begin))
        self._begins.remove(begin)

    def handle(self, ids: int) -> DeviceHandle:
        if not isinstance(ids, int) or not 0 <= ids < 1 << 20:
            raise InvalidArgument(f"device_handle: ids is {ids!r}, wanted 0 to {(1 << 20) - 1}")
        pod, first = c.create_string_buffer(_HANDLE_BYTES), c.c_uint32()
        call("ovl_channel_handle", self._channel, ids, pod, c.c_uint64(_HANDLE_BYTES), c.byref(first))
        words = (c.c_int64 * (_WORDS + self._size))()
        call("ovl_handle_words", pod, c.c_uint64(_HANDLE_BYTES), first, words, len(words))
        return DeviceHandle(pod.raw, first.value, ids, tuple(words))
