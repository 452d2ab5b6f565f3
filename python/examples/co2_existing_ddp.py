"""A DistributedDataParallel script that hides its exchange over a slow link by two lines, and a flush where it ends.
Two CPU ranks are two groups, joined by a link of 20 MB/s (emulated). By length of a round it prints the loss, the share
of a round that the exchange showed, and the share that plan_tau predicts from the step's time and the link. In the end
all ranks must have the same parameters, and the loss must have fallen.

usage: co2_existing_ddp.py [--ranks 2] [--device cpu]
"""

from __future__ import annotations

import overlace
import torch
import torch.distributed as dist
from launch import launch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LINK = "20MB/s,50us"
WORDS, WIDTH, CONTEXT, BATCH = 64, 128, 8, 32
TAUS, STEPS = (2, 6, 24), 72


class Model(nn.Module):
    """Predicts the next word from the last eight."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.up, self.down = nn.Linear(CONTEXT * WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.words(x).flatten(1))))


def batch_of(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Each word follows from two before it, but for one in eight."""
    generator = torch.Generator().manual_seed(100003 * rank + step)
    x = torch.randint(WORDS, (BATCH, CONTEXT), generator=generator)
    noise = torch.randint(WORDS, (BATCH,), generator=generator)
    is_noise = torch.rand(BATCH, generator=generator) < 0.125
    return x, torch.where(is_noise, noise, (x[:, -1] + 3 * (x[:, -2] % 2)) % WORDS)


def train(group: dist.ProcessGroup, tau: int) -> tuple[list[float], list[dict[str, float]]]:
    """Losses of all steps, and statistics of all rounds but the first."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(), process_group=group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    model.register_comm_hook(None, overlace.optim.co2_hook)
    optimizer = overlace.optim.CO2(model, optimizer, tau=tau, outer_group=group, transport="host", link=LINK)

    losses, rounds = [], []
    for step in range(STEPS):
        x, y = batch_of(group.rank(), step)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % tau == 0 and step + 1 > 2 * tau:
            rounds.append(optimizer.stats())
    optimizer.flush()
    optimizer.close()

    values = torch.cat([p.detach().flatten() for p in model.parameters()])
    everybody = [torch.empty_like(values) for _ in range(group.size())]
    dist.all_gather(everybody, values, group=group)
    assert all(torch.equal(values, other) for other in everybody)
    return losses, rounds


def run(group: dist.ProcessGroup, device: str) -> None:
    parameters = sum(p.numel() for p in Model().parameters())
    if group.rank() == 0:
        print(f"{parameters} parameters, {group.size()} groups, link of {LINK} (emulated)")
        print("  tau     loss   step ms   all-reduce ms   exposed   predicted")
    for tau in TAUS:
        losses, rounds = train(group, tau)
        late = sum(losses[-12:]) / 12
        assert late < sum(losses[:12]) / 12 - 0.1, losses
        whole, exposed = (sum(r[name] for r in rounds) for name in ("round_ms", "exposed_ms"))
        computed = sum(r["round_ms"] - r["exposed_ms"] for r in rounds) / len(rounds) / tau
        plan = overlace.optim.plan_tau(parameters, groups=group.size(), step_ms=computed, link=LINK, tau=tau)
        if group.rank() == 0:
            print(
                f"{tau:5} {late:8.3f} {computed:9.2f} {plan.all_reduce_ms:15.1f} {exposed / whole:8.1%} "
                f"{plan.exposed[tau]:10.1%}",
                flush=True,
            )


if __name__ == "__main__":
    launch(run, __doc__)
