"""Blocks of README.md and weekly.md that follow from bench/results and from the last whole run of the GPU tests."""

from __future__ import annotations

import math
import re
import textwrap
from pathlib import Path

import baselines
import blocks
import gpu_status
from result_records import (
    DENSE,
    REDUCED,
    ROOT,
    bench_records,
    changes,
    geometric_mean,
    is_void,
    median,
    microseconds,
    newest,
    of_commit,
    ratio,
    records,
)

README, WEEKLY = "README.md", "docs/results/weekly.md"
TITLES = {name: operator.title for name, operator in bench_records.DENSE_OPERATORS.items()}
ROWS = (1024, 8192)
WIDTH = 120


def prose(text: str) -> str:
    """Filled lines; a link or a name is never broken in two."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def standing(gains: list[float]) -> str:
    """The standing of a whole set: its mean, its worst and how many are losses."""
    losses = sum(gain < 0.995 for gain in gains)
    lost = "slower at none" if losses == 0 else f"slower at {losses}"
    mean = f"{geometric_mean(gains):.2f} times as fast in the geometric mean of {len(gains)}"
    return f"{mean}, {min(gains):.2f} times at worst, {lost}"


def canonical() -> list[tuple[str, str, int, dict[str, dict]]]:
    """(operator, layer, M, competitors) of the canonical run on two GPUs."""
    rows = records("canonical_x2")
    by_op = {op: newest([row for row in rows if row["workload"] == op]) for op in DENSE}
    return [(op, name, m, group) for op in DENSE for (name, m, _, _), group in by_op[op].items()]


def operator_table() -> str:
    lines = [
        "| operator of a layer of Llama-3.1-70B, bf16, 2x H200 | cuBLAS, then NCCL | `torch.mm`, then NCCL |"
        " PyTorch async-TP | overlace (`auto`) | attainable limit | over cuBLAS, NCCL | over async-TP |",
        "|---" * 8 + "|",
    ]
    for op, name, m, group in canonical():
        if m not in ROWS:
            continue
        case = group["auto"]["case"]
        kinds = ("library", "torch_library", "torch_async_tp", "auto", "limit")
        library, torch, fused, auto, limit = (median(group, kind) for kind in kinds)
        times = [("-" if math.isnan(x) else f"{microseconds(x)} us") for x in (library, torch, fused, auto, limit)]
        gains = [ratio(library / auto, group, "library", "auto"), ratio(fused / auto, group, "auto")]
        gains = [gain if gain in ("-", "void") else f"{gain}x" for gain in gains]
        what = f"{TITLES[op]}, {name.removeprefix('70B ')} (M {m}, N {case['n']}, K {case['k']})"
        lines.append(f"| {what} | {' | '.join(times + gains)} |")
    return "\n".join(lines)


def operators() -> str:
    gains: dict[str, list[float]] = {"library": [], "torch_library": [], "torch_async_tp": []}
    for _, _, _, group in canonical():
        auto = median(group, "auto")
        for kind, found in gains.items():
            value = median(group, kind) / auto
            if not math.isnan(value) and not is_void(group, kind, "auto"):
                found.append(value)
    rows = records("canonical_x2")
    held_up = {
        (op, name, m) for op, name, m, group in canonical() if "host_bound" in group["torch_async_tp"].get("flags", [])
    }
    free = [
        median(group, "torch_async_tp") / median(group, "auto")
        for op, name, m, group in canonical()
        if (op, name, m) not in held_up and not math.isnan(median(group, "torch_async_tp"))
    ]
    of_free = f" ({standing(free)}, without {len(held_up)} at which its host was the limit)" if held_up else ""
    unsettled = sum(any("unsettled" in r["flags"] for r in group.values()) for *_, group in canonical())
    least, most = min(r["case"]["m"] for r in rows), max(r["case"]["m"] for r in rows)
    text = (
        f"N and K are as one rank sees them, M is of all ranks. Over all shapes of that run, {least} to {most} rows,"
        f" `auto` was, beside cuBLAS and NCCL, {standing(gains['library'])}; beside `torch.mm` and NCCL"
        f" {standing(gains['torch_library'])}; beside PyTorch's asynchronous tensor parallelism, which has no"
        f" all-reduce, {standing(gains['torch_async_tp'])}{of_free}. PyTorch ran in a process of its own. At"
        f" {unsettled} of the shapes clocks had not settled. The limit is the same GEMM beside"
        " the same transfers without dependence. [All of them](docs/results/h200x2.md), from this"
        f" [record](bench/results/canonical_x2.jsonl). {of_commit(rows)}"
    )
    return operator_table() + "\n\n" + prose(text)


def few_tokens() -> str:
    """One token of o_proj; the schedule was asked for, and says so."""
    rows = [r for r in records("decode_x2") if r["workload"] in REDUCED]
    asked = next(r["competitor"] for r in rows if r["competitor"] not in (bench_records.LIBRARY, bench_records.COMPUTE))
    launches = {"chain": "calls behind each other in a CUDA graph", "stream": "called one by one"}
    lines = [
        "| GEMM+AllReduce of one token, 70B o_proj (N 8192, K 2048), bf16, 2x H200 | cuBLAS, then NCCL |"
        f" overlace (`{asked}`, asked for) | cuBLAS alone | over cuBLAS, NCCL |",
        "|---|---|---|---|---|",
    ]
    used = []
    for launch, title in launches.items():
        mine = [r for r in rows if r["launch"] == launch and (r["case"]["n"], r["case"]["k"]) == (8192, 2048)]
        group = next(g for (_, m, _, _), g in newest(mine).items() if m == 1)
        used += list(group.values())
        library, ours, alone = (median(group, kind) for kind in ("library", asked, "compute"))
        gain = ratio(library / ours, group, "library", asked)
        times = " | ".join(f"{microseconds(x)} us" for x in (library, ours, alone))
        lines.append(f"| {title} | {times} | {gain}{'' if gain == 'void' else 'x'} |")
    text = f"[Record](bench/results/decode_x2.jsonl). {of_commit(used)} `auto` was not measured in that run."
    return "\n".join(lines) + "\n\n" + prose(text)


def decoder_block() -> str:
    """Versions under torch.compile on two GPUs, and what the CPU limits."""

    def group(file: str, tokens: int, direction: str) -> dict[str, dict]:
        rows = [r for r in records(file) if r["case"]["m"] == tokens and r["case"]["name"].endswith(direction)]
        newest_run = max(r["run"] for r in rows)
        return {r["competitor"]: r for r in rows if r["run"] == newest_run}

    def gain(file: str, tokens: int, direction: str, base: str, ours: str) -> float:
        of = group(file, tokens, direction)
        return median(of, base) / median(of, ours)

    shown = {}
    for base in ("nccl_compiled", "torch_async_tp"):
        for tokens in (8192, 1024):
            pair = [gain("block_x2", tokens, d, base, "overlace_compiled") for d in ("forward", "step")]
            shown[base, tokens] = f"{pair[0]:.2f} times as fast forward and {pair[1]:.2f} times in a training step"
    eager = [gain("block_x2_eager", tokens, "step", "nccl", "overlace") for tokens in (8192, 1024)]
    rows = records("block_x2")
    text = (
        "Through PyTorch, all under `torch.compile`, a decoder block of that model on two GPUs is, beside the same"
        f" block with NCCL, {shown['nccl_compiled', 8192]} at 8192 tokens, {shown['nccl_compiled', 1024]} at 1024;"
        f" beside PyTorch's asynchronous tensor parallelism {shown['torch_async_tp', 8192]} at 8192 tokens,"
        f" {shown['torch_async_tp', 1024]} at 1024. Not compiled, a training step is {eager[0]:.2f} times as fast"
        f" as with NCCL at 8192 tokens and {eager[1]:.2f} times at 1024, where the CPU is the limit."
        f" [All of it](docs/results/block.md). {of_commit(rows + records('block_x2_eager'))}"
        " In all of these runs NCCL was without NVLink SHARP, PyTorch's too."
    )
    return prose(text)


def four_gpus() -> str:
    """What is older says so, and is not quoted."""
    rows = [row for op in DENSE for row in records(op)]
    passed = [f"{c.what} ({c.commit})" for c in changes() if any(baselines.is_older(row, [c]) for row in rows)]
    if not passed:
        return ""
    return "\n\n" + prose(
        f"[Four GPUs](docs/results/h200x4.md) were last measured before the baseline got faster: {'; '.join(passed)}."
        " That page marks what may not be compared any more."
    )


def results() -> str:
    return "\n\n".join((operators(), few_tokens(), decoder_block())) + four_gpus()


AS_OF = re.compile(r"as of commit ([0-9a-f]{7,40})")


def gpu_tests(root: Path, old: str, is_new: bool) -> str:
    """What gpu_status says as of a commit. `is_new`: of HEAD; else of the commit that the text names, so that it stays
    true while commits come. Without git the text stays."""
    if gpu_status.last_whole(root) is None:
        return prose(first_upper(gpu_status.sentence(root)))
    named = AS_OF.search(old)
    until = named[1] if named and not is_new else gpu_status.git(root, "rev-parse", "--short=12", "HEAD")
    if until is None or gpu_status.git(root, "cat-file", "-e", until) is None:
        return old
    told = gpu_status.sentence(root, until)
    return prose(f"{first_upper(told)[:-1]}, as of commit {until} (`tools/gpu_status.py` counts now).")


def document(root: Path, name: str, is_new: bool) -> str:
    """The whole text with its blocks made anew."""
    text = (root / name).read_text()
    contents = {"gpu tests": gpu_tests(root, blocks.found(text).get("gpu tests", ""), is_new)}
    return blocks.replaced(text, contents | ({"results": results()} if name == README else {}))


def write(is_check: bool) -> list[str]:
    """Problems, if only checked."""
    problems = []
    for name in (README, WEEKLY):
        try:
            text = document(ROOT, name, is_new=not is_check)
        except ValueError as error:
            problems.append(f"{name}: {error}")
            continue
        if not is_check:
            (ROOT / name).write_text(text)
        elif (ROOT / name).read_text() != text:
            problems.append(f"{name} differs from the records; run tools/gen_results.py")
    return problems
