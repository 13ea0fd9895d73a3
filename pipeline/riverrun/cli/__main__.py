"""The command `riverrun`, also as `python -m riverrun.cli`: defers signals while slow modules load."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command, which accepts signals as soon as it can handle them (`riverrun.cli.signals`)."""
    # Otherwise a SIGTERM during the slow imports would end the process without a message.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    from riverrun.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
