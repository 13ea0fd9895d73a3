"""The command `riverrun`, also as `python -m riverrun.cli`: defers signals while slow modules load.

Without this, a SIGTERM during the imports would end the process without a message. While the package itself loads, it
still does.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command, which accepts signals as soon as it can handle them (`riverrun.cli.signals`)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    from riverrun.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
