"""Tensors whose rows lie at their owners, so that any kernel that writes them sends them while it computes."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch

from overlace import _library, errors, ops
from overlace._call import _DTYPES, tensor_of
from overlace._dlpack import bytes_at
from overlace._library import Tensor, call
from overlace.context import Context, context_of, open_contexts
from overlace.errors import Error, InvalidArgument, Unsupported

_OPERATORS = _library.operators()
_TEXT = 4000  # bytes of a message that ranks tell each other
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # elements as bits


class _Spec(c.Structure):
    """ovl_stripe_spec."""

    _fields_ = (
        ("struct_size", c.c_size_t),
        ("blocks", c.c_int64),
        ("rows", c.c_int64),
        ("cols", c.c_int64),
        ("dtype", c.c_int32),
        ("is_batched", c.c_int32),
        ("owners", c.POINTER(c.c_int32)),
        ("used", c.POINTER(c.c_int64)),
    )


class _Part(c.Structure):
    """ovl_stripe_part."""

    _fields_ = (("rank", c.c_int32), ("part", c.c_int32), ("data", c.c_void_p), ("bytes", c.c_uint64))


class _Told(c.Structure):
    """What a rank tells the others of a step that all take, or none."""

    _fields_ = (("code", c.c_char * 32), ("text", c.c_char * _TEXT))


def _agree(context: Context, check: Callable[[], Any]) -> Any:
    """What `check` gives, once it has been given on all ranks; what it raises on one, all raise. Collective."""
    mine, given = _Told(), None
    error: Exception | None = None
    try:
        given = check()
    except Error as raised:
        error = raised
        mine.code, mine.text = raised.code.encode(), str(raised).encode()[: _TEXT - 1]
    except Exception as raised:
        error = raised
        mine.code, mine.text = b"invalid_argument", f"{type(raised).__name__}: {raised}".encode()[: _TEXT - 1]
    told = (_Told * context.size)()
    try:
        call("ovl_team_exchange", context._team, c.byref(mine), c.c_size_t(c.sizeof(mine)), told)
    except Error as raised:
        raise error or raised from None
    if error is not None:
        raise error
    for rank, one in enumerate(told):
        if one.code:
            raise errors.make(one.code.decode(), f"rank {rank}: {one.text.decode(errors='replace')}")
    return given


def _on_stream(context: Context, name: str, *arguments: object) -> None:
    """A function of the operators' library, on the group's channel behind torch's current stream."""
    code = getattr(_OPERATORS, name)(context.name.encode(), *arguments)
    if code != 0:
        library = _library.LIBRARY
        raise errors.make(library.ovl_error_name(code).decode(), library.ovl_error_text().decode())


def _bits(t: torch.Tensor) -> torch.Tensor:
    return t.view(_WORDS[t.element_size()])


def _spec_of(
    context: Context,
    shape: Sequence[int],
    dtype: torch.dtype,
    owners: Sequence[int] | None,
    used_rows: Sequence[int] | None,
    name: str,
) -> _Spec:
    def numbers(what: str, given: object, wanted: str) -> list[int]:
        if isinstance(given, Sequence) and all(isinstance(n, int) and 0 <= n < 1 << 40 for n in given):
            return list(given)
        raise InvalidArgument(f"StripedTensor: {what} is {given!r}, wanted {wanted}")

    if not isinstance(name, str):
        raise InvalidArgument(f"StripedTensor: name is {name!r}, wanted a text")
    if dtype not in _DTYPES:
        raise InvalidArgument(f"StripedTensor: dtype is {dtype}, wanted one of {', '.join(map(str, _DTYPES))}")
    sizes = numbers("shape", shape, "two or three sizes")
    if len(sizes) not in (2, 3):
        raise InvalidArgument(f"StripedTensor: shape is {tuple(sizes)}, wanted two sizes, or three of a batch")
    if len(sizes) == 3 and sizes[0] < 1:
        raise InvalidArgument(f"StripedTensor: shape is {tuple(sizes)}, wanted at least 1 block")
    spec = _Spec(struct_size=c.sizeof(_Spec), dtype=_DTYPES[dtype], cols=sizes[-1], is_batched=len(sizes) == 3)
    ranks = None if owners is None else numbers("owners", owners, "ranks, one for each block")
    if spec.is_batched:
        spec.blocks, spec.rows = sizes[0], sizes[1]
    else:
        spec.blocks = context.size if ranks is None else len(ranks)
        if spec.blocks == 0 or sizes[0] % spec.blocks != 0:
            each = -(-sizes[0] // max(spec.blocks, 1))
            raise InvalidArgument(
                f"StripedTensor: shape is {tuple(sizes)}: {sizes[0]} rows, wanted a multiple of {spec.blocks} blocks; "
                f"({spec.blocks}, {each}, {sizes[1]}) with used_rows= has blocks of any length"
            )
        spec.rows = sizes[0] // spec.blocks
        if used_rows is not None:
            raise InvalidArgument(
                f"StripedTensor: used_rows is {used_rows}, wanted None where shape is {tuple(sizes)}, no batch"
            )
    if ranks is not None:
        if len(ranks) != spec.blocks:
            raise InvalidArgument(
                f"StripedTensor: owners has {len(ranks)} entries, wanted {spec.blocks}: one for each block"
            )
        spec.owners = (c.c_int32 * len(ranks))(*(min(rank, 1 << 30) for rank in ranks))
    if used_rows is not None:
        used = numbers("used_rows", used_rows, "rows, one number for each block")
        if len(used) != spec.blocks:
            raise InvalidArgument(
                f"StripedTensor: used_rows has {len(used)} entries, wanted {spec.blocks}: one for each block"
            )
        spec.used = (c.c_int64 * len(used))(*used)
    return spec


class StripedTensor:
    """Output of a kernel that knows nothing of ranks, each row of it in the memory of the rank that owns it.

    `out` is this rank's tensor: give it to whatever only writes its output, such as `torch.mm(a, b, out=t.out)`,
    `torch._scaled_mm(..., out=t.out)`, `torch.bmm` or a kernel in Triton. `reduce_scatter` and `all_to_all` then give
    what all ranks wrote for this one. Two tensors take turns, so ask for `out` each time: a call gives the other one.

    shape: (M, N), whose rows are cut into as many equal blocks as there are owners, or (blocks, rows, N), a batch with
        whole blocks. Owners begin at page edges (2 MiB on GPUs, 4 KiB of CPU ranks). Rows of (M, N) are therefore
        further apart where they must (`out.stride(0)`), up to twice the memory; blocks of a batch take whole pages.
    dtype: of its elements.
    group: as for `overlace.init`, which has been called for it.
    owners: the rank that owns each block; None: as many blocks for each, in rank order, one if shape is (M, N).
    used_rows: of a batch: how many rows of each block are results, none too; None: all.
    name: in messages.

    Collective, outside of captures of CUDA graphs, with the deadline of `overlace.init`; afterwards its calls may be
    captured. There is no gradient. All ranks raise what one of them finds: InvalidArgument (argument, value got, value
    wanted), PlanMismatch where ranks differ, Unsupported where GPUs cannot share pages so (`OVERLACE_HEAP=ipc`, other
    hosts) or blocks cannot end at page edges, OutOfMemory.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype = torch.bfloat16,
        group: object = None,
        *,
        owners: Sequence[int] | None = None,
        used_rows: Sequence[int] | None = None,
        name: str = "striped",
    ) -> None:
        self._context = context = context_of(group)
        self._handle: c.c_void_p | None = None
        self._is_proven = False
        spec = _agree(context, lambda: _spec_of(context, shape, dtype, owners, used_rows, name))
        handle = c.c_void_p()
        _on_stream(context, "ovl_torch_stripe", c.byref(spec), name.encode(), c.byref(handle))
        self._handle = handle
        self.name, self.shape, self.dtype = name, torch.Size(shape), dtype
        self.device = context.device
        self._used = [spec.used[b] for b in range(spec.blocks)] if used_rows is not None else [spec.rows] * spec.blocks
        each = max(spec.blocks // context.size, 1)
        self._owners = [spec.owners[b] if owners is not None else b // each for b in range(spec.blocks)]
        rows = c.c_int64()
        call("ovl_stripe_rows", handle, c.byref(rows))
        self.owned_rows: int = rows.value
        self._out, self._turn = Tensor(), c.c_int()
        self._outs = [self._matrix(turn) for turn in range(2)]

    def _open(self, what: str) -> c.c_void_p:
        if self._handle is None:
            error = InvalidArgument(
                f"StripedTensor.{what}: '{self.name}' was closed before this call, wanted one that is open"
            )
            error.code = "closed"
            raise error
        return self._handle

    def _matrix(self, turn: int) -> torch.Tensor:
        handle = self._open("out")
        call("ovl_stripe_out", handle, c.byref(self._out), None)
        parts, count = c.POINTER(_Part)(), c.c_int()
        call("ovl_stripe_parts", handle, turn, 0, c.byref(parts), c.byref(count))
        num_bytes = sum(parts[i].bytes for i in range(count.value))
        whole = bytes_at(parts[0].data, num_bytes, self.device).view(self.dtype)
        return whole.as_strided(self.shape, list(self._out.strides[: self._out.ndim]))

    @property
    def out(self) -> torch.Tensor:
        """The tensor that is to be written before the next call, all of it; nothing in it is kept."""
        call("ovl_stripe_out", self._open("out"), c.byref(self._out), c.byref(self._turn))
        return self._outs[self._turn.value]

    def reduce_scatter(self, *, out: torch.Tensor | None = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The sum over ranks, in their order, of the rows that this rank owns: (owned_rows, N). Collective.

        out: where it is written, rows of N contiguous elements; None: a new tensor. dtype: of a new one: that of this
            tensor, or float32 where that has 16 bits. Sums are taken in fp32 (fp64 of float64) and rounded once.
        In stream order: behind what the current stream of each rank has written into its `out`.
        """
        return self._take("reduce_scatter", self.owned_rows, out, dtype or self.dtype)

    def all_to_all(self, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """The rows that this rank owns as each rank wrote them, in rank order: (ranks x owned_rows, N). Collective.

        out: where they are written; None: a new tensor. In stream order, as `reduce_scatter`.
        """
        return self._take("all_to_all", self.owned_rows * self._context.size, out, self.dtype)

    def _take(self, what: str, rows: int, out: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
        handle = self._open(what)
        if out is None:
            out = torch.empty((rows, self.shape[-1]), dtype=dtype, device=self.device)
        to = tensor_of(f"StripedTensor.{what}", "out", out, self.device)
        _on_stream(self._context, "ovl_torch_stripe_take", handle, int(what == "reduce_scatter"), c.byref(to))
        return out

    def run(
        self, product: Callable[[torch.Tensor], object], *, inputs: Sequence[torch.Tensor] = (), verify: bool = True
    ) -> None:
        """`product(out)`, which writes all of `out`. The first run of this tensor proves it (`verify`), once.

        product: what is called, such as `lambda out: torch.mm(a, b, out=out)`.
        inputs: what it reads; none of them may have memory of this tensor.
        verify: False takes the product as it is. Collective in the first run where True.
        """
        if verify and not self._is_proven:
            self.verify(product, inputs=inputs)
        else:
            self._check_inputs("run", inputs)
        product(self.out)

    def verify(self, product: Callable[[torch.Tensor], object], *, inputs: Sequence[torch.Tensor] = ()) -> None:
        """Proves that `product(out)` writes every element, reads none, and does so at the owners. Collective.

        product, inputs: as for `run`. It is called for `out`, full of NaN, for a local tensor of the same strides and,
            where rows or blocks are apart, for a contiguous one. What the owners have must equal the local one bit for
            bit, which is sent to them by the team's engine.
        Outside of captures, and the host waits. All ranks raise Unsupported, with rank, place and both values, if a
        rank found a difference: kernels that add to their output (split K) give one.
        """
        self._open("verify")
        want = _agree(self._context, lambda: self._local_product(product, inputs))
        out = self.out
        _bits(out).fill_(-1 if out.element_size() > 1 else 255)  # NaN of every floating type
        _agree(self._context, lambda: product(out))
        got = self.all_to_all()
        expected = self._at_owners(want)
        _agree(self._context, lambda: self._compare(_bits(got), expected, got))
        self._is_proven = True

    def _local_product(self, product: Callable[[torch.Tensor], object], inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            error = InvalidArgument("StripedTensor.verify: the stream is being captured; wanted before the capture")
            error.code = "capture"
            raise error
        self._check_inputs("verify", inputs)
        like = self._outs[0]
        want = torch.empty_strided(like.shape, like.stride(), dtype=self.dtype, device=self.device)
        _bits(want).zero_()
        product(want)
        if not want.is_contiguous():
            self._check_strides(product, want)
        return want

    def _check_strides(self, product: Callable[[torch.Tensor], object], want: torch.Tensor) -> None:
        """A kernel that takes its output for contiguous has the same bits wherever it writes wrongly."""
        plain = torch.empty(want.shape, dtype=self.dtype, device=self.device)
        product(plain)
        differs = (want.double() - plain.double()).abs().max().item()
        largest = plain.double().abs().max().item()
        if not differs <= largest / 16:  # NaN, too; other strides may round otherwise
            raise Unsupported(
                f"StripedTensor.verify: '{self.name}': the product differs by {differs:.3g} of {largest:.3g} between "
                f"an output with strides {tuple(want.stride())} and a contiguous one, wanted one that keeps to strides"
            )

    def _check_inputs(self, what: str, inputs: Sequence[torch.Tensor]) -> None:
        handle = self._open(what)
        for i, t in enumerate(inputs):
            if not isinstance(t, torch.Tensor):
                raise InvalidArgument(
                    f"StripedTensor.{what}: inputs[{i}] is a {type(t).__name__}, wanted a torch.Tensor"
                )
            if t.device != self.device or t.numel() == 0:
                continue
            extent = sum((n - 1) * stride for n, stride in zip(t.shape, t.stride(), strict=True)) + 1
            extent *= t.element_size()
            view = Tensor(t.data_ptr(), _DTYPES[torch.uint8], 1, (extent, 0, 0, 0), (1, 0, 0, 0))
            call("ovl_stripe_check_input", handle, f"inputs[{i}]".encode(), view)

    def _at_owners(self, want: torch.Tensor) -> torch.Tensor:
        """Bits of the used rows that this rank owns, as each rank has computed them by itself, in rank order."""
        blocks = _bits(want) if len(self.shape) == 3 else _bits(want).unflatten(0, (len(self._used), -1))
        sent, counts = [], [0] * self._context.size
        for owner in range(self._context.size):
            for block, used, of in zip(blocks, self._used, self._owners, strict=True):
                if of == owner:
                    sent.append(block[:used])
                    counts[owner] += used
        received = [self.owned_rows] * self._context.size
        try:
            return ops.all_to_all(torch.cat(sent), group=self._context.group, send_splits=counts, recv_splits=received)
        except Unsupported:  # no engine, on no rank: by a plain copy into the other matrix
            self.out.copy_(want)
            return _bits(self.all_to_all())

    def _compare(self, got: torch.Tensor, expected: torch.Tensor, values: torch.Tensor) -> None:
        differs = (got != expected).nonzero()
        if len(differs) == 0:
            return
        row, column = differs[0].tolist()
        source, row_here = divmod(row, self.owned_rows)
        wanted = expected[row, column].view(self.dtype).item()
        raise Unsupported(
            f"StripedTensor.verify: '{self.name}': {len(differs)} of {got.numel()} elements are not those of the local "
            f"product, first row {row_here} of this rank, column {column}, as rank {source} wrote it: "
            f"{values[row, column].item()}, wanted {wanted}; a product must store all of its output and read none of it"
        )

    def close(self) -> None:
        """Gives the memory back once all ranks are here. Collective; its tensors and graphs are not used any more."""
        handle, self._handle = self._handle, None
        if handle is None or self._context not in open_contexts():
            return  # it ended with the team
        self._outs = []
        call("ovl_stripe_free", handle)

    def __enter__(self) -> StripedTensor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:  # else the others may not come: the team's close gives it back
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self._handle is None else f"{self.owned_rows} rows of rank {self._context.rank}"
        return f"<overlace.StripedTensor '{self.name}' of {tuple(self.shape)}, {self.dtype}, {state}>"
