"""embedding_a2a by name, against torch.nn.functional.embedding_bag."""

from __future__ import annotations

import json

import overlace
import pytest
import torch
from ranks import run_ranks

ROWS, WIDTHS, BATCH = [11, 5, 8, 3], [4, 6, 1, 8], 13


def _placement(size):
    """Table t on rank t % size; its columns in the result are in reverse order of tables."""
    columns = [sum(WIDTHS[t + 1 :]) for t in range(4)]
    tables = [{"rows": r, "dim": d} for r, d in zip(ROWS, WIDTHS, strict=True)]
    tables[0]["padding"] = 2
    features = [{"table": t, "rank": t % size, "column": columns[t]} for t in range(4)]
    return json.dumps({"tables": tables, "features": features}), columns


def _bags(table, kind):
    generator = torch.Generator().manual_seed(100 + table)
    lengths = torch.randint(0, 5, (BATCH,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    indices = torch.randint(0, ROWS[table], (int(offsets[-1]),), generator=generator)
    return indices.to(kind), offsets.to(kind), torch.rand(len(indices), generator=generator)


def _weights(table, dtype):
    return torch.randn(ROWS[table], WIDTHS[table], generator=torch.Generator().manual_seed(table)).to(dtype)


def _same_as_torch(group):
    rank, size = group.rank(), group.size()
    placement, columns = _placement(size)
    mine = [t for t in range(4) if t % size == rank]
    begin = [0, *torch.tensor([len(part) for part in torch.arange(BATCH).tensor_split(size)]).cumsum(0).tolist()]
    for mode, dtype, kind, plan, has_factors in (
        ("sum", torch.float32, torch.int64, "family=hetero_unfused_1d,degree=2", True),
        ("mean", torch.float32, torch.int32, "family=serial", False),
        ("max", torch.float32, torch.int64, "", False),
        ("sum", torch.bfloat16, torch.int64, "family=hetero_unfused_1d,degree=3", False),
    ):
        bags = [_bags(t, kind) for t in mine]
        offsets, end = [torch.zeros(1, dtype=kind)], 0
        for indices, one, _ in bags:
            offsets.append(one[1:] + end)
            end += len(indices)
        tensors = {
            "weights": torch.cat([torch.empty(0, dtype=dtype)] + [_weights(t, dtype).flatten() for t in mine]),
            "indices": torch.cat([torch.empty(0, dtype=kind)] + [b[0] for b in bags]),
            "offsets": torch.cat(offsets),
            "per_sample_weights": torch.cat([torch.empty(0)] + [b[2] for b in bags]) if has_factors else None,
            "out": torch.full((begin[rank + 1] - begin[rank], sum(WIDTHS)), float("nan"), dtype=dtype),
        }
        fields = {"batch": BATCH, "mode": mode, "bounds": "error", "placement": placement}
        overlace.call("embedding_a2a", tensors, group=group, plan=plan, **fields)
        for t in range(4):
            indices, one, factors = _bags(t, kind)
            want = torch.nn.functional.embedding_bag(
                indices.long(),
                _weights(t, dtype).double(),
                one.long(),
                mode=mode,
                include_last_offset=True,
                padding_idx=2 if t == 0 else None,
                per_sample_weights=factors.double() if has_factors else None,
            )[begin[rank] : begin[rank + 1]]
            got = tensors["out"][:, columns[t] : columns[t] + WIDTHS[t]]
            torch.testing.assert_close(got, want.to(dtype), rtol=1.6e-2 if dtype == torch.bfloat16 else 1e-6, atol=1e-6)
    tensors["indices"][-1:] = 99
    if 3 % size == rank:
        rows = ROWS[mine[-1]]
        place = rf"rank {rank}, feature \d, bag \d+, position \d"
        text = f"{place}: index is 99, wanted 0 to {rows - 1}: the table has {rows} rows"
    else:
        text = "index is 99, wanted 0 to "
    with pytest.raises(overlace.InvalidArgument, match=text):
        overlace.call("embedding_a2a", tensors, group=group, **fields)


@pytest.mark.parametrize("size", [2, 3])
def test_same_as_torch(size):
    run_ranks(size, _same_as_torch)
