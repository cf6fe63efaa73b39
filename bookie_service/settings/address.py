"""Where a bookie listens, its advertised address, and its id, chosen as by Apache's bookies.

    advertisedAddress       advertised unchanged, never checked
    listeningInterface      the interface's address; it listens only there
    otherwise               this host's address; it listens everywhere
    useHostNameAsBookieID   the host's name instead of the address

A loopback address is refused unless `allowLoopback`: most often it means that the host's name resolves badly, and then
all bookies of a cluster would claim the same id. If loopback is advertised, the bookie listens only there. The id is
`host:port` unless `bookieId` is set. Port 0 chooses a free port.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from dataclasses import dataclass

from bkspark.errors import ConfigurationError
from bkspark.ids import check_bookie_id
from bkspark.security.web import is_loopback
from bookie_service.settings.service_options import AddressOptions

_SIOCGIFADDR = 0x8915
_EVERYWHERE = "0.0.0.0"


class _NoAddress(ConfigurationError):
    """An interface or a host name has no address now."""


@dataclass(frozen=True, slots=True)
class BoundAddress:
    """A bound socket (`listener`) that does not listen yet, the advertised address, and the bookie's id."""

    listener: socket.socket
    host: str
    port: int
    bookie_id: str


def check(options: AddressOptions) -> None:
    """Raise ConfigurationError if `bind` would refuse the address now and at each later start.

    An interface or a host name without an address is not refused here, because it may have one later.
    """
    with contextlib.suppress(_NoAddress):
        _choose(options)


def bind(options: AddressOptions) -> BoundAddress:
    """Bind the bookie's port.

    Raises:
        ConfigurationError: the address is not usable or the port is taken. The message says what to change.
    """
    host, listen_at = _choose(options)
    try:
        check_bookie_id(options.bookie_id or f"{host}:0")
    except ValueError as error:
        raise ConfigurationError(f"{error}; set bookieId") from None
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((listen_at, options.port))
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"bookiePort={options.port} on {listen_at} cannot be used ({error.strerror}): free it or choose another"
        ) from None
    port = listener.getsockname()[1]
    return BoundAddress(listener, host, port, options.bookie_id or f"{host}:{port}")


def _choose(options: AddressOptions) -> tuple[str, str]:
    """Return (advertised host, address to listen at)."""
    if options.advertised_address is not None:
        host = options.advertised_address
        listen_at = _EVERYWHERE
        if options.listening_interface is not None:
            listen_at = _interface_address(options.listening_interface, options.interface_as_given)
        elif options.is_local:
            listen_at = "127.0.0.1" if host.lower() == "localhost" else host
        return host, listen_at
    if options.listening_interface is not None:
        address = listen_at = _interface_address(options.listening_interface, options.interface_as_given)
    else:
        address, listen_at = _host_address(), _EVERYWHERE
    if is_loopback(address):
        if not options.allow_loopback:
            raise ConfigurationError(
                f"this host's address is the loopback address {address}: set listeningInterface or advertisedAddress, "
                "or allowLoopback=true for a cluster on one machine"
            )
        listen_at = address
    if options.use_host_name:
        name = socket.getfqdn(address)
        return (name.split(".")[0] if options.use_short_host_name else name), listen_at
    return address, listen_at


def _host_address() -> str:
    name = socket.gethostname()
    try:
        return socket.gethostbyname(name)
    except (OSError, UnicodeError):
        raise _NoAddress(
            f"this host's name {name!r} has no address: set advertisedAddress or listeningInterface"
        ) from None


def _interface_address(name: str, as_given: str | None) -> str:
    """Return the IPv4 address of a network interface. `as_given`: the name in messages; None: the name itself."""
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:
            known = ", ".join(interface for _, interface in socket.if_nameindex())
            raise _NoAddress(
                f"listeningInterface={as_given or name}: no such interface with an IPv4 address; there are {known}"
            ) from None
    return socket.inet_ntoa(answer[20:24])
