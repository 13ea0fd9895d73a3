"""Names the user of this machine, for records of an action."""

from __future__ import annotations

import getpass
import socket


def this_user() -> str:
    """The user of this process and the machine it runs on: `user@host`."""
    return f"{getpass.getuser()}@{socket.gethostname()}"
