"""A character model on the English of Python's own help texts, by two CPU ranks: a small transformer trained by
DistributedDataParallel, and by CO2 from the same values on the same samples, with averaged gradients in the first and
the last steps. It prints the loss on held-out text of both and what each sends; CO2 must end within 5 % of the other,
with the same parameters on all ranks.

usage: co2_char_lm.py [--ranks 2] [--device cpu]
"""

from __future__ import annotations

import pydoc_data.topics

import overlace
import torch
import torch.distributed as dist
from launch import launch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LINK = "20MB/s,50us"  # emulated
SYMBOLS, WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 96, 48, 4, 2, 32, 16
STEPS, TAU, WARM_UP, COOL_DOWN = 160, 8, 16, 32


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, SYMBOLS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.symbols(x) + self.places.weight
        return self.head(self.layers(h, mask=self.mask, is_causal=True))


def codes_of_text() -> tuple[torch.Tensor, torch.Tensor]:
    """To train on, and held out."""
    topics = pydoc_data.topics.topics
    text = " ".join(topics[name] for name in sorted(topics))
    codes = torch.tensor([min(max(ord(c) - 31, 0), SYMBOLS - 1) for c in text])
    return codes[: -len(codes) // 10], codes[-len(codes) // 10 :]


def loss_of(model: nn.Module, codes: torch.Tensor, seed: int, count: int) -> torch.Tensor:
    starts = torch.randint(len(codes) - CONTEXT, (count,), generator=torch.Generator().manual_seed(seed))
    windows = codes[starts[:, None] + torch.arange(CONTEXT + 1)]
    return nn.functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def train(group: dist.ProcessGroup, codes: torch.Tensor, is_co2: bool) -> tuple[nn.Module, int]:
    """The trained model, and how often its parameters or gradients were sent."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(), process_group=group, broadcast_buffers=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (STEPS - step) / COOL_DOWN))
    if is_co2:
        model.register_comm_hook(None, overlace.optim.co2_hook)
        syncs = dict(warmup_sync_steps=WARM_UP, cooldown_sync_steps=COOL_DOWN, total_steps=STEPS)
        co2 = overlace.optim.CO2(model, optimizer, outer_group=group, tau=TAU, transport="host", link=LINK, **syncs)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, codes, 100003 * group.rank() + step, BATCH).backward()
        (co2 if is_co2 else optimizer).step()
        decay.step()
    if not is_co2:
        return model, STEPS
    rounds = co2.stats()["rounds"]
    co2.flush()
    co2.close()
    return model, rounds + WARM_UP + COOL_DOWN


def run(group: dist.ProcessGroup, device: str) -> None:
    codes, held_out = codes_of_text()
    losses = {}
    for name in ("averaged gradients", "co2"):
        model, sent = train(group, codes, is_co2=name == "co2")
        with torch.no_grad():
            losses[name] = loss_of(model, held_out, 7, 512).item()
        values = torch.cat([p.detach().flatten() for p in model.parameters()])
        everybody = [torch.empty_like(values) for _ in range(group.size())]
        dist.all_gather(everybody, values, group=group)
        assert all(torch.equal(values, other) for other in everybody), name
        if group.rank() == 0:
            megabytes = 4 * values.numel() * sent / 1e6
            print(f"{name:18} loss {losses[name]:.3f}, {megabytes:6.1f} MB sent in {STEPS} steps", flush=True)
    assert losses["averaged gradients"] < 3.0, losses
    assert losses["co2"] < 1.05 * losses["averaged gradients"], losses


if __name__ == "__main__":
    launch(run, __doc__)
