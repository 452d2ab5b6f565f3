"""gather_rows and PinnedTable on CUDA devices: every source against indexing, wrong ids, graphs, what is refused.

By hand: `PYTHONPATH=build/cuda/python python3 -m pytest tests/python/torch_gpu/test_gather.py`.
"""

import gc

import numpy as np
import pytest
from gpu_ranks import GPUS, overlace, torch

gnn = pytest.importorskip("overlace.gnn")
DTYPES = (torch.uint8, torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64)
SHAPES = ((), (1,), (7,), (3, 5), (128,), (1000,))


def table_of(shape, dtype, seed=1):
    """Bytes that differ from row to row."""
    raw = np.random.default_rng(seed).integers(0, 2 if dtype == torch.bool else 256, (*shape, dtype.itemsize), np.uint8)
    return torch.from_numpy(raw.copy()).view(dtype).reshape(shape)


def ids_of(count, rows, dtype=torch.int64, seed=2):
    return torch.randint(0, rows, (count,), generator=torch.Generator().manual_seed(seed)).to(dtype)


def raw(tensor):
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def equal(got, want):
    return got.is_cuda and got.dtype == want.dtype and got.shape == want.shape and raw(got) == raw(want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tables_of_the_device_and_pinned_ones(dtype):
    for shape in SHAPES:
        table = table_of((300, *shape), dtype)
        for kind in (torch.int32, torch.int64, torch.uint8, torch.int16):
            ids = ids_of(2000, 120, kind)
            want = table[ids.long()]
            for source in (table.cuda(), table.pin_memory()):
                assert equal(gnn.gather_rows(source, ids.cuda()), want)
                assert equal(gnn.gather_rows(source, ids.cuda(), check=False), want)
            assert equal(gnn.gather_rows(table.cuda(), ids), want)
            assert equal(gnn.gather_rows(table.cuda(), ids.tolist()), want)
            out = torch.empty_like(want, device="cuda")
            assert gnn.gather_rows(table.pin_memory(), ids, out) is out and equal(out, want)


def test_a_pinned_table_is_read_by_the_device():
    for source in (table_of((5000, 100), torch.float32), table_of((5000, 100), torch.float32).numpy()):
        table = gnn.PinnedTable(source, device="cuda")
        assert table.device == torch.device("cuda", torch.cuda.current_device()) and table.rows.is_pinned()
        want = torch.as_tensor(source)
        for ids in (ids_of(3000, 5000), ids_of(3000, 5000).cuda(), ids_of(3000, 5000).numpy(), [4999, 0, 0]):
            assert equal(table[ids], want[torch.as_tensor(ids).cpu()])
        assert len(gnn.PinnedTable(source[:0], device=0)) == 0
        del table
        gc.collect()
    with pytest.raises(overlace.InvalidArgument, match=r"source has dtype \|S3, wanted one that torch has"):
        gnn.PinnedTable(np.zeros(4, "S3"), device="cuda")
    with pytest.raises(overlace.Unsupported, match="device is cpu, wanted one of the"):
        gnn.PinnedTable(np.zeros(4), device="cpu")


def test_a_pinned_table_may_go_while_its_rows_travel():
    source = table_of((20000, 512), torch.float32)
    ids = ids_of(200000, 20000)
    for _ in range(3):
        got = gnn.PinnedTable(source, device="cuda").gather(ids.cuda(), check=False)
        gc.collect()
        assert equal(got, source[ids])


def test_parts_are_numbered_one_behind_the_other():
    parts = [table_of((rows, 100), torch.float16, seed=rows) for rows in (40, 700, 1)]
    whole, ids = torch.cat(parts), ids_of(4000, 741)
    mixed = [parts[0].cuda(), gnn.PinnedTable(parts[1], device="cuda"), parts[2].pin_memory()]
    assert equal(gnn.gather_rows(mixed, ids.cuda()), whole[ids])
    assert equal(gnn.gather_rows(tuple(mixed), ids), whole[ids])
    with pytest.raises(
        overlace.InvalidArgument, match=r"table\[1\] has rows of shape \(100,\) and dtype torch.float32"
    ):
        gnn.gather_rows([mixed[0], parts[1].float().pin_memory()], ids.cuda())


@pytest.mark.skipif(GPUS < 2, reason="wants two GPUs")
def test_rows_of_a_peer():
    table, ids = table_of((3000, 128), torch.bfloat16), ids_of(5000, 3000)
    far = table.to("cuda:1")
    assert equal(gnn.gather_rows(far, ids.to("cuda:0")), table[ids])
    got = gnn.gather_rows([table[:1000].to("cuda:0"), far[1000:2000], table[2000:].pin_memory()], ids.to("cuda:1"))
    assert got.device == torch.device("cuda", 1) and equal(got, table[ids])
    out = torch.empty_like(table[ids], device="cuda:0")
    for _ in range(20):  # the peer's own stream writes the table before, and again behind
        far.copy_(table + 1)
        far.copy_(table)
        gnn.gather_rows(far, ids, out)
        far.zero_()
        assert equal(out, table[ids])


def test_ids_out_of_range_are_named_and_nothing_is_written():
    table = table_of((100, 16), torch.float32)
    out = torch.full((40000, 16), 7.0, device="cuda")
    ids = ids_of(40000, 100)
    for at, wrong in ((39999, 100), (20000, -1), (5, 2**40)):
        ids[at] = wrong
        for source in (table.cuda(), table.pin_memory()):
            for given in (ids, ids.cuda()):
                with pytest.raises(overlace.InvalidArgument, match=rf"ids\[{at}\] is {wrong}, wanted 0 to 99"):
                    gnn.gather_rows(source, given, out)
    assert (out == 7).all()
    with pytest.raises(overlace.InvalidArgument, match="wanted none: the table is empty"):
        gnn.gather_rows(table.cuda()[:0], [0])
    assert gnn.gather_rows(table.cuda(), []).shape == (0, 16)
    gnn.gather_rows(table.cuda(), ids.cuda(), out, check=False)
    good = (ids >= 0) & (ids < 100)
    assert (out[~good.cuda()] == 7).all() and raw(out[good.cuda()]) == raw(table[ids[good]])


def test_what_does_not_fit_is_refused():
    table, ids = table_of((100, 16), torch.float32), torch.zeros(1, dtype=torch.int64, device="cuda")
    near = table.cuda()
    for text, arguments in {
        "lie in memory that no GPU reads": (table, ids),
        "table is ndarray, wanted a tensor": (table.numpy(), ids),
        r"table of shape \(100, 8\) is not rows": (near[:, :8], ids),
        "dtype torch.float32, wanted a row of integers": (near, ids.float()),
        r"ids have shape \(1, 1\)": (near, ids[None]),
        "out lies on cpu, wanted a tensor on cuda:0": (near, ids.to("cuda:0"), table[:1].clone()),
        r"out has shape \(2, 16\)": (near, ids, near[:2].clone()),
        "out lies in sources": (near, ids, near[3:4]),
    }.items():
        with pytest.raises(overlace.InvalidArgument, match=text):
            gnn.gather_rows(*arguments)


def test_a_graph_gathers_again():
    table = gnn.PinnedTable(table_of((1000, 200), torch.float32), device="cuda")
    ids, out = ids_of(3000, 1000).cuda(), torch.empty(3000, 200, device="cuda")
    table.gather(ids, out, check=False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        table.gather(ids, out, check=False)
    for seed in range(3):
        drawn = ids_of(3000, 1000, seed=seed)
        ids.copy_(drawn)
        graph.replay()
        assert equal(out, table.rows[drawn])
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), pytest.raises(overlace.InvalidArgument, match="wanted False: it would wait"):
        capture = torch.cuda.CUDAGraph()
        capture.capture_begin()
        try:
            table.gather(ids, out)
        finally:
            capture.capture_end()


def test_the_current_stream_is_used():
    table, ids = table_of((2000, 256), torch.float32), ids_of(100000, 2000)
    near, stream = table.cuda(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        later = near + 1
        got = gnn.gather_rows(later, ids.cuda(), check=False)
    stream.synchronize()
    assert equal(got, (table.cuda() + 1).cpu()[ids])
