"""liboverlace.so by ctypes, and liboverlace_torch.so through torch."""

from __future__ import annotations

import ctypes as c
import functools
import importlib.util
from pathlib import Path

from overlace import errors

_FOLDER = Path(__file__).parent / "lib"
_TORCH_FLOOR = (2, 11)
ALLGATHER = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.c_size_t, c.c_void_p)
INTERRUPT_CHECK = c.CFUNCTYPE(c.c_int)


class _Sized(c.Structure):
    """A struct of overlace/capi.h that begins with its own size."""

    def __init__(self, **fields: object) -> None:
        super().__init__(struct_size=c.sizeof(type(self)), **fields)


class Options(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        ("backend", c.c_int32),
        ("has_device", c.c_int32),
        ("device", c.c_int32),
        ("num_signal_ids", c.c_uint32),
        ("heap_bytes", c.c_uint64),
        ("max_heap_bytes", c.c_uint64),
        ("timeout_ms", c.c_int64),
        ("link", c.c_char_p),
        ("adversary", c.c_char_p),
        ("checks", c.c_char_p),
        ("net_engine", c.c_char_p),
        ("machine", c.c_char_p),
    )


class Given(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        ("rank", c.c_int32),
        ("size", c.c_int32),
        ("token", c.c_char_p),
        ("allgather", ALLGATHER),
        ("user", c.c_void_p),
    )


class Info(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        ("rank", c.c_int32),
        ("size", c.c_int32),
        ("backend", c.c_int32),
        ("device", c.c_int32),
        ("is_emulated", c.c_int32),
        ("heap_bytes", c.c_uint64),
        ("heap_in_use", c.c_uint64),
        ("max_heap_bytes", c.c_uint64),
        ("calls", c.c_uint64),
        ("serialised_calls", c.c_uint64),
        ("moved_calls", c.c_uint64),
        ("preparations", c.c_uint64),
        ("evictions", c.c_uint64),
        ("heap_growths", c.c_uint64),
        ("smaller_plans", c.c_uint64),
        ("shared_blocks", c.c_uint64),
    )


class Op(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        ("name", c.c_char_p),
        ("m", c.c_int64),
        ("n", c.c_int64),
        ("k", c.c_int64),
        ("ranks", c.c_int32),
        ("dtype", c.c_int32),
        ("out_dtype", c.c_int32),
        ("b_layout", c.c_int32),
        ("has_bias", c.c_int32),
        ("has_a", c.c_int32),
        ("activation", c.c_int32),
        ("row_offsets", c.c_void_p),
        ("splits", c.c_void_p),
        ("exchange", c.c_int32),
        ("num_blocks", c.c_int32),
        ("blocks", c.c_void_p),
        ("scales", c.c_int32),
        ("b_dtype", c.c_int32),
    )


class Tensor(c.Structure):
    """ovl_tensor."""

    _fields_ = (
        ("data", c.c_void_p),
        ("dtype", c.c_int32),
        ("ndim", c.c_int32),
        ("sizes", c.c_int64 * 4),
        ("strides", c.c_int64 * 4),
    )


def names_of(struct: type[_Sized]) -> list[str]:
    """All but struct_size."""
    return [field[0] for field in struct._fields_[1:]]


class Arg(c.Structure):
    """ovl_arg."""

    _fields_ = (
        ("name", c.c_char_p),
        ("kind", c.c_int32),
        ("count", c.c_int32),
        ("tensor", Tensor),
        ("integer", c.c_int64),
        ("real", c.c_double),
        ("text", c.c_char_p),
        ("list", c.POINTER(c.c_int64)),
    )


def _load() -> c.CDLL:
    found = sorted(_FOLDER.glob("liboverlace.so.*"))
    if not found:
        raise ImportError(f"overlace: {_FOLDER} holds no liboverlace.so; install with `pip install .`")
    library = c.CDLL(str(found[0]))
    for name in ("ovl_error_text", "ovl_error_name", "ovl_version"):
        getattr(library, name).restype = c.c_char_p
    return library


LIBRARY = _load()
# NOTE: oneDNN's symbols clash with those of torch, so CPU tiles take the library's own loop beside it.
LIBRARY.ovl_cpu_gemm(b"reference")


def call(name: str, *arguments: object) -> None:
    """A function of overlace/capi.h; what it says becomes an exception."""
    code = getattr(LIBRARY, name)(*arguments)
    if code != 0:
        raise errors.make(LIBRARY.ovl_error_name(code).decode(), LIBRARY.ovl_error_text().decode())


def text(name: str, *arguments: object) -> str:
    """Calls a function whose last argument takes a text, and gives the text."""
    out = c.c_char_p()
    call(name, *arguments, c.byref(out))
    return (out.value or b"").decode()


def handle(name: str, *arguments: object) -> c.c_void_p:
    """Calls a function whose last argument takes a handle, and gives the handle."""
    out = c.c_void_p()
    call(name, *arguments, c.byref(out))
    return out


def why_no_torch() -> str:
    """Empty where the operators can be used, else what is missing."""
    if not (_FOLDER / "liboverlace_torch.so").exists():
        return "overlace was built without torch; install torch >= 2.11, then overlace again"
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed; the operators want torch >= 2.11"
    import torch

    version = torch.__version__
    if tuple(int(x) for x in version.split(".")[:2]) < _TORCH_FLOOR:
        return f"torch is {version}, the operators want >= {'.'.join(map(str, _TORCH_FLOOR))}"
    return ""


@functools.cache
def operators() -> c.CDLL:
    """Registers torch.ops.overlace.* at the first call; what else is in there, for ctypes."""
    import torch

    path = str(_FOLDER / "liboverlace_torch.so")
    torch.ops.load_library(path)
    return c.CDLL(path)
