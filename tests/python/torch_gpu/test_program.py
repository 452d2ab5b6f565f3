"""overlace inside a program: captured graphs, collectives of other groups on other streams, shapes that keep changing,
gradients. Every result is compared exactly. OVERLACE_TEST_TRAFFIC_S says how long the traffic goes on (default 20 s),
OVERLACE_TEST_SEED what it is drawn from.
"""

import gc
import os
import random
import re
import tempfile
import time

import pytest
from gpu_ranks import FEW, GPUS, dist, overlace, run_ranks, torch

TURNS = 30
SUM_SIZES = range(10, 24)  # logarithms
BF16 = torch.bfloat16


def drawn(rows, columns, seed):
    """-1, 0 and 1: sums of 2000 products stay below 256, where bf16 is exact."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(-1, 2, (rows, columns), generator=generator, device="cuda").to(BF16)


def times(a, b):
    return (a.double() @ b.double()).to(BF16)


class Case:
    """A call of one operator, its operands on all ranks, what must come out and what its gradients must be."""

    def __init__(self, op, m, n, k, group, plan="", seed=1):
        self.op, self.m, self.n, self.k, self.group, self.plan = op, m, n, k, group, plan
        self.rank, self.size = group.rank(), group.size()
        rows = m // self.size if op == "ag_gemm" else m
        self.x, self.w = torch.empty(rows, k, dtype=BF16), torch.empty(n, k, dtype=BF16)
        self.dy = torch.empty(m // self.size if op == "gemm_rs" else m, n, dtype=BF16)
        self.fill(seed)

    def fill(self, seed):
        """In place, so that a captured call gets other operands."""
        parts = range(self.size)
        gathers, seed = self.op == "ag_gemm", seed * 1000
        whole_x = (
            [drawn(self.m, self.k, seed)] * self.size if gathers else [drawn(self.m, self.k, seed + r) for r in parts]
        )
        weights = [drawn(self.n, self.k, seed + 100 + r) for r in parts]
        dys = [drawn(self.m, self.n, seed + 200 + (r if gathers else 0)) for r in parts]
        x, w, dy = whole_x[self.rank], weights[self.rank], dys[self.rank]
        mine = slice(self.rank * self.m // self.size, (self.rank + 1) * self.m // self.size)
        with torch.no_grad():
            self.x.copy_(x[mine] if gathers else x)
            self.w.copy_(w)
            self.dy.copy_(dy[mine] if self.op == "gemm_rs" else dy)
        if gathers:
            self.want = times(x, w.t())
            self.want_x = sum(dys[r].double() @ weights[r].double() for r in parts).to(BF16)[mine]
        else:
            total = sum(whole_x[r].double() @ weights[r].double().t() for r in parts).to(BF16)
            self.want = total[mine] if self.op == "gemm_rs" else total
            self.want_x = times(dy, w)
        self.want_w = times(dy.t(), x)

    def call(self):
        return getattr(overlace.ops, self.op)(self.x, self.w.t(), group=self.group, plan=self.plan)

    def step(self):
        x, w = (t.detach().requires_grad_() for t in (self.x, self.w))
        y = getattr(overlace.ops, self.op)(x, w.t(), group=self.group, plan=self.plan)
        return [y.detach(), *torch.autograd.grad(y, [x, w], self.dy)]

    def check(self, got, what):
        wants = [self.want, self.want_x, self.want_w]
        for name, mine, want in zip(("y", "grad of x", "grad of w"), got, wants, strict=False):
            assert torch.equal(mine, want), f"{what}: {name} of {self.op} M {self.m} N {self.n} K {self.k} {self.plan}"


class Captured:
    """A call, or a whole step, in a graph."""

    def __init__(self, case, has_gradients=False):
        self.case = case
        body = case.step if has_gradients else lambda: [case.call()]
        body()  # a first use is not captured
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.got = body()

    def check(self, seed, what):
        self.case.fill(seed)
        self.graph.replay()
        self.case.check(self.got, what)


def many_other_shapes(group, op):
    case = Case(op, 2048, 4096 if op == "gemm_rs" else 1024, 512, group)
    captured = Captured(case)
    for i in range(160):
        other = Case(op, 64 * group.size() + 8 * group.size() * i, 128 + 8 * (i % 16), 256, group, seed=i)
        other.check([other.call()], f"other shape {i}")
        if i % 40 == 39:
            captured.check(i, f"replay behind {i + 1} other shapes")
    captured.check(1000, "last replay")


@pytest.mark.parametrize("op", ["gemm_rs", "ag_gemm", "gemm_ar"])
def test_a_capture_survives_160_other_shapes(op):
    run_ranks(FEW, many_other_shapes, op)


def as_written(group):
    """The sizes at which it was seen; bits of the eager call are the wanted ones."""
    rank = group.rank()
    x, w = drawn(2048, 2048, 1 + rank), drawn(4096, 2048, 11 + rank)
    want = overlace.ops.gemm_rs(x, w.t(), group=group)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        got = overlace.ops.gemm_rs(x, w.t(), group=group)
    for i in range(160):
        overlace.ops.gemm_rs(drawn(128 + 16 * i, 256, i), drawn(256, 256, i).t(), group=group)
    got.fill_(float("nan"))
    graph.replay()
    assert torch.equal(got, want)


def test_a_capture_survives_as_it_was_seen_to_fail():
    run_ranks(FEW, as_written)


def larger_calls(group, op):
    size, rank, n, k = group.size(), group.rank(), 1024, 8192
    call = getattr(overlace.ops, op)

    def operands(m):
        return drawn(m // size if op == "ag_gemm" else m, k, m + rank), drawn(n, k, 7 + rank).t()

    x, w = operands(8192)
    want = call(x, w, group=group)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        got = call(x, w, group=group)
    for m in (16384, 32768):
        try:
            call(*operands(m), group=group)
        except overlace.OutOfMemory as error:
            assert "graph" in str(error), str(error)
        got.fill_(float("nan"))
        graph.replay()
        assert torch.equal(got, want), f"behind M {m}"


@pytest.mark.parametrize("op", ["ag_gemm", "gemm_rs"])
def test_a_capture_survives_larger_calls(op):
    run_ranks(FEW, larger_calls, op)


def end_of_another_context(group):
    other = dist.new_group(list(range(group.size())))
    captured = Captured(Case("gemm_rs", 1024, 512, 512, group))
    with overlace.init(other):
        theirs = Captured(Case("ag_gemm", 1024, 512, 512, other))
        theirs.check(2, "replay in the other context")
        captured.check(3, "replay beside the other context")
        torch.cuda.synchronize()
        del theirs
        gc.collect()
    captured.check(4, "replay behind the end of the other context")


def test_a_capture_survives_the_end_of_another_context():
    run_ranks(FEW, end_of_another_context)


def out_of_heap(group):
    """Two copies of the gathered rows are 1.25 GiB: more than the heap has at first, and than another may ever have."""
    size, rank, m, n, k = group.size(), group.rank(), 40960, 1024, 8192
    w = drawn(n, k, 7 + rank)
    w[:, torch.arange(k) % 4 > 0] = 0  # so that sums are exact in bf16
    rows = [drawn(m // size, k, 70 + r) for r in range(size)]
    want = times(torch.cat(rows), w.t())
    assert torch.equal(overlace.ops.ag_gemm(rows[rank], w.t(), group=group), want)
    stats = overlace.context_of(group).stats()
    assert stats.heap_growths >= 1 and stats.smaller_plans == 0, stats
    other, kept = dist.new_group(list(range(size))), os.dup(2)
    with tempfile.TemporaryFile("w+") as told:
        os.dup2(told.fileno(), 2)
        try:
            with overlace.init(other, heap_bytes=64 << 20, max_heap_bytes=128 << 20, timeout_s=60) as context:
                got = overlace.ops.ag_gemm(rows[rank], w.t(), group=other)
                torch.cuda.synchronize()
                stats = context.stats()
        finally:
            os.dup2(kept, 2)
        told.seek(0)
        said = told.read()
    assert torch.equal(got, want)
    assert stats.smaller_plans >= 1, stats
    explained = re.search(r"M 40960 .*: library: .*schedules need more than \d+ bytes of heap", said)
    assert (explained is not None) == (rank == 0), said


@pytest.mark.skipif(GPUS < 2, reason="one GPU: one rank gathers nothing")
def test_a_heap_grows_and_at_its_limit_the_library_is_taken(monkeypatch):
    monkeypatch.setenv("OVERLACE_EXPLAIN", "1")
    run_ranks(2, out_of_heap, fresh=True)


def beside_an_all_reduce(group, op, plan):
    """128 MiB on another stream and communicator; rank 0 queues it first, rank 1 the product first."""
    second, side, rank = dist.new_group(list(range(group.size()))), torch.cuda.Stream(), group.rank()
    big = torch.ones(32 << 20, dtype=torch.float32)
    case = Case(op, 2048, 8192, 256, group, plan)
    wide = drawn(2048 // group.size() if op == "ag_gemm" else 2048, 4096, 1 + rank), drawn(8192, 4096, 5 + rank).t()
    call = getattr(overlace.ops, op)
    want = call(*wide, group=group, plan=plan)
    case.check([case.call()], "alone")
    dist.all_reduce(big.clone(), group=second)
    torch.cuda.synchronize()

    def reduce():
        with torch.cuda.stream(side):
            total = big.clone()
            dist.all_reduce(total, group=second)
        return total

    for turn in range(TURNS):
        first = (rank == 0) == (turn % 2 == 0)
        total = reduce() if first else None
        got, small = call(*wide, group=group, plan=plan), case.call()
        total = total if first else reduce()
        torch.cuda.synchronize()
        assert torch.equal(got, want), f"turn {turn}"
        case.check([small], f"turn {turn}")
        assert torch.equal(total, big * group.size()), f"turn {turn}: the all-reduce"


PLANS = [
    ("gemm_rs", "family=tma_slot,degree=4"),
    ("gemm_ar", "family=tma_slot,degree=4"),
    ("ag_gemm", "family=k_slab,degree=4"),
    ("gemm_rs", "family=hetero_unfused_1d,degree=4"),
    ("gemm_rs", "family=library"),
    ("gemm_rs", ""),
    ("ag_gemm", ""),
]


@pytest.mark.skipif(GPUS < 2, reason="one GPU: NCCL has no two ranks on it")
@pytest.mark.parametrize(("op", "plan"), PLANS)
def test_beside_an_all_reduce_in_the_opposite_order(op, plan):
    run_ranks(2, beside_an_all_reduce, op, plan)


def beside_another_context(group, op, plan):
    second, side, rank = dist.new_group(list(range(group.size()))), torch.cuda.Stream(), group.rank()
    with overlace.init(second, timeout_s=60):
        here, there = Case(op, 2048, 8192, 512, group, plan), Case(op, 2048, 8192, 512, second, plan, seed=2)
        here.check([here.call()], "alone")
        with torch.cuda.stream(side):
            there.check([there.call()], "alone")
        torch.cuda.synchronize()
        for turn in range(TURNS):
            got = {}
            for which in (0, 1) if (rank == 0) == (turn % 2 == 0) else (1, 0):
                with torch.cuda.stream(side if which else torch.cuda.current_stream()):
                    got[which] = (there if which else here).call()
            torch.cuda.synchronize()
            here.check([got[0]], f"turn {turn}")
            there.check([got[1]], f"turn {turn}, the other context")


@pytest.mark.skipif(GPUS < 2, reason="one GPU: NCCL has no two ranks on it")
@pytest.mark.parametrize(("op", "plan"), PLANS)
def test_beside_another_context_in_the_opposite_order(op, plan):
    run_ranks(2, beside_another_context, op, plan)


def in_use(context):
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    stats = context.stats()
    assert stats.heap_in_use <= stats.heap_bytes
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "device bytes": total - free - torch.cuda.memory_reserved(),
    }


class Traffic:
    """One rank. All ranks draw the same steps; `own` decides when it hesitates and what it queues first."""

    def __init__(self, group, seed):
        self.group, self.dice, self.own = group, random.Random(seed), random.Random(seed * 64 + group.rank())
        self.second, self.side = dist.new_group(list(range(group.size()))), torch.cuda.Stream()
        self.known, self.graphs, self.sums, self.made = [], [], [], 0
        # First collectives connect the ranks, by size: they keep the host until all have called, as first calls do.
        for size in SUM_SIZES:
            dist.all_reduce(torch.zeros(1 << size, device="cuda"), group=self.second)
        torch.cuda.synchronize()

    def case(self):
        self.made += 1
        op = self.dice.choice(["ag_gemm", "gemm_rs", "gemm_ar"])
        m = self.group.size() * self.dice.randint(1, 512)
        n, k = 8 * self.dice.randint(1, 64), 8 * self.dice.randint(1, 64)
        return Case(op, m, n, k, self.group, seed=self.made)

    def beside(self, seed):
        with torch.cuda.stream(self.side):
            total = drawn(1, 1 << SUM_SIZES[seed % len(SUM_SIZES)], seed).float()
            want = total * self.group.size()
            dist.all_reduce(total, group=self.second)
        self.sums.append((total, want))

    def step(self):
        if self.own.random() < 0.2:
            time.sleep(self.own.choice([1e-4, 3e-4, 5e-3]))
        has_sums, first_on_all, first_here = self.dice.random() < 0.4, self.dice.random() < 0.5, self.own.random() < 0.5
        kind, self.made = self.dice.random(), self.made + 1
        made = self.made  # the same on all ranks, whatever comes first
        # In front of a first call, which waits for the device and on the host, all ranks queue a sum or none does.
        may_meet = kind < 0.75 or not self.known  # also the first gradients of a shape
        sums_first = first_on_all if may_meet else first_here
        if has_sums and sums_first:
            self.beside(made)
        if kind < 0.35 or not self.known:
            self.known = [*self.known[-7:], self.case()]
            self.known[-1].check([self.known[-1].call()], "new")
        elif kind < 0.6:
            case = self.dice.choice(self.known)
            case.fill(self.made)
            case.check(case.step(), "gradients")
        elif kind < 0.75 and len(self.graphs) < 4:
            self.graphs.append(Captured(self.case(), has_gradients=self.dice.random() < 0.5))
        elif kind < 0.95 and self.graphs:
            self.dice.choice(self.graphs).check(self.made, "replay")
        elif self.graphs:
            torch.cuda.synchronize()
            self.graphs.pop(self.dice.randrange(len(self.graphs)))
        if has_sums and not sums_first:
            self.beside(made)

    def settle(self):
        torch.cuda.synchronize()
        for total, want in self.sums:
            assert torch.equal(total, want), "an all-reduce of the second group"
        self.sums.clear()


def traffic(group, seed, seconds):
    steps, laps, program, context = 40, [], Traffic(group, seed), overlace.context_of(group)
    end = time.monotonic() + seconds
    while True:
        goes_on = [time.monotonic() < end]
        dist.broadcast_object_list(goes_on, 0)
        if not goes_on[0]:
            break
        for step in range(steps):
            try:
                program.step()
            except Exception as error:
                raise AssertionError(f"OVERLACE_TEST_SEED={seed}, lap {len(laps)}, step {step}") from error
        program.settle()
        laps.append(in_use(context))
    third = len(laps) // 3
    for name in laps[0] if third > 2 else ():
        before, after = (max(lap[name] for lap in part) for part in (laps[third : 2 * third], laps[2 * third :]))
        assert after <= before * 1.1 + 8, f"{name}: {before}, then {after}, in {len(laps)} laps"


def test_traffic():
    seed = int(os.environ.get("OVERLACE_TEST_SEED", random.randrange(1_000_000)))
    seconds = float(os.environ.get("OVERLACE_TEST_TRAFFIC_S", "20"))
    run_ranks(FEW, traffic, seed, seconds, fresh=True, wait_s=300 + seconds)
