"""`riverrun console`: the page of a whole project."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Annotated

import typer

from riverrun.cli.output import echo
from riverrun.cli.project import settings_of


def console(
    context: typer.Context,
    server: Annotated[
        str | None,
        typer.Option(
            help="Address of the page, host:port; defaults to application.server of [console], else 127.0.0.1:8091."
        ),
    ] = None,
) -> None:
    """Serve a page over all applications of the project until Ctrl-C or SIGTERM stops it. The page changes nothing."""
    from riverrun.config.secrets import TOKEN, checked_token
    from riverrun.console.serving import console as serve

    settings = settings_of(context)
    token = checked_token(TOKEN, settings.environ.get(TOKEN, ""))
    with suppress(KeyboardInterrupt), serve(settings.project(), server, token) as address:
        echo(f"Answers at {address}")
        threading.Event().wait()
