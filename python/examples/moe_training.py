"""A small model of two mixture-of-experts layers learns in bfloat16: the experts lie on the ranks, all else is
DistributedDataParallel's. Beside it the same model learns in plain torch from whole batches, in bfloat16 and in
float32, which tell how far bfloat16 alone moves the loss: the sharded model's must be about as near to float32's.

usage: moe_training.py [--ranks 2] [--device cpu]
"""

from __future__ import annotations

import overlace
import torch
import torch.distributed as dist
from launch import launch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

WORDS, HIDDEN, EXPERTS, INTER, TOP_K = 24, 32, 6, 48, 2
BATCH, STEPS, RATE = 48, 200, 0.1  # BATCH: of each rank


class TorchMoE(nn.Module):
    """What overlace.nn.MoELayer computes, with all experts here, one after the other."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.gate = nn.Parameter(state["gate.weight"])
        self.w1, self.w2 = (nn.ParameterList(state[f"experts.{e}.{w}"] for e in range(EXPERTS)) for w in ("w1", "w2"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = (x.float() @ self.gate.float().t()).softmax(-1)
        weights, chosen = scores.topk(TOP_K, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x, dtype=torch.float32)
        for e, (w1, w2) in enumerate(zip(self.w1, self.w2, strict=True)):
            token, choice = (chosen == e).nonzero(as_tuple=True)
            gate, up = (x[token] @ w1.t()).chunk(2, -1)
            part = (F.silu(gate) * up) @ w2.t()
            out = out.index_add(0, token, part.float() * weights[token, choice, None])
        return out.to(x.dtype)


class Model(nn.Module):
    """Says the next word after two. `layers`: two modules from (tokens, HIDDEN) to the same."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.words = nn.ModuleList(nn.Embedding(WORDS, HIDDEN) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(3))
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(HIDDEN, WORDS)

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        x = self.words[0](pairs[:, 0]) + self.words[1](pairs[:, 1])
        for norm, layer in zip(self.norms, self.layers, strict=False):
            x = x + layer(norm(x))
        return self.head(self.norms[-1](x))


def batch_of(step: int, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of words of all ranks, and the words that follow them: one rule for even words, another for odd ones."""
    pairs = torch.randint(0, WORDS, (BATCH * ranks, 2), generator=torch.Generator().manual_seed(1000 + step))
    first, second = pairs.unbind(1)
    return pairs, torch.where(first % 2 == 0, first + second, 3 * second) % WORDS


def sharded_model(group: dist.ProcessGroup) -> Model:
    options = {"top_k": TOP_K, "renormalize": True, "reduce_op": "avg", "dtype": torch.bfloat16, "group": group}
    layers = [overlace.nn.MoELayer(EXPERTS, HIDDEN, INTER, **options) for _ in range(2)]
    return Model(layers).to(torch.bfloat16)


def torch_model(sharded: Model, dtype: torch.dtype) -> Model:
    """With the values of the sharded one; collective."""
    states = [layer.full_state_dict() for layer in sharded.layers]
    model = Model([TorchMoE({name: t.to(dtype) for name, t in state.items()}) for state in states])
    own = {name: t for name, t in sharded.state_dict().items() if not name.startswith("layers.")}
    model.load_state_dict(own, strict=False)
    return model.to(dtype)


def train(group: dist.ProcessGroup) -> None:
    torch.manual_seed(0)
    sharded = sharded_model(group)
    models = [sharded, torch_model(sharded, torch.bfloat16), torch_model(sharded, torch.float32)]
    experts = [f"layers.{i}.{name}" for i in range(2) for name in sharded.layers[i].expert_parameters()]
    DDP._set_params_and_buffers_to_ignore_for_model(sharded, experts)
    callables = [DDP(sharded, process_group=group), *models[1:]]
    optimizers = [torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9) for model in models]

    rank, ranks, history = group.rank(), group.size(), []
    for step in range(STEPS):
        pairs, words = batch_of(step, ranks)
        mine = slice(rank * BATCH, (rank + 1) * BATCH)
        losses = []
        for model, optimizer, part in zip(callables, optimizers, (mine, slice(None), slice(None)), strict=True):
            loss = F.cross_entropy(model(pairs[part]).float(), words[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        losses[0] = overlace.ops.all_reduce(losses[0], group=group) / ranks
        history.append(torch.stack(losses))
        if rank == 0 and (step % 40 == 0 or step == STEPS - 1):
            print("step {:3}   {} ranks {:.4f}   torch {:.4f}   in float32 {:.4f}".format(step, ranks, *losses))
    ours, plain, exact = torch.stack(history).unfold(0, 20, 20).mean(-1).unbind(1)
    assert exact[-1] < 0.5 * exact[0], f"the model learned nothing: {exact.tolist()}"
    assert (ours - plain)[:4].abs().max() < 0.01, (ours, plain)  # until small differences have grown
    noise = (plain - exact).abs().cummax(0)[0]
    assert ((ours - exact).abs() <= 2 * noise + 0.02 * exact[0]).all(), (ours, plain, exact)


def run(group: dist.ProcessGroup, _device: str) -> None:
    with overlace.init(group):
        train(group)


if __name__ == "__main__":
    launch(run, __doc__)
