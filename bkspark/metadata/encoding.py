"""The bytes of a ledger's metadata node.

All versions begin with the line `BookieMetadataFormatVersion<TAB><version><LF>`. Then:

    1   text lines: Qw, E, length; one line per fragment, `<first entry>` and its bookies, TAB between;
        a closed ledger ends with `<last entry><TAB>CLOSED`, one in recovery with `-102<TAB>CLOSED`.
        Qa = Qw; no digest, password or custom metadata
    2   LedgerMetadataFormat (dataformats.proto) as protobuf text
    3   varint length, then LedgerMetadataFormat as protobuf binary; what is written for new ledgers

A ledger keeps the version it was created with. Fields of LedgerMetadataFormat, and of its fragments, that a later peer
added (version 3) are kept unchanged and written back; text with unknown fields is refused, as by Apache's peers.
"""

from __future__ import annotations

from dataclasses import replace

from google.protobuf import text_format
from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState
from bkspark.errors import MetadataFormat
from bkspark.ids import NO_ENTRY
from bkspark.metadata.dataformats_pb2 import LedgerMetadataFormat
from bkspark.wire.digest import DigestType

VERSION_MAX = 3
_HEADER = b"BookieMetadataFormatVersion\t"
_IN_RECOVERY = -102
_VARINT_BYTES_MAX = 10
_DIGEST_TYPE = LedgerMetadataFormat.DIGESTTYPE_FIELD_NUMBER


def encode(metadata: LedgerMetadata) -> bytes:
    """Return the node's bytes in the metadata's own format version.

    Raises:
        MetadataFormat: the version cannot represent the metadata.
    """
    header = _HEADER + b"%d\n" % metadata.format_version
    if metadata.format_version == 1:
        return header + _encode_lines(metadata)
    message = _to_message(metadata)
    if metadata.format_version == 2:
        message.ClearField("cToken")
        return header + text_format.MessageToString(message).encode()
    body = message.SerializeToString() + metadata.unknown_fields
    return header + varint(len(body)) + body


def decode(data: bytes, ledger_id: int) -> LedgerMetadata:
    """Return the metadata in a node's bytes. `ledger_id` is for the message.

    Raises:
        MetadataFormat: they are damaged, of a later version, or violate a rule of LedgerMetadata.
    """
    try:
        header, _, body = data.partition(b"\n")
        if not header.startswith(_HEADER):
            raise ValueError("the header line is missing")
        version = int(header.removeprefix(_HEADER))
        if version == 1:
            return _decode_lines(body.decode())
        if version == 2:
            message = text_format.Parse(body.decode(), LedgerMetadataFormat())
        elif version == 3:
            message = LedgerMetadataFormat()
            message.ParseFromString(_delimited(body))
        else:
            raise ValueError(f"its format version is {version}, the newest known is {VERSION_MAX}")
        return _from_message(message, version)
    except text_format.ParseError as error:
        # Its own message may quote the password.
        why = f"line {error.GetLine()} of the text has an error at column {error.GetColumn()}"
    except (ValueError, DecodeError) as error:
        why = str(error)
    raise MetadataFormat(f"metadata of ledger {ledger_id} cannot be read: {why}", ledger_id=ledger_id)


# ---- protobuf ----


def _to_message(metadata: LedgerMetadata) -> LedgerMetadataFormat:
    message = LedgerMetadataFormat(
        quorumSize=metadata.write_quorum,
        ensembleSize=metadata.ensemble_size,
        ackQuorumSize=metadata.ack_quorum,
        length=metadata.length,
        lastEntryId=metadata.last_entry,
        state=metadata.state.value,
        cToken=metadata.ctoken,
    )
    for fragment in metadata.fragments:
        segment = message.segment.add(firstEntryId=fragment.first_entry, ensembleMember=fragment.bookies)
        segment.MergeFromString(fragment.unknown_fields)
    if metadata.password is not None:
        message.digestType = metadata.digest.value
        message.password = metadata.password
    if metadata.ctime is not None:
        message.ctime = metadata.ctime
    for key in sorted(metadata.custom_metadata):
        message.customMetadata.add(key=key, value=metadata.custom_metadata[key])
    if not message.IsInitialized():
        raise EncodeError("a required field is missing")
    return message


def _from_message(message: LedgerMetadataFormat, version: int) -> LedgerMetadata:
    _check_text([bookie for segment in message.segment for bookie in segment.ensembleMember], "a bookie id")
    _check_text([entry.key for entry in message.customMetadata], "a custom metadata key")
    if any(unknown.field_number == _DIGEST_TYPE for unknown in UnknownFieldSet(message)):
        # protobuf treats a value outside its enum as an unknown field; CRC32 would be a wrong guess.
        raise ValueError("its digest type is not known here")
    if not message.IsInitialized():
        # A state outside its enum counts as missing, and protobuf would read OPEN, which may be claimed for recovery.
        missing = ", ".join(message.FindInitializationErrors())
        raise ValueError(f"it lacks {missing}, or has a value there that is not known")
    state = LedgerState(message.state)
    is_closed = state is LedgerState.CLOSED
    has_password = message.HasField("password")
    return LedgerMetadata(
        ensemble_size=message.ensembleSize,
        write_quorum=message.quorumSize,
        ack_quorum=message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize,
        fragments=tuple(_fragment(segment) for segment in message.segment),
        state=state,
        last_entry=message.lastEntryId if is_closed and message.HasField("lastEntryId") else NO_ENTRY,
        length=message.length if is_closed else 0,
        # The digest counts only together with a password (Apache's rule); other ledgers were written with CRC32.
        digest=DigestType(message.digestType) if has_password and message.HasField("digestType") else DigestType.CRC32,
        password=message.password if has_password else None,
        custom_metadata={entry.key: entry.value for entry in message.customMetadata},
        ctime=message.ctime if message.HasField("ctime") else None,
        ctoken=message.cToken,
        format_version=version,
        unknown_fields=_unknown_fields(message),
    )


def _fragment(segment: LedgerMetadataFormat.Segment) -> Fragment:
    first_entry, bookies = segment.firstEntryId, tuple(segment.ensembleMember)
    return Fragment(first_entry, bookies, _unknown_fields(segment))


def _check_text(values: list[str], what: str) -> None:
    # protobuf hands over bytes where a string is not UTF-8.
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{what} is not text")


def _unknown_fields(message: LedgerMetadataFormat | LedgerMetadataFormat.Segment) -> bytes:
    """Return the bytes of the fields that the schema does not name; `message` must not be used afterwards."""
    if not len(UnknownFieldSet(message)):
        return b""
    for known in message.DESCRIPTOR.fields:
        message.ClearField(known.name)
    return message.SerializePartialToString()


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _delimited(body: bytes) -> bytes:
    """Return the message after its varint length; it must fill the rest exactly."""
    length = 0
    for position, octet in enumerate(body[:_VARINT_BYTES_MAX]):
        length |= (octet & 0x7F) << 7 * position
        if octet < 0x80:
            if len(body) - position - 1 != length:
                raise ValueError(f"it says {length} bytes follow, there are {len(body) - position - 1}")
            return body[position + 1 :]
    raise ValueError("its length is cut short")


# ---- text, version 1 ----


def _encode_lines(metadata: LedgerMetadata) -> bytes:
    if metadata.ack_quorum != metadata.write_quorum or metadata.custom_metadata:
        raise MetadataFormat("metadata format 1 holds no ack quorum and no custom metadata")
    lines = [str(metadata.write_quorum), str(metadata.ensemble_size), str(metadata.length)]
    lines += ["\t".join((str(fragment.first_entry), *fragment.bookies)) for fragment in metadata.fragments]
    if metadata.state is LedgerState.CLOSED:
        lines.append(f"{metadata.last_entry}\tCLOSED")
    elif metadata.state is LedgerState.IN_RECOVERY:
        lines.append(f"{_IN_RECOVERY}\tCLOSED")
    return "\n".join(lines).encode() + (b"" if metadata.state is not LedgerState.OPEN else b"\n")


def _decode_lines(text: str) -> LedgerMetadata:
    lines = [line for line in text.split("\n") if line]
    if len(lines) < 4:
        raise ValueError(f"format 1 has at least four lines, there are {len(lines)}")
    write_quorum, ensemble_size, length = (int(line) for line in lines[:3])
    open_ledger = []
    closed_at: int | None = None
    for line in lines[3:]:
        first, *rest = line.split("\t")
        if closed_at is not None:
            raise ValueError("a line follows the closing one")
        if rest == ["CLOSED"]:
            closed_at = int(first)
        else:
            open_ledger.append(Fragment(int(first), tuple(rest)))
    metadata = LedgerMetadata(
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=write_quorum,
        fragments=tuple(open_ledger),
        digest=DigestType.CRC32,
        password=None,
        format_version=1,
    )
    if closed_at is None:
        return metadata
    if closed_at == _IN_RECOVERY:
        return metadata.in_recovery()
    return replace(metadata, state=LedgerState.CLOSED, last_entry=closed_at, length=length)
