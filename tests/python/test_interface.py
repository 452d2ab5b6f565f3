"""The library states the interface of each operator once; what C++ and PyTorch say must agree with it.

C and overlace.call take the stated names themselves.
"""

from __future__ import annotations

import ctypes as c
import inspect
import json
import os
import re
import sys
import typing
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = c.CDLL(os.environ["OVERLACE_LIB"])


def _stated() -> dict[str, dict]:
    text = c.c_char_p()
    assert LIBRARY.ovl_operators_json(c.byref(text)) == 0
    return {op["name"]: op for op in json.loads(text.value)}


STATED = _stated()
OPERATORS = sorted(STATED)
# Those whose problem is sizes alone.
SIZED = [name for name in OPERATORS if not STATED[name]["fields"]]

# Operators of PyTorch with scales have names of their own.
NO_SCALES = {"a_scale": None, "b_scale": None}
RESULTS = ("output", "gathered")
SCALED = [name for name in OPERATORS if any(a["role"] == "scale" for a in STATED[name]["args"])]

# How PyTorch calls an argument: results are returned, and what may be several is a list.
TORCH = {
    "ag_gemm": {"a_shard": "a", "b": "bs", "bias": "biases", "c": None, "a": None} | NO_SCALES,
    "ag_wgrad": {"a_shard": "x", "b": "dys", "c": None, "a": None},
    "gemm_rs": {"a": "a", "b": "b", "bias": "bias", "out": None} | NO_SCALES,
    "gemm_ar": {"a": "a", "b": "b", "bias": "bias", "out": None} | NO_SCALES,
    "gemm_ar_norm": {"out": None, "normed": None}
    | {name: name for name in ("a", "b", "residual", "norm_weight", "bias")},
    "a2a_gemm": {"a_shard": "a", "b": "b", "bias": "bias", "c": None, "a": None},
    "gemm_a2a": {"a": "a", "b": "b", "bias": "bias", "out": None},
    "embedding_a2a": {name: name for name in ("weights", "indices", "offsets", "per_sample_weights")} | {"out": None},
}


def names(op: str) -> list[str]:
    return [argument["name"] for argument in STATED[op]["args"]]


def returns_gathered(op: str) -> bool:
    return any(argument["role"] == "gathered" for argument in STATED[op]["args"])


def others(op: str) -> set[str]:
    """Members besides tensors."""
    sides = [side for argument in STATED[op]["args"] for side in argument["shape"]]
    splits = set()
    if any("got[" in s for s in sides):
        splits = {"splits", "exchange", "blocks"}
    elif any("off[" in s for s in sides):
        splits = {"row_offsets"}
    fields = {field["name"] for field in STATED[op]["fields"]}
    return splits | fields | ({"activation"} if STATED[op]["takes_activation"] else set())


def members(text: str, pattern: str) -> dict[str, list[str]]:
    """By type, the members of the struct whose body the pattern finds."""
    body = re.search(pattern, text, re.S)
    assert body, pattern
    plain = re.sub(r"/\*.*?\*/|//[^\n]*|\{\}", "", body[1], flags=re.S)
    found: dict[str, list[str]] = {}
    for kind, listed in re.findall(r"(?m)^\s*([\w:<>* ]+?)[ *]+(\w[\w, ]*)(?: = [^;]+)?;", plain):
        found.setdefault(kind.strip(), []).extend(name.strip() for name in listed.split(","))
    return found


def test_all_are_mirrored():
    assert sorted(TORCH) == OPERATORS


def test_benches_speak_of_all():
    listed = {row["name"]: row for row in json.loads((ROOT / "bench/dense/operators.json").read_text())}
    assert sorted(listed) == sorted([*SIZED, "gemm_ar_norm"])  # whose field is a number that no size depends on
    for name, op in ((name, STATED[name]) for name in listed):
        first, out = (next(a for a in op["args"] if a["role"] == role) for role in ("input", "output"))
        sides = ["all" if arg["shape"][0] == "M" else "own" for arg in (first, out)]
        wanted = {"gathered": ("own",), "scattered": ("all", "own"), "reduced": ("all", "all"), "exchanged": ("own",)}
        assert tuple(sides)[: len(wanted[listed[name]["rows"]])] == wanted[listed[name]["rows"]], name


@pytest.mark.parametrize("op", OPERATORS)
def test_benches_and_pytorch_name_the_families_of_every_operator(op, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench" / "driver"))
    import records

    families = STATED[op]["families"]
    assert tuple(f["name"] for f in families[:2]) == records.PLAIN
    assert {f["purpose"] for f in families} - {"plan"} <= {*records.PARTS}
    overlace, _ = _torch()
    assert families[0]["name"] == overlace.planning.LIBRARY_FAMILY


@pytest.mark.parametrize("op", OPERATORS)
def test_cpp(op):
    struct = "".join(word.capitalize() for word in op.split("_")) + "Args"
    text = (ROOT / f"include/overlace/ops/{op}.h").read_text()
    found = members(text, rf"struct {struct} \{{(.*?)\n\}};")
    assert found.pop("TensorView") == names(op)
    assert {name for listed in found.values() for name in listed} == others(op)


def _torch():
    overlace = pytest.importorskip("overlace", reason="PYTHONPATH does not name the package that the build makes")
    if overlace._WHY_NO_TORCH:
        pytest.skip(overlace._WHY_NO_TORCH)
    import torch

    return overlace, torch


@pytest.mark.parametrize("op", OPERATORS)
def test_torch_schema_and_function(op):
    overlace, torch = _torch()
    schema = getattr(torch.ops.overlace, op).default._schema
    arguments = {argument.name: argument for argument in schema.arguments}
    given = [TORCH[op][name] for name in names(op) if TORCH[op][name] is not None]
    assert [name for name, a in arguments.items() if "Tensor" in str(a.type)] == given
    options = set(arguments) - set(given)
    assert "group" in options and "plan" in options
    assert options & {"row_offsets", "splits"} == others(op) & {"row_offsets", "splits"}
    assert ("return_a" in options) == (returns_gathered(op) and op != "ag_wgrad")

    function = getattr(overlace.ops, op)
    parameters = inspect.signature(function).parameters
    missing = set(arguments) - set(parameters)
    assert not missing, f"overlace.ops.{op} lacks {missing}"
    for name, argument in arguments.items():
        if (
            argument.has_default_value()
            and name not in ("row_offsets", "splits", "blocks")
            and parameters[name].default is not inspect._empty
        ):
            assert parameters[name].default == argument.default_value, name
    check_text(function)


@pytest.mark.parametrize("op", SCALED)
def test_torch_schema_and_function_of_scaled_operands(op):
    overlace, torch = _torch()
    schema = getattr(torch.ops.overlace, f"{op}_scaled").default._schema
    arguments = {argument.name: argument for argument in schema.arguments}
    stated = {"a" if a["name"] == "a_shard" else a["name"] for a in STATED[op]["args"] if a["role"] not in RESULTS}
    assert {name for name, a in arguments.items() if "Tensor" in str(a.type)} == stated
    assert ("row_offsets" in arguments) == ("row_offsets" in others(op))
    assert ("return_a" in arguments) == returns_gathered(op)
    function = getattr(overlace.ops, f"{op}_scaled")
    parameters = inspect.signature(function).parameters
    assert set(arguments) <= set(parameters)
    for name, argument in arguments.items():
        if argument.has_default_value() and name != "row_offsets":
            assert parameters[name].default == argument.default_value, name
    check_text(function)


def check_text(function) -> None:
    for name in inspect.signature(function).parameters:
        line = rf"(?m)^ *(?:[\w, ]+, )?{name}(?:, [\w, ]+)?: |; {name}: "
        assert re.search(line, function.__doc__), f"overlace.ops.{function.__name__}: no line says what {name} is"


@pytest.mark.parametrize(
    ("op", "struct", "written", "own"),
    [
        ("moe", "MoeArgs", {"out"}, {"group", "max_tokens", "family"}),
        ("moe_router", "MoeRouterArgs", {"idx", "weights"}, {"top_k"}),
    ],
)
def test_what_has_no_schedule_has_the_names_of_cpp(op, struct, written, own):
    """own: what PyTorch has besides; written: what it returns."""
    overlace, torch = _torch()
    text = (ROOT / "include/overlace/ops/moe.h").read_text()
    found = members(text, rf"struct {struct} \{{(.*?)\n\}};")
    stated = {name for listed in found.values() for name in listed} - written
    arguments = {a.name: a for a in getattr(torch.ops.overlace, op).default._schema.arguments}
    assert set(arguments) == stated | own
    parameters = inspect.signature(getattr(overlace.ops, op)).parameters
    assert set(arguments) <= set(parameters)
    for name, argument in arguments.items():
        if argument.has_default_value() and name != "expert_begin":
            assert parameters[name].default == argument.default_value, name
    check_text(getattr(overlace.ops, op))


def evaluated(expression: str, sizes: dict[str, int], offsets: list[int], rank: int) -> int:
    # Rows that are exchanged evenly: each rank gets as many as it has.
    exact = expression.replace("/", "//")
    return eval(exact, {"__builtins__": {}}, {**sizes, "off": offsets, "got": offsets, "r": rank})


def shapes_of_fakes(group, op, args, draws, exchange):
    """What the fakes say of drawn problems, beside the statement."""
    import random

    overlace, torch = _torch()
    random.seed(7)
    rank, size = group.rank(), group.size()
    ops, group_name = torch.ops.overlace, overlace.context_of(group).name
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        for _ in range(draws):
            unit = size if exchange == "cols" else 1
            sizes = {"G": size, "M": size * size * random.randint(1, 9)}
            sizes |= {"N": unit * random.randint(1, 40), "K": unit * random.randint(1, 40)}
            offsets = [sizes["M"] // size * i for i in range(size + 1)]
            shapes = {
                a["name"]: [
                    evaluated(side, sizes, offsets, rank)
                    for side in (a["shape"] if exchange == "rows" else a.get("shape_of_cols", a["shape"]))
                ]
                for a in args
            }
            made = {a["name"]: torch.empty(shapes[a["name"]]) for a in args if a["role"] in ("input", "bias")}
            wanted = [shapes[a["name"]] for a in args if a["role"] == "output"]
            if op == "ag_gemm":
                got = ops.ag_gemm(made["a_shard"], [made["b"]], [made["bias"]], 0, group_name)[1]
            elif op == "ag_wgrad":
                got = ops.ag_wgrad(made["a_shard"], [made["b"]], 0, group_name)
            elif op == "gemm_rs":
                got = [ops.gemm_rs(made["a"], made["b"], made["bias"], "sum", 0, group_name)]
            elif op == "a2a_gemm":
                got = [ops.a2a_gemm(made["a_shard"], made["b"], made["bias"], group_name, exchange=exchange)[1]]
            elif op == "gemm_a2a":
                got = [ops.gemm_a2a(made["a"], made["b"], made["bias"], group_name, exchange=exchange)]
            else:
                got = [ops.gemm_ar(made["a"], made["b"], made["bias"], "sum", group_name)]
            assert [list(t.shape) for t in got] == wanted, (op, sizes)


@pytest.mark.parametrize("op", SIZED)
def test_fakes(op):
    _torch()
    from torch_cpu.ranks import run_ranks

    for exchange in ("rows", "cols") if any("shape_of_cols" in a for a in STATED[op]["args"]) else ("rows",):
        run_ranks(3, shapes_of_fakes, op, STATED[op]["args"], 50, exchange)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python keeps overloads from 3.11 on")
@pytest.mark.parametrize("op", ["a2a_gemm", "ag_gemm"])
def test_overloads_are_of_the_function_and_give_all_that_it_gives(op):
    overlace, _ = _torch()
    function = getattr(overlace.ops, op)
    overloads = [inspect.signature(one) for one in typing.get_overloads(function)]
    own = inspect.signature(function)
    for one in overloads:
        assert list(one.parameters) == list(own.parameters)
        for name, parameter in one.parameters.items():
            wanted = own.parameters[name]
            assert parameter.kind == wanted.kind, name
            assert wanted.default is inspect.Parameter.empty or parameter.default in (..., inspect.Parameter.empty), (
                name
            )
            if name not in ("bs", "return_a"):  # what they tell apart
                assert parameter.annotation == wanted.annotation, name
    assert overloads[-1].return_annotation == own.return_annotation  # where a type checker knows no value
    assert len({one.return_annotation for one in overloads}) == len(overloads) > 2
