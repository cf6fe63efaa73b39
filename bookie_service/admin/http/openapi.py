"""The OpenAPI document of `/api/v2`, from the table that also serves it, and the check of bodies against it. Pure.

A `Schema` is the part of JSON Schema that is used here: objects with named members, arrays, and plain values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bkspark.security.roles import Role

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer", "format": "int64"}
REASON: Schema = {**TEXT, "maxLength": 200}
"""An operator's reason for a change. The bookie shows no more characters of it."""
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_INT64 = range(-(1 << 63), 1 << 63)
ROLE = "x-role"
"""The name in the document under which an operation has the role that it needs."""
_PARAMETER = re.compile(r"\{([a-z_]+)\}")


def array(items: Schema) -> Schema:
    """Return the schema of an array."""
    return {"type": "array", "items": items}


def members(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """Return the schema of an object with these members and no others."""
    schema: Schema = {"type": "object", "properties": {**required, **(optional or {})}, "additionalProperties": False}
    return {**schema, "required": sorted(required)} if required else schema


def or_null(schema: Schema) -> Schema:
    """Return a schema that allows null as well."""
    return {**schema, "type": [schema["type"], "null"]}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A method of a path. `role`: what a caller needs; a role above `Role.READ` means that something changes. `status`:
    of a successful response."""

    method: str
    path: str
    summary: str
    """One line for the description of the API."""
    answer: Schema
    """The JSON of a successful response; `body`: that of a request; None: without a body."""
    query: Mapping[str, Schema] = field(default_factory=dict)
    """The parameters of the URL that it takes."""
    body: Schema | None = None
    role: Role = Role.READ
    status: int = 200


def problem(schema: Schema, value: object, name: str = "the body") -> str:
    """Return what is wrong with a value according to a schema; "": nothing."""
    kind = schema["type"]
    if isinstance(kind, list):
        kind, null = kind
        if value is None:
            return ""
        assert null == "null", "as `or_null` makes it"
    if kind == "object":
        return _object_problem(schema, value, name)
    if kind == "array":
        if not isinstance(value, list):
            return f"{name} must be an array"
        return next((wrong for each in value if (wrong := problem(schema["items"], each, name))), "")
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return f"{name} must be {'an' if kind == 'integer' else 'a'} {kind}"
    return _bounds_problem(schema, kind, value, name)


def _object_problem(schema: Schema, value: object, name: str) -> str:
    if not isinstance(value, dict):
        return f"{name} must be an object"
    known, others = schema.get("properties", {}), schema.get("additionalProperties", False)
    missing = [each for each in schema.get("required", ()) if each not in value]
    if missing:
        return f"{name} lacks {', '.join(missing)}"
    for each, member in value.items():
        part = known.get(each, others)
        if not part:
            return f"{name} has no member {each!r}; it has {', '.join(known)}"
        if wrong := problem(part, member, each):
            return wrong
    return ""


def _bounds_problem(schema: Schema, kind: str, value: object, name: str) -> str:
    """Return what is wrong with a number or a text of the right type."""
    if isinstance(value, int) and kind == "integer" and value not in _INT64:
        return f"{name} must be a 64-bit number"
    if "enum" in schema and value not in schema["enum"]:
        return f"{name} must be one of {', '.join(schema['enum'])}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if isinstance(value, (int, float)) and ((low is not None and value < low) or (high is not None and value > high)):
        return f"{name} must be {f'at least {low}' if high is None else f'from {low} to {high}'}"
    longest = schema.get("maxLength")
    if longest is not None and isinstance(value, str) and len(value) > longest:
        return f"{name} must have at most {longest} characters"
    return ""


ERROR = members({"error": members({"status": WHOLE, "message": TEXT})})


def document(endpoints: Iterable[Endpoint], version: str) -> dict[str, Any]:
    """Return the OpenAPI document of these endpoints."""
    paths: dict[str, dict[str, Any]] = {}
    for each in endpoints:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {"title": "bkspark", "version": version, "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "certificate": {"type": "mutualTLS"},
            },
        },
        # One of the two, or none if the server listens only at loopback.
        "security": [{"token": []}, {"certificate": []}, {}],
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    errors: Sequence[tuple[str, str]] = [
        ("400", "a parameter or the body is wrong"),
        ("401", "there is no credential, or one that is not known"),
        ("403", "the caller does not have the role, or the request may come from a page of another site"),
        ("404", "there is no such thing"),
        ("413", "the body is too large"),
        ("421", "the host name is not the bookie's"),
        ("429", "too many wrong tokens came from this address"),
        ("500", "the request failed"),
        ("503", "it cannot be answered now"),
    ]
    if endpoint.method == "POST":
        errors = [*errors, ("415", "the body is not declared as application/json")]
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    operation: dict[str, Any] = {
        "operationId": _name(endpoint),
        "summary": endpoint.summary,
        "description": f"Needs the role {endpoint.role}.",
        ROLE: str(endpoint.role),
        "responses": {
            str(endpoint.status): {
                "description": "the answer",
                "content": {"application/json": {"schema": endpoint.answer}},
            },
            **{status: {"description": text, "content": content} for status, text in errors},
        },
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": WHOLE if name == "ledger_id" else TEXT}
        for name in _PARAMETER.findall(endpoint.path)
    ]
    parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in endpoint.query.items()]
    if parameters:
        operation["parameters"] = parameters
    if endpoint.body is not None:
        # A body without required members may be left out.
        is_required = "required" in endpoint.body
        operation["requestBody"] = {"required": is_required, "content": {"application/json": {"schema": endpoint.body}}}
    return operation


def _name(endpoint: Endpoint) -> str:
    words = re.findall("[a-z0-9]+", endpoint.path.removeprefix("/api/v2"))
    return "_".join([endpoint.method.lower(), *words])
