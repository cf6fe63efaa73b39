"""A bookie with authentication in this process, JAAS files, and a peer that authenticates message by message."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bkspark.security.digest_md5 import DigestClient
from bkspark.security.sasl import SaslServerOptions
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bookie_service.network.authentication import ListenerAuthenticationOptions
from tests.bookie.serving import Peer

DIGEST_MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
KERBEROS_MODULE = "com.sun.security.auth.module.Krb5LoginModule"
USER, PASSWORD = "bookkeeper-writer", "a password of some length"
USERS = {USER: PASSWORD, "reader": "another password"}


def jaas_text(
    users: Mapping[str, str] = USERS, user: str = USER, password: str = PASSWORD, section: str = "BookKeeper"
) -> str:
    """Return a JAAS file with the section of a bookie, and one of a client."""
    listed = " ".join(f'user_{name}="{secret}"' for name, secret in users.items())
    return (
        f"Bookie {{ {DIGEST_MODULE} required {listed}; }};\n"
        f'{section} {{ {DIGEST_MODULE} required username="{user}" password="{password}"; }};\n'
    )


def jaas_file(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def by_digest(directory: Path, allowed: str = ".*bookkeeper.*", **changes: object) -> ListenerAuthenticationOptions:
    """Return the options of a port whose clients authenticate by DIGEST-MD5."""
    sasl = SaslServerOptions(jaas_file(directory / "bookie.jaas", jaas_text()), allowed_ids=allowed)
    return ListenerAuthenticationOptions(sasl, **changes)  # type: ignore[arg-type]


def auth_v2(payload: bytes, plugin: str = "sasl") -> bytes:
    """Return the frame of a V2 AUTH message."""
    return v2.encode_auth_reply(protocol.AuthMessage(authPluginName=plugin, payload=payload).SerializeToString())


def auth_v3(payload: bytes, plugin: str = "sasl", txn_id: int = 9) -> bytes:
    """Return the frame of a V3 AUTH request."""
    message = protocol.AuthMessage(authPluginName=plugin, payload=payload)
    return v3.encode_message(protocol.Request(header=v3.header(protocol.AUTH, txn_id), authRequest=message))


class SaslPeer:
    """Sends AUTH messages over a blocking peer, in V2 or V3, and takes the answers apart."""

    def __init__(self, peer: Peer, is_v3: bool = False) -> None:
        self.peer = peer
        self._is_v3 = is_v3

    def frame(self, payload: bytes, plugin: str = "sasl") -> bytes:
        return (auth_v3 if self._is_v3 else auth_v2)(payload, plugin)

    def ask(self, payload: bytes, plugin: str = "sasl") -> protocol.AuthMessage | int | None:
        """Return the answer to an AUTH message, its status in V3 if that is not EOK, None: the connection is closed."""
        self.peer.send(self.frame(payload, plugin))
        return self.answer()

    def answer(self) -> protocol.AuthMessage | int | None:
        body = self.peer.frame()
        if body is None:
            return None
        if not self._is_v3:
            assert body[:4] == v2.header_word(v2.AUTH).to_bytes(4, "big")
            return protocol.AuthMessage.FromString(body[4:])
        response = v3.decode_response(body)
        assert response.header.operation == protocol.AUTH
        assert response.header.txnId == 9
        if response.status != v3.StatusCode.EOK:
            assert not response.HasField("authResponse")
            return int(response.status)
        return response.authResponse

    def payload(self, message: bytes) -> bytes:
        """Return the payload of the plugin's answer."""
        answer = self.ask(message)
        assert isinstance(answer, protocol.AuthMessage), answer
        assert answer.authPluginName == "sasl"
        return answer.payload

    def authenticate(self, user: str = USER, password: str = PASSWORD) -> None:
        """Complete an exchange as Apache's client does, which sends one more, empty message at the end."""
        client = DigestClient(user, password, "cnonce")
        response = client.step(self.payload(client.first()))
        assert response is not None
        client.step(self.payload(response))
        last = self.ask(b"")
        assert isinstance(last, protocol.AuthMessage)
        assert last.authPluginName == "AuthDisabledPlugin"
