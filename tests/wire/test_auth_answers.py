"""Answers to AUTH messages, and single adds at the limit of a frame: what counts, and what is an error."""

from __future__ import annotations

import pytest

from bkspark.errors import NoSuchEntry, ProtocolError, ReadFailed
from bkspark.ledger.replica_reads import read_error
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.auth import AuthAnswer, encode_auth, take_auth_answer
from bkspark.wire.status import Status
from tests.bookie.serving import adds


def answer_v3(txn_id: int = 7, operation: int = protocol.AUTH, status: int = v3.StatusCode.EOK) -> bytes:
    header = v3.header(operation, txn_id)
    message = protocol.AuthMessage(authPluginName="sasl", payload=b"proof")
    return v3.encode_message(protocol.Response(header=header, status=status, authResponse=message))


def test_an_answer_is_taken_from_what_was_received_once_it_is_complete() -> None:
    whole = answer_v3()
    received = bytearray(whole[:-1])
    assert take_auth_answer(received, 7) is None
    received += whole[-1:]
    assert take_auth_answer(received, 7) == AuthAnswer("sasl", b"proof")
    assert received == b""


def test_nothing_follows_an_answer() -> None:
    """A bookie answers each message: what follows was put there by another host."""
    with pytest.raises(ProtocolError, match="more than one answer"):
        take_auth_answer(bytearray(answer_v3() + answer_v3(8)), 7)


@pytest.mark.parametrize(("operation", "txn_id"), [(protocol.AUTH, 8), (protocol.READ_ENTRY, 7)])
def test_an_answer_to_another_request_is_not_taken(operation: int, txn_id: int) -> None:
    with pytest.raises(ProtocolError, match="the response to another request"):
        take_auth_answer(bytearray(answer_v3(txn_id, operation)), 7)


def test_a_failed_start_tls_before_the_answer_is_passed_over() -> None:
    late = answer_v3(3, protocol.START_TLS, v3.StatusCode.EIO)
    assert take_auth_answer(bytearray(late + answer_v3()), 7) == AuthAnswer("sasl", b"proof")


def test_an_answer_in_the_other_protocol_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="with another one"):
        take_auth_answer(bytearray(encode_auth("sasl", b"proof", None)), 7)
    with pytest.raises(ProtocolError, match="the response to another request"):
        take_auth_answer(bytearray(answer_v3()), None)


def test_a_refusal_is_a_status_and_not_a_message() -> None:
    assert take_auth_answer(bytearray(answer_v3(status=v3.StatusCode.EUA)), 7) == AuthAnswer(is_refusal=True)


def test_a_single_add_has_at_most_the_bytes_of_a_frame() -> None:
    frame = adds(5, 0, [b"payload"])
    body_bytes = len(frame) - 4
    assert v2.decode_single_add(memoryview(frame), len(frame), body_bytes) is not None
    assert v2.decode_single_add(memoryview(frame), len(frame), body_bytes - 1) is None


@pytest.mark.parametrize(
    ("status", "kind"),
    [(Status.ENOENTRY, NoSuchEntry), (Status.ENOLEDGER, NoSuchEntry), (Status.EUNKNOWNLEDGERSTATE, ReadFailed)],
)
def test_only_a_certain_negative_says_that_an_entry_is_not_there(status: int, kind: type[Exception]) -> None:
    assert type(read_error(status, 5, 0, "b:1")) is kind
