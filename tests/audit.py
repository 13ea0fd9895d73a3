"""Looks for known vulnerabilities in the locked packages: `python -m tests.audit`, a part of `make check`.

pip-audit asks PyPI. Where PyPI, or the part of it with vulnerabilities, cannot be reached, the check is skipped and says so:
somebody without network can still run `make check`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMAND = [
    *("uv", "tool", "run", "--from", "pip-audit==2.9.0", "pip-audit", "--requirement", "requirements.lock"),
    *("--require-hashes", "--disable-pip", "--format", "json", "--progress-spinner", "off"),
]
_SECONDS = 300
ACCEPTED: dict[str, str] = {}
"""Vulnerabilities that do not matter here, by id, with the reason."""


def judged(output: str, complaint: str) -> tuple[int, str]:
    """Return the exit code of the check, and its message.

    Args:
        output: What pip-audit has printed: JSON, or nothing.
        complaint: Its last words, in case it has failed.
    """
    try:
        found = json.loads(output)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return 0, f"Skipped the look for vulnerabilities: pip-audit does not answer: {complaint.strip()[-300:]}"
    known = {each["name"]: each["vulns"] for each in found if "vulns" in each}
    open_ones = [
        f"{name}: {each['id']}, mended in {', '.join(each['fix_versions']) or 'no version'}"
        for name, all_ in sorted(known.items())
        for each in all_
        if each["id"] not in ACCEPTED
    ]
    if open_ones:
        return 1, "\n".join(["Locked packages have known vulnerabilities:", *open_ones])
    if not known:
        return 0, f"Skipped the look for vulnerabilities: the database knows none of the {len(found)} locked packages"
    left_out = f"; {len(found) - len(known)} are not in the database" if len(found) > len(known) else ""
    return 0, f"No known vulnerabilities in {len(known)} of {len(found)} locked packages{left_out}"


def main() -> int:
    """Run the check."""
    command = [str(Path(sys.executable).with_name("uv")), *COMMAND[1:]]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        code, message = judged("", str(error))
    else:
        code, message = judged(done.stdout, done.stderr)
    print(message)
    return code


if __name__ == "__main__":
    sys.exit(main())
