"""Schemas of the kind PROTOBUF_NATIVE."""

from __future__ import annotations

import base64
import json

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from bkspark.pulsar import pulsar_formats_pb2 as formats
from bkspark.pulsar.schemas import Schema


def native(name: str) -> Schema:
    """Return the PROTOBUF_NATIVE schema of one of our own messages, as Pulsar stores it."""
    file = FileDescriptorProto()
    formats.DESCRIPTOR.CopyToProto(file)
    stored = base64.b64encode(FileDescriptorSet(file=[file]).SerializeToString()).decode()
    definition = {
        "fileDescriptorSet": stored,
        "rootMessageTypeName": f"bkspark.pulsar.{name}",
        "rootFileDescriptorName": file.name,
    }
    return Schema(0, "PROTOBUF_NATIVE", json.dumps(definition).encode())
