"""Sums over in-neighbours of a graph that is dealt to ranks, whose partial sums travel behind the computation."""

from __future__ import annotations

import collections
import contextlib
import ctypes as c
import dataclasses
import itertools
import os
import struct
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from overlace import errors
from overlace._library import LIBRARY, Options, call, handle
from overlace.context import given_of, process_group
from overlace.gnn.parts import Edges, GraphPart

_CPU_BACKEND, _U8 = 1, 9  # enum ovl_backend, enum ovl_dtype
_HEADER = struct.Struct("<4q")  # in front of what goes to a peer: site, 1 for gradients, epoch, bytes of a row
HEADER_BYTES = _HEADER.size
_FRESH = -1  # the site of sums that are never late


class _Team:
    """A runtime of its own over a process group; a thread alone uses it, for all-to-alls in the order of `post`."""

    def __init__(self, group: dist.ProcessGroup, link: str | None, timeout_s: float) -> None:
        given, failures = given_of(group)
        options = Options(
            backend=_CPU_BACKEND, timeout_ms=round(timeout_s * 1000), link=None if link is None else link.encode()
        )
        try:
            self._runtime = handle("ovl_runtime_open_given", c.byref(given), c.byref(options))
        except errors.Error as error:
            raise error from (failures[0] if failures else None)
        world = handle("ovl_runtime_world", self._runtime)
        self._channel = handle("ovl_channel_open", world, c.c_void_p(None), 0)
        self._counts = c.c_int64 * group.size()
        self._thread = ThreadPoolExecutor(1, "overlace-halo")

    def post(self, send: Tensor, sent: list[int], received: list[int]) -> Future[tuple[Tensor, float]]:
        """Bytes for each rank and of each. The future gives what came, in rank order, and how many seconds it took; it
        ends by the runtime's deadline."""
        return self._thread.submit(self._exchange, send, sent, received)

    def _exchange(self, send: Tensor, sent: list[int], received: list[int]) -> tuple[Tensor, float]:
        begin = time.perf_counter()
        recv = torch.empty(sum(received), dtype=torch.uint8)
        pointers = [c.c_void_p(t.data_ptr()) for t in (send, recv)]
        counts = [self._counts(*one) for one in (sent, received)]
        call("ovl_all_to_allv", self._channel, pointers[0], counts[0], pointers[1], counts[1], _U8)
        return recv, time.perf_counter() - begin

    def abort(self, why: str) -> None:
        LIBRARY.ovl_runtime_abort(self._runtime, why.encode())

    def close(self) -> None:
        self._thread.shutdown()
        call("ovl_runtime_close", self._runtime)


class _Sum:
    """Edges as tensors."""

    def __init__(self, edges: Edges) -> None:
        self._source, self._target = (torch.from_numpy(ends) for ends in (edges.source, edges.target))
        self._num_targets = edges.num_targets

    def add(self, out: Tensor, x: Tensor) -> Tensor:
        return out.index_add_(0, self._target, x[self._source])

    def __call__(self, x: Tensor) -> Tensor:
        return self.add(x.new_zeros(self._num_targets, x.shape[1]), x)


def _rows_of_share(rows: tuple[int, ...], share: int, shares: int) -> tuple[np.ndarray, list[int]]:
    """Which rows of blocks of so many rows are in one of `shares` equal parts, and how many of each block."""
    begins = np.cumsum([0, *rows])[:-1]
    parts = [np.arange(n * share // shares, n * (share + 1) // shares) for n in rows]
    return np.concatenate([b + part for b, part in zip(begins, parts, strict=True)]), [len(part) for part in parts]


class _Share:
    """A part of the boundary that travels together: sums that are sent, and the places of those that come."""

    def __init__(self, pack: Edges, sent: tuple[int, ...], received: tuple[int, ...], share: int, shares: int) -> None:
        chosen, self.sent = _rows_of_share(sent, share, shares)
        number = np.full(pack.num_targets, -1)
        number[chosen] = np.arange(len(chosen))
        target = number[pack.target]
        is_in = target >= 0
        self.pack = _Sum(Edges(pack.source[is_in], target[is_in], pack.num_sources, len(chosen)))
        places, self.received = _rows_of_share(received, share, shares)
        self.places = torch.from_numpy(places)


class _Way:
    """Sums forward, or gradients on the way back: the same with all edges turned round."""

    def __init__(
        self,
        edges: tuple[Edges, Edges, Edges],
        sent: tuple[int, ...],
        received: tuple[int, ...],
        shares: int,
        is_back: int,
    ) -> None:
        local, pack, unpack = edges
        self.local, self.unpack = _Sum(local), _Sum(unpack)
        self.num_received, self.is_back = sum(received), is_back
        self.whole = _Share(pack, sent, received, 0, 1)
        self.shares = [_Share(pack, sent, received, share, shares) for share in range(shares)]


@dataclasses.dataclass
class _Site:
    """A sum that is computed once in an epoch, in one direction: what others sent last, and what is under way."""

    rows: Tensor
    epoch: int = 0
    open: collections.deque = dataclasses.field(default_factory=collections.deque)


@dataclasses.dataclass(frozen=True)
class HaloStats:
    """What this rank did since it opened the halo."""

    exchanges: int
    bytes_sent: int  # rows, and HEADER_BYTES for each peer and exchange
    exchange_s: float  # that exchanges took on the thread of the halo, waits for ranks that came later among it
    waited_s: float  # that the computation stood still for them


class SparseHalo:
    """Sums over in-neighbours of a partitioned graph, with partial sums of other ranks that are `delay` epochs late.

    part: what `partition` gave this rank. group: its ranks, on CPUs; as of `overlace.init`, which need not be called.
    delay: 0: each sum waits for fresh rows, which travel behind the sum over the rank's own edges: results of one
        process, but for the order of additions. r >= 1: the first epoch does so; in epoch e 1/r of the boundary is
        sent, in turn, and what was sent in epoch e - r is taken in, so that rows are at most 2 r - 1 epochs old. The
        same results in each run, whatever comes when. Gradients go back the same way, as late.
    link: an emulated link such as "1GB/s,20us"; None is OVERLACE_LINK. timeout_s: longest wait for a peer.

    Collective. It has a team and a thread of its own, over MPI where OVERLACE_NET_ENGINE=mpi says so. Raises
    InvalidArgument (arguments), PlanMismatch (parts of different graphs or another delay, with both ranks), PeerLost.
    Source: DistGNN (arXiv 2104.06700), its cd-0 and cd-r; here rows stay in use until they are renewed.
    """

    def __init__(
        self,
        part: GraphPart,
        group: object = None,
        delay: int = 0,
        *,
        link: str | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        if not isinstance(delay, int) or isinstance(delay, bool) or delay < 0:
            raise errors.InvalidArgument(f"SparseHalo: delay is {delay!r}, wanted 0 or more epochs")
        if not 0.001 <= timeout_s <= 86400:
            raise errors.InvalidArgument(f"SparseHalo: timeout_s is {timeout_s}, wanted 0.001 to 86400")
        found = process_group(group)
        if (part.rank, part.ranks) != (found.rank(), found.size()):
            raise errors.InvalidArgument(
                f"SparseHalo: part is of rank {part.rank} of {part.ranks}, wanted {found.rank()} of {found.size()}, "
                "those of the group"
            )
        self.part, self.delay = part, delay
        _check_others(part, delay, found)
        shares = max(delay, 1)
        there = part.local, part.send, part.receive
        back = part.local.transposed(), part.receive.transposed(), part.send.transposed()
        self._there = _Way(there, part.sent, part.received, shares, 0)
        self._back = _Way(back, part.received, part.sent, shares, 1)
        self._sites: dict[tuple[int, int], _Site] = {}
        self._exchanges, self._bytes_sent, self._exchange_s, self._waited_s = 0, 0, 0.0, 0.0
        self._is_open, self._process = True, os.getpid()
        self.in_degrees = torch.from_numpy(part.in_degrees)
        self._team = _Team(found, link, timeout_s)

    def aggregate(self, x: Tensor, site: int | None = None) -> Tensor:
        """The sum over in-neighbours of the rows of x, for each vertex of this rank; has a gradient. Collective.

        x: (own vertices, columns), floating point, on the CPU: row i belongs to vertex part.vertices[i].
        site: which sum of an epoch this is, 0 or more, such as the number of the layer: all ranks compute each site
            once in an epoch, in the same order, with the same columns and dtype in all epochs. None: fresh rows
            whatever `delay` is, for evaluation.

        Raises InvalidArgument; Timeout and PeerLost with rank and peer; Desync where ranks are at different sites or
        epochs. After the last three only close() is left.
        """
        self._check(x, site)
        return _Aggregate.apply(x, self, site)

    def _check(self, x: Tensor, site: int | None) -> None:
        if not self._is_open:
            raise errors.make("closed", "aggregate: the halo was closed")
        if os.getpid() != self._process:  # whose threads are not here
            raise errors.make(
                "forked", f"aggregate: process {os.getpid()} is a fork of {self._process}, wanted that one"
            )
        if site is not None and (not isinstance(site, int) or isinstance(site, bool) or site < 0):
            raise errors.InvalidArgument(f"aggregate: site is {site!r}, wanted None, or 0 or more")
        count = len(self.part.vertices)
        if x.dim() != 2 or x.shape[0] != count:
            raise errors.InvalidArgument(f"aggregate: x is {list(x.shape)}, wanted {count} rows, the rank's vertices")
        if x.device.type != "cpu" or not x.is_floating_point():
            raise errors.InvalidArgument(f"aggregate: x is {x.dtype} on {x.device}, wanted floating point on cpu")
        known = self._sites.get((_FRESH if site is None else site, 0))
        if known is not None and (known.rows.shape[1], known.rows.dtype) != (x.shape[1], x.dtype):
            raise errors.InvalidArgument(
                f"aggregate: x has {x.shape[1]} columns of {x.dtype} at site {site}, wanted {known.rows.shape[1]} of "
                f"{known.rows.dtype} as in its first epoch"
            )

    def _sum(self, x: Tensor, way: _Way, site: int | None) -> Tensor:
        number = _FRESH if site is None else site
        here = self._sites.get((number, way.is_back)) or _Site(x.new_empty(way.num_received, x.shape[1]))
        is_first = here.epoch == 0
        share = way.whole if is_first else way.shares[here.epoch % len(way.shares)]
        header = number, way.is_back, here.epoch, x.shape[1] * x.itemsize
        here.open.append((self._post(share, x, header), share, header))
        out = way.local(x)
        while len(here.open) > (0 if is_first else self.delay):
            self._take(here.rows, *here.open.popleft())
        if site is not None:
            here.epoch += 1
            self._sites[number, way.is_back] = here
        return way.unpack.add(out, here.rows)

    def _post(self, share: _Share, x: Tensor, header: tuple[int, ...]) -> Future[tuple[Tensor, float]]:
        """Sends each peer the header and its rows of the share."""
        label = torch.frombuffer(bytearray(_HEADER.pack(*header)), dtype=torch.uint8)
        blocks = share.pack(x).view(-1).view(torch.uint8).split([rows * header[3] for rows in share.sent])
        pieces = [(label, block) for peer, block in enumerate(blocks) if peer != self.part.rank]
        send = torch.cat([*itertools.chain.from_iterable(pieces), label[:0]])
        self._exchanges += 1
        self._bytes_sent += len(send)
        return self._team.post(send, self._bytes(share.sent, header), self._bytes(share.received, header))

    def _bytes(self, rows: list[int], header: tuple[int, ...]) -> list[int]:
        others = (peer != self.part.rank for peer in range(self.part.ranks))
        return [(HEADER_BYTES + n * header[3]) * is_other for n, is_other in zip(rows, others, strict=True)]

    def _take(self, rows: Tensor, future: Future[tuple[Tensor, float]], share: _Share, header: tuple[int, ...]) -> None:
        """Waits for what was sent with this header and puts it into its places in `rows`."""
        begin = time.perf_counter()
        came, seconds = future.result()
        self._waited_s += time.perf_counter() - begin
        self._exchange_s += seconds
        blocks = []
        for peer, block in enumerate(came.split(self._bytes(share.received, header))):
            if peer == self.part.rank:
                continue
            theirs = _HEADER.unpack(block[:HEADER_BYTES].numpy().tobytes())
            if theirs != header:
                self._fail(peer, theirs, header)
            blocks.append(block[HEADER_BYTES:].view(rows.dtype).view(-1, rows.shape[1]))
        rows[share.places] = torch.cat([*blocks, rows[:0]])

    def _fail(self, peer: int, theirs: tuple[int, ...], mine: tuple[int, ...]) -> None:
        why = f"aggregate: rank {peer} sent {_said(theirs)}, rank {self.part.rank} wanted {_said(mine)}"
        self._team.abort(why)
        raise errors.Desync(why)

    def stats(self) -> HaloStats:
        return HaloStats(self._exchanges, self._bytes_sent, self._exchange_s, self._waited_s)

    def abort(self, why: str) -> None:
        """All waits of all ranks end with PeerLost. From any thread; afterwards only close() is left."""
        self._team.abort(why)

    def close(self) -> None:
        """Waits for what is under way. Collective, unless the halo has failed. A second call does nothing."""
        if self._is_open:
            self._is_open = False
            self._sites.clear()
            self._team.close()

    def __enter__(self) -> SparseHalo:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
            return
        with contextlib.suppress(errors.Error):  # the others may wait for sums that this rank will never send
            self.abort(f"rank {self.part.rank} left with {type(error).__name__}: {error}")
            self.close()


def _said(header: tuple[int, ...]) -> str:
    site, is_back, epoch, row_bytes = header
    what = "gradients" if is_back else "sums"
    return f"{what} of site {None if site == _FRESH else site}, epoch {epoch}, rows of {row_bytes} B"


def _check_others(part: GraphPart, delay: int, group: dist.ProcessGroup) -> None:
    """PlanMismatch on all ranks, with two of them, where their parts or delays do not fit. Collective."""
    everybody: list[Any] = [None] * part.ranks
    dist.all_gather_object(everybody, (delay, part.sent, part.received), group=group)
    for (rank, mine), (peer, theirs) in itertools.product(enumerate(everybody), repeat=2):
        if mine[0] != theirs[0]:
            raise errors.PlanMismatch(
                f"SparseHalo: delay is {mine[0]} on rank {rank}, {theirs[0]} on rank {peer}, wanted the same"
            )
        if mine[1][peer] != theirs[2][rank]:
            raise errors.PlanMismatch(
                f"SparseHalo: rank {rank} has {mine[1][peer]} rows for rank {peer}, which wants {theirs[2][rank]}: "
                "their parts are not of one graph"
            )


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, halo, site):
        ctx.halo, ctx.site = halo, site
        return halo._sum(x.contiguous(), halo._there, site)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return ctx.halo._sum(grad.contiguous(), ctx.halo._back, ctx.site), None, None
