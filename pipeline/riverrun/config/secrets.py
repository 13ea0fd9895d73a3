"""Expands secrets from the environment, keeps them out of messages, and data out of the reach of other users of a machine."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN = "RIVERRUN_TOKEN"  # noqa: S105 - the name of a variable
"""Environment variable with the token that callers of the HTTP interface show."""
_VARIABLE = re.compile(r"\$\{(?:file:(?P<file>/[^${}]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*))\}")
_BARE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_SHORTEST_TOKEN = 16
_TOKEN = re.compile(r"[ -~]*")
_WORDS = frozenset({"cred", "creds", "jwt", "otp", "pw", "sas", "sig"})
_STEMS = re.compile(
    r"passw|passphrase|passcode|secret|credential|pwd$|token$|(?<!by)(?<!com)(?<!sur)(?<!over)(?<!tres)pass$"
    r"|(?:api|access|account|auth|encryption|license|master|private|secret|shared|signing|ssh|storage)keys?$"
)
_OF_KEYS = frozenset(
    """
    access account aes api auth decryption encrypt encryption gpg hmac keystore license master pgp private rsa secret secure
    security shared sign signing ssh storage subscription webhook
    """.split()  # noqa: SIM905 - as a list it takes a page
)
_PAIRS = frozenset({
    ("access", "signature"),
    ("amz", "signature"),
    ("client", "assertion"),
    ("connection", "string"),
    ("goog", "signature"),
    ("jaas", "config"),
    ("key", "pem"),
    ("user", "info"),
})  # fmt: skip
# Last words of settings that are about a secret, and hold none: `password.file`.
_DESCRIPTIONS = frozenset(
    """
    algorithm alias bytes class count deserializer dir directory enable enabled endpoint expires expiry file filename host
    interval length limit location max mechanism min mode ms path policy provider required seconds serializer size source
    timeout ttl type uri url
    """.split()  # noqa: SIM905 - as a list it takes a page
)
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# Words before `token` and `bearer` in messages of parsers, and before the verb `pass`.
_PROSE = {
    "bearer": frozenset({"expected", "invalid", "missing", "no", "unexpected", "unknown", "unsupported"}),
    "token": frozenset({"current", "expected", "illegal", "invalid", "last", "next", "no", "unexpected", "unknown"}),
    "pass": frozenset(
        {"can", "cannot", "could", "did", "do", "does", "may", "must", "not", "should", "to", "will", "would"}
    ),
}


_HIDDEN = "***"
# Characters of a quoted value: further ones of a longer value are searched for secrets like other text.
_LONGEST = 4_000

_URL = re.compile(r"(?<![\w+.-])(?P<scheme>[A-Za-z][\w+.-]*)://(?P<rest>[^\s\"'<>`]+)")
_CREDENTIALS = re.compile(r"(?!\[)[^/?#;@,]*:(?!\d{1,5}(?:[/?#;,]|$))")
# Schemes of URLs with the name of a container before `@`.
_CONTAINERS = frozenset({"abfs", "abfss", "wasb", "wasbs"})
_ORACLE = re.compile(r"(?i)(?<=:)(thin|oci8?):(?:[^\s\"]|\"[^\"\n]{0,200}\"){1,300}@")
_BARE_USER = re.compile(
    r"(?<![\w/:@.%+-])(?!mailto:)[\w.%+-]{1,200}:(?!//)[^\s\"'/\\]{1,300}@(?=[A-Za-z\[]|\d+\.\d+\.)"
)
_DRIVER = re.compile(r"jdbc:\w+:(?:(?:thin|oci8?):)?")
_KNOWN = re.compile(
    r"-----BEGIN (?P<kind>[A-Z ]*PRIVATE KEY)-----.*?(?:-----END (?P=kind)-----|\Z)"
    r"|\beyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]*"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\b(?:AIza|gh[pousr]_|github_pat_|glpat-|npm_|xox[abeprs]-|sk-|sk_live_|sk_test_|hvs\.|SG\.|dapi)[\w-]{16,}(?:\.[\w-]{16,})?",
    re.DOTALL,
)
_SCHEME = re.compile(
    r"\b((?i:bearer|basic|digest|negotiate|sharedkey|sharedaccesssignature)\s+)(?=\S*[0-9=+/])[\w.+/=~:%&-]{6,}"
)
_HEADER = re.compile(
    r"(?i)((?:^|(?<=[\s\"'{,\[(]))(?:proxy-)?(?:authorization|(?:set-)?cookie)\\*[\"']?\s*[:=]\s*\\*[\"']?)[^\r\n\"']+"
)
_LOGIN = re.compile(r"((?<!\S)(?:-u|--user|--proxy-user)(?: +|=)[\"']?)[^\s\"':]+:[^\s\"']+")
# A name may follow the hyphens of an option or an escape of a URL, but is no part of another name.
_NAME = (
    r"(?:(?<![\w.-])|(?<=%[0-9A-Fa-f]{2})|(?<=(?<![\w-])-)|(?<=(?<![\w-])--))(?P<name>(?:[A-Za-z]+ )?[A-Za-z_][\w.-]*)"
)
_ELEMENT = re.compile(r"<(?:\w+:)?(?P<name>[\w.-]{1,200})(?:\s[^<>]*)?>")
_SQL_LOGIN = re.compile(r"(?i)\bidentified\s+(?:with\s+\w+\s+)?by\s+(?=\\*[\"'])")
_CONTENT = re.compile(rf"[^<]{{0,{_LONGEST}}}")
# Between two arguments: in a line of a shell, and in a list as Python and JSON show it.
_GAP = r"(?:\s|[\"'],\s*[\"'])"
_VALUE_GAP = r"(?:\s+|[\"'],\s*(?=[\"']))"
# Programs whose passwords follow a short option; MySQL's asks for one if nothing is attached to it.
_COMMAND_LOGIN = re.compile(
    r"(?<![\w-])(?:"
    + "|".join(
        rf"{program}(?:\.exe)?{_GAP}(?:[^\n|;&]{{0,300}}?{_GAP})?-{option}"
        for program, option in (
            (r"(?:mysql|mariadb)[\w-]*", r"p(?=[^\s\"']|[\"'][^\s\"',)\]}])"),
            ("(?:sqlcmd|bcp)", rf"P{_VALUE_GAP}?"),
            ("sshpass", rf"p{_VALUE_GAP}?"),
            ("redis-cli", rf"a{_VALUE_GAP}"),
            (r"mongo\w*", rf"p{_VALUE_GAP}?"),
            (rf"(?:docker|podman){_GAP}login", rf"p{_VALUE_GAP}?"),
            (r"ldap\w+", rf"w{_VALUE_GAP}?"),
        )
    )
    + ")"
)
_PROSE_WORDS = "|".join(
    """
    a about all also always an and another are arguments as asked at bad bare be because being both but by callback can
    cannot changed checked combinations confidential correct corrupted could currently detection does echoed either empty
    encrypted ends errors expected expired false first for from given has held hidden how if ignored in incorrect invalid is
    it its kept known left limited loaded longer made mapped may mismatch missing mounted must needed needs neither never
    new no none not now null of old omitted on one only optional or passed preferred present printed prompt protected
    protection provided read regression rejected removed replaced required reset returned right secret sent set shared
    shorter should shown specified still stored supplied taken that the then there this to too true twice two undefined
    unknown unset unused updated used valid via was weak what when where which will with without written wrong yet your
    """.split()  # noqa: SIM905 - as a list it takes a page
)
_NO_VALUE = rf"(?!(?:{_PROSE_WORDS})(?![\w-]))"
"""Words that follow names of secrets in prose, and are none."""
_PASSWORD = "(?P<name>passw(?:or)?d|passphrase|passcode|secret|(?:api|access|private|secret) key)"  # noqa: S105 - a pattern
# Ways in which a name comes before its value: `name=`, a pair, a name and a value by name, XML, an option.
_OPENINGS = (
    re.compile(_NAME + r"(?:\[[^\]\s]{0,30}\])?\\*[\"']?[ \t]*(?:=>|->|:=|==?|%3[Dd]|:(?!//))[ \t]*"),
    # Before pairs: `sshpass` is the name of none.
    _COMMAND_LOGIN,
    re.compile(r"[(\[]\s*\\*[\"'](?P<name>[\w. -]{1,200})\\*[\"']\s*,\s*"),
    re.compile(
        r"(?i)\b(?:name|key)\\*[\"']?\s*[:=>]\s*\\*[\"']?(?P<name>[\w.-]{1,200})\\*[\"']?\s*(?:</\w+>)?[\s,]*"
        r"\\*[\"'<]?value\\*[\"']?\s*[:=>]\s*"
    ),
    _ELEMENT,
    # SQL's `PASSWORD '...'`, and prose.
    re.compile(rf"(?i)\b{_PASSWORD}\s+(?=\\*[\"'])"),
    re.compile(rf"(?i)\b{_PASSWORD}\s+(?:is|was)\b:?[ \t]+{_NO_VALUE}"),
    re.compile(rf"(?i)\b(?P<name>passphrase)[ \t]+(?=[\w*]){_NO_VALUE}"),
    # What follows `password` is mostly prose, unless it has letters and digits.
    re.compile(r"(?i)\b(?P<name>passw(?:or)?d|passcode)[ \t]+(?=[^\s,;:=]{0,200}\d)(?=[^\s,;:=]{0,200}[a-z])(?=\w)"),
    _SQL_LOGIN,
    re.compile(
        r"(?<![\w-])--?(?P<name>[A-Za-z][\w.-]*)[ \t]+(?!-|(?:and|cannot|for|from|has|if|in|is|must|needs|of|or|to|was|with)\b)"
    ),
)
_UNNAMED = (_SQL_LOGIN, _COMMAND_LOGIN)
"""Openings that only secrets have."""
_QUOTE = re.compile(r"\\*[\"']")
# What follows a delimiter that ends a value; before anything else, the delimiter is a part of the value.
_ENDS = r"(?=\s|$|[;&,)(}\]\"'`|\\]|/|[\w.-]+\\*[\"']?[ \t]*=)"
_QUOTED = rf"""
    [bru]{{0,2}}(?:
        "(?:\\.|""|[^"\\]){{0,{_LONGEST}}}"
      | '(?:\\.|''|[^'\\]){{0,{_LONGEST}}}'
      | (?P<escaped>\\+["'])(?:(?!(?P=escaped)).){{0,{_LONGEST}}}(?P=escaped)
    )
    | \{{(?:[^{{}}\n]|\}}\}}|\{{[^{{}}\n]*\}}){{0,{_LONGEST}}}\}}
    | \[[^\]\n]{{0,{_LONGEST}}}\]
"""
_SCHEMES = "(?:(?:bearer|basic|digest|token)[ ]+)?"
_UNQUOTED = rf"""(?:[^\s;&,)}}\]"'`<|\\]|[;&,)}}\]"'`<|\\](?!{_ENDS}))"""
_FLAGS = re.VERBOSE | re.IGNORECASE | re.DOTALL
_VALUE = re.compile(rf"{_QUOTED} | {_SCHEMES}{_UNQUOTED}+", _FLAGS)
# After an encoded `=`, encoded delimiters end a value as the others do.
_ENCODED_END = rf"%(?:22|26|3B)(?:{_ENDS}|%(?:22|26|3B|5D|7D)|(?=[\w.-]+%3D))"
_ENCODED_VALUE = re.compile(
    rf"""{_QUOTED} | %22(?:(?!%22)[^\s"'])*(?:%22)? | {_SCHEMES}(?:(?!{_ENCODED_END}){_UNQUOTED})+""", _FLAGS
)


def is_secret(name: str) -> bool:
    """Return whether a setting is secret, judged by the words of its name, however they are separated.

    >>> [is_secret(name) for name in ("fs.s3a.secret.key", "apiKey", "DB_PASS", "sas-token", "x.encryption.key")]
    [True, True, True, True, True]
    >>> [is_secret(name) for name in ("spark.executor.memory", "key.serializer", "primaryKey", "ssl.key.location")]
    [False, False, False, False]
    """
    parts = [part.lower() for part in _PART.findall(name)]
    if not parts or (
        len(parts) > 1 and (parts[-1] in _DESCRIPTIONS or (len(parts) == 2 and parts[0] in _PROSE.get(parts[1], ())))  # noqa: PLR2004
    ):
        return False
    # As a first word it is a scheme, not what it carries: `bearer.auth.client.id`.
    if parts[-1] == "bearer" or any(part in _WORDS or _STEMS.search(part) for part in parts):
        return True
    return any(pair in _PAIRS or (pair[1] in {"key", "keys"} and pair[0] in _OF_KEYS) for pair in pairwise(parts))


def expanded(where: str, value: str, environ: Mapping[str, str]) -> str:
    """Return a value with `${NAME}` replaced by environment variables, and `${file:PATH}` by the content of files."""

    def look_up(match: re.Match[str]) -> str:
        if match["file"] is not None:
            return _content(where, Path(match["file"]))
        if match["name"] not in environ:
            raise ConfigError(f"{where} needs the environment variable {match['name']}, which is not set")
        return environ[match["name"]]

    bare = _BARE.search(value)
    if bare is not None and bare[1] in environ:
        raise ConfigError(f"{where} has ${bare[1]}, which is not replaced", hint=f"Write ${{{bare[1]}}}.")
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
    try:
        # Editors add a final line end, which is no part of a secret.
        return path.read_text("utf-8").rstrip("\r\n")
    except OSError as error:
        raise ConfigError(f"{where} needs the file {path}, which cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where} needs the file {path}, which is not text") from error


def checked_token(where: str, text: str) -> str:
    r"""Return a token that HTTP headers can hold, without a trailing newline, which files and secrets often have.

    >>> checked_token("server.token", "open-sesame-said-ali\n")
    'open-sesame-said-ali'
    """
    token = text.strip()
    if not _TOKEN.fullmatch(token):
        message = f"{where} has characters that a token cannot have"
        raise ConfigError(message, hint="A token has ASCII letters, digits and punctuation, on one line.")
    if 0 < len(token) < _SHORTEST_TOKEN:
        message = f"{where} has {len(token)} characters, and a token has at least {_SHORTEST_TOKEN}"
        raise ConfigError(message, hint="Members of the group could guess it. Make a random one: openssl rand -hex 32")
    return token


def redacted(text: str) -> str:
    """Return a text without secrets: those of URLs, connection strings, settings, headers, JSON, XML and options.

    Whatever it is about, the text may be a line of a log, an error of a driver, or a document. A value is hidden when its name
    is that of a secret (`is_secret`), or its form is known, such as that of a JSON Web Token.

    >>> redacted("jdbc:sqlserver://db;user=sa;password=hunter2")
    'jdbc:sqlserver://db;user=sa;password=***'
    >>> redacted("mysql://ann:hunter2@db/shop?useSSL=true")
    'mysql://***@db/shop?useSSL=true'
    >>> redacted('{"apiKey": "hunter2", "retries": 3}')
    '{"apiKey": "***", "retries": 3}'
    """
    text = _KNOWN.sub(_HIDDEN, text)
    text = _URL.sub(_without_user, _ORACLE.sub(rf"\1:{_HIDDEN}@", text))
    text = _BARE_USER.sub(_without_bare_user, text)
    text = _SCHEME.sub(rf"\1{_HIDDEN}", _HEADER.sub(rf"\1{_HIDDEN}", text))
    text = _LOGIN.sub(rf"\1{_HIDDEN}", text)
    for opening in _OPENINGS:
        text = _without_values(text, opening)
    # Last: values by name, which may have held `@`, are hidden now.
    return _URL.sub(_without_token, text)


def _without_user(match: re.Match[str]) -> str:
    """Return a URL without its user and password."""
    rest = match["rest"]
    if not _CREDENTIALS.match(rest):
        return match[0]
    path = rest.partition("?")[0]
    # The last `@`: a password may hold any character, even those that end it elsewhere.
    end = (path if "@" in path else rest).rfind("@")
    return match[0] if end < 0 else f"{match['scheme']}://{_HIDDEN}{rest[end:]}"


def _without_token(match: re.Match[str]) -> str:
    """Return a URL without a token before its host."""
    if match["scheme"].lower() in _CONTAINERS:
        return match[0]
    end = re.split(r"[/?#;]", match["rest"], maxsplit=1)[0].rfind("@")
    return match[0] if end < 0 else f"{match['scheme']}://{_HIDDEN}{match['rest'][end:]}"


def _without_bare_user(match: re.Match[str]) -> str:
    kept = _DRIVER.match(match[0])
    return f"{kept[0] if kept else ''}{_HIDDEN}@"


def _without_values(text: str, opening: re.Pattern[str]) -> str:
    """Hide the values after names of secrets."""
    parts, done, at = [], 0, 0
    while (found := opening.search(text, at)) is not None:
        at = found.end()
        if opening not in _UNNAMED and not is_secret(found["name"]):
            continue
        plain = _ENCODED_VALUE if "%3D" in found[0].upper() else _VALUE
        value = (_CONTENT if opening is _ELEMENT else plain).match(text, at)
        if value is not None and value[0]:
            quote = _QUOTE.match(value[0])
            mark = quote[0] if quote is not None and value[0].endswith(quote[0]) else ""
            parts += [text[done:at], mark, _HIDDEN, mark]
            done = at = value.end()
    return "".join([*parts, text[done:]])


_MODE = 0o750
_GROUP_WRITES = 0o770


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, readable for this user and its group.

    An existing directory is left unchanged.
    """
    if path.is_dir():
        return
    if path.parent != path:
        make_directory(path.parent)
    try:
        path.mkdir(_MODE)
    except FileExistsError:
        # Another process may have created it first.
        if not path.is_dir():
            raise


def close_to_others(path: Path, *, group_writes: bool = False) -> None:
    """Take a directory's permissions from other users, if this user owns it."""
    make_directory(path)
    mode = _GROUP_WRITES if group_writes else _MODE
    try:
        path.chmod(mode)
    # Another user owns it, and decides who has access.
    except PermissionError:
        return
