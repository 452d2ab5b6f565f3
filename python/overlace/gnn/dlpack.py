"""Rows as DLPack, with NumPy alone: given to whoever takes `__dlpack__`, taken from whoever has it; bf16 too."""

from __future__ import annotations

import ctypes as c
from typing import Any

import numpy as np

from overlace import errors

_CPU, _CUDA_HOST = 1, 3  # kinds of DLPack's devices whose memory the CPU reads
_UINT, _BFLOAT = 1, 4  # DLPack's codes of element types


class _Tensor(c.Structure):
    """DLTensor, with which a managed tensor begins."""

    _fields_ = (
        ("data", c.c_void_p),
        ("device", c.c_int32 * 2),
        ("ndim", c.c_int32),
        ("code", c.c_uint8),
        ("bits", c.c_uint8),
        ("lanes", c.c_uint16),
    )


_pointer = c.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c.c_void_p, (c.py_object, c.c_char_p)


def _tensor_of(capsule: Any) -> _Tensor:
    return _Tensor.from_address(_pointer(capsule, b"dltensor"))


class DlpackArray:
    """An array for `torch.from_dlpack`, `numpy.from_dlpack` and others: the memory is shared, not copied.

    `array`: the same elements by NumPy, bf16 as 16-bit words; `dtype`: "bf16" then, else that of the array.
    """

    def __init__(self, array: np.ndarray, is_bf16: bool = False) -> None:
        self.array = array
        self.dtype = "bf16" if is_bf16 else str(array.dtype)
        self.shape = array.shape

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_CPU, 0)

    def __dlpack__(self, **wanted: Any) -> Any:
        device = wanted.get("dl_device")
        if device is not None and tuple(device) != (_CPU, 0):
            raise BufferError(f"rows lie in the CPU's memory, wanted on device {tuple(device)}")
        if wanted.get("copy"):
            return DlpackArray(self.array.copy(), self.dtype == "bf16").__dlpack__()
        capsule = self.array.__dlpack__()
        if self.dtype == "bf16":
            _tensor_of(capsule).code = _BFLOAT
        return capsule

    def __len__(self) -> int:
        return len(self.array)

    def __repr__(self) -> str:
        return f"DlpackArray({self.shape}, {self.dtype})"


class _Words:
    """What another one gives of bf16, as 16-bit words, which NumPy takes."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_CPU, 0)

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule


def array_of(name: str, value: Any) -> tuple[np.ndarray, bool]:
    """What `value.__dlpack__()` gives, as an array in the same memory, and whether its 16-bit words are bf16.

    Unsupported, with `name`, where the CPU cannot read it.
    """
    device = tuple(int(word) for word in value.__dlpack_device__())
    if device[0] not in (_CPU, _CUDA_HOST):
        raise errors.Unsupported(
            f"{name} lies on DLPack device {device}, wanted one of the CPU: GPUs are not served yet"
        )
    capsule = value.__dlpack__()
    tensor = _tensor_of(capsule)
    is_bf16 = (tensor.code, tensor.bits, tensor.lanes) == (_BFLOAT, 16, 1)
    if is_bf16:
        tensor.code = _UINT
    try:
        return np.from_dlpack(_Words(capsule)), is_bf16
    except (BufferError, RuntimeError, TypeError) as why:
        raise errors.InvalidArgument(f"{name} cannot be taken by DLPack: {why}") from None
