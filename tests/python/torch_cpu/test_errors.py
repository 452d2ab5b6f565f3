"""Errors: class, code and text; teams that are closed, opened again, left and lost."""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import TIMEOUT_S, overlace, run_ranks, torch, whole

errors = overlace.errors


def raised(body):
    """(class, code, text) of what `body` raises."""
    try:
        body()
    except errors.Error as error:
        return type(error), error.code, str(error)
    raise AssertionError("nothing was raised")


def bad_calls(group):
    ops, name = overlace.ops, group.group_name
    a, b = whole(4, 6, 1), whole(6, 5, 2)

    def traced(bs, activation):
        bs = [b.to("meta") for b in bs]
        torch.ops.overlace.ag_gemm(a.to("meta"), bs, [], 0, name, activation=activation)

    return {
        "K": raised(lambda: ops.ag_gemm(a, b[:4], group=group)),
        "K of the second": raised(lambda: ops.ag_gemm(a, [b, b[:2]], group=group)),
        "rows": raised(lambda: ops.gemm_rs(whole(5, 6, 1), b, group=group)),
        "rows of torch.ops": raised_by_torch(
            lambda: torch.ops.overlace.gemm_rs(whole(5, 6, 1), b, None, "sum", 0, name)
        ),
        "vector": raised(lambda: ops.ag_gemm(a[0], b, group=group)),
        "gather_dim": raised(lambda: ops.ag_gemm(a, b, group=group, gather_dim=1)),
        "bias": raised(lambda: ops.gemm_rs(a, b, group=group, bias=b[0, :4])),
        "biases": raised(lambda: ops.ag_gemm(a, [b], group=group, biases=[b[0], b[1]])),
        "no weights": raised(lambda: ops.ag_gemm(a, [], group=group)),
        "reduce_op": raised(lambda: ops.gemm_ar(a, b, group=group, reduce_op="max")),
        "activation": raised(lambda: ops.gemm_rs(a, b, group=group, activation="relu")),
        "odd columns": raised(lambda: ops.ag_gemm(a, b, group=group, activation="swiglu")),
        "activation of torch.ops": raised_by_torch(
            lambda: torch.ops.overlace.ag_gemm(a, [b], [], 0, name, activation="silu")
        ),
        "swiglu of several": raised_by_torch(
            lambda: torch.ops.overlace.ag_gemm(a, [b[:, :4], b[:, :2]], [], 0, name, activation="swiglu")
        ),
        "swiglu of odd columns": raised_by_torch(
            lambda: torch.ops.overlace.ag_gemm(a, [b], [], 0, name, activation="swiglu")
        ),
        "traced activation": raised(lambda: traced([b], "silu")),
        "traced swiglu of several": raised(lambda: traced([b[:, :4], b[:, :2]], "swiglu")),
        "traced swiglu of odd columns": raised(lambda: traced([b], "swiglu")),
        "swiglu with a gradient": raised(
            lambda: torch.ops.overlace.ag_gemm(a, [b[:, :4].requires_grad_()], [], 0, name, activation="swiglu")
        ),
        "swiglu of gemm_rs": raised_by_torch(
            lambda: torch.ops.overlace.gemm_rs(a, b, None, "sum", 0, name, activation="swiglu")
        ),
        "activation of a plan": raised(
            lambda: overlace.plan("ag_gemm", 8, 4, 6, dtype=torch.float32, group=group, activation="silu")
        ),
        "gate and up": raised(lambda: overlace.nn.interleave_gate_up(a, b)),
        "offsets": raised(lambda: ops.ag_gemm(a, b, group=group, row_offsets=[0, 4])),
        "offsets fall": raised(lambda: ops.gemm_rs(a, b, group=group, row_offsets=[0, 5, 4])),
        "offsets of other rows": raised(lambda: ops.gemm_rs(a, b, group=group, row_offsets=[0, 2, 6])),
        "my offsets": raised(lambda: ops.ag_gemm(a, b, group=group, row_offsets=[0, 3, 6])),
        "rows of dy": raised(lambda: ops.ag_wgrad(a, b, group=group)),
        "plan of ag_wgrad": raised(lambda: ops.ag_wgrad(a, whole(8, 5, 1), group=group, plan="family=k_slab")),
        "plan": raised(lambda: ops.gemm_ar(a, b, group=group, plan=":2")),
        "degree": raised(lambda: ops.gemm_ar(a, b, group=group, plan="library:many")),
        "degree of before": raised(lambda: ops.gemm_ar(a, b, group=group, plan="family=library,degree=0")),
        "family": raised(lambda: ops.gemm_ar(a, b, group=group, plan="none_such:4")),
        "measured": raised(lambda: ops.gemm_ar(a, b, group=group, plan="compute")),
        "number as a plan": raised(lambda: ops.gemm_ar(a, b, group=group, plan=4)),
        "number as a plan of the pass": raised(lambda: overlace.compile.Pass(group, plan=4)),
        "number as a plan of a call": raised(lambda: overlace.call("gemm_ar", {}, group=group, plan=4)),
        "JSON": raised(lambda: ops.gemm_ar(a, b, group=group, plan="{}")),
        "group": raised(lambda: ops.gemm_ar(a, b, group="tp")),
        "group of a collective": raised(lambda: ops.all_reduce(a, group="tp")),
        "no dimension": raised(lambda: ops.all_gather(a[0, 0], group=group)),
        "dim": raised(lambda: ops.all_to_all(a, group=group, dim=2)),
        "parts": raised(lambda: ops.all_to_all(a[:3], group=group)),
        "parts of the last": raised(lambda: ops.reduce_scatter(b, group=group, dim=-1)),
        "reduce_op of a collective": raised(lambda: ops.all_reduce(a, group=group, reduce_op="max")),
        **{f"{key} of a shape": raised(lambda call=call: meta(call)) for key, call in bad_shapes(ops, group).items()},
        "again": raised(lambda: overlace.init(group)),
        "backend": raised(lambda: overlace.init(group, backend="tpu")),
    }


def bad_shapes(ops, group):
    return {
        "no dimension": lambda a: ops.all_gather(a[0, 0], group=group),
        "dim": lambda a: ops.all_to_all(a, group=group, dim=2),
        "parts": lambda a: ops.all_to_all(a[:3], group=group),
        "group": lambda a: ops.all_reduce(a, group="tp"),
    }


def meta(call):
    call(torch.empty(4, 6, device="meta"))


def raised_by_torch(body):
    with pytest.raises(RuntimeError) as caught:
        body()
    return type(caught.value), None, str(caught.value)


WANTED = {
    "K": (errors.InvalidArgument, "ag_gemm: a is [4, 6] on rank 0, bs[0] is [4, 5]: K 6 != 4, wanted the same"),
    "K of the second": (
        errors.InvalidArgument,
        "ag_gemm: a is [4, 6] on rank 0, bs[1] is [2, 5]: K 6 != 2, wanted the same",
    ),
    "rows": (
        errors.InvalidArgument,
        "gemm_rs: a is [5, 6], scatter_dim 0: 5, wanted a multiple of 2 ranks; row_offsets split it otherwise",
    ),
    "rows of torch.ops": (
        RuntimeError,
        "[invalid_argument] gemm_rs: a is [5, 6], scatter_dim 0: 5, wanted a multiple of 2 ranks; row_offsets split "
        "it otherwise",
    ),
    "vector": (errors.InvalidArgument, "ag_gemm: a is [6], wanted two dimensions or more"),
    "gather_dim": (
        errors.InvalidArgument,
        "ag_gemm: gather_dim is 1, a is [4, 6]: wanted 0 to 0; the last is that of the sum",
    ),
    "bias": (errors.InvalidArgument, "gemm_rs: bias is [4], wanted [5]"),
    "biases": (errors.InvalidArgument, "ag_gemm: 2 biases for 1 bs, wanted as many or none"),
    "no weights": (errors.InvalidArgument, "ag_gemm: bs is empty, wanted one matrix or more"),
    "activation": (
        errors.InvalidArgument,
        "gemm_rs: activation is 'relu', wanted one of none, silu, gelu, swiglu",
    ),
    "odd columns": (errors.InvalidArgument, "ag_gemm: activation is 'swiglu', b is [6, 5]: wanted pairs of columns"),
    "activation of torch.ops": (
        RuntimeError,
        "[not_supported] ag_gemm: activation is 'silu', only 'none' and 'swiglu' are there; overlace.ops.ag_gemm has "
        "others",
    ),
    "swiglu of several": (
        RuntimeError,
        "[not_supported] ag_gemm: activation is 'swiglu' of 2 bs, wanted one; overlace.ops.ag_gemm takes several",
    ),
    "swiglu of odd columns": (
        RuntimeError,
        "[invalid_argument] ag_gemm: activation is 'swiglu', b is [6, 5]: wanted pairs of columns",
    ),
    "traced activation": (
        errors.Unsupported,
        "ag_gemm: activation is 'silu', only 'none' and 'swiglu' are there; overlace.ops.ag_gemm has others",
    ),
    "traced swiglu of several": (
        errors.Unsupported,
        "ag_gemm: activation is 'swiglu' of 2 bs, wanted one; overlace.ops.ag_gemm takes several",
    ),
    "traced swiglu of odd columns": (
        errors.InvalidArgument,
        "ag_gemm: activation is 'swiglu', b is [6, 5]: wanted pairs of columns",
    ),
    "swiglu with a gradient": (
        errors.Unsupported,
        "ag_gemm: activation is 'swiglu' where a gradient is needed, wanted none; overlace.ops.ag_gemm does it behind "
        "the operator",
    ),
    "swiglu of gemm_rs": (
        RuntimeError,
        "[not_supported] gemm_rs: activation is 'swiglu', only 'none' is there; overlace.ops.gemm_rs has others",
    ),
    "activation of a plan": (errors.InvalidArgument, "plan: activation is 'silu', wanted one of none, swiglu"),
    "gate and up": (
        errors.InvalidArgument,
        "interleave_gate_up: gate is [4, 6], up is [6, 5], wanted one shape",
    ),
    "reduce_op": (errors.InvalidArgument, "gemm_ar: reduce_op is 'max', wanted 'sum' or 'avg'"),
    "offsets": (
        errors.InvalidArgument,
        "ag_gemm: row_offsets are [0, 4], wanted 3 numbers that begin with 0 and do not fall",
    ),
    "offsets fall": (
        errors.InvalidArgument,
        "gemm_rs: row_offsets are [0, 5, 4], wanted 3 numbers that begin with 0 and do not fall",
    ),
    "offsets of other rows": (errors.InvalidArgument, "gemm_rs: a is [4, 6], row_offsets end with 6, wanted 4"),
    "my offsets": (errors.InvalidArgument, "ag_gemm: a is [4, 6] on rank 0, row_offsets give it 3 rows, wanted 4"),
    "rows of dy": (errors.InvalidArgument, "ag_wgrad: dys[0] is [6, 5], wanted the 8 rows of all ranks"),
    "plan of ag_wgrad": (errors.ScheduleError, "ag_wgrad: unknown family 'k_slab' (known: library, serial, "),
    "plan": (
        errors.InvalidArgument,
        "gemm_ar: plan is ':2', wanted auto, FAMILY, FAMILY:DEGREE with a degree >= 1, or a schedule in JSON",
    ),
    "degree": (errors.InvalidArgument, "gemm_ar: plan is 'library:many', wanted auto, FAMILY"),
    "degree of before": (errors.InvalidArgument, "gemm_ar: plan is 'family=library,degree=0', wanted auto, FAMILY"),
    "measured": (
        errors.InvalidArgument,
        "gemm_ar: plan is 'compute', which measures a part, wanted a family that gives the result",
    ),
    "number as a plan": (errors.InvalidArgument, "gemm_ar: plan is 4, wanted a text, as 'hetero_unfused_1d:4'"),
    "number as a plan of the pass": (errors.InvalidArgument, "overlace.compile: plan is 4, wanted a text, as"),
    "number as a plan of a call": (errors.InvalidArgument, "overlace.call: plan is 4, wanted a text"),
    "family": (errors.ScheduleError, "unknown family 'none_such'"),
    "JSON": (errors.ScheduleError, "schedule"),
    "group": (
        errors.InvalidArgument,
        "gemm_ar: group 'tp' has no overlace team: call overlace.init(group) on all its ranks before the first op",
    ),
    **{
        key + suffix: (errors.InvalidArgument, text)
        for suffix in ("", " of a shape")
        for key, text in {
            "no dimension": "all_gather: x is [], wanted one dimension or more",
            "dim": "all_to_all: dim is 2, x is [4, 6]: wanted -2 to 1",
            "parts": "all_to_all: x is [3, 6], dim 0: 3, wanted a multiple of 2 ranks",
        }.items()
    },
    "group of a shape": (errors.InvalidArgument, "all_reduce: group 'tp' has no overlace team: call overlace.init"),
    "group of a collective": (errors.InvalidArgument, "all_reduce: group 'tp' has no overlace team"),
    "parts of the last": (
        errors.InvalidArgument,
        "reduce_scatter: x is [6, 5], dim 1: 5, wanted a multiple of 2 ranks",
    ),
    "reduce_op of a collective": (errors.InvalidArgument, "all_reduce: reduce_op is 'max', wanted 'sum' or 'avg'"),
    "again": (errors.InvalidArgument, "has a team already; close() it first"),
    "backend": (errors.InvalidArgument, "overlace.init: backend is 'tpu', wanted one of auto, cpu, cuda_peer"),
}


def test_bad_calls_say_what_is_wrong():
    got = run_ranks(2, bad_calls)[0]
    assert got.keys() == WANTED.keys()
    for name, (kind, text) in WANTED.items():
        assert got[name][0] is kind, (name, got[name])
        assert text in got[name][2], (name, got[name])
    assert got["JSON"][1] == "bad_schedule" and issubclass(errors.ScheduleError, ValueError)


def misplaced(group):
    """What each operator says of each tensor on another device than the rank's, by (operator, argument, context's
    device, tensor's device). Fake tensors: no GPU is needed, nothing runs."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    ops, context = overlace.ops, overlace.context_of(group)
    size, home, said = group.size(), context.device, {}
    calls = {
        "ag_gemm": (("a", "bs[0]", "bs[1]", "biases[0]", "biases[1]"), ((4, 6), (6, 4), (6, 4), (4,), (4,))),
        "ag_wgrad": (("x", "dys[0]", "dys[1]"), ((4, 6), (4 * size, 3), (4 * size, 5))),
        "gemm_rs": (("a", "b", "bias"), ((4, 6), (6, 5), (5,))),
        "gemm_ar": (("a", "b", "bias"), ((4, 6), (6, 5), (5,))),
        **{name: (("x",), ((4, 6),)) for name in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")},
    }

    def call(op, tensors):
        if op == "ag_gemm":
            return ops.ag_gemm(tensors[0], tensors[1:3], biases=tensors[3:], group=group)
        if op == "ag_wgrad":
            return ops.ag_wgrad(tensors[0], tensors[1:], group=group)
        if op in ("gemm_rs", "gemm_ar"):
            return getattr(ops, op)(*tensors[:2], bias=tensors[2], group=group)
        return getattr(ops, op)(tensors[0], group=group)

    try:
        for here, there in (("cpu", "cuda:1"), ("cuda:0", "cuda:1"), ("cuda:0", "cpu")):
            context.device = torch.device(here)
            with FakeTensorMode():
                for op, (names, shapes) in calls.items():
                    call(op, [torch.empty(shape, device=here) for shape in shapes])
                    for i, name in enumerate(names):
                        moved = [torch.empty(s, device=there if i == j else here) for j, s in enumerate(shapes)]
                        said[op, name, here, there] = raised(lambda op=op, moved=moved: call(op, moved))
    finally:
        context.device = home
    return group.group_name, said


def test_tensors_on_another_device_are_refused_with_both_devices():
    name, said = run_ranks(2, misplaced)[1]
    assert len(said) == 3 * 18
    for (op, argument, here, there), (kind, code, text) in said.items():
        assert (kind, code) == (errors.InvalidArgument, "invalid_argument")
        assert text == f"{op}: {argument} is on {there}, wanted {here}, where rank 1 of group '{name}' is"


def misplaced_in_eager(group):
    """The channel of one on a GPU, as it is told: operators refuse their first tensor before they look at the rest."""
    context, operators = overlace.context_of(group), overlace.context._OPERATORS
    rank, size = context.rank, context.size
    given = (b"said to be on a GPU", context._runtime, context._channel, rank, size, 3)
    assert operators.ovl_torch_add_group(*given) == 0
    try:
        ops, name, bad = torch.ops.overlace, given[0].decode(), torch.ones(2, 3, 4, dtype=torch.bool)
        return [
            raised_by_torch(call)[2].splitlines()[0]
            for call in (
                lambda: ops.ag_gemm(bad, [bad], [], 5, name),
                lambda: ops.ag_wgrad(bad, [bad], 5, name),
                lambda: ops.gemm_rs(bad, bad, None, "none", 5, name),
                lambda: ops.gemm_ar(bad, bad, None, "none", name),
                lambda: ops.all_gather(bad, 5, name),
                lambda: ops.reduce_scatter(bad, "none", 5, name),
                lambda: ops.all_reduce(bad, "none", name),
                lambda: ops.all_to_all(bad, 5, name),
            )
        ]
    finally:
        operators.ovl_torch_remove_group(given[0])


def test_a_tensor_on_another_device_is_refused_before_all_else():
    operators = ("ag_gemm: a", "ag_wgrad: x", "gemm_rs: a", "gemm_ar: a")
    operators += tuple(f"{name}: x" for name in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"))
    end = "is on cpu, wanted cuda:3, where rank 1 of group 'said to be on a GPU' is"
    assert run_ranks(2, misplaced_in_eager)[1] == [f"[invalid_argument] {what} {end}" for what in operators]


def planned(group):
    plan = overlace.plan("gemm_rs", 64, 32, 16, dtype=torch.bfloat16, group=group)
    assert plan.op == "gemm_rs" and plan.is_library and plan.reason, plan  # no rates of this machine are known
    a, b = whole(8, 6, 1), whole(6, 5, 2)
    schedule = overlace.plan("gemm_ar", 8, 5, 6, dtype=a.dtype, group=group, b_layout="kn").schedule
    assert torch.equal(overlace.ops.gemm_ar(a, b, group=group, plan=schedule), group.size() * (a @ b))


def test_a_plan_says_why_and_can_be_given_back():
    run_ranks(2, planned)


def disagree(group):
    dtype = torch.float16 if group.rank() == 1 else torch.bfloat16
    return raised(lambda: overlace.ops.gemm_ar(whole(4, 6, 1, dtype), whole(6, 5, 2, dtype), group=group))


def test_ranks_that_disagree_all_raise():
    for kind, code, text in run_ranks(3, disagree):
        assert kind is errors.PlanMismatch and code == "plan_mismatch", text
        assert re.search(r"rank 0 has gemm_ar M 4 N 5 .* bf16 .*rank 1 has gemm_ar M 4 N 5 .* fp16", text), text


def opened_again(group):
    overlace.context_of(group).close()
    closed = raised(lambda: overlace.ops.gemm_ar(whole(4, 6, 1), whole(6, 5, 2), group=group))
    assert "has no overlace team" in closed[2]
    for wrong in ({"sms": -1}, {"sms": 1.5}, {"heap_bytes": 0}, {"max_heap_bytes": "much"}):
        name, value = next(iter(wrong.items()))
        kind, _, text = raised(lambda wrong=wrong: overlace.init(group, **wrong))
        assert kind is errors.InvalidArgument and f"overlace.init: {name} is {value!r}, wanted" in text, text
    sizes = {"heap_bytes": 8 << 20, "max_heap_bytes": 16 << 20}
    context = overlace.init(group, timeout_s=TIMEOUT_S, sms=4, **sizes)
    stats = context.stats()
    assert overlace.context_of(group) is context
    assert (stats.heap_bytes, stats.max_heap_bytes, stats.heap_growths) == (8 << 20, 16 << 20, 0)
    y = overlace.ops.gemm_ar(whole(4, 6, 1), whole(6, 5, 2), group=group)
    assert torch.equal(y, group.size() * (whole(4, 6, 1) @ whole(6, 5, 2)))
    assert context.stats().calls == 1


def test_init_close_init():
    run_ranks(2, opened_again)


def test_the_library_refuses_an_unknown_provider():
    library = overlace._library.LIBRARY
    assert library.ovl_cpu_gemm(b"blas") == 1
    assert library.ovl_error_text() == b'cpu_gemm: unknown provider "blas", wanted auto, reference or onednn'
    assert library.ovl_cpu_gemm(None) == 1
    assert isinstance(library, ctypes.CDLL)


RANK = """
import os, sys, torch, torch.distributed as dist, overlace
rank, store, how = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
context = overlace.init(timeout_s=20)
a, b = torch.ones(2, 3), torch.ones(3, 2)
overlace.ops.gemm_ar(a, b, group=None)
dist.barrier()
if how == "without close":
    dist.destroy_process_group()
    sys.exit(0)
if rank == 1:
    if how == "killed":
        os.kill(os.getpid(), 9)
    raise ValueError("a fault of the user")
try:
    overlace.ops.gemm_ar(a, b, group=None)
except overlace.PeerLost as error:
    print(type(error).__name__, error.code, error)
"""


@pytest.mark.parametrize("how", ["without close", "killed", "raised"])
def test_ranks_that_leave(how, tmp_path):
    def start(rank):
        words = [sys.executable, "-c", RANK, str(rank), str(tmp_path / "store"), how]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))

    ranks = [start(r) for r in range(2)]
    try:
        (out, err), (_, other_err) = [p.communicate(timeout=90) for p in ranks]
    finally:
        for p in ranks:
            p.kill()
    assert ranks[0].returncode == 0, err
    if how == "without close":
        assert ranks[1].returncode == 0, other_err
        assert out == ""
    elif how == "killed":
        assert re.match(r"PeerLost peer_lost .*rank 1", out), out
    else:
        assert ranks[1].returncode == 1 and "a fault of the user" in other_err
        assert out.startswith("PeerLost aborted") and "ended with ValueError: a fault of the user" in out


def test_without_operators_the_import_says_what_is_missing(tmp_path):
    """A package like this one, but as a machine without torch builds it."""
    package = tmp_path / "overlace"
    (package / "lib").mkdir(parents=True)
    here = Path(overlace.__file__).parent
    for module in ("__init__.py", "errors.py", "_library.py"):
        (package / module).write_text((here / module).read_text())
    for library in (here / "lib").glob("liboverlace.so.*"):
        (package / "lib" / library.name).symlink_to(library)
    code = "import sys, overlace; print(overlace.__version__, 'torch' in sys.modules); overlace.init()"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env, check=False
    )
    assert done.returncode == 1 and done.stdout == f"{overlace.__version__} False\n", done.stderr
    wanted = "Unsupported: overlace.init: overlace was built without torch; install torch >= 2.11, then overlace again"
    assert wanted in done.stderr


FORK = """
import os, sys, torch, torch.distributed as dist, overlace
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
with overlace.init():
    child = os.fork()
    if child == 0:
        try:
            overlace.ops.gemm_ar(torch.ones(2, 2), torch.ones(2, 2), group=None)
        except overlace.InvalidArgument as error:
            print(error.code, error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    loader = torch.utils.data.DataLoader([1.0, 3.0], num_workers=1, multiprocessing_context="fork")
    print(sum(x.item() for x in loader))
    print(overlace.ops.gemm_ar(torch.ones(1, 2), torch.ones(2, 1), group=None).item())
"""


def test_a_fork_is_refused_and_the_parent_goes_on(tmp_path):
    words = [sys.executable, "-c", FORK, str(tmp_path / "store")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)
    refused, loaded, went_on = done.stdout.splitlines()
    assert re.fullmatch(r"forked this runtime belongs to process \d+; process \d+ was forked from it .*", refused)
    assert (loaded, went_on) == ("4.0", "2.0")


NO_ENGINE = """
import sys, torch, torch.distributed as dist, overlace
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
with overlace.init():
    for op in (overlace.ops.all_gather, overlace.ops.reduce_scatter, overlace.ops.all_reduce, overlace.ops.all_to_all):
        try:
            op(torch.ones(4), group=None)
        except overlace.Unsupported as error:
            print(error.code, error)
"""


def test_collectives_need_an_engine(tmp_path):
    words = [sys.executable, "-c", NO_ENGINE, str(tmp_path / "store")]
    env = {**os.environ, "OVERLACE_NET_ENGINE": "none"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=90, env=env, check=False)
    ops = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
    wanted = 'not_supported ovl_{}: team "world" has no collectives engine: OVERLACE_NET_ENGINE is none, '
    lines = done.stdout.splitlines()
    assert len(lines) == len(ops), done.stderr
    assert all(line.startswith(wanted.format(op)) for line, op in zip(lines, ops, strict=True)), lines


def bad_groups(group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard

    named = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    bare = init_device_mesh("cpu", (2, 2))
    texts = [raised(lambda g=g: overlace.init(g)) for g in (named, bare, 3, [0, 1])]
    texts += [
        raised(lambda: overlace.nn.ColumnParallelLinear(4, 4, group=named)),
        raised(lambda: overlace.parallel.ColwiseParallel(input_layouts=Shard(0))._apply(torch.nn.Linear(4, 4), named)),
        raised(lambda: overlace.ops.all_reduce(torch.ones(2), group=named)),
    ]
    inner = overlace.init(named["tp"], timeout_s=TIMEOUT_S)  # as the text says
    size = inner.size
    inner.close()
    return texts, size


def test_what_is_no_group_is_refused_with_what_would_be_one():
    for texts, size in run_ranks(4, bad_groups):
        assert [kind for kind, _, _ in texts] == [errors.InvalidArgument] * 7
        messages = [text for _, _, text in texts]
        for i in (0, 4, 5, 6):
            assert messages[i] == "group is a DeviceMesh of 2 dimensions ('dp', 'tp'), wanted one: mesh['tp']"
        assert messages[1].startswith("group is a DeviceMesh of 2 dimensions, wanted one: mesh['tp'] of one made with")
        assert messages[2].startswith("group is 3, wanted a ProcessGroup, a DeviceMesh of one dimension")
        assert messages[3].startswith("group is [0, 1], wanted a ProcessGroup")
        assert size == 2


def test_all_names_of_the_package_are_listed():
    assert {"compile", "gnn", "nn", "offload", "ops", "optim", "parallel", "trace", "init"} <= set(dir(overlace))
    for name in dir(overlace):
        assert getattr(overlace, name) is not None or name.startswith("_"), name
