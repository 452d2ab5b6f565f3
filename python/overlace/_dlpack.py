"""Memory by its address as a tensor, by DLPack: the device is told, where torch would ask the driver for it.

NOTE: asked for an address of a striped range, the driver names the owner of its first page, and torch would then copy.
"""

from __future__ import annotations

import ctypes as c

import torch

from overlace.errors import Internal

_CPU, _CUDA = 1, 2  # kinds of DLPack's devices
_UINT = 1  # DLPack's code of element types


class _Managed(c.Structure):
    """DLManagedTensor."""

    _fields_ = (
        ("data", c.c_void_p),
        ("device", c.c_int32 * 2),
        ("ndim", c.c_int32),
        ("code", c.c_uint8),
        ("bits", c.c_uint8),
        ("lanes", c.c_uint16),
        ("shape", c.POINTER(c.c_int64)),
        ("strides", c.POINTER(c.c_int64)),
        ("byte_offset", c.c_uint64),
        ("manager_ctx", c.c_void_p),
        ("deleter", c.c_void_p),
    )


_capsule = c.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = c.py_object, (c.c_void_p, c.c_char_p, c.c_void_p)
# Read when the last tensor goes, at whatever time that is: some hundred bytes for each range of a program.
_given: list[_Managed] = []


def bytes_at(address: int, num_bytes: int, device: torch.device) -> torch.Tensor:
    """uint8 elements; whoever has the memory keeps it while the tensor is used."""
    managed = _Managed(address)
    managed.device = (c.c_int32 * 2)(*((_CUDA, device.index) if device.type == "cuda" else (_CPU, 0)))
    managed.ndim, managed.code, managed.bits, managed.lanes = 1, _UINT, 8, 1
    managed.shape, managed.strides = (c.c_int64 * 1)(num_bytes), (c.c_int64 * 1)(1)
    _given.append(managed)
    t = torch.from_dlpack(_capsule(c.addressof(managed), b"dltensor", None))
    if t.data_ptr() != address or t.device != device:
        raise Internal(f"memory at {address:#x} became a tensor at {t.data_ptr():#x} on {t.device}, wanted {device}")
    return t
