"""Serves the console of a project."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from riverrun.config.sections import CONSOLE_SERVER
from riverrun.extras import require_extra

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from riverrun.project.riverrun import Riverrun
    from riverrun.releases.rows import DifferentRow


@contextmanager
def console(project: Riverrun, server: str | None = None, token: str = "") -> Iterator[str]:
    """Serve within this context, and yield the address of the page.

    Args:
        project: Its applications are shown.
        server: `host:port`; defaults to the address in `[console]`.
        token: Token that callers must show if `[console]` names none.
    """
    require_extra("http")
    from riverrun.console.api import new_api  # noqa: PLC0415 - needs the extra
    from riverrun.console.looking import Looking, ProjectWatch  # noqa: PLC0415 - as above
    from riverrun.service.admission import Access  # noqa: PLC0415 - as above
    from riverrun.service.connections import ConnectionLimits, server_tls  # noqa: PLC0415 - as above
    from riverrun.service.instance import bound, name_of, serving  # noqa: PLC0415 - as above

    settings = project.config.console
    address, shown = server or settings.application_server or CONSOLE_SERVER, settings.server_token or token
    tls = server_tls(settings)
    wants_token = bool(shown or settings.server_read_token)
    with bound(address, wants_token=wants_token, where="[console]") as listener:
        name = name_of(listener, address, project.config.kafka["bootstrap.servers"])
        access = Access(shown, settings.server_read_token, None, name, frozenset(settings.server_allowed_hosts))

        def differences(app: str, limit: int) -> Sequence[DifferentRow]:
            return project.app(app).release().releaser.diff(limit)

        with closing(Looking(project)) as looking, closing(ProjectWatch(looking.look)) as watch:
            api = new_api(watch, differences, looking.between, access)
            with serving(api, listener, ConnectionLimits(tls=tls), api.state.events.end):
                yield f"http{'s' if tls else ''}://{name}/"
