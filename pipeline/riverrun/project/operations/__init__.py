"""Operations on an application: each takes the version that a program has chosen, and loads its engine on demand."""

from __future__ import annotations
