"""The public surface as text: every public name with its parameters, and every public member of public classes.

`python -m tests.architecture.public_surface` prints it; public_surface.txt keeps what was agreed on.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULES = {
    "riverrun": None,
    "riverrun.testing": None,
    "riverrun.quality": None,
    "riverrun.config": ("AddOn", "TopologyLoader"),
    "riverrun.config.links": ("Links",),
    "riverrun.testing.sinks": ("SINK_CHECKS", "SinkUnderTest", "sink_table"),
    "riverrun.processor.sinks": ("Sink", "SinkBatch", "SinkTable"),
    "riverrun.project.app": ("App",),
    "riverrun.project.runs": ("AppRuns", "BoundedRun"),
    "riverrun.project.state": ("AppState",),
    "riverrun.project.checks": ("AppChecks",),
    "riverrun.project.release": ("AppRelease",),
    "riverrun.project.following": ("ExportStatus", "FollowedExport"),
    "riverrun.project.graph": ("Flow", "Member", "ProjectGraph", "Read", "ReaderKind", "Step", "Use", "Write"),
    "riverrun.project.impact": ("Changed", "Effect", "Impact", "Part", "Reached", "Reason"),
    "riverrun.project.live": ("AppStatus",),
    "riverrun.project.stores": ("Entry", "ReadOnlyStore", "ReadOnlyStores"),
    "riverrun.project.worker": ("AppWorker",),
    "riverrun.project.surprises": ("Surprise", "SurpriseKind", "surprises"),
    "riverrun.transfers.specs": ("ExportSpec", "ImportSpec"),
    "riverrun.worker.states": ("InstanceStatus", "WorkerState", "WorkerSummary"),
}
"""The modules with public names; None for all of a module's `__all__`."""

_OURS = (*(name for name in MODULES if name.startswith(("riverrun.project.", "riverrun.worker."))), "riverrun.topology")
_STREAMS = ("KStream", "KTable")


def public_surface() -> Iterator[str]:
    """A line per name and member, sorted within each module."""
    for module_name, names in MODULES.items():
        module = importlib.import_module(module_name)
        for name in sorted(module.__all__ if names is None else names):
            yield from _lines(f"{module_name}.{name}", getattr(module, name))


def _lines(name: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield f"{name}{_parameters(value)}"
        return
    yield name if _is_made_here(value) else f"{name}{_parameters(value)}"
    for member in dir(value):
        if member.startswith("_") or not _is_own(value, member):
            continue
        found = inspect.getattr_static(value, member)
        inner = found.__func__ if isinstance(found, classmethod | staticmethod) else getattr(value, member)
        yield f"{name}.{member}{_parameters(inner) if inspect.isfunction(inner) else ''}"


def _is_made_here(kind: type) -> bool:
    """Whether users get its objects, and make none."""
    return (
        issubclass(kind, Enum) or kind.__module__.startswith(_OURS) or any(part in kind.__name__ for part in _STREAMS)
    )


def _is_own(kind: type, member: str) -> bool:
    """Whether a member comes from this package, and not from Python's own classes."""
    owner = next(each for each in kind.__mro__ if member in vars(each))
    return owner.__module__.startswith("riverrun")


def _parameters(value: Any) -> str:
    """Names, kinds and whether there is a default: what a caller writes. Types are checked elsewhere."""
    if not callable(value):
        return ""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    bare = [
        parameter.replace(
            annotation=inspect.Parameter.empty,
            default=parameter.empty if parameter.default is parameter.empty else _Default(),
        )
        for parameter in signature.parameters.values()
        if parameter.name not in {"self", "project"}
    ]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


class _Default:
    """The value of a default may change; its existence may not."""

    def __repr__(self) -> str:
        return "..."


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in public_surface())
