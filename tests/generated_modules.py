"""Compares the protobuf modules in the repository with their .proto files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet


def check_generated(module: FileDescriptor, source: str, folder: Path) -> None:
    """Assert that protoc makes this module of `source`, a path in the repository, in a file of `folder`."""
    out = folder / "descriptor"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--descriptor_set_out={out}", source]
    subprocess.run(command, check=True)
    compiled = FileDescriptorSet.FromString(out.read_bytes()).file[0]
    checked_in = FileDescriptorProto()
    module.CopyToProto(checked_in)
    for message in compiled.message_type:
        _strip_json_names(message)
    compiled.name = checked_in.name
    assert checked_in == compiled


def _strip_json_names(message: DescriptorProto) -> None:
    """protoc writes the default JSON names into a descriptor set; a generated module leaves them out."""
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        _strip_json_names(nested)
