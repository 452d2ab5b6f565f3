"""Rows by their numbers on CUDA devices, with torch: the kernel behind `gather_rows`, memory that it may read."""

from __future__ import annotations

import ctypes as c
import math
import sys
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from overlace import errors
from overlace.gnn import _native

if TYPE_CHECKING:
    import torch

_PORTABLE = 1  # cudaHostRegisterPortable: for all devices


def is_tensor(value: Any) -> bool:
    """Whether it is one of torch, which is not imported for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def device_among(*values: Any) -> torch.device | None:
    """Device of the first tensor of these that lies on a CUDA device."""
    return next((v.device for v in values if is_tensor(v) and v.is_cuda), None)


def row_bytes(name: str, shape: Sequence[int], is_dense: bool, item_bytes: int) -> int:
    """Bytes of a row of an array or a tensor of this shape."""
    shape = tuple(shape)
    if not shape or not is_dense:
        raise errors.InvalidArgument(f"{name} of shape {shape} is not rows one behind the other")
    width = math.prod(shape[1:]) * item_bytes
    if width < 1:
        raise errors.InvalidArgument(f"{name} of shape {shape} has rows of {width} bytes, wanted at least 1")
    return width


def out_of_range(place: int, value: int, num_rows: int) -> errors.InvalidArgument:
    wanted = f"0 to {num_rows - 1}" if num_rows > 0 else "none: the table is empty"
    return errors.InvalidArgument(f"ids[{place}] is {value}, wanted {wanted}")


def _check_parts(parts: Sequence[Any]) -> int:
    """Bytes of a row of all of them."""
    if not parts:
        raise errors.InvalidArgument("table has no parts, wanted at least one tensor")
    for i, part in enumerate(parts):
        name = f"table[{i}]" if len(parts) > 1 else "table"
        if not is_tensor(part):
            raise errors.InvalidArgument(f"{name} is {type(part).__name__}, wanted a tensor for a gather on a GPU")
        if part.shape[1:] != parts[0].shape[1:] or part.dtype != parts[0].dtype:
            raise errors.InvalidArgument(
                f"{name} has rows of shape {tuple(part.shape[1:])} and dtype {part.dtype}, wanted"
                f" {tuple(parts[0].shape[1:])} and {parts[0].dtype}"
            )
        width = row_bytes(name, part.shape, part.is_contiguous(), part.element_size())
    return width


def _checked_out(out: Any, shape: tuple[int, ...], like: torch.Tensor, device: torch.device) -> torch.Tensor:
    if out is None:
        return like.new_empty(shape, device=device)
    if not is_tensor(out) or out.device != device:
        where = out.device if is_tensor(out) else type(out).__name__
        raise errors.InvalidArgument(f"out lies on {where}, wanted a tensor on {device}")
    if tuple(out.shape) != shape or out.dtype != like.dtype or not out.is_contiguous():
        raise errors.InvalidArgument(
            f"out has shape {tuple(out.shape)} and dtype {out.dtype}, wanted {shape} and {like.dtype}, contiguous"
        )
    return out


def _on_device(ids: Any, num_rows: int, device: torch.device) -> tuple[torch.Tensor, bool]:
    """Numbers of 32 or 64 bits on the device, and whether they are known to be in range."""
    import torch

    if is_tensor(ids) and ids.is_cuda:
        kinds = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
        if ids.ndim != 1 or ids.dtype not in kinds:
            raise errors.InvalidArgument(
                f"ids have shape {tuple(ids.shape)} and dtype {ids.dtype}, wanted a row of integers"
            )
        kind = torch.int32 if ids.dtype == torch.int32 else torch.int64
        return ids.detach().to(device, kind).contiguous(), False
    array: np.ndarray = ids
    wrong = np.flatnonzero((array < 0) | (array >= num_rows))
    if wrong.size > 0:
        raise out_of_range(int(wrong[0]), int(array[wrong[0]]), num_rows)
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device), True


def gather(parts: Sequence[Any], ids: Any, out: Any, device: torch.device, check: bool) -> torch.Tensor:
    """Row i of the result, on `device`, is row ids[i] of the parts, whose rows are numbered one part behind the other.

    `ids`: a CUDA tensor, or an array of int32 or int64. Queued on the current stream of the device. Ids in its memory
    are looked at by the kernel, and with `check` this waits for it.
    """
    import torch

    width = _check_parts(parts)
    num_rows = sum(len(part) for part in parts)
    ids, is_known = _on_device(ids, num_rows, device)
    out = _checked_out(out, (len(ids), *parts[0].shape[1:]), parts[0], device)
    is_checked = check and not is_known and len(ids) > 0
    stream = torch.cuda.current_stream(device)
    with torch.cuda.device(device):
        is_captured = torch.cuda.is_current_stream_capturing()
        if is_checked and is_captured:
            raise errors.InvalidArgument("check is True while the stream is captured, wanted False: it would wait")
        first_bad = torch.full((1,), -1, dtype=torch.int64, device=device) if is_checked else None
    peers = [torch.cuda.current_stream(p.device) for p in parts if p.is_cuda and p.device != device]
    for peer in [] if is_captured else peers:
        stream.wait_stream(peer)
    sources = (_native.RowSource * len(parts))(*(_native.RowSource(part.data_ptr(), len(part)) for part in parts))
    request = _native.DeviceGather(
        sources=c.cast(sources, c.c_void_p),
        num_sources=len(parts),
        row_bytes=width,
        ids=ids.data_ptr(),
        num_ids=len(ids),
        id_bytes=ids.element_size(),
        device=device.index,
        out=out.data_ptr(),
        first_bad=None if first_bad is None else first_bad.data_ptr(),
        stream=stream.cuda_stream,
    )
    _native.call("ovl_gnn_gather_rows_on_device", c.byref(request))
    for peer in [] if is_captured else peers:
        peer.wait_stream(stream)
    if first_bad is not None and (place := int(first_bad)) >= 0:
        raise out_of_range(place, int(ids[place]), num_rows)
    return out


def checked(name: str, device: Any) -> torch.device:
    """A CUDA device with its number."""
    import torch

    device = torch.device(device)
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type != "cuda" or (device.index or 0) >= found:
        raise errors.Unsupported(f"{name} is {device}, wanted one of the {found} CUDA devices that torch finds")
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)


def tensor_of(name: str, rows: Any) -> torch.Tensor:
    """An array in the same memory as a tensor."""
    import torch

    if is_tensor(rows):
        return rows
    try:
        return torch.from_numpy(rows)
    except TypeError:
        raise errors.InvalidArgument(f"{name} has dtype {rows.dtype}, wanted one that torch has") from None


class _Bytes:
    """Memory of a CUDA device that the library owns, as torch takes it."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


def bytes_at(address: int, nbytes: int, device: torch.device) -> torch.Tensor:
    """Memory of this device as a tensor (nbytes) of uint8, not copied."""
    import torch

    with torch.cuda.device(device):
        return torch.as_tensor(_Bytes(address, nbytes), device=device)


def pin(owner: Any, memory: np.ndarray) -> None:
    """Lets CUDA devices read this memory until `owner` goes."""
    import torch

    with torch.cuda.device(owner.device):
        runtime: Any = torch.cuda.cudart()
        code = int(runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, _PORTABLE))
    if code != 0:
        raise errors.Unsupported(
            f"{memory.nbytes} bytes cannot be pinned for {owner.device} (cudaHostRegister: error {code}); pass"
            " device=None for a table that CPUs gather from"
        )
    # What still holds a tensor of the memory when a program ends must not see it go.
    weakref.finalize(owner, _unpin, memory, owner.device).atexit = False


def _unpin(memory: np.ndarray, device: torch.device) -> None:
    """Behind all gathers that are under way; the memory is held until then."""
    import torch

    torch.cuda.synchronize(device)
    runtime: Any = torch.cuda.cudart()
    runtime.cudaHostUnregister(memory.ctypes.data)
