"""A GCN of two layers on all vertices of a graph that is dealt to ranks: partial sums of the same epoch, and late ones.

usage: full_batch_gcn.py [--ranks 2] [--device cpu]
"""

from __future__ import annotations

import numpy as np
import overlace
import torch
from launch import launch
from overlace import gnn
from overlace.gnn.nn import FullBatchGCN
from torch.nn import functional

VERTICES, DIM, CLASSES = 600, 16, 3


def graph():
    """Edges mostly inside of three classes, as indptr and indices of in-neighbours; features and classes."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, VERTICES)
    target = np.repeat(np.arange(VERTICES), 8)
    peers = np.stack([rng.permutation(np.flatnonzero(y == y[v]))[:8] for v in range(VERTICES)]).ravel()
    source = np.where(rng.random(len(target)) < 0.8, peers, rng.integers(0, VERTICES, len(target)))
    x = np.eye(CLASSES, DIM)[y] + 2 * rng.standard_normal((VERTICES, DIM))
    return np.arange(VERTICES + 1) * 8, source, torch.from_numpy(x).float(), torch.from_numpy(y)


def train(group, delay):
    indptr, indices, x, y = graph()
    part = gnn.partition(indptr, indices, group.rank(), group.size())
    x, y = x[part.vertices], y[part.vertices]
    torch.manual_seed(1)
    model = FullBatchGCN(DIM, 8, CLASSES)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with overlace.init(group), gnn.SparseHalo(part, group, delay) as halo:
        for _ in range(100):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x, halo), y, reduction="sum") / VERTICES
            loss.backward()
            for p in model.parameters():
                p.grad = overlace.ops.all_reduce(p.grad, group=group)
            optimizer.step()
        model.eval()
        right = (model(x, halo).argmax(1) == y).sum()
        return overlace.ops.all_reduce(right, group=group).item() / VERTICES, halo.stats()


def run(group, device):
    assert device == "cpu", "SparseHalo is of CPU ranks"
    fresh, sent = train(group, delay=0)
    late, sent_late = train(group, delay=2)
    if group.rank() == 0:
        print(f"fresh sums: {100 * fresh:.1f} % right, {sent.bytes_sent} bytes sent")
        print(f"two epochs late: {100 * late:.1f} % right, {sent_late.bytes_sent} bytes sent")
    assert fresh > 0.9, fresh
    assert late > fresh - 0.05, (late, fresh)
    assert sent_late.bytes_sent < 0.6 * sent.bytes_sent


if __name__ == "__main__":
    launch(run, __doc__)
