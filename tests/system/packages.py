"""The published packages, built and installed as their users do."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).parent / "uv"


def build_packages(directory: Path) -> None:
    """Build wheels and source distributions into a directory."""
    for project in (ROOT, ROOT / "plugins"):
        subprocess.run([UV, "build", "--quiet", "--out-dir", directory, project], check=True)


def install_wheels(wheels: Path, environment: Path) -> Path:
    """Install wheels into an environment of their own that borrows all libraries of this one.

    Args:
        wheels: The directory of the wheels.
        environment: The directory of the environment, which is made.

    Returns:
        The environment's Python, which does not know this checkout.
    """
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, environment], check=True)
    python = environment / "bin" / "python"
    install = [
        str(UV),
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--compile-bytecode",
        "--python",
        str(python),
    ]  # as pip does
    subprocess.run([*install, *map(str, wheels.glob("*.whl"))], check=True)
    (own,) = (environment / "lib").glob("python*/site-packages")
    (own / "libraries-that-are-there.pth").write_text(sysconfig.get_path("purelib"))
    return python
