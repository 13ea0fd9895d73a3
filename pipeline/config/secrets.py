"""Secrets: how they come in, and how they stay out of messages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN = "MILLRACE_TOKEN"  # noqa: S105 - the name of a variable
"""The environment variable with what callers of the HTTP interface show."""
_VARIABLE = re.compile(r"\$\{(?:file:(?P<file>/[^${}]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*))\}")
_BARE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_TOKEN = re.compile(r"[ -~]*")
_USER_INFO = re.compile(r"(?<=[/:@])[^/:@?;&\s]+:[^/@?;&\s]*(?:@[^/@?;&\s]*)*(?=@)")
_ORACLE = re.compile(r"(?i)((?<=:thin:)|(?<=:oci:)|(?<=:oci8:))[^@\s]+(?=@)")
_NAMES = r"(?:passw|pwd|secret|token|credential|passphrase|(?:access|account)[._-]?key)"
_SECRET = re.compile(rf"(?i)([\w.-]*{_NAMES}[\w.-]*\s*=\s*)(?:\{{[^}}]*\}}|[^;&,)\s]+)")
_NAME_OF_SECRET = re.compile(rf"(?i){_NAMES}")


def is_secret(name: str) -> bool:
    """Whether what a setting holds is to be shown to nobody, by its name.

    >>> is_secret("spark.hadoop.fs.s3a.secret.key"), is_secret("spark.executor.memory")
    (True, False)
    """
    return _NAME_OF_SECRET.search(name) is not None


def expanded(where: str, value: str, environ: Mapping[str, str]) -> str:
    """A value with `${NAME}` replaced by the environment's, and `${file:PATH}` by what a file says.

    Args:
        where: What it is the value of, for messages.
        value: The value as it was written.
        environ: The environment.

    Raises:
        ConfigError: If a variable is not set, a file cannot be read, or `${` begins neither.
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
        message = f"{where} has a ${{ that begins no ${{NAME}}"
        hint = (
            "NAME has letters, digits and _ only, and there are no defaults. ${file:PATH} takes an absolute path."
            " A value with ${ in it can be in a variable."
        )
        raise ConfigError(message, hint=hint)
    return found


def _content(where: str, path: Path) -> str:
    """Return what a file says, without the end of its last line, which editors add."""
    try:
        return path.read_text("utf-8").rstrip("\r\n")
    except OSError as error:
        message = f"{where} needs the file {path}, which cannot be read: {error.strerror}"
        raise ConfigError(message) from error
    except UnicodeDecodeError as error:
        message = f"{where} needs the file {path}, which is no text"
        raise ConfigError(message) from error


def checked_token(where: str, text: str) -> str:
    r"""A token as it can be sent: files and secrets often end with a newline, which is not part of it.

    >>> checked_token("server.token", "open-sesame\n")
    'open-sesame'

    Args:
        where: What it was given as, for messages.
        text: What was given; not in messages.

    Raises:
        ConfigError: If a header cannot hold it.
    """
    token = text.strip()
    if not _TOKEN.fullmatch(token):
        message = f"{where} has characters that a token cannot have"
        raise ConfigError(message, hint="It may have letters, digits and signs of ASCII, on one line.")
    return token


def redacted(text: str) -> str:
    """A text without the passwords of URLs in it, as databases' drivers write them.

    >>> redacted("jdbc:sqlserver://db;user=sa;password=hunter2")
    'jdbc:sqlserver://db;user=sa;password=***'
    >>> redacted("mysql://ann:hunter2@db/shop?useSSL=true")
    'mysql://***@db/shop?useSSL=true'
    """
    return _SECRET.sub(r"\1***", _USER_INFO.sub("***", _ORACLE.sub("***", text)))
