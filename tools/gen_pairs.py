"""docs/results/h200x2_operators.md: fp8, striped and tracked products, norms, experts and embeddings on two H200."""

from __future__ import annotations

import math

from result_records import median, microseconds, records

Groups = dict[tuple, dict[str, dict]]


def grouped(rows: list[dict], *keys: str) -> Groups:
    """Rows by these fields of the case, `launch` or `dtype` among them -> competitor -> row."""
    out: Groups = {}
    for row in rows:
        key = tuple(row.get(k) if k in ("launch", "dtype", "workload") else row["case"].get(k) for k in keys)
        out.setdefault(key, {})[row["competitor"]] = row
    return out


def times(group: dict[str, dict], *names: str) -> str:
    return " | ".join(microseconds(median(group, name)) for name in names)


def ratio(group: dict[str, dict], slow: str, fast: str) -> str:
    value = median(group, slow) / median(group, fast)
    return "-" if math.isnan(value) else f"{value:.2f}"


def head(*cells: str) -> list[str]:
    return ["| " + " | ".join(cells) + " |", "|---" * len(cells) + "|"]


def commits(rows: list[dict]) -> str:
    return ", ".join(sorted({row["git"] for row in rows}))


def fp8() -> list[str]:
    rows = records("fp8_x2")
    out = [
        "## fp8",
        "",
        f"e4m3 with scales of rows, bf16 out, eager ([record](../../bench/results/fp8_x2.jsonl), {commits(rows)})."
        " `torch` is `torch._scaled_mm` and NCCL, `async-TP` the scaled operators of PyTorch's symmetric memory, whose"
        " host is the limit at 1024 to 4096 rows; bf16 is overlace's `auto` of the same numbers in bf16.",
        "",
        *head(
            "operator", "M", "N", "K", "torch", "async-TP", "library", "auto", "bf16", "x torch", "x async-TP", "x bf16"
        ),
    ]
    for (op, m, n, k), group in grouped(rows, "workload", "m", "n", "k").items():
        shown = times(group, "torch_library", "torch_async_tp", "library", "auto", "bf16_auto")
        gains = [ratio(group, name, "auto") for name in ("torch_library", "torch_async_tp", "bf16_auto")]
        out.append(f"| {op} | {m} | {n} | {k} | {shown} | {' | '.join(gains)} |")
    return out


def striped() -> list[str]:
    rows = [row for row in records("t3_x2") if row["workload"] == "striped"]
    out = [
        "## Kernels that nobody changed, into a StripedTensor",
        "",
        f"A product of PyTorch's and the sum of its rows ([record](../../bench/results/t3_x2.jsonl), {commits(rows)},"
        " eager). `hidden` is the share of what the sum adds to the product that `striped` does not take.",
        "",
        *head(
            "operands",
            "M",
            "N",
            "K",
            "product",
            "torch, NCCL",
            "async-TP",
            "striped",
            "`gemm_rs`",
            "of torch",
            "hidden",
        ),
    ]
    for (dtype, m, n, k), group in grouped(rows, "dtype", "m", "n", "k").items():
        compute, plain, own = (median(group, x) for x in ("compute", "torch_library", "striped"))
        shown = times(group, "compute", "torch_library", "torch_async_tp", "striped", "overlace")
        hidden = (plain - own) / (plain - compute)
        out.append(f"| {dtype} | {m} | {n} | {k} | {shown} | {own / plain:.2f} | {hidden:.2f} |")
    return out


def tracked() -> list[str]:
    rows = [row for row in records("t3_x2") if row["workload"] != "striped"]
    names = [name for name in dict.fromkeys(row["competitor"] for row in rows) if name != "auto"]
    out = [
        "## Copies that a running kernel triggers",
        "",
        "`gemm_rs` by schedules that were asked for, and `auto` of that commit"
        f" ([record](../../bench/results/t3_x2.jsonl), {commits(rows)}); since then `auto` knows that the sums of"
        " `tma_slot` hide, and would take it at more of them.",
        "",
        *head("launch", "layer", "M", *names, "auto"),
    ]
    for (launch, name, m), group in grouped(rows, "launch", "name", "m").items():
        out.append(f"| {launch} | {name} | {m} | {times(group, *names, 'auto')} |")
    return out


def norm() -> list[str]:
    rows = records("norm_x2")
    out = [
        "## Residual and RMSNorm behind GEMM and AllReduce",
        "",
        "70B o_proj (N 8192, K 2048), a CUDA graph of one call"
        f" ([record](../../bench/results/norm_x2.jsonl), {commits(rows)}).",
        "",
        *head("M", "`gemm_ar`: library", "auto", "`gemm_ar_norm`: library", "auto", "x library", "auto's norm"),
    ]
    cases = grouped(rows, "workload", "m")
    without, whole = dict.fromkeys(op for op, _ in cases)
    for m in dict.fromkeys(m for _, m in cases):
        plain, full = cases[without, m], cases[whole, m]
        more = median(full, "auto") - median(plain, "auto")
        shown = f"{times(plain, 'library', 'auto')} | {times(full, 'library', 'auto')}"
        out.append(f"| {m} | {shown} | {ratio(full, 'library', 'auto')} | {microseconds(more)} |")
    return out


def moe() -> list[str]:
    rows = records("moe_x2")
    out = [
        "## Mixtures of experts, forward",
        "",
        "Tokens of a rank; torch is `all_to_all_single` with splits that are known and `grouped_mm`, `exchanged` with"
        f" counts that the host waits for ([record](../../bench/results/moe_x2.jsonl), {commits(rows)})."
        " Families in graphs were asked for; `compute` is torch's grouped GEMMs of the same rows alone.",
        "",
        *head(
            "model",
            "tokens",
            "routing",
            "torch",
            "torch, graph",
            "exchanged",
            "overlace",
            "graph",
            "`serial`",
            "`fused`",
            "compute",
            "graph x torch, graph",
        ),
    ]
    names = (
        "torch",
        "torch_graph",
        "torch_exchanged",
        "overlace",
        "overlace_graph",
        "serial_graph",
        "fused_graph",
        "compute",
    )
    for (name, tokens, routing), group in grouped(rows, "name", "tokens", "routing").items():
        gain = ratio(group, "torch_graph", "overlace_graph")
        out.append(f"| {name} | {tokens} | {routing} | {times(group, *names)} | {gain} |")
    return out


def embedding() -> list[str]:
    rows = records("embedding_x2")
    out = [
        "## Embeddings and All-to-All, forward",
        "",
        "T tables of 200,000 rows of D values on each rank, B samples of all ranks, L rows a bag"
        f" ([record](../../bench/results/embedding_x2.jsonl), {commits(rows)}). GB/s is of the rows that a rank reads,"
        " by `graph`.",
        "",
        *head(
            "T, D, B, L",
            "dtype",
            "rows drawn",
            "torch",
            "torch, graph",
            "overlace",
            "graph",
            "`serial`",
            "torch's pooling",
            "graph x torch, graph",
            "GB/s",
        ),
    ]
    names = ("torch", "torch_graph", "overlace", "overlace_graph", "serial_graph", "compute")
    keys = ("tables", "dim", "samples", "length", "dtype", "distribution")
    for (*sizes, dtype, drawn), group in grouped(rows, *keys).items():
        graph = group["overlace_graph"]
        gain, rate = (
            ratio(group, "torch_graph", "overlace_graph"),
            graph["bytes"] / median(group, "overlace_graph") / 1e3,
        )
        out.append(
            f"| {', '.join(map(str, sizes))} | {dtype} | {drawn} | {times(group, *names)} | {gain} | {rate:.0f} |"
        )
    return out


def page() -> str:
    lines = [
        "# New operators on 2x H200",
        "",
        "Generated by `tools/gen_results.py` from records; do not edit. Two H200, driver 580.159.04, CUDA 13.0, without"
        " NVLink SHARP; us, medians of bursts in which all competitors took turns, of the slowest rank; every result"
        " was verified before and behind. Warm-up was short, so that clocks had not settled in most rows: ratios hold,"
        " single times may be off by some percent. What was asked for, and why some of it is missed, is in"
        " [goals](goals.md).",
    ]
    for section in (fp8(), striped(), tracked(), norm(), moe(), embedding()):
        lines += ["", *section]
    return "\n".join(lines) + "\n"
