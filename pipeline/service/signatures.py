"""How instances show each other that they know the token, without sending it.

Brokers say who is in the group, and a member may name any address as its own. So a question to another instance carries no
token but a signature, which holds for that question, to that address, for some minutes. Its answer carries one for that
question alone.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SIGNATURE = "X-Millrace-Signature"
"""Of a question: when it was asked, a number that is used once, and the signature. Of an answer: the signature."""
POSITION = "X-Millrace-Position"
"""The point in history an answer is from: `topic-partition@offset`, of inputs or, if a standby answers, of changelogs."""
ROLE = "X-Millrace-Role"
"""Who answered: `active`, or `standby`."""

MAX_AGE_MS = 300_000
"""How old a question may be; as much may the clocks of two machines differ."""
_SCRYPT = {"n": 2**14, "r": 8, "p": 1}


@dataclass(frozen=True, slots=True)
class Signatures:
    """Signs and checks with a key made of a token.

    Args:
        key: The key.
    """

    key: bytes = field(repr=False)

    @classmethod
    def of(cls, token: str, application_id: str) -> Signatures:
        """Those of all instances of an application. The key is slow to make (some 50 ms), so tokens are slow to guess."""
        salt = f"millrace {application_id}".encode()
        return cls(hashlib.scrypt(token.encode(), salt=salt, dklen=32, **_SCRYPT))

    def question(self, server: str, target: bytes, now_ms: int) -> str:
        """Sign a question.

        Args:
            server: `host:port` of the instance that is asked, as it calls itself.
            target: Path and parameters, as they are sent.
            now_ms: The present.
        """
        return self._question(server, target, f"{now_ms}.{secrets.token_hex(16)}")

    def is_question(self, shown: str, server: str, target: bytes, now_ms: int) -> bool:
        """Whether a question was signed with this key, for this instance, and not long ago."""
        at, _, rest = shown.partition(".")
        nonce = rest.partition(".")[0]
        if not (shown.isascii() and at.isdecimal() and len(at) < len(str(MAX_AGE_MS)) + 12):
            return False
        expected = self._question(server, target, f"{at}.{nonce}")
        return abs(now_ms - int(at)) <= MAX_AGE_MS and hmac.compare_digest(shown, expected)

    def answer(self, question: str, status: int, headers: Mapping[str, str], body: bytes) -> str:
        """Sign an answer.

        Args:
            question: The question's signature.
            status: The status.
            headers: Headers; where it is from and who gave it count.
            body: The body.
        """
        said = "\n".join(("answer", question, str(status), headers.get(POSITION, ""), headers.get(ROLE, ""), ""))
        return self._signed(said.encode() + body)

    def is_answer(self, shown: str, question: str, status: int, headers: Mapping[str, str], body: bytes) -> bool:
        """Whether an answer to a question was signed with this key."""
        return hmac.compare_digest(shown.encode(), self.answer(question, status, headers, body).encode())

    def _question(self, server: str, target: bytes, stamp: str) -> str:
        said = f"question\n{server}\n{stamp}\n".encode() + target
        return f"{stamp}.{self._signed(said)}"

    def _signed(self, said: bytes) -> str:
        return hmac.new(self.key, said, hashlib.sha256).hexdigest()
