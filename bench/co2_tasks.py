"""What outer rules do to losses and accuracies: small tasks, several groups and seeds in one process, no exchange.

    python3 bench/co2_tasks.py --task plateau --tau 8,32 --rates 0.002,0.004,0.008 --out records.jsonl
Every rule sees the same samples, begins with steps of averaged gradients and ends with them; AdamW inside. A record is
a rule at a round's length and a learning rate, with the loss of each seed on what none was trained on.
plateau: 16,000 steps on characters of generated words, so small that the loss hardly falls any more. digits: 8 x 8
images that come with scikit-learn (`--digits`: its digits.csv.gz), polygons: generated ones of 32 x 32; both by a
small residual network.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import platform
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "driver"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import co2_groups
import numpy as np
import programs
import schema
import torch
from torch.nn import functional

# What a rule is to overlace.optim.CO2; None: gradients are averaged at every step.
BARE = {"keep": 0.0, "outer_momentum": 0.5}  # kappa 0, beta 0.5
RULES: dict[str, co2_groups.Options | None] = {
    "ddp": None,
    "local_sgd": {"rule": "local_sgd"},
    "slow_mo": {"rule": "slow_mo"},
    "co2": {},
    "co2_momentum": {"outer_momentum": 0.2},
    "paper": {"keep": 0.0, "outer_momentum": 0.0},
    "bare": {**BARE, "clip": None},
    "gap": {**BARE, "clip": None, "gap": "adaptive"},
    "clip": BARE,
    "anchor": {"pseudo_gradient": "anchor"},
}


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0], allow_abbrev=False)
    add = p.add_argument
    add("--task", choices=sorted(TASKS), required=True)
    add("--tau", default="8,32")
    add("--rules", default=",".join(RULES))
    add("--rates", default="0.002")
    add("--groups", type=int, default=4)
    add("--batch", type=int, default=32, help="of a group")
    add("--steps", type=int, default=16000)
    add("--seeds", type=int, default=5)
    add("--seed", type=int, default=1, help="the first")
    add("--digits", type=Path, help="digits.csv.gz of scikit-learn, where it is not installed")
    add("--git", default="unknown")
    add("--run", default=programs.now())
    add("--out", type=Path)
    return p.parse_args()


def uniform(shape: tuple, fan_in: int, seeds: range) -> torch.Tensor:
    """A parameter of all runs: of a seed all groups have the same values."""
    one = [torch.rand(shape[2:], generator=torch.Generator().manual_seed(7919 * s + math.prod(shape))) for s in seeds]
    return ((torch.stack(one) * 2 - 1) / math.sqrt(fan_in)).unsqueeze(1).repeat(1, shape[1], *[1] * (len(shape) - 2))


class Words:
    """Words of one to three syllables with ranks by Zipf's law, each followed by one of eight others in half of the
    cases; the next character from those before it."""

    context, width, hidden, words, length = 8, 16, 128, 150, 400_000

    def __init__(self, o: argparse.Namespace) -> None:
        draw = np.random.default_rng(7)
        syllables = [a + b for a in "bcdfghklmnprstvz" for b in "aeiou"]
        made: list[str] = []
        while len(made) < self.words:
            word = "".join(draw.choice(syllables, draw.integers(1, 4)))
            made += [] if word in made else [word]
        weights = 1 / np.arange(1, self.words + 1)
        followers = draw.choice(self.words, (self.words, 8), p=weights / weights.sum())
        by_rank = draw.choice(self.words, self.length // 3, p=weights / weights.sum())
        turns, which = draw.random(len(by_rank)), draw.integers(0, 8, len(by_rank))
        text, now = [], 0
        for rank, turn, follower in zip(by_rank, turns, which, strict=True):
            now = int(followers[now, follower]) if turn < 0.5 else int(rank)
            text.append(made[now])
        characters = " ".join(text)[: self.length]
        letters = sorted(set(characters))
        codes = torch.tensor([letters.index(c) for c in characters])
        self.train, self.test, self.symbols = codes[: -len(codes) // 10], codes[-len(codes) // 10 :], len(letters)
        self.what = f"{self.words} words, {self.symbols} characters, {self.context} of them seen"

    def parameters(self, seeds: range, groups: int) -> list[torch.Tensor]:
        inputs, runs = self.context * self.width, (len(seeds), groups)
        shapes = [(self.symbols, self.width), (inputs, self.hidden), (1, self.hidden)]
        shapes += [(self.hidden, self.symbols), (1, self.symbols)]
        fans = [1, inputs, inputs, self.hidden, self.hidden]
        return [uniform((*runs, *shape), fan, seeds) for shape, fan in zip(shapes, fans, strict=True)]

    def batch(self, generators: list, count: int) -> tuple:
        starts = torch.stack([torch.randint(len(self.train) - self.context, (count,), generator=g) for g in generators])
        return self._at(self.train, starts)

    def held_out(self, seeds: int) -> tuple:
        starts = torch.randint(len(self.test) - self.context, (8192,), generator=torch.Generator().manual_seed(5))
        return self._at(self.test, starts.expand(seeds, -1))

    def _at(self, codes: torch.Tensor, starts: torch.Tensor) -> tuple:
        windows = codes[starts.unsqueeze(-1) + torch.arange(self.context + 1)]
        return windows[..., :-1], windows[..., -1]

    def logits(self, x: list[torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        """Those of `inputs` (runs, batch, context)."""
        runs, batch, _ = inputs.shape
        flat = [p.flatten(0, 1) for p in x]
        places = inputs + self.symbols * torch.arange(runs).view(-1, 1, 1)
        seen = functional.embedding(places, flat[0].flatten(0, 1)).view(runs, batch, -1)
        return torch.baddbmm(flat[4], torch.relu(torch.baddbmm(flat[2], seen, flat[1])), flat[3])


class Images:
    """A residual network of two blocks over images in `inputs`, a fifth of which is held out."""

    channels, classes, stride = (16, 32), 10, 1

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        order = np.random.default_rng(3).permutation(len(images))
        images = torch.tensor(images[order], dtype=torch.float32)
        images = (images - images.mean()) / images.std()
        labels, test = torch.tensor(labels[order], dtype=torch.int64), len(images) // 5
        self.x, self.y, self.test_x, self.test_y = images[test:], labels[test:], images[:test], labels[:test]
        self.what = f"{len(self.x)} images of {images.shape[1]} x {images.shape[2]}, {test} held out"

    def parameters(self, seeds: range, groups: int) -> list[torch.Tensor]:
        a, b = self.channels
        fans = {(a, 1, 3, 3): 9, (a, a, 3, 3): 9 * a, (b, a, 3, 3): 9 * a, (b, b, 3, 3): 9 * b}
        order = [(a, 1, 3, 3), (a, a, 3, 3), (a, a, 3, 3), (b, a, 3, 3), (b, b, 3, 3), (b, b, 3, 3)]
        runs = (len(seeds), groups)
        x = [uniform((*runs, *shape), fans[shape] / 6, seeds) for shape in order]
        for last in (2, 5):  # a block begins as nothing
            x[last].zero_()
        biases = [torch.zeros(*runs, shape[0]) for shape in order]
        head = [uniform((*runs, b, self.classes), b, seeds), torch.zeros(*runs, 1, self.classes)]
        return [*x, *biases, *head]

    def batch(self, generators: list, count: int) -> tuple:
        places = torch.stack([torch.randint(len(self.x), (count,), generator=g) for g in generators])
        return self.x[places], self.y[places]

    def held_out(self, seeds: int) -> tuple:
        return self.test_x.expand(seeds, *self.test_x.shape), self.test_y.expand(seeds, -1)

    def logits(self, x: list[torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        """Those of `inputs` (runs, batch, height, width): the runs are groups of a convolution."""
        runs, batch = inputs.shape[:2]

        def convolved(h: torch.Tensor, i: int, stride: int = 1) -> torch.Tensor:
            weight, bias = x[i].flatten(0, 2), x[6 + i].flatten()
            return functional.conv2d(h, weight, bias, stride=stride, padding=1, groups=runs)

        h = torch.relu(convolved(inputs.transpose(0, 1), 0, self.stride))
        h = torch.relu(h + convolved(torch.relu(convolved(h, 1)), 2))
        h = torch.relu(convolved(h, 3, 2))
        h = torch.relu(h + convolved(torch.relu(convolved(h, 4)), 5))
        pooled = h.mean((2, 3)).view(batch, runs, -1).transpose(0, 1)
        return torch.baddbmm(x[13].flatten(0, 1), pooled, x[12].flatten(0, 1))


class Digits(Images):
    """What scikit-learn has of handwritten digits, read without it."""

    def __init__(self, o: argparse.Namespace) -> None:
        path = o.digits
        if path is None:
            found = importlib.util.find_spec("sklearn")
            if found is None or found.origin is None:
                raise FileNotFoundError("digits: scikit-learn is not installed; wanted: it, or --digits with its file")
            path = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
        table = np.loadtxt(path, delimiter=",")
        super().__init__(table[:, :-1].reshape(-1, 8, 8), table[:, -1])


class Polygons(Images):
    """Filled polygons and stars of 3 to 7 corners, turned, sheared, moved, with noise and a strip that hides a part."""

    channels, stride, count, side = (8, 16), 2, 10_000, 32

    def __init__(self, o: argparse.Namespace) -> None:
        draw, n = np.random.default_rng(11), self.count
        labels = draw.integers(0, self.classes, n)
        corners, is_star = (labels % 5 + 3)[:, None, None], (labels >= 5)[:, None, None]
        at = np.linspace(-1, 1, self.side)
        turn, size = draw.uniform(0, 2 * np.pi, n), draw.uniform(0.5, 0.85, n)
        shear, place = draw.uniform(-0.3, 0.3, n), draw.uniform(-0.15, 0.15, (2, n))
        px = at[None, None, :] - place[0][:, None, None]
        py = at[None, :, None] - place[1][:, None, None]
        px = px + shear[:, None, None] * py
        radius, angle = np.hypot(px, py) / size[:, None, None], np.arctan2(py, px) + turn[:, None, None]
        half = np.pi / corners
        inside = np.abs((angle % (2 * half)) - half)  # from the middle of an edge
        edge = np.cos(half) / np.cos(inside)
        notch = 1 - 0.6 * (1 - inside / half)  # of a star: back to 0.4 between corners
        image = 1 / (1 + np.exp((radius - np.where(is_star, notch, edge)) * 24))
        hidden = draw.uniform(-0.8, 0.8, n)[:, None, None]
        image = np.where(np.abs(at[None, None, :] - hidden) < 0.12, 0.5, image)
        super().__init__(image + draw.normal(0, 0.35, image.shape), labels)


TASKS = {"plateau": Words, "digits": Digits, "polygons": Polygons}


def run(o: argparse.Namespace, task: object, name: str, tau: int, rate: float) -> tuple[list[float], list[float]]:
    """Loss and share of right answers of each seed, on what is held out."""
    seeds, options = range(o.seed, o.seed + o.seeds), RULES[name]
    # Where gradients are averaged at every step, all groups are one with their batches.
    groups, batch = (1, o.batch * o.groups) if options is None else (o.groups, o.batch)
    x = [p.requires_grad_() for p in task.parameters(seeds, groups)]
    generators = [torch.Generator().manual_seed(1000003 * seed) for seed in seeds]
    optimizer = torch.optim.AdamW(x, lr=rate, fused=True)

    def loss_of(_step: int) -> torch.Tensor:
        inputs, wanted = task.batch(generators, groups * batch)
        logits = task.logits(x, inputs.reshape(-1, batch, *inputs.shape[2:]))
        return functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum") / batch

    parts = {"warm_up": o.steps // 20, "cool_down": o.steps // 10, "decay": o.steps // 5}
    co2_groups.train(x, loss_of, optimizer, options, steps=o.steps, tau=tau, **parts)
    for p in x:
        assert torch.equal(p, p[:, :1].expand_as(p))  # the groups ended alike
    with torch.no_grad():
        inputs, wanted = task.held_out(o.seeds)
        logits = task.logits([p[:, :1] for p in x], inputs)
        losses = functional.cross_entropy(logits.transpose(1, 2), wanted, reduction="none").mean(1)
        right = (logits.argmax(2) == wanted).float().mean(1)
    return losses.tolist(), right.tolist()


def record(o: argparse.Namespace, task: object, name: str, tau: int, rate: float, ends: tuple) -> str:
    losses, right = ends
    cpu, cores = programs.cpu_name(), len(os.sched_getaffinity(0))
    machine = {"name": f"{cpu}, {cores} cores", "cpu": cpu, "cores": cores, "load": os.getloadavg()[0]}
    machine |= {"kernel": f"{platform.system()} {platform.release()}", "torch": torch.__version__}
    command = " ".join(["python3 bench/co2_tasks.py", *sys.argv[1:]])
    entrant = argparse.Namespace(name=name, reason="", status="ok")
    o.repetitions = o.seeds
    row = programs.torch_head(o, entrant, machine, o.groups, command)
    numbers = sum(p[0, 0].numel() for p in task.parameters(range(1), 1))
    what = f"{o.steps} steps of {o.groups} x {o.batch}, {numbers} parameters; {task.what}"
    row |= {"workload": "co2", "case": {"name": f"{o.task} tau {tau}", "what": what}, "dtype": "fp32"}
    row |= {"data": f"{o.task}, seeds from {o.seed}", "flags": ["one_process"]}
    row["method"] = {"repetitions": o.seeds, "n": o.steps}
    spread = {"median": statistics.median(losses), "min": min(losses), "max": max(losses), "samples": losses}
    row["training"] = {"parameters": numbers, "learning_rate": rate, "loss": spread}
    row["accuracy"] = {"mean": statistics.mean(right), "min": min(right), "max": max(right), "samples": right}
    return schema.with_id(row) + "\n"


def main() -> int:
    o = arguments()
    names, taus, rates = o.rules.split(","), o.tau.split(","), o.rates.split(",")
    unknown = [name for name in names if name not in RULES]
    bad = [tau for tau in taus if not tau.isdigit() or int(tau) < 1]
    if unknown or bad or min(o.seeds, o.groups, o.batch, o.steps) < 1:
        print(f"co2_tasks.py: error: rules {unknown} are not known, or tau {bad} or a count is less than 1")
        return programs.EXIT_USAGE
    torch.set_num_threads(1)
    try:
        task = TASKS[o.task](o)
    except OSError as error:
        print(f"co2_tasks.py: error: {error}")
        return programs.EXIT_UNSUPPORTED
    for rate in map(float, rates):
        for name in names:
            # Averaged gradients have no rounds.
            for tau in map(int, taus[:1] if RULES[name] is None else taus):
                ends = run(o, task, name, tau, rate)
                row = record(o, task, name, tau, rate, ends)
                print(f"{o.task} tau {tau} rate {rate} {name}: loss {statistics.mean(ends[0]):.4f}", flush=True)
                if o.out:
                    with o.out.open("a") as file:
                        file.write(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
