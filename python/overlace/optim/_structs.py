"""Structs and words of `overlace/capi_co2.h`."""

from __future__ import annotations

import ctypes as c
from typing import Any

import torch

from overlace._library import _Sized
from overlace.errors import InvalidArgument

RULES = {"local_sgd": 0, "slow_mo": 1, "diloco": 2, "co2": 3, "eager": 4, "streaming": 5}
GAPS = {None: 0, "constant": 1, "adaptive": 2}
CLIPS = {None: 0, "absolute": 1, "relative": 2}
KAPPAS = {"delta": 0.0, "anchor": 1.0}
DTYPES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3, torch.int8: 8}  # enum ovl_dtype
OF_RULE = -1.0
AVERAGE_INNER = c.CFUNCTYPE(c.c_int, c.c_void_p)
REDUCE_IN_GROUP = c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(c.c_double), c.c_uint64)


class Knobs(c.Structure):
    _fields_ = (("tau", c.c_int64), ("outer_lr", c.c_double), ("outer_momentum", c.c_double))


class Co2Options(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        ("rule", c.c_int32),
        ("gap", c.c_int32),
        ("clip", c.c_int32),
        ("wire_dtype", c.c_int32),
        ("tau", c.c_int64),
        ("warmup_sync_steps", c.c_int64),
        ("cooldown_sync_steps", c.c_int64),
        ("total_steps", c.c_int64),
        ("check_every", c.c_int64),
        ("fragments", c.c_int64),
        ("delay", c.c_int64),
        ("outer_lr", c.c_double),
        ("outer_momentum", c.c_double),
        ("kappa", c.c_double),
        ("keep", c.c_double),
        ("gap_value", c.c_double),
        ("phi", c.c_double),
        ("mix", c.c_double),
        ("bucket_bytes", c.c_int64),
        ("timeout_ms", c.c_int64),
        ("threads", c.c_int32),
        ("average_inner", AVERAGE_INNER),
        ("user", c.c_void_p),
        ("shard_degree", c.c_int32),
        ("reduce_in_group", REDUCE_IN_GROUP),
        ("auto_timeout", c.c_int32),
        ("samples", c.c_double),
        ("whole_boundaries", c.c_int32),
        ("on_device", c.c_int32),
        ("device", c.c_int32),
        ("stream", c.c_void_p),
        ("schedule", c.POINTER(Knobs)),
        ("num_scheduled", c.c_uint64),
        ("momentum_over_lr", c.c_int32),
    )


class Parameter(c.Structure):
    _fields_ = (
        ("name", c.c_char_p),
        ("data", c.c_void_p),
        ("count", c.c_int64),
        ("dtype", c.c_int32),
        ("group_count", c.c_int64),
    )


class Stats(_Sized):
    _fields_ = (
        ("struct_size", c.c_size_t),
        *((name, c.c_int64) for name in ("rounds", "round", "steps", "bytes")),
        *((name, c.c_double) for name in ("round_ms", "comm_ms", "exposed_ms", "pass_ms", "lambda", "clipped")),
        *((name, c.c_double) for name in ("increment_norm", "mean_norm", "momentum_norm")),
        *((name, c.c_int32) for name in ("last_rank", "is_dropped")),
        ("link_bytes", c.c_int64),
    )


def words_of(
    rule: object, gap: object, clip: object, pseudo_gradient: object, momentum_over_lr: object
) -> dict[str, Any]:
    """The fields of Co2Options that are one of a few."""
    return {
        "rule": choice("rule", rule, RULES),
        "gap": choice("gap", gap, GAPS),
        "clip": choice("clip", clip, CLIPS),
        "kappa": choice("pseudo_gradient", pseudo_gradient, KAPPAS),
        "momentum_over_lr": choice("momentum_over_lr", momentum_over_lr, {True: 1, False: 0}),
    }


def choice(name: str, value: object, table: dict) -> Any:
    if value not in table:
        raise InvalidArgument(f"CO2: {name} is {value!r}, wanted one of {', '.join(map(repr, table))}")
    return table[value]
