"""bench/co2_train.py on two CPU ranks: its records, and a competitor whose groups end apart."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "driver")]

import co2_page  # noqa: E402
import records  # noqa: E402
import schema  # noqa: E402


def bench(out: Path, *words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "bench" / "co2_train.py"), "--out", str(out), "--hidden", "32", *words]
    env = {**os.environ, "OVERLACE_BIN": os.environ.get("OVERLACE_BIN", str(ROOT / "build/cpu/overlace"))}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=env, check=False)


def test_records_of_all_competitors(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    done = bench(out, "--tau", "4", "--steps", "24", "--repetitions", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert schema.check_file(out) == []
    rows = {row["competitor"]: row for row in records.read(out)}
    rules = ["local_sgd", "slow_mo", "diloco", "streaming", "eager", "co2"]
    by_torch = ["ddp", "zero1", "fsdp2", "torch_local_sgd"]
    assert sorted(rows) == sorted(["alone", *by_torch, *rules, "torchft"])
    absent = rows.pop("torchft")
    assert absent["status"] == "absent"
    assert "no emulated link" in absent["reason"]
    assert "time_us" not in absent
    for name, row in rows.items():
        assert row["status"] == "ok"
        assert "emulated" in row["flags"]
        assert row["machine"]["link"] == "20MB/s,50us"
        training = row["training"]
        assert len(row["time_us"]["samples"]) == 2
        assert training["samples_per_s"] > 0
        assert 0 < training["loss"]["min"] <= training["loss"]["median"] <= training["loss"]["max"] < 6
        assert ("simulated" in training) == (name in ("ddp", *rules))
        assert ("waited" in training) == (name in rules)
    losses = {name: row["training"]["loss"] for name, row in rows.items()}
    for other in ("zero1", "fsdp2"):  # the same sums, rounded in other orders
        assert abs(losses[other]["median"] - losses["ddp"]["median"]) < 1e-4
    assert abs(losses["torch_local_sgd"]["median"] - losses["local_sgd"]["median"]) < 1e-4
    said = {name: rows[name]["training"]["simulated"]["exposed"] for name in ("ddp", *rules)}
    assert said["ddp"] > said["local_sgd"] > said["co2"] >= 0


def test_other_types_on_the_wire_where_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    names = ["co2", "co2_bf16", "co2_int8"]
    done = bench(out, "--tau", "4", "--steps", "24", "--repetitions", "1", "--competitors", ",".join(names))
    assert done.returncode == 0, done.stdout + done.stderr
    assert schema.check_file(out) == []
    rows = {row["competitor"]: row for row in records.read(out)}
    assert sorted(rows) == names
    assert len({row["training"]["loss"]["median"] for row in rows.values()}) == 3  # each rounded in its own way


def test_groups_that_end_apart_are_wrong(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    done = bench(out, "--tau", "4", "--steps", "8", "--competitors", "co2,wrong", "--verify-only")
    assert done.returncode == 1, done.stdout + done.stderr
    assert schema.check_file(out) == []
    status = {row["competitor"]: row["status"] for row in records.read(out)}
    assert status == {"co2": "ok", "wrong": "wrong"}


def test_rounds_that_do_not_divide_the_steps_are_refused(tmp_path: Path) -> None:
    done = bench(tmp_path / "records.jsonl", "--tau", "4,5", "--steps", "8")
    assert done.returncode == 2
    assert "tau ['5'] does not divide 8 steps" in done.stdout
    done = bench(tmp_path / "records.jsonl", "--competitors", "co2,fast")
    assert done.returncode == 2
    assert "competitors ['fast'] are not known" in done.stdout


def test_the_page_is_what_the_records_say() -> None:
    rows = records.read(co2_page.RECORDS)
    assert schema.check_file(co2_page.RECORDS) == []
    assert co2_page.PAGE.read_text() == co2_page.text(rows)
    assert all("emulated" in row["flags"] for row in rows)


def test_the_program_for_gpus_on_cpu_ranks(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    words = "--device cpu --layers 1 --width 32 --vocabulary 64 --batch 2 --sequence 16 --tau 3 --host-tau 3 --rounds 4"
    command = [sys.executable, str(ROOT / "bench" / "co2_gpu.py"), *words.split(), "--competitors", "alone,co2_host"]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert schema.check_file(out) == []
    rows = {row["competitor"]: row for row in records.read(out)}
    assert sorted(rows) == ["alone", "co2_host"]
    training = rows["co2_host"]["training"]
    assert rows["co2_host"]["status"] == "ok"
    assert training["pass_us"] > 0
    assert training["host_us"] > 0
    assert training["pass_of_copy"] > 0
    assert "lost" in training
    assert "waited" not in rows["alone"]["training"]
