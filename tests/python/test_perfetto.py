"""Perfetto's own protocol buffers decode the traces that overlace writes. OVERLACE_BIN names the program."""

import json
import os
import shutil
import subprocess

import pytest

proto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

# rank, lane, name, category, begin, end, bytes, flops
SPANS = [
    [0, "sm 0", "gemm_local", "gemm", 1000, 5000, 0, 2.5e9],
    [0, "sm 0", "gemm_remote[s=1]", "gemm", 5000, 9000, 0, 2.5e9],
    [1, "ce 0", "copy[s=0]", "copy", 1200, 4000, 1 << 20, 0.0],
    [1, "ce 0", "copy[s=0] too", "copy", 2000, 4500, 7, 0.0],
]
# name, from rank, lane, time, to rank, lane, time
ARROWS = [
    ["arrived[1]", 1, "ce 0", 4000, 0, "sm 0", 5000],
    ["within", 0, "sm 0", 2000, 1, "host", 2100],
]


@pytest.fixture
def decoded(tmp_path):
    program = os.environ.get("OVERLACE_BIN") or shutil.which("overlace")
    if not program:
        pytest.skip("OVERLACE_BIN is not set and overlace is not in PATH")
    rows = {
        "schema": "overlace.trace/1",
        "title": "ag_gemm",
        "emulated": True,
        "spans": SPANS,
        "arrows": ARROWS,
    }
    source, target = tmp_path / "rows.json", tmp_path / "trace.pftrace"
    source.write_text(json.dumps(rows))
    subprocess.run([program, "trace", "convert", str(source), str(target)], check=True, timeout=60)
    trace = proto.Trace()
    trace.ParseFromString(target.read_bytes())
    return trace


def tracks_of(trace):
    """uuid -> (process name, thread name)"""
    processes, tracks = {}, {}
    for packet in trace.packet:
        descriptor = packet.track_descriptor
        if packet.HasField("track_descriptor") and descriptor.HasField("process"):
            processes[descriptor.process.pid] = descriptor.process.process_name
            assert descriptor.process.pid > 0
    for packet in trace.packet:
        descriptor = packet.track_descriptor
        if packet.HasField("track_descriptor") and descriptor.HasField("thread"):
            tracks[descriptor.uuid] = (processes[descriptor.thread.pid], descriptor.thread.thread_name)
    return tracks


def events_of(trace):
    return [(p.timestamp, p.track_event) for p in trace.packet if p.HasField("track_event")]


def test_one_process_per_rank_and_one_thread_per_row(decoded):
    names = sorted(tracks_of(decoded).values())
    rank0, rank1 = "rank 0 (emulated)", "rank 1 (emulated)"
    # Copies of rank 1 overlap: a second row of the same name keeps slices of a thread disjoint.
    assert names == [(rank0, "sm 0"), (rank1, "ce 0"), (rank1, "ce 0"), (rank1, "host")]


def test_packets_are_in_order_and_of_one_sequence(decoded):
    times = [time for time, _ in events_of(decoded)]
    assert times == sorted(times)
    assert {p.trusted_packet_sequence_id for p in decoded.packet} == {1}
    assert decoded.packet[0].sequence_flags == 1
    assert all(p.sequence_flags == 0 for p in list(decoded.packet)[1:])


def test_slices_are_the_spans(decoded):
    tracks = tracks_of(decoded)
    begin_type, end_type = proto.TrackEvent.TYPE_SLICE_BEGIN, proto.TrackEvent.TYPE_SLICE_END
    open_slices, got = {}, []
    for time, event in events_of(decoded):
        if event.type == begin_type:
            assert event.track_uuid not in open_slices
            open_slices[event.track_uuid] = (time, event)
        elif event.type == end_type:
            begin, opened = open_slices.pop(event.track_uuid)
            values = {a.name: a for a in opened.debug_annotations}
            moved = values["bytes"].int_value if "bytes" in values else 0
            flops = values["flops"].double_value if "flops" in values else 0
            process, lane = tracks[event.track_uuid]
            rank = int(process.split()[1])
            # Times are relative to the earliest.
            got.append([rank, lane, opened.name, opened.categories[0], begin + 1000, time + 1000, moved, flops])
    assert not open_slices
    assert sorted(got) == sorted(SPANS)


def test_flows_join_the_ends_of_arrows(decoded):
    tracks, sources, targets = tracks_of(decoded), {}, {}
    for time, event in events_of(decoded):
        for flow in event.flow_ids:
            sources[flow] = (*tracks[event.track_uuid], time + 1000)
        for flow in event.terminating_flow_ids:
            targets[flow] = (*tracks[event.track_uuid], time + 1000)
    got = sorted((sources[flow], targets[flow]) for flow in sources)
    assert sources.keys() == targets.keys()
    assert got == [
        (("rank 0 (emulated)", "sm 0", 2000), ("rank 1 (emulated)", "host", 2100)),
        (("rank 1 (emulated)", "ce 0", 4000), ("rank 0 (emulated)", "sm 0", 5000)),
    ]


def test_no_field_is_unknown_to_perfetto(decoded):
    assert decoded.SerializeToString() == decoded.FromString(decoded.SerializeToString()).SerializeToString()
    stripped = proto.Trace()
    stripped.CopyFrom(decoded)
    stripped.DiscardUnknownFields()
    assert stripped.ByteSize() == decoded.ByteSize()
