"""The command `millrace`, also as `python -m pipeline.cli`: holds signals back before it loads what takes a while.

A SIGTERM meanwhile would end the process without a word; until here, while the package itself loads, it still does.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command; it lets signals through as soon as it can answer them (`pipeline.cli.signals`)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    from pipeline.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
