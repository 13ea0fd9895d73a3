"""Names the user of this machine, as the author of an action."""

from __future__ import annotations

import getpass
import socket


def this_user() -> str:
    """Return the user of this process and the machine it runs on: `user@host`."""
    return f"{getpass.getuser()}@{socket.gethostname()}"
