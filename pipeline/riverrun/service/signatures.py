"""Signs questions of instances to each other, and the answers.

Instances show each other that they know the token without sending it: brokers say which members are in the group, and a
member may name any address as its own. So a question to another instance carries a signature instead of a token. It is valid
for that question, to that address, for some minutes. The answer carries a signature that is valid for that question alone.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SIGNATURE = "X-Riverrun-Signature"
"""Header of a question: its time, a nonce, and the signature. Of an answer: the signature."""
POSITION = "X-Riverrun-Position"
"""The point in history of an answer: `topic-partition@offset`, of inputs or, if a standby answers, of changelogs."""
ROLE = "X-Riverrun-Role"
"""Role of the task that answered: `active`, or `standby`."""
MAX_AGE_MS = 300_000
"""Maximum age of a question, and maximum difference of two machines' clocks."""
# Not itsdangerous, which signs a value that it sends: here the question, its address and the answer are signed, not sent again.
# Deriving the key takes about 50 ms, which makes guessing tokens from a recorded signature slow.
_SCRYPT = {"n": 2**14, "r": 8, "p": 1}


@dataclass(frozen=True, slots=True)
class Signatures:
    """Signs and checks with a key derived from a token."""

    key: bytes = field(repr=False)

    @classmethod
    def of(cls, token: str, application_id: str) -> Signatures:
        salt = f"riverrun {application_id}".encode()
        return cls(hashlib.scrypt(token.encode(), salt=salt, dklen=32, **_SCRYPT))

    def question(self, server: str, target: bytes, now_ms: int) -> str:
        """Sign a question: `server` is the asked instance as it calls itself, `target` path and parameters as they are sent."""
        return self._question(server, target, f"{now_ms}.{secrets.token_hex(16)}")

    def is_question(self, shown: str, server: str, target: bytes, now_ms: int) -> bool:
        """Return whether a question was signed with this key, for this instance, and not long ago."""
        at, _, rest = shown.partition(".")
        nonce = rest.partition(".")[0]
        # The caller may have sent any text, and Python's int() raises an error for thousands of digits.
        if not (shown.isascii() and at.isdecimal() and len(at) < len(str(MAX_AGE_MS)) + 12):
            return False
        expected = self._question(server, target, f"{at}.{nonce}")
        return abs(now_ms - int(at)) <= MAX_AGE_MS and hmac.compare_digest(shown, expected)

    def answer(self, question: str, status: int, headers: Mapping[str, str], body: bytes) -> str:
        """Sign an answer. Its position and role are part of the signature; other headers are not."""
        said = "\n".join(("answer", question, str(status), headers.get(POSITION, ""), headers.get(ROLE, ""), ""))
        return self._signed(said.encode() + body)

    def is_answer(self, shown: str, question: str, status: int, headers: Mapping[str, str], body: bytes) -> bool:
        """Return whether an answer to a question was signed with this key."""
        return hmac.compare_digest(shown.encode(), self.answer(question, status, headers, body).encode())

    def _question(self, server: str, target: bytes, stamp: str) -> str:
        said = f"question\n{server}\n{stamp}\n".encode() + target
        return f"{stamp}.{self._signed(said)}"

    def _signed(self, said: bytes) -> str:
        return hmac.new(self.key, said, hashlib.sha256).hexdigest()
