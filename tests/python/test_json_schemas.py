"""What every command gives to programs is as its published schema says (docs/reference/json.md), on CPU ranks.

OVERLACE_BIN names the program. Where torch or the package overlace is missing, `overlace gnn train` is skipped.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench" / "driver"), str(ROOT / "tools")]
import gen_reference  # noqa: E402
import schema as validator  # noqa: E402

SCHEMAS = ROOT / "docs/reference/schemas"
PAGE = ROOT / "docs/reference/json.md"
TRAIN = "gnn train"  # becomes a program that needs torch


@dataclass
class Case:
    """A command line before --json, and the schema of what it gives."""

    schema: str
    words: str
    status: int = 0
    environment: dict[str, str] = field(default_factory=dict)


def has_package() -> bool:
    return bool(importlib.util.find_spec("torch") and importlib.util.find_spec("overlace"))


SHAPE = "--m 64 --n 32 --k 32"
MODEL = {
    **{"model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e4, "vocab_size": 32},
    **{"hidden_size": 48, "intermediate_size": 72, "num_attention_heads": 6, "num_key_value_heads": 6},
    **{"num_hidden_layers": 4, "max_position_embeddings": 64},
}
CASES = [
    Case("run", "run --backend cpu -n 2 --tokens 32 --repeat 1 --quiet --link none"),
    Case("run", "run --backend cpu -n 2 --tokens 32 --repeat 1 --quiet --link none --config tiny-moe"),
    Case("run", "run --backend cpu -n 2 --tokens 32 --repeat 1 --quiet --link none --part moe"),
    Case(
        "run",
        "run --backend cpu -n 2 --tokens 32 --repeat 1 --link 1GB/s,20us --config model.json --device-memory 160000",
    ),
    Case("run", "run --backend cpu -n 2 --tokens 32 --repeat 1 --link none --config model.json --device-memory 1GiB"),
    Case(
        "run",
        "run --backend cpu -n 2 --tokens 32 --sequence-length 8 --micro-batch 8 --repeat 1 --link none "
        "--config model.json --device-memory 92000",
    ),
    Case("doctor", "doctor"),
    Case("doctor", "doctor --no-link-test --python python3", 0 if has_package() else 1),
    Case("doctor", "doctor --no-link-test --python ./nowhere", 1, {"OVERLACE_MACHINE": "nowhere"}),
    Case("trace_info", "trace info first.pftrace"),
    Case("trace_info", "trace info empty.json"),
    Case("trace_diff", "trace diff first.pftrace second.json"),
    Case("trace_diff", "trace diff first.pftrace second.json --match kind --rank 1 --max-median 0", 1),
    Case("plan", f"plan ag_gemm {SHAPE}"),
    Case("plan", f"plan gemm_rs {SHAPE} --tier rule"),
    Case("plan", f"explain gemm_a2a {SHAPE} --exchange cols --blocks 16,16 --tier recurrence"),
    Case("plan_co2", "plan co2 --parameters 1e6 --step-ms 1 --link 1GB/s,50us --tau 7"),
    Case("plan_co2", "plan co2 --parameters 1e6 --step-ms 1 --network ring(8,25) --shards 2"),
    Case("plan_offload", "plan offload --device-memory 24GiB --host-memory 1GiB"),
    Case("plan_offload", "plan offload --device-memory 1TiB"),
    Case("plan_offload", "plan offload --device-memory 2GiB --tokens 65536 --tflops 90000"),
    Case("tune", "tune --shape ag_gemm:32x32x32 --machine cpu2 --dtype fp32 --cache plans.jsonl --quiet"),
    Case("tune", "tune --config tiny --tokens 64 --machine cpu2 --cache none.jsonl --seconds 0.000001 --quiet"),
    Case("sim_run", f"sim run --family serial {SHAPE} --seeds 3"),
    Case("sim_run", f"sim run --family hetero_fused_1d --degree 2 {SHAPE} --machine cpu2 --dtype fp32"),
    Case("sim_compare", f"sim compare gemm_rs {SHAPE}"),
    Case("sim_sweep", "sim sweep ag_gemm --m 64,128 --n 32 --k 32 --machines cpu2 --dtype fp32"),
    Case("sim_sweep", "sim sweep ag_gemm --m 64 --n 32 --k 32 --degrees 1024"),
    Case("sim_characterise", "sim characterise ag_gemm --m 1024 --n 512 --k 512 --degrees 1,2"),
    Case("sim_characterise", "sim characterise gemm_rs --m 64 --n 32 --k 32 --machine cpu2 --dtype fp32"),
    Case("sim_check", "sim check --machine cpu2"),
    Case("sim_check", "sim check --machine cpu2 --validate --golden golden"),
    Case("sim_validate", "sim validate V1 --golden golden"),
    Case("sim_t3", "sim t3 --model t-nlg --tp 8 --config t3"),
    Case("sim_t3_sensitivity", "sim t3 --sensitivity"),
    Case("sim_graph_dlrm_bands", "sim graph dlrm --network ring"),
    Case("sim_graph_dlrm", "sim graph dlrm --network rail --tables 2 --local-batch 256 --machine h200x2"),
    Case("sim_graph_transformer", "sim graph transformer --network ring(8,25) --tensor 4 --layers 2"),
    Case("sim_graph_moe", "sim graph moe --network ring(8,25) --experts 8"),
    Case("sim_graph_moe", "sim graph moe --network ring(8,25) --experts 11 --shared-experts 1 --row-per-copy"),
    Case("sim_graph_co2", "sim graph co2 --network ring(8,25) --group 2 --rule all --rounds 4"),
    Case("sim_graph_gnn", "sim graph gnn g.ovg"),
    Case("sim_graph_offload", "sim graph offload --device-memory 24GiB"),
    Case("gnn_made", "gnn generate --out other --vertices 1024 --dim 4 --quiet"),
    Case("gnn_made", "gnn import other --in-place --quiet"),
    Case("gnn_dataset", "gnn info g"),
    Case("gnn_artefact", "gnn sample g --out other.ovg --fanouts 3,2 --batch-size 16 --quiet"),
    Case("gnn_artefact", "gnn pack other.ovg --cpu-cache 16KiB --quiet"),
    Case("gnn_artefact", "gnn info g.ovg"),
    Case("gnn_plan", "gnn plan g.ovg --gpu-cache 8KiB --cpu-cache 8KiB"),
    Case("gnn_verify", "gnn verify g.ovg --deep --quiet"),
    Case("gnn_diskbench", "gnn diskbench . --size 4MiB --seconds 0.01 --quiet"),
    Case("gnn_train", "gnn train g.ovg --epochs 1 --hidden 8"),
]


def ended(folder: Path, line: str, more: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    program = os.environ.get("OVERLACE_BIN") or shutil.which("overlace")
    if not program:
        pytest.skip("OVERLACE_BIN is not set and overlace is not in PATH")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OVERLACE_TIMEOUT_S": "20", **(more or {})}
    # python3 of `gnn train` is this one.
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment["PYTHONPATH"] = os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)
    if library := os.environ.get("OVERLACE_LIB"):
        environment["OVERLACE_LIB"] = str(Path(library).resolve())
    command = [str(Path(program).resolve()), *shlex.split(line)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def overlace(folder: Path, line: str, status: int = 0, more: dict[str, str] | None = None) -> str:
    done = ended(folder, line, more)
    assert done.returncode == status, f"{line}: exit {done.returncode}, {done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, two timelines of the same work, an empty one, a dataset, and an artefact with packs."""
    path = tmp_path_factory.mktemp("json")
    (path / "model.json").write_text(json.dumps(MODEL))
    (path / "golden").symlink_to(ROOT / "tests/golden")
    for name, machine in (("first.pftrace", "h200x2"), ("second.json", "h200x4")):
        words = f"sim run --family hetero_fused_1d --degree 2 {SHAPE} -n 2 --machine {machine} --trace {name}"
        overlace(path, words)
    rows = {"schema": "overlace.trace/1", "title": "", "emulated": True, "spans": [], "arrows": []}
    (path / "empty.json").write_text(json.dumps(rows))
    overlace(path, "gnn generate --out g --vertices 2048 --dim 4 --quiet")
    overlace(path, "gnn sample g --out g.ovg --fanouts 3,2 --batch-size 16 --splits train,valid,test --quiet")
    overlace(path, "gnn pack g.ovg --cpu-cache 8KiB --order fixed --quiet")
    return path


@pytest.fixture(scope="module")
def outputs(folder: Path) -> dict[str, tuple[Case, dict]]:
    """The output of each command line that has run."""
    return {}


def output_of(case: Case, folder: Path, outputs: dict[str, tuple[Case, dict]]) -> dict:
    if case.words not in outputs:
        if case.words.startswith(TRAIN) and not has_package():
            pytest.skip("torch and the package overlace are not both installed")
        text = overlace(folder, f"{case.words} --json -", status=case.status, more=case.environment)
        outputs[case.words] = case, json.loads(text)
    return outputs[case.words][1]


def schema_of(name: str) -> dict:
    return json.loads((SCHEMAS / f"{name}.schema.json").read_text())


def objects(value: object, place: str = "") -> Iterator[tuple[str, dict]]:
    """Every object of a document, with the way to it."""
    if isinstance(value, dict):
        yield place, value
        for name, inner in value.items():
            yield from objects(inner, f"{place}.{name}")
    if isinstance(value, list):
        for i, inner in enumerate(value[:3]):
            yield from objects(inner, f"{place}[{i}]")


def changed(document: dict) -> Iterator[tuple[str, dict]]:
    """The document with one change each that no reader of its schema expects."""
    for i, (place, value) in enumerate(objects(document)):
        if place.startswith(".schedule"):  # which docs/reference/schedule-json.md describes
            continue
        for key in ("unexpected", *value):
            other = copy.deepcopy(document)
            list(objects(other))[i][1][key] = {"unexpected": None}
            yield f"{place}.{key} is something else", other
    yield "another version", {**document, "schema": re.sub(r"\d+$", "999", document["schema"])}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.words[:60])
def test_what_a_command_gives_is_as_its_schema_says(case: Case, folder: Path, outputs: dict) -> None:
    document, schema = output_of(case, folder, outputs), schema_of(case.schema)
    assert document["schema"] == f"overlace.{case.schema}/1"
    assert next(iter(document)) == "schema"
    assert validator.complaints(document, schema, "output") == []


@pytest.mark.parametrize("name", sorted({case.schema for case in CASES}))
def test_a_changed_document_is_refused(name: str, folder: Path, outputs: dict) -> None:
    document = output_of(next(case for case in CASES if case.schema == name), folder, outputs)
    schema = schema_of(name)
    for what, other in changed(document):
        assert validator.complaints(other, schema, "output"), what
    for key in schema["required"]:
        assert validator.complaints({k: v for k, v in document.items() if k != key}, schema, "output"), f"without {key}"


def test_sites_of_experts_alone_say_of_how_many(folder: Path, outputs: dict) -> None:
    case = next(case for case in CASES if case.schema == "run" and "tiny-moe" in case.words)
    document, schema = output_of(case, folder, outputs), schema_of("run")
    other, moe = document["sites"][0], document["sites"][-1]
    assert moe["op"] == "moe"
    for key in ("experts", "top_k", "load"):
        without = {**document, "sites": [{k: v for k, v in moe.items() if k != key}]}
        assert validator.complaints(without, schema, "output") == [f"output.sites[0] has no {key}"]
        assert validator.complaints({**document, "sites": [{**other, key: 1}]}, schema, "output"), key


def commands_with_json(folder: Path) -> set[tuple[str, ...]]:
    """By the program's own help."""
    found = set()

    def look(words: tuple[str, ...]) -> None:
        text = overlace(folder, " ".join([*words, "--help"]))
        if "--json" in text:
            found.add(words)
        for name in gen_reference.subcommands(text):
            look((*words, name))

    look(())
    return found


def test_every_command_with_json_has_a_case_and_a_line_of_the_page(folder: Path) -> None:
    found = commands_with_json(folder)
    assert len(found) > 25, "the help says no --json any more, or not so"
    schemas: dict[tuple[str, ...], set[str]] = {}
    for case in CASES:
        words = tuple(case.words.split())
        command = max((command for command in found if words[: len(command)] == command), key=len)
        schemas.setdefault(command, set()).add(case.schema)
    assert schemas.keys() == found, "commands with --json, wanted those that have a case here"
    for command, names in schemas.items():
        quoted = f"`overlace {' '.join(command)}`"
        lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and quoted in line]
        assert len(lines) == 1, f"docs/reference/json.md: {len(lines)} lines of {quoted}, wanted 1"
        linked = set(re.findall(r"\[overlace\.(\w+)/1\]\(schemas/\1\.schema\.json\)", lines[0]))
        assert linked == names, f"docs/reference/json.md: schemas of {quoted}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.words[:60])
def test_a_file_that_cannot_be_written_is_found_before_the_work(case: Case, folder: Path) -> None:
    there = sorted(folder.rglob("*"))
    done = ended(folder, f"{case.words} --json nowhere/x.json", case.environment)
    assert (done.returncode, done.stdout) == (5, "")
    why = "--json: nowhere/x.json cannot be written: there is no directory nowhere"
    assert done.stderr == f"overlace: error: {why}\n"
    assert sorted(folder.rglob("*")) == there


def test_a_file_within_what_a_command_makes_is_no_mistake(folder: Path) -> None:
    overlace(folder, "gnn generate --out made --vertices 1024 --dim 4 --quiet --json made/made.json")
    assert json.loads((folder / "made/made.json").read_text())["schema"] == "overlace.gnn_made/1"


def test_the_doctor_asks_no_interpreter_without_a_name(folder: Path) -> None:
    done = ended(folder, "doctor --no-link-test --python ''")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == 'overlace: error: --python: it is "", wanted an interpreter\n'


def test_every_schema_is_of_a_command(folder: Path) -> None:
    known = {path.name.removesuffix(".schema.json") for path in SCHEMAS.iterdir()}
    assert known == {case.schema for case in CASES}
    for name in known:
        schema = schema_of(name)
        assert schema["title"] == f"overlace.{name}/1" == schema["properties"]["schema"]["const"]
        assert schema["required"] == ["schema", *(key for key in schema["required"] if key != "schema")]
        assert schema["additionalProperties"] is False


def test_a_schema_says_nothing_that_is_not_checked() -> None:
    with pytest.raises(ValueError, match="maxLength"):
        validator.complaints({"name": "x"}, {"properties": {"name": {"maxLength": 1}}})
    inner = {"$ref": "#/$defs/number"}
    schema = {"oneOf": [{"type": "null"}, {"items": inner, "type": "array"}], "$defs": {"number": {"minimum": 1}}}
    assert validator.complaints(None, schema) == []
    assert validator.complaints([1, 2], schema) == []
    assert validator.complaints([0], schema)
    assert validator.complaints("x", schema)
    schema = {"if": {"properties": {"op": {"const": "moe"}}}, "then": {"required": ["load"]}, "else": {"minimum": 1}}
    assert validator.complaints({"op": "moe", "load": 1}, schema) == []
    assert validator.complaints({"op": "ag_gemm"}, schema) == []
    assert validator.complaints({"op": "moe"}, schema) == ["record has no load"]
