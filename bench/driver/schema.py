"""Checks records against bench/record.schema.json, and other data: the part of JSON Schema that the schemas use."""

from __future__ import annotations

import json
import re
from pathlib import Path

PATH = Path(__file__).resolve().parents[1] / "record.schema.json"
ID = re.compile(r',"id":"([0-9a-f]{16})"}$')
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


# What is checked, and what only describes.
KNOWN = {
    *("$defs", "$ref", "additionalProperties", "const", "enum", "items", "minItems", "minimum", "oneOf", "pattern"),
    *("if", "then", "else", "properties", "required", "type", "$schema", "description", "title"),
}


def has_type(value: object, name: str) -> bool:
    if isinstance(value, bool) and name != "boolean":
        return False
    return isinstance(value, TYPES[name])


def complaints(value: object, schema: dict, place: str = "record", root: dict | None = None) -> list[str]:
    """What of `value` is not as `schema` says; ValueError where that says what is not checked here."""
    if unknown := schema.keys() - KNOWN:
        raise ValueError(f"{place}: schema has {', '.join(sorted(unknown))}, wanted {', '.join(sorted(KNOWN))}")
    root = root or schema
    if "$ref" in schema:
        return complaints(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], place, root)
    wanted = schema.get("type")
    names = wanted if isinstance(wanted, list) else [wanted]
    if wanted and not any(has_type(value, name) for name in names):
        return [f"{place} is {json.dumps(value)[:60]}, wanted {' or '.join(names)}"]
    found = []
    if "const" in schema and value != schema["const"]:
        found.append(f"{place} is {value!r}, wanted {schema['const']!r}")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{place} is {value!r}, wanted one of {', '.join(map(str, schema['enum']))}")
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        found.append(f"{place} is {value!r}, wanted {schema['pattern']}")
    if "minimum" in schema and isinstance(value, (int, float)) and value < schema["minimum"]:
        found.append(f"{place} is {value}, wanted at least {schema['minimum']}")
    if "oneOf" in schema:
        ways = [complaints(value, way, place, root) for way in schema["oneOf"]]
        if sum(not way for way in ways) != 1:
            found.append(f"{place} is as {sum(not way for way in ways)} of {len(ways)} ways, wanted 1")
            found += min(ways, key=len)
    if "if" in schema:
        branch = "else" if complaints(value, schema["if"], place, root) else "then"
        found += complaints(value, schema.get(branch, {}), place, root)
    if isinstance(value, dict):
        found += [f"{place} has no {name}" for name in schema.get("required", []) if name not in value]
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        for name, member in value.items():
            inner = properties.get(name, others)
            if inner is False:
                found.append(f"{place} has {name}, wanted {', '.join(properties)} only")
            elif inner is not True:
                found += complaints(member, inner, f"{place}.{name}", root)
    if isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            found.append(f"{place} has {len(value)} items, wanted at least {schema['minItems']}")
        for i, item in enumerate(value):
            found += complaints(item, schema.get("items", {}), f"{place}[{i}]", root)
    return found


def record_id(body: str) -> str:
    """FNV-1a of a record's line without its id."""
    value = 0xCBF29CE484222325
    for byte in body.encode():
        value = (value ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return f"{value:016x}"


def with_id(record: dict) -> str:
    """The line of a record."""
    body = json.dumps(record, separators=(",", ":"))
    return f'{body[:-1]},"id":"{record_id(body)}"}}'


def check_file(path: Path) -> list[str]:
    """What is wrong with the records of a file. One that has an id must still be what the id was made of."""
    schema = json.loads(PATH.read_text())
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        place = f"{path.name}:{number}"
        try:
            record = json.loads(line)
        except ValueError as why:
            found.append(f"{place}: {why}")
            continue
        found += complaints(record, schema, place)
        if (match := ID.search(line)) and record_id(ID.sub("}", line)) != match[1]:
            found.append(f"{place}: its id is not that of its content")
        if record.get("status") == "ok" and "time_us" in record and record.get("verify", {}).get("ok") is False:
            found.append(f"{place}: timed although wrong")
    return found


def storage_of(figures: dict) -> dict:
    """What records have as `storage`, from what `overlace gnn diskbench --json` writes: plain numbers, by bytes."""
    storage = figures["storage"]
    read = {str(round(size)): rate for size, rate in storage["read_GBps"]["points"]}
    return {"read_GBps": read, **{key: storage[key][0] for key in ("read_kIOPS", "write_GBps", "start_us")}}
