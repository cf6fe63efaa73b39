"""What a connection asks for, in the order in which it came, whatever the protocol."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Runs(Protocol):
    """The requests of one protocol in a receive buffer."""

    def serve(self, octets: np.ndarray) -> bool:
        """Hand on requests, as far as the bookie and the peer take them; False: wait for `resume`, and call again.

        Args:
            octets: the receive buffer; its bytes stay where they are between calls, but may lie in other memory.

        Raises:
            ProtocolError: the next request is none, or not served; the peer is answered by closing its connection.
        """
