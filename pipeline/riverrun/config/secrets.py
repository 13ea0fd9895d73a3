"""Expands secrets from the environment, and keeps them out of messages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN = "RIVERRUN_TOKEN"  # noqa: S105 - the name of a variable
"""Environment variable with the token that callers of the HTTP interface show."""
_VARIABLE = re.compile(r"\$\{(?:file:(?P<file>/[^${}]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*))\}")
_BARE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_TOKEN = re.compile(r"[ -~]*")
_USER_INFO = re.compile(r"(?<=[/:@])[^/:@?;&\s]+:[^/@?;&\s]*(?:@[^/@?;&\s]*)*(?=@)")
_ORACLE = re.compile(r"(?i)((?<=:thin:)|(?<=:oci:)|(?<=:oci8:))[^@\s]+(?=@)")
_NAMES = r"(?:passw|pwd|secret|token|credential|passphrase|(?:access|account)[._-]?key)"
_SECRET = re.compile(rf"(?i)([\w.-]*{_NAMES}[\w.-]*\s*=\s*)(?:\{{[^}}]*\}}|[^;&,)\s]+)")
_NAME_OF_SECRET = re.compile(rf"(?i){_NAMES}")


def is_secret(name: str) -> bool:
    """Return whether a setting is secret, judged by its name.

    >>> is_secret("spark.hadoop.fs.s3a.secret.key"), is_secret("spark.executor.memory")
    (True, False)
    """
    return _NAME_OF_SECRET.search(name) is not None


def expanded(where: str, value: str, environ: Mapping[str, str]) -> str:
    """Return a value with `${NAME}` replaced by environment variables, and `${file:PATH}` by the content of files.

    Args:
        where: Name of the setting, for messages.
        value: The value as written.
        environ: The environment variables.

    Raises:
        ConfigError: If a variable is not set, a file cannot be read, or `${` begins neither form.
    """

    def look_up(match: re.Match[str]) -> str:
        if match["file"] is not None:
            return _content(where, Path(match["file"]))
        if match["name"] not in environ:
            message = f"{where} needs the environment variable {match['name']}, which is not set"
            raise ConfigError(message)
        return environ[match["name"]]

    bare = _BARE.search(value)
    if bare is not None and bare[1] in environ:
        message = f"{where} has ${bare[1]}, which is not replaced"
        raise ConfigError(message, hint=f"Write ${{{bare[1]}}}.")
    found = _VARIABLE.sub(look_up, value)
    if "${" in _VARIABLE.sub("", value):
        message = f"{where} has a ${{ that does not begin ${{NAME}}"
        hint = (
            "NAME has only letters, digits and _, without a default. ${file:PATH} takes an absolute path."
            " Put a value that contains ${ into a variable."
        )
        raise ConfigError(message, hint=hint)
    return found


def _content(where: str, path: Path) -> str:
    """Return the content of a file without a final line end, which editors add."""
    try:
        return path.read_text("utf-8").rstrip("\r\n")
    except OSError as error:
        message = f"{where} needs the file {path}, which cannot be read: {error.strerror}"
        raise ConfigError(message) from error
    except UnicodeDecodeError as error:
        message = f"{where} needs the file {path}, which is not text"
        raise ConfigError(message) from error


def checked_token(where: str, text: str) -> str:
    r"""Return a token that HTTP headers can hold, without a trailing newline, which files and secrets often have.

    >>> checked_token("server.token", "open-sesame\n")
    'open-sesame'

    Args:
        where: Name of the setting, for messages.
        text: Its value; never in messages.

    Raises:
        ConfigError: If a header cannot hold the token.
    """
    token = text.strip()
    if not _TOKEN.fullmatch(token):
        message = f"{where} has characters that a token cannot have"
        raise ConfigError(message, hint="A token has ASCII letters, digits and punctuation, on one line.")
    return token


def redacted(text: str) -> str:
    """Return a text without passwords in URLs, such as database drivers print.

    >>> redacted("jdbc:sqlserver://db;user=sa;password=hunter2")
    'jdbc:sqlserver://db;user=sa;password=***'
    >>> redacted("mysql://ann:hunter2@db/shop?useSSL=true")
    'mysql://***@db/shop?useSSL=true'
    """
    return _SECRET.sub(r"\1***", _USER_INFO.sub("***", _ORACLE.sub("***", text)))
