"""A small Llama-style model learns a text on two ranks, tensor-parallel with sequence parallelism, and each loss is
compared with that of the unsharded model trained beside it. Exit code 0: all were equal within rounding.

usage: tp_llama_training.py [--ranks 2] [--steps 20] [--device cpu|cuda]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import overlace
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from overlace.nn import ColumnParallelLinear, RowParallelLinear
from torch import nn
from torch.nn import functional as F

TEXT = (
    "A gather can hide behind the product that waits for it, if the rows that are here already come first. "
    "A sum can hide behind the product that feeds it, if the rows that must travel farthest come first. "
)
WIDTH, HEADS, HIDDEN, LAYERS, SEQUENCE, BATCH = 64, 4, 128, 2, 32, 4
TOLERANCE = 2e-5  # of a loss, in fp32


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (WIDTH,), self.weight)


def project(x: torch.Tensor, *layers: nn.Module) -> list[torch.Tensor]:
    """x through several layers; on ranks by one operator, so that x is gathered once."""
    if isinstance(layers[0], nn.Linear):
        return [layer(x) for layer in layers]
    weights = [layer.weight.to_local().t() for layer in layers]
    return overlace.ops.ag_gemm(x, weights, group=layers[0].group_name)


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions; x (sequence, batch, heads, size)."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[0], device=x.device)[:, None] * 1e4 ** (-torch.arange(half, device=x.device) / half)
    sin, cos = angles.sin()[:, None, None], angles.cos()[:, None, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class Block(nn.Module):
    """Attention and a gated layer. `column` and `row` make the linear layers: those of torch or those of overlace."""

    def __init__(self, column, row) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(), Norm()
        self.q, self.k, self.v = (column(WIDTH, WIDTH, False) for _ in range(3))
        self.o = row(WIDTH, WIDTH, False)
        self.gate, self.up = column(WIDTH, HIDDEN, False), column(WIDTH, HIDDEN, False)
        self.down = row(HIDDEN, WIDTH, False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (sequence or this rank's part, batch, width)
        q, k, v = (t.unflatten(-1, (-1, WIDTH // HEADS)) for t in project(self.norm1(x), self.q, self.k, self.v))
        q, k, v = (t.permute(1, 2, 0, 3) for t in (rotated(q), rotated(k), v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.permute(2, 0, 1, 3).flatten(-2))
        gate, up = project(self.norm2(x), self.gate, self.up)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, vocabulary: int, column, row) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.blocks = nn.ModuleList(Block(column, row) for _ in range(LAYERS))
        self.norm, self.head = Norm(), nn.Linear(WIDTH, vocabulary, False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batch_of(step: int, symbols: list[str], device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(sequence, batch) of tokens and of those that follow them."""
    ids = torch.tensor([symbols.index(c) for c in TEXT], device=device)
    starts = [(step * 31 + 47 * i) % (len(TEXT) - SEQUENCE - 1) for i in range(BATCH)]
    rows = torch.stack([ids[s : s + SEQUENCE + 1] for s in starts], 1)
    return rows[:-1], rows[1:]


def train(rank: int, arguments: argparse.Namespace, store: str) -> None:
    torch.set_num_threads(1)
    if arguments.device == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if arguments.device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=arguments.ranks)
    symbols = sorted(set(TEXT))
    with overlace.init() as context, torch.device(arguments.device):
        torch.manual_seed(0)
        plain = Model(len(symbols), nn.Linear, nn.Linear)
        torch.manual_seed(0)
        sharded = Model(len(symbols), ColumnParallelLinear, RowParallelLinear)
        optimizers = [torch.optim.AdamW(m.parameters(), lr=3e-3, foreach=False) for m in (plain, sharded)]
        history: list[float] = []
        for step in range(arguments.steps):
            tokens, targets = batch_of(step, symbols, arguments.device)
            losses = []
            for model, optimizer in zip((plain, sharded), optimizers, strict=True):
                is_sharded = model is sharded
                mine = [t.chunk(context.size)[rank] if is_sharded else t for t in (tokens, targets)]
                logits = model(mine[0])
                loss = F.cross_entropy(logits.flatten(0, 1), mine[1].flatten(), reduction="sum") / targets.numel()
                optimizer.zero_grad()
                loss.backward()
                total = loss.detach().clone()
                if is_sharded:
                    dist.all_reduce(total)
                    # What every rank holds whole saw this rank's part of the sequence only.
                    for parameter in model.parameters():
                        if not isinstance(parameter, torch.distributed.tensor.DTensor):
                            dist.all_reduce(parameter.grad)
                optimizer.step()
                losses.append(total.item())
            if rank == 0 and (step % 5 == 0 or step == arguments.steps - 1):
                print(f"step {step:2}   unsharded {losses[0]:.6f}   {context.size} ranks {losses[1]:.6f}")
            if abs(losses[0] - losses[1]) > TOLERANCE * losses[0]:
                sys.exit(f"rank {rank}, step {step}: the loss is {losses[1]}, wanted {losses[0]}")
            history.append(losses[1])
        if len(history) >= 20 and history[-1] > 0.8 * history[0]:
            sys.exit(f"rank {rank}: the model learned nothing: {history[0]} to {history[-1]}")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (arguments, str(Path(folder) / "store")), arguments.ranks)
    print("equal to the unsharded run")


if __name__ == "__main__":
    main()
