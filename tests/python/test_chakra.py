"""Chakra's schema decodes the execution traces that overlace writes. OVERLACE_BIN names the program.

No package of the schema is on PyPI: its messages, as far as they are used, are declared here by field number.
"""

import json
import os
import shutil
import subprocess

import pytest

descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
descriptor_pool = pytest.importorskip("google.protobuf.descriptor_pool")
message_factory = pytest.importorskip("google.protobuf.message_factory")
unknown_fields = pytest.importorskip("google.protobuf.unknown_fields")

FIELD = descriptor_pb2.FieldDescriptorProto
# mlcommons/chakra, schema/protobuf/et_def.proto: name, number, type, repeated
MESSAGES = {
    "GlobalMetadata": [("version", 1, FIELD.TYPE_STRING, False)],
    "AttributeProto": [
        ("name", 1, FIELD.TYPE_STRING, False),
        ("int32_val", 7, FIELD.TYPE_INT32, False),
        ("int64_val", 9, FIELD.TYPE_INT64, False),
        ("uint64_val", 13, FIELD.TYPE_UINT64, False),
        ("bool_val", 27, FIELD.TYPE_BOOL, False),
        ("string_val", 29, FIELD.TYPE_STRING, False),
    ],
    "Node": [
        ("id", 1, FIELD.TYPE_UINT64, False),
        ("name", 2, FIELD.TYPE_STRING, False),
        ("type", 3, FIELD.TYPE_INT32, False),
        ("ctrl_deps", 4, FIELD.TYPE_UINT64, True),
        ("data_deps", 5, FIELD.TYPE_UINT64, True),
        ("start_time_micros", 6, FIELD.TYPE_UINT64, False),
        ("duration_micros", 7, FIELD.TYPE_UINT64, False),
        ("attr", 10, "AttributeProto", True),
    ],
}
COMP, SEND, RECV, COLL = 4, 5, 6, 7

ROWS = {
    "schema": "overlace.trace/1",
    "title": "two ranks",
    "emulated": False,
    "spans": [
        [0, "sm 0", "gemm_local", "gemm", 1000, 5500, 0, 2.5e9],
        [0, "sm 0", "gemm_remote", "gemm", 6000, 9001, 0, 3e9],
        [1, "ce 0", "push", "copy", 1000, 4000, 1 << 20, 0.0],
        [1, "sm 0", "all_reduce", "collective", 8000, 9000, 4096, 0.0],
    ],
    "arrows": [["arrived[1]", 1, "ce 0", 4000, 0, "sm 0", 6000], ["done", 1, "ce 0", 4000, 1, "sm 0", 8000]],
}


def schema():
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
        for field, number, kind, repeated in fields:
            one = message.field.add(name=field, number=number)
            one.label = FIELD.LABEL_REPEATED if repeated else FIELD.LABEL_OPTIONAL
            if name == "AttributeProto" and field != "name":
                one.oneof_index = 0
            if isinstance(kind, str):
                one.type, one.type_name = FIELD.TYPE_MESSAGE, f".ChakraProtoMsg.{kind}"
            else:
                one.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}")) for name in MESSAGES
    }


def messages_of(data):
    """Each behind its length, as a varint."""
    at = 0
    while at < len(data):
        length = shift = 0
        while True:
            byte = data[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        assert at + length <= len(data)
        yield data[at : at + length]
        at += length


@pytest.fixture
def program():
    path = os.environ.get("OVERLACE_BIN") or shutil.which("overlace")
    if not path:
        pytest.skip("OVERLACE_BIN is not set and overlace is not in PATH")
    return path


@pytest.fixture
def decoded(tmp_path, program):
    source = tmp_path / "rows.json"
    source.write_text(json.dumps(ROWS))
    subprocess.run([program, "trace", "convert", str(source), str(tmp_path / "run.et")], check=True, timeout=60)
    classes = schema()
    ranks = []
    for rank in (0, 1):
        first, *rest = messages_of((tmp_path / f"run.{rank}.et").read_bytes())
        assert classes["GlobalMetadata"].FromString(first).version == "0.0.4"
        ranks.append([classes["Node"].FromString(one) for one in rest])
        for node in ranks[-1]:
            assert not list(unknown_fields.UnknownFieldSet(node))
            assert not any(list(unknown_fields.UnknownFieldSet(attribute)) for attribute in node.attr)
    return ranks


def attributes_of(node):
    values = {}
    for attribute in node.attr:
        for name in ("int32_val", "int64_val", "uint64_val", "string_val"):
            if getattr(attribute, name):
                values[attribute.name] = getattr(attribute, name)
    return values


def test_nodes_and_times(decoded):
    first = {node.name: node for node in decoded[0]}
    assert {name: node.type for name, node in first.items()} == {
        "gemm_local": COMP,
        "gemm_remote": COMP,
        "arrived[1]": RECV,
    }
    local = attributes_of(first["gemm_local"])
    assert (local["duration_ns"], local["num_ops"], local["lane"]) == (4500, 2_500_000_000, "sm 0")
    assert first["gemm_local"].duration_micros == 5
    assert attributes_of(first["gemm_remote"])["start_ns"] == 5000
    second = {node.name: node for node in decoded[1]}
    assert second["all_reduce"].type == COLL
    assert attributes_of(second["all_reduce"])["comm_size"] == 4096
    assert attributes_of(second["push"])["tensor_size"] == 1 << 20


def test_dependences_follow_lanes_and_signals(decoded):
    first = {node.name: node for node in decoded[0]}
    assert sorted(first["gemm_remote"].data_deps) == sorted([first["gemm_local"].id, first["arrived[1]"].id])
    second = {node.name: node for node in decoded[1]}
    assert list(second["all_reduce"].data_deps) == [second["push"].id]
    send = second["arrived[1]"]
    assert send.type == SEND
    assert list(send.data_deps) == [second["push"].id]
    ends = [attributes_of(node) for node in (send, first["arrived[1]"])]
    assert [e.get("comm_src", 0) for e in ends] == [1, 1]
    assert [e.get("comm_dst", 0) for e in ends] == [0, 0]
    assert ends[0].get("comm_tag", 0) == ends[1].get("comm_tag", 0)


def test_what_the_schema_writes_is_read(tmp_path, program):
    classes = schema()
    node = classes["Node"](id=7, name="late", type=COMP, data_deps=[3], duration_micros=5)
    before = classes["Node"](id=3, name="early", type=COLL, duration_micros=20)
    before.attr.add(name="comm_type", int64_val=2)
    data = b""
    for message in (classes["GlobalMetadata"](version="0.0.4"), node, before):
        raw = message.SerializeToString()
        data += bytes([len(raw)]) + raw
    (tmp_path / "other.et").write_bytes(data)
    target = tmp_path / "other.json"
    subprocess.run([program, "trace", "convert", str(tmp_path / "other.et"), str(target)], check=True, timeout=60)
    spans = {e["name"]: e for e in json.loads(target.read_text())["traceEvents"] if e["ph"] == "X"}
    assert (spans["early"]["ts"], spans["early"]["dur"]) == (0, 20)
    assert (spans["late"]["ts"], spans["late"]["dur"]) == (20, 5)
    assert spans["early"]["cat"] == "collective"
