"""Pickles functions and classes with their code by cloudpickle, and adds support for `msgspec.Struct`."""

from __future__ import annotations

import inspect
import io
import sys
from typing import Any, Generic

import cloudpickle
import msgspec

_OPTIONS = (
    *("frozen", "eq", "order", "array_like", "gc", "omit_defaults", "repr_omit_defaults", "forbid_unknown_fields"),
    *("weakref", "dict", "cache_hash", "tag", "tag_field"),
)
_CACHE = "__msgspec_cache__"
"""Attribute of dataclasses and the like that msgspec has read or written."""
_AT_CREATION = ("__doc__", "__module__", "__qualname__", "__post_init__")


def dumps(value: Any) -> bytes:
    """Pickle a value; functions and classes that no other process can import travel with their code.

    cloudpickle alone restores a `msgspec.Struct` without its fields: it rebuilds a class from its attributes, but msgspec
    derives fields from annotations.
    """
    written = io.BytesIO()
    _Pickler(written).dump(value)
    return written.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc] # untyped
    def reducer_override(self, value: Any) -> Any:
        """Reduce a struct defined in a notebook or a script to its fields and methods."""
        if isinstance(value, type(msgspec.Struct)) and not _is_importable(value):
            # In two steps: methods may refer to the class itself, which must exist before they are unpickled.
            return _struct, _parts(value), _methods(value), None, None, _with_methods
        reduced = super().reducer_override(value)
        if isinstance(value, type) and _CACHE in vars(value) and reduced is not NotImplemented:
            # msgspec makes it again in the other process.
            make, arguments, (attributes, slots), *others = reduced
            kept = {name: each for name, each in attributes.items() if name != _CACHE}
            return make, arguments, (kept, slots), *others
        return reduced


def _is_importable(kind: type) -> bool:
    found: Any = None if kind.__module__ == "__main__" else sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind


def _parts(kind: Any) -> tuple[Any, ...]:
    """Return the arguments of `_struct`: the parts that must exist when the class is created."""
    own = inspect.get_annotations(kind)
    fields = [
        (each.name, each.type, _given(default=each.default), _given(default_factory=each.default_factory))
        for each in msgspec.structs.fields(kind)
        if each.name in own
    ]
    config = kind.__struct_config__
    options = {name: getattr(config, name) for name in _OPTIONS}
    options["rename"] = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    # msgspec does not keep this option; fields that are not in `__match_args__` were given by keyword.
    options["kw_only"] = not own.keys() & set(kind.__match_args__)
    options["bases"] = tuple(base for base in kind.__bases__ if base is not Generic)
    return kind.__name__, fields, {name: vars(kind)[name] for name in _AT_CREATION if name in vars(kind)}, options


def _given(**default: Any) -> dict[str, Any]:
    """Return the keyword of a field's default; empty if it has none."""
    return {name: value for name, value in default.items() if value is not msgspec.NODEFAULT}


def _struct(name: str, fields: list[Any], namespace: dict[str, Any], options: dict[str, Any]) -> Any:
    made = [(field, kind, msgspec.field(**value, **factory)) for field, kind, value, factory in fields]
    return msgspec.defstruct(name, made, namespace=namespace, **options)


def _methods(kind: Any) -> dict[str, Any]:
    made = vars(_struct("Plain", [], {}, {}))
    own = {name: value for name, value in vars(kind).items() if name not in made and name not in _AT_CREATION}
    return {
        name: value
        for name, value in own.items()
        # Python 3.14 has several attributes for annotations, and makes them anew.
        if name not in kind.__struct_fields__ and not name.startswith("__annot")
    }


def _with_methods(kind: type, methods: dict[str, Any]) -> None:
    for name, value in methods.items():
        setattr(kind, name, value)
