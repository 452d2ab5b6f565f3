"""What a run of CO2 goes on from, as bytes of each rank and as a folder that is whole at any time."""

from __future__ import annotations

import io
import json
import os
import secrets
import shutil
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from overlace import errors
from overlace.errors import InvalidArgument
from overlace.optim._structs import CLIPS, DTYPES, GAPS, RULES, Co2Options

FORMAT = 2
_MAGIC = b"OVLCO2P1"
_CURRENT = "current.json"


def pack(values: dict[str, Any]) -> bytes:
    """Bytes with a checksum; `values` are of plain types and tensors."""
    out = io.BytesIO()
    torch.save(values, out)
    body = out.getvalue()
    return _MAGIC + zlib.crc32(body).to_bytes(4, "little") + body


def unpack(data: bytes, where: str) -> dict[str, Any]:
    if not isinstance(data, bytes) or data[: len(_MAGIC)] != _MAGIC or len(data) < len(_MAGIC) + 4:
        raise errors.make("corrupt", f"{where}: it does not begin as what CO2 saves")
    at = len(_MAGIC)
    wanted, body = int.from_bytes(data[at : at + 4], "little"), data[at + 4 :]
    if zlib.crc32(body) != wanted:
        raise errors.make("corrupt", f"{where}: its checksum is {zlib.crc32(body)}, wanted: {wanted}")
    return torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)


def local_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's state with what this rank holds of sharded tensors."""

    def local(value: Any) -> Any:
        return value.to_local().clone() if isinstance(value, DTensor) else value

    state = optimizer.state_dict()
    inside = {key: {name: local(v) for name, v in one.items()} for key, one in state["state"].items()}
    return {**state, "state": inside}


def sharded_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """The inverse of local_state, for an optimizer of the same parameters."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def sharded(p: torch.Tensor, value: Any) -> Any:
        if not isinstance(p, DTensor) or not isinstance(value, torch.Tensor):
            return value
        if value.shape != p.to_local().shape or value.dim() == 0:
            return value
        return DTensor.from_local(value, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())

    inside = {
        key: {name: sharded(parameters[int(key)], v) for name, v in one.items()} for key, one in state["state"].items()
    }
    return {**state, "state": inside}


def load_inner(outside: torch.optim.Optimizer, stepped: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """`stepped`: the optimizer that keeps the state, `outside` or one inside it."""
    stepped.load_state_dict(sharded_state(stepped, state))
    # A ZeroRedundancyOptimizer copies learning rates from its own groups to those inside before each step.
    if stepped is not outside:
        for own, inside in zip(outside.param_groups, stepped.param_groups, strict=True):
            own.update({key: value for key, value in inside.items() if key != "params"})


def options_about(
    given: Co2Options, schedule: object, warmup_sync_steps: int, total_steps: int, *, is_auto: bool
) -> dict[str, Any]:
    """What runs that go on from each other have alike. Steps as the program gave them."""
    names = ["tau", "outer_lr", "outer_momentum", "kappa", "keep", "gap_value", "phi", "warmup_sync_steps"]
    names += ["fragments", "delay", "mix", "momentum_over_lr"]
    names += ["cooldown_sync_steps", "total_steps", "check_every", "bucket_bytes"]
    words: dict[str, Mapping[Any, int]] = {"rule": RULES, "gap": GAPS, "clip": CLIPS}
    options: dict[str, Any] = {
        name: next(str(word) for word, number in table.items() if number == getattr(given, name))
        for name, table in words.items()
    }
    options |= {name: getattr(given, name) for name in names}
    options["warmup_sync_steps"], options["total_steps"] = warmup_sync_steps, total_steps
    options["schedule"] = str(schedule)
    if is_auto:
        options["tau"] = "auto"
    if given.samples > 0:
        options |= {"tau": "of each group", "samples": "of each group"}  # what a group's own part is checked by
    options["wire_dtype"] = next(str(d) for d, number in DTYPES.items() if number == given.wire_dtype)
    return options


def check_about(got: dict[str, Any], wanted: dict[str, Any], where: str) -> None:
    """The first field that differs, or nothing. A consolidated state fits any number of groups and any options."""
    if got.get("format") != FORMAT:
        raise errors.make("version_mismatch", f"{where}: format is {got.get('format')}, wanted: {FORMAT}")
    fields = ["shards", "layout"]
    if not got.get("consolidated"):
        if got.get("groups") != wanted["groups"]:
            raise errors.make(
                "stale",
                f"{where}: groups is {got.get('groups')}, wanted: {wanted['groups']}; saved with consolidate=True it "
                "would fit any number",
            )
        options = got.get("options", {})
        for name, value in wanted["options"].items():
            if options.get(name) != value:
                raise errors.make("stale", f"{where}: {name} is {options.get(name)}, wanted: {value}")
    for field in fields:
        if got.get(field) != wanted[field]:
            raise errors.make("stale", f"{where}: {field} is {got.get(field)}, wanted: {wanted[field]}")
    for kind in ("parameter", "buffer"):
        theirs, ours = got.get(f"{kind}s", []), wanted[f"{kind}s"]
        if len(theirs) != len(ours):
            raise errors.make("stale", f"{where}: {kind}s are {len(theirs)}, wanted: {len(ours)}")
        for i, (one, other) in enumerate(zip(theirs, ours, strict=True)):
            if one != other:
                raise errors.make("stale", f"{where}: {kind} {i} is {' '.join(one)}, wanted: {' '.join(other)}")


def about_of(text: Any, where: str) -> dict[str, Any]:
    try:
        about = json.loads(text)
    except (TypeError, ValueError) as error:
        raise errors.make("corrupt", f"{where}: its description is no JSON: {error}") from error
    if not isinstance(about, dict):
        raise errors.make("corrupt", f"{where}: its description is {text!r}, wanted: an object")
    return about


# ---- a folder ----


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    _sync_folder(path.parent)


def agreed(everybody: Callable[[Any], list], what: str, body: Callable[[], Any]) -> Any:
    """What `body` gives, or on all ranks the first error that any of them had."""
    result, mine = None, None
    try:
        result = body()
    except errors.Error as error:
        mine = (error.code, str(error))
    except Exception as error:
        mine = ("io", f"{what}: {type(error).__name__}: {error}")
    for failure in everybody(mine):
        if failure is not None:
            raise errors.make(*failure)
    return result


def write_folder(
    folder: Path, about: str, name: str | None, data: bytes, everybody: Callable[[Any], list], *, is_first: bool
) -> None:
    """`data` of each rank that has a `name`, in a folder of its own, which then becomes the current one. Collective."""
    fresh = everybody(f"save-{secrets.token_hex(6)}")[0]

    def write_own() -> None:
        (folder / fresh).mkdir(parents=True, exist_ok=True)
        if name is not None:
            _write(folder / fresh / name, data)

    def make_current() -> None:
        if is_first:
            _sync_folder(folder / fresh)
            _write(folder / _CURRENT, json.dumps({"folder": fresh, "about": about}).encode())

    agreed(everybody, f"save to {folder}", write_own)
    agreed(everybody, f"save to {folder}", make_current)
    if is_first:  # older ones, and those of saves that were killed
        for old in folder.glob("save-*"):
            if old.name != fresh:
                shutil.rmtree(old, ignore_errors=True)


def read_current(folder: Path) -> tuple[dict[str, Any], Path]:
    """What the current save is about, and where it is."""
    path = folder / _CURRENT
    try:
        current = json.loads(path.read_bytes())
        return about_of(current["about"], str(path)), folder / Path(current["folder"]).name
    except OSError as error:
        raise errors.make("io", f"{path}: {error.strerror}; wanted: a folder that CO2.save wrote") from error
    except (KeyError, TypeError, ValueError) as error:
        raise errors.make("corrupt", f"{path}: it is not what CO2.save writes: {error!r}") from error


def read_own(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise errors.make("corrupt", f"{path}: {error.strerror}; wanted: the file of this rank") from error


def own_bytes(state: dict[str, Any], key: str) -> bytes:
    if "about" not in state:
        raise InvalidArgument(f"CO2: the state has no 'about' but {sorted(state)}, wanted what state_dict() gave")
    if key not in state:
        raise errors.make("stale", f"state of CO2: it has {sorted(state)}, wanted: {key!r}, what this rank saved")
    return state[key]
