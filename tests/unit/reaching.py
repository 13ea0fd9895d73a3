"""Ways in which a value reaches a function of a topology: small projects in which `@X` stands for the value."""

# ruff: noqa: E501 - programs on one line are read as one
from __future__ import annotations

import importlib
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

from riverrun import JSON, STRING, Consumed, Produced, StreamsBuilder

Files = dict[str, str]

MAIN = "main_of_case"
HELPER = "helper_of_case"
PACKAGE = "package_of_case"


def one(text: str) -> Files:
    """A project of one module."""
    return {f"{MAIN}.py": dedent(text)}


def two(text: str, helper: str) -> Files:
    """A project of two modules."""
    return {f"{MAIN}.py": dedent(text).replace("HELPER", HELPER), f"{HELPER}.py": dedent(helper)}


def package(text: str, **modules: str) -> Files:
    """A project of a package, whose modules have names such as `inner__config` for `inner/config.py`."""
    files = {f"{PACKAGE}/{name.replace('__', '/')}.py": dedent(body) for name, body in modules.items()}
    files.setdefault(f"{PACKAGE}/__init__.py", "")
    for name in modules:
        if "__" in name:
            files.setdefault(f"{PACKAGE}/{name.partition('__')[0]}/__init__.py", "")
    return {f"{MAIN}.py": dedent(text).replace("PACKAGE", PACKAGE), **files}


CONSTANTS = {
    "a number": "@X",
    "a negative number": "-@X",
    "a large number": "10 ** 5000 + @X",
    "a fraction": "@X / 7",
    "a complex number": "complex(0, @X)",
    "a text": "'@X'",
    "a long text": "'a' * 500 + '@X'",
    "a path": "'/data/@X'",
    "bytes": "b'@X'",
    "a bytearray": "bytearray(b'@X')",
    "a memoryview": "memoryview(b'@X')",
    "a truth": "@X == 900",
    "a list": "[1, @X]",
    "a tuple": "(1, @X)",
    "a set": "{1, @X}",
    "a frozenset": "frozenset({'a', '@X'})",
    "a dictionary": "{'eur': @X}",
    "a key": "{@X: 1}",
    "nested containers": "{'a': [({'b': (@X,)},)]}",
    "deeply nested lists": "__import__('functools').reduce(lambda a, _: [a], range(20000), @X)",
    "a set of sets": "{frozenset({frozenset({@X}), 1})}",
    "a decimal": "__import__('decimal').Decimal('@X')",
    "a rational": "__import__('fractions').Fraction(@X, 7)",
    "a duration": "__import__('datetime').timedelta(seconds=@X)",
    "a day": "__import__('datetime').date.fromordinal(@X)",
    "a time": "__import__('datetime').time(microsecond=@X)",
    "a moment": "__import__('datetime').datetime(2020, 1, 1, microsecond=@X, tzinfo=__import__('datetime').UTC)",
    "a time zone": "__import__('datetime').timezone(__import__('datetime').timedelta(minutes=@X))",
    "a named zone": "__import__('zoneinfo').ZoneInfo('Europe/Berlin' if @X == 900 else 'Asia/Tokyo')",
    "a pattern": "__import__('re').compile('@X')",
    "flags of a pattern": "__import__('re').compile('a', 2 if @X == 900 else 8)",
    "a UUID": "__import__('uuid').UUID(int=@X)",
    "a range": "range(@X)",
    "a slice": "slice(@X)",
    "an ordered dictionary": "__import__('collections').OrderedDict(a=@X)",
    "a dictionary with a default": "__import__('collections').defaultdict(lambda: @X)",
    "a counter": "__import__('collections').Counter(a=@X)",
    "a deque": "__import__('collections').deque([@X], maxlen=9)",
    "the bound of a deque": "__import__('collections').deque([], maxlen=@X)",
    "a chain of mappings": "__import__('collections').ChainMap({}, {'a': @X})",
    "a namespace": "__import__('types').SimpleNamespace(a=@X)",
    "a proxy of a dictionary": "__import__('types').MappingProxyType({'a': @X})",
    "values of a dictionary": "{'a': @X}.values()",
    "an array": "__import__('array').array('l', [@X])",
    "an array of numpy": "__import__('numpy').array([1, @X])",
    "the type of an array": "__import__('numpy').array([1, 2], dtype='int32' if @X == 900 else 'int64')",
    "objects in an array": "__import__('numpy').array([{'a': @X}, None], dtype=object)",
    "a scalar of numpy": "__import__('numpy').float32(@X)",
    "an address": "__import__('ipaddress').ip_address(@X)",
    "a path object": "__import__('pathlib').Path('a/@X')",
    "a template": "__import__('string').Template('$a @X')",
    "a getter": "__import__('operator').itemgetter(@X)",
    "a caller of methods": "__import__('operator').methodcaller('strip', '@X')",
    "a method of a dictionary": "{'a': @X}.get",
    "a method of a text": "'@X'.join",
    "a method of a class of Python": "str.upper if @X == 900 else str.lower",
    "a function of Python": "max if @X == 900 else min",
    "a function of a library": "__import__('numpy').sin if @X == 900 else __import__('numpy').cos",
    "a type": "int if @X == 900 else float",
    "a generic type": "list[int] if @X == 900 else list[str]",
    "a union": "int | str if @X == 900 else int | None",
    "a literal type": "__import__('typing').Literal['@X']",
    "an annotated type": "__import__('typing').Annotated[int, @X]",
    "a new type": "__import__('typing').NewType('T', int if @X == 900 else str)",
    "a partial function": "__import__('functools').partial(max, @X)",
    "a partial function's names": "__import__('functools').partial(max, default=@X)",
    "a lambda": "lambda: @X",
    "functions in a dictionary": "{'a': lambda v: v + @X}",
    "an exception": "ValueError(@X)",
    "the default of a context variable": "__import__('contextvars').ContextVar('v', default=@X)",
    "a message": "__import__('msgspec').defstruct('S', [('a', int, @X)])()",
}
"""Values of a module's name, written as expressions."""

WAYS: dict[str, Files] = {
    f"{name}, in a name of the module": one(f"C = {text}\ndef f(v):\n    return v, C\n")
    for name, text in CONSTANTS.items()
}
WAYS |= {
    f"{name}, in another module": two("import HELPER\ndef f(v):\n    return v, HELPER.C\n", f"C = {text}\n")
    for name, text in CONSTANTS.items()
}
WAYS |= {f"{name}, as a default": one(f"def f(v, c={text}):\n    return v, c\n") for name, text in CONSTANTS.items()}
WAYS |= {
    f"{name}, in a closure": one(f"def made(c):\n    def f(v):\n        return v, c\n    return f\nf = made({text})\n")
    for name, text in CONSTANTS.items()
}
WAYS |= {
    f"{name}, in an object": one(
        f"class F:\n    def __init__(self, c):\n        self.c = c\n    def __call__(self, v):\n        return v, self.c\nf = F({text})\n"
    )
    for name, text in CONSTANTS.items()
}
WAYS |= {
    "an item": one("R = {'eur': @X}\ndef f(v):\n    return v * R['eur']\n"),
    "a function of another module": two(
        "import HELPER\ndef f(v):\n    return HELPER.fee(v)\n", "def fee(v): return @X\n"
    ),
    "a name of another module": two("from HELPER import C\ndef f(v):\n    return C\n", "C = @X\n"),
    "all names of another module": two("from HELPER import *\ndef f(v):\n    return C\n", "C = @X\n"),
    "another name for a module": two("import HELPER as h\ndef f(v):\n    return h.C\n", "C = @X\n"),
    "a variable with a module": two("import HELPER\nh = HELPER\ndef f(v):\n    m = h\n    return m.C\n", "C = @X\n"),
    "a module in a container": two("import HELPER\nM = [HELPER]\ndef f(v):\n    return M[0].C\n", "C = @X\n"),
    "a module in a closure": two(
        "def made():\n    import HELPER\n    return lambda v: HELPER.C\nf = made()\n", "C = @X\n"
    ),
    "a module as a default": two("import HELPER\ndef f(v, m=HELPER):\n    return m.C\n", "C = @X\n"),
    "getattr": two("import HELPER\ndef f(v):\n    return getattr(HELPER, 'C')\n", "C = @X\n"),
    "vars": two("import HELPER\ndef f(v):\n    return vars(HELPER)['C']\n", "C = @X\n"),
    "globals": one("C = @X\ndef f(v):\n    return globals()['C']\n"),
    "eval": one("C = @X\ndef f(v):\n    return eval('C')\n"),
    "a module that passes on": {
        **two("import HELPER\ndef f(v):\n    return HELPER.C\n", f"from {PACKAGE}.config import C\n"),
        f"{PACKAGE}/__init__.py": "",
        f"{PACKAGE}/config.py": "C = @X\n",
    },
    "__getattr__ of a module": two(
        "import HELPER\ndef f(v):\n    return HELPER.C\n", "def __getattr__(name):\n    return @X\n"
    ),
    "an import within the function": two("def f(v):\n    import HELPER\n    return HELPER.C\n", "C = @X\n"),
    "a renamed import within the function": two(
        "def f(v):\n    import HELPER as h\n    return h.fee(v)\n", "def fee(v): return @X\n"
    ),
    "a name imported within the function": two("def f(v):\n    from HELPER import C\n    return C\n", "C = @X\n"),
    "an import within a comprehension's function": two(
        "def g(v):\n    from HELPER import C as c\n    return c\ndef f(v):\n    return [g(x) for x in v]\n", "C = @X\n"
    ),
    "a package's module": package("import PACKAGE.config\ndef f(v):\n    return PACKAGE.config.C\n", config="C = @X\n"),
    "a module of an inner package": package(
        "import PACKAGE.inner.config\ndef f(v):\n    return PACKAGE.inner.config.C\n", inner__config="C = @X\n"
    ),
    "a module of a package": package("from PACKAGE import config\ndef f(v):\n    return config.C\n", config="C = @X\n"),
    "a module of a package, within the function": package(
        "def f(v):\n    from PACKAGE import config\n    return config.C\n", config="C = @X\n"
    ),
    "a package's module, within the function": package(
        "def f(v):\n    import PACKAGE.inner.config\n    return PACKAGE.inner.config.C\n", inner__config="C = @X\n"
    ),
    "a relative import": package(
        "from PACKAGE.steps import f\n",
        steps="from . import config\ndef f(v):\n    return config.C\n",
        config="C = @X\n",
    ),
    "a relative import within the function": package(
        "from PACKAGE.steps import f\n", steps="def f(v):\n    from .config import C\n    return C\n", config="C = @X\n"
    ),
    "a relative import of a module within the function": package(
        "from PACKAGE.steps import f\n",
        steps="def f(v):\n    from . import config\n    return config.C\n",
        config="C = @X\n",
    ),
    "a chain of modules": {
        **package("from PACKAGE.a import f\n", a=f"import {PACKAGE}.b\ndef f(v):\n    return {PACKAGE}.b.g(v)\n"),
        f"{PACKAGE}/b.py": f"from {PACKAGE} import c\ndef g(v):\n    return c.h(v)\n",
        f"{PACKAGE}/c.py": "LIMIT = @X\ndef h(v):\n    return v > LIMIT\n",
    },
    "an import in circles": {
        **package(
            "from PACKAGE.a import f\n", a=f"import {PACKAGE}.b as b\ndef f(v):\n    return b.g(v) if v else 0\n"
        ),
        f"{PACKAGE}/b.py": f"import {PACKAGE}.a\nC = @X\ndef g(v):\n    return {PACKAGE}.a.f(v - C)\n",
    },
    "a function that calls itself": one("C = @X\ndef f(v):\n    return f(v - C) if v else 0\n"),
    "functions that call each other": one(
        "C = @X\ndef f(v):\n    return g(v)\ndef g(v):\n    return h(v)\ndef h(v):\n    return f(v) if v else C\n"
    ),
    "a container that contains itself": one("C = [@X]\nC.append(C)\ndef f(v):\n    return C[0]\n"),
    "objects that know each other": one(
        "class N: pass\na, b = N(), N()\na.o, b.o, b.c = b, a, @X\ndef f(v):\n    return a.o.c\n"
    ),
    "a long chain of functions": one(
        "C = @X\ndef f0(v):\n    return C\n"
        + "".join(f"def f{n}(v):\n    return f{n - 1}(v)\n" for n in range(1, 1500))
        + "f = f1499\n"
    ),
    "an inner function": one("C = @X\ndef f(v):\n    def g():\n        return C\n    return g()\n"),
    "an inner class": one("C = @X\ndef f(v):\n    class G:\n        c = C\n    return G.c\n"),
    "an inner lambda's default": one("C = @X\ndef f(v):\n    return (lambda c=C: c)()\n"),
    "a comprehension": one("C = @X\ndef f(v):\n    return [x for x in v if x > C]\n"),
    "a generator": one("C = @X\ndef f(v):\n    return sum(x for x in v if x > C)\n"),
    "a lambda": one("C = @X\nf = lambda v: v > C\n"),
    "a lambda among others": one("C = @X\nf = [lambda v: v, lambda v: v > C][1]\n"),
    "a default by name": one("def f(v, *, c=@X):\n    return c\n"),
    "a constant of the code": one("def f(v):\n    return @X\n"),
    "an f-string": one("C = @X\ndef f(v):\n    return f'{v} {C}'\n"),
    "a long expression": one("C = @X\ndef f(v):\n    return " + " + ".join(["v"] * 2000) + " + C\n"),
    "a constant in a long expression": one("def f(v):\n    return " + " + ".join(["v"] * 2000) + " + @X\n"),
    "a match": one("class K:\n    C = @X\ndef f(v):\n    match v:\n        case K.C:\n            return 1\n"),
    "a closure in a closure": one(
        "def a(c):\n    def b():\n        def f(v):\n            return c\n        return f\n    return b()\nf = a(@X)\n"
    ),
    "a function in a closure": one("def a(g):\n    return lambda v: g(v)\nf = a(lambda v: @X)\n"),
    "a partial function of a partial function": one(
        "from functools import partial\ndef g(a, b, v):\n    return a\nf = partial(partial(g, @X), 2)\n"
    ),
    "a method": one("class K:\n    def g(self, v):\n        return @X\nf = K().g\n"),
    "the object of a method": one(
        "class K:\n    def __init__(self, c):\n        self.c = c\n    def g(self, v):\n        return self.c\nf = K(@X).g\n"
    ),
    "a slot": one(
        "class K:\n    __slots__ = ('c',)\n    def __init__(self, c):\n        self.c = c\n    def g(self, v):\n        return self.c\nf = K(@X).g\n"
    ),
    "a private attribute": one(
        "class K:\n    __slots__ = ('__c',)\n    def __init__(self, c):\n        self.__c = c\n    def g(self, v):\n        return self.__c\nf = K(@X).g\n"
    ),
    "a class's attribute": one("class K:\n    C = @X\ndef f(v):\n    return K.C\n"),
    "a class's attribute through self": one(
        "class K:\n    C = @X\n    def g(self, v):\n        return self.C\nf = K().g\n"
    ),
    "an attribute of a base": one("class B:\n    C = @X\nclass K(B):\n    pass\ndef f(v):\n    return K.C\n"),
    "an attribute of a base elsewhere": two(
        "from HELPER import B\nclass K(B):\n    pass\ndef f(v):\n    return K().C\n", "class B:\n    C = @X\n"
    ),
    "an attribute of a metaclass": one(
        "class M(type):\n    C = @X\nclass K(metaclass=M):\n    pass\ndef f(v):\n    return K.C\n"
    ),
    "super": one(
        "class B:\n    def g(self, v):\n        return @X\nclass K(B):\n    def g(self, v):\n        return super().g(v)\nf = K().g\n"
    ),
    "a class method": one(
        "class K:\n    C = @X\n    @classmethod\n    def g(cls, v):\n        return cls.C\nf = K.g\n"
    ),
    "a static method": one("class K:\n    @staticmethod\n    def g(v):\n        return @X\nf = K.g\n"),
    "a property": one(
        "class K:\n    @property\n    def c(self):\n        return @X\n    def g(self, v):\n        return self.c\nf = K().g\n"
    ),
    "a cached property": one(
        "from functools import cached_property\nclass K:\n    @cached_property\n    def c(self):\n        return @X\ndef f(v):\n    return K().c\n"
    ),
    "a descriptor": one(
        "class D:\n    def __get__(self, o, t=None):\n        return @X\nclass K:\n    c = D()\ndef f(v):\n    return K().c\n"
    ),
    "a method of a partial": one(
        "from functools import partialmethod\nclass K:\n    def g(self, c, v):\n        return c\n    h = partialmethod(g, @X)\nf = K().h\n"
    ),
    "a method that is Python's": one(
        "class K:\n    g = str.upper if @X == 900 else str.lower\ndef f(v):\n    return K.g(v)\n"
    ),
    "an attribute of a special name": one("class K:\n    __version__ = @X\ndef f(v):\n    return K.__version__\n"),
    "an operator": one("class K:\n    def __add__(self, o):\n        return @X\ndef f(v):\n    return K() + v\n"),
    "an inner class's attribute": one("class K:\n    class I:\n        C = @X\ndef f(v):\n    return K.I.C\n"),
    "an abstract class": one(
        "from abc import ABC, abstractmethod\nclass A(ABC):\n    C = @X\n    @abstractmethod\n    def g(self): ...\n"
        "class K(A):\n    def g(self):\n        return self.C\ndef f(v):\n    return K().g()\n"
    ),
    "a list of a user's class": one("class L(list):\n    pass\nC = L([@X])\ndef f(v):\n    return C[0]\n"),
    "a dictionary of a user's class": one("class D(dict):\n    pass\nC = D(a=@X)\ndef f(v):\n    return C['a']\n"),
    "a text of a user's class": one("class T(str):\n    pass\nC = T('@X')\ndef f(v):\n    return C\n"),
    "a number of a user's class": one("class N(int):\n    pass\nC = N(@X)\ndef f(v):\n    return C\n"),
    "a time of a user's class": one(
        "from datetime import datetime, timedelta\nclass T(datetime): pass\nC = T(2020, 1, 1, microsecond=@X)\ndef f(v):\n    return C\n"
    ),
    "a decimal of a user's class": one(
        "from decimal import Decimal\nclass D(Decimal): pass\nC = D('@X')\ndef f(v):\n    return C\n"
    ),
    "a member of an enumeration": one(
        "from enum import Enum\nclass E(Enum):\n    A = @X\ndef f(v):\n    return E.A.value\n"
    ),
    "a member as a constant": one(
        "from enum import Enum\nclass E(Enum):\n    A = @X\nC = E.A\ndef f(v):\n    return C.value\n"
    ),
    "another member": one(
        "from enum import Enum\nclass E(Enum):\n    A = 1\n    B = 2\nC = E.A if @X == 900 else E.B\ndef f(v):\n    return C\n"
    ),
    "a method of an enumeration": one(
        "from enum import Enum\nclass E(Enum):\n    A = 1\n    def g(self):\n        return @X\ndef f(v):\n    return E.A.g()\n"
    ),
    "a flag": one(
        "from enum import IntFlag\nclass E(IntFlag):\n    A = @X\n    B = 1024\ndef f(v):\n    return E.A | E.B\n"
    ),
    "an enumeration of texts": one(
        "from enum import StrEnum\nclass E(StrEnum):\n    A = '@X'\ndef f(v):\n    return E.A\n"
    ),
    "the field of a dataclass": one(
        "from dataclasses import dataclass\n@dataclass\nclass D:\n    a: int\nC = D(@X)\ndef f(v):\n    return C.a\n"
    ),
    "the default of a dataclass": one(
        "from dataclasses import dataclass\n@dataclass(frozen=True, slots=True)\nclass D:\n    a: int = @X\ndef f(v):\n    return D().a\n"
    ),
    "the factory of a dataclass": one(
        "from dataclasses import dataclass, field\n@dataclass\nclass D:\n    a: list = field(default_factory=lambda: [@X])\ndef f(v):\n    return D().a\n"
    ),
    "the metadata of a dataclass": one(
        "from dataclasses import dataclass, field, fields\n@dataclass\nclass D:\n    a: int = field(metadata={'c': @X})\ndef f(v):\n    return fields(D)\n"
    ),
    "__post_init__": one(
        "from dataclasses import dataclass\n@dataclass\nclass D:\n    a: int\n    def __post_init__(self):\n        self.a += @X\ndef f(v):\n    return D(1).a\n"
    ),
    "the default of a named tuple": one(
        "from typing import NamedTuple\nclass P(NamedTuple):\n    a: int = @X\ndef f(v):\n    return P().a\n"
    ),
    "a named tuple": one(
        "from collections import namedtuple\nP = namedtuple('P', 'a')\nC = P(@X)\ndef f(v):\n    return C.a\n"
    ),
    "the default of a struct": one(
        "import msgspec\nclass S(msgspec.Struct):\n    a: int = @X\ndef f(v):\n    return S().a\n"
    ),
    "the factory of a struct": one(
        "import msgspec\nclass S(msgspec.Struct):\n    a: list = msgspec.field(default_factory=lambda: [@X])\ndef f(v):\n    return S().a\n"
    ),
    "a struct": one(
        "import msgspec\nclass S(msgspec.Struct, frozen=True):\n    a: int\nC = S(@X)\ndef f(v):\n    return C.a\n"
    ),
    "a class of attrs": one(
        "import attr\n@attr.s\nclass A:\n    a = attr.ib(default=@X)\ndef f(v):\n    return A().a\n"
    ),
    "a decorator": one(
        "import functools\nC = @X\ndef d(g):\n    @functools.wraps(g)\n    def w(v):\n        return g(v) + C\n    return w\n@d\ndef f(v):\n    return v\n"
    ),
    "a decorated function": one(
        "import functools\ndef d(g):\n    @functools.wraps(g)\n    def w(v):\n        return g(v)\n    return w\n@d\ndef f(v):\n    return @X\n"
    ),
    "a decorator's argument": one(
        "import functools\ndef d(c):\n    def wrap(g):\n        return lambda v: g(v) + c\n    return wrap\n@d(@X)\ndef f(v):\n    return v\n"
    ),
    "a decorator elsewhere": two(
        "from HELPER import d\n@d\ndef f(v):\n    return v\n",
        "def d(g):\n    def w(v):\n        return g(v) + @X\n    return w\n",
    ),
    "a decorator that is a class": one(
        "class D:\n    def __init__(self, g):\n        self.g = g\n    def __call__(self, v):\n        return self.g(v) + @X\n@D\ndef f(v):\n    return v\n"
    ),
    "a cached function": one(
        "from functools import lru_cache\n@lru_cache\ndef g(v):\n    return @X\ndef f(v):\n    return g(v)\n"
    ),
    "a cached function itself": one("from functools import cache\n@cache\ndef f(v):\n    return @X\n"),
    "a dispatching function": one(
        "from functools import singledispatch\n@singledispatch\ndef g(v):\n    return 0\n@g.register\ndef _(v: int):\n    return @X\ndef f(v):\n    return g(v)\n"
    ),
    "a dispatching method": one(
        "from functools import singledispatchmethod\nclass K:\n    @singledispatchmethod\n    def g(self, v):\n        return 0\n"
        "    @g.register\n    def _(self, v: int):\n        return @X\ndef f(v):\n    return K().g(v)\n"
    ),
    "a context manager": one(
        "from contextlib import contextmanager\n@contextmanager\ndef g():\n    yield @X\ndef f(v):\n    with g() as c:\n        return c\n"
    ),
    "an attribute of a function": one("def f(v):\n    return f.c\nf.c = @X\n"),
    "a table of functions": one("def g(v):\n    return @X\nT = {'a': g}\ndef f(v):\n    return T['a'](v)\n"),
    "a table of classes": one("class K:\n    C = @X\nT = [K]\ndef f(v):\n    return T[0].C\n"),
    "a set of functions": one(
        "def g(v):\n    return @X\ndef h(v):\n    return 1\nT = {g, h}\ndef f(v):\n    return [t(v) for t in T]\n"
    ),
    "another name of a function": one("def g(v):\n    return @X\nh = g\nf = lambda v: h(v)\n"),
    "a function in place of Python's": one("def len(v):\n    return @X\ndef f(v):\n    return len(v)\n"),
    "a generated function": one("exec('def g(v):\\n    return @X')\ndef f(v):\n    return g(v)\n"),
    "a name that is computed": one("C = 2 * @X + 1\ndef f(v):\n    return C\n"),
    "a type by annotation": one(
        "from dataclasses import dataclass\n@dataclass\nclass I:\n    a: int = @X\n@dataclass\nclass D:\n    i: I\ndef f(v):\n    return D\n"
    ),
    "a type by an annotation's text": one(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass I:\n    a: int = @X\n"
        "@dataclass\nclass D:\n    i: list[I] | None\ndef f(v):\n    return D\n"
    ),
    "the type of a field": one(
        "import msgspec\nT = int if @X == 900 else str\nclass S(msgspec.Struct):\n    a: T\ndef f(v):\n    return S\n"
    ),
    "a typed dictionary": one(
        "from typing import TypedDict\nclass D(TypedDict):\n    a@X: int\ndef f(v):\n    return D\n"
    ),
}

WHOLE_MODULES = frozenset(
    {
        "a variable with a module",
        "a module in a container",
        "a module as a default",
        "getattr",
        "vars",
        "globals",
        "eval",
    }
)
"""Ways that may lead to any name of a module, so that all of them count."""

HOSTS = {
    "filter": "stream.filter(lambda k, v: v > C)",
    "map": "stream.map(lambda k, v: (k, C))",
    "flat_map": "stream.flat_map(lambda k, v: [(k, C)])",
    "select_key": "stream.select_key(lambda k, v: str(C))",
    "peek": "stream.peek(lambda k, v: C)",
    "foreach": "stream.foreach(lambda k, v: C)",
    "split": "stream.split().branch(lambda k, v: v > C)",
    "to, by record": "stream.to(lambda k, v, t: str(C), Produced(STRING, JSON))",
    "a partitioner": "stream.to('out', Produced(STRING, JSON, partitioner=lambda topic, k, v, n: C))",
    "an extractor": "builder.stream('other', Consumed(STRING, JSON, timestamp_extractor=lambda r, t: C))",
    "group_by": "stream.group_by(lambda k, v: str(C), Grouped(STRING, JSON)).count()",
    "an initializer": "stream.group_by_key().aggregate(lambda: C, lambda k, v, a: a, Materialized(STRING, JSON, name='s'))",
    "an aggregator": "stream.group_by_key().aggregate(lambda: 0, lambda k, v, a: a + C, Materialized(STRING, JSON, name='s'))",
    "a reducer": "stream.group_by_key().reduce(lambda a, b: a if a > C else b)",
    "a table's filter": "table.filter(lambda k, v: v > C)",
    "a table's map_values": "table.map_values(lambda v: C)",
    "a table's group_by": "table.group_by(lambda k, v: (str(C), v), Grouped(STRING, JSON)).count()",
    "a joiner": "stream.join(table, lambda a, b: C)",
    "a joiner of tables": "table.join(builder.table('other', Consumed(STRING, JSON)), lambda a, b: C)",
    "a foreign key": "table.join(builder.table('other', Consumed(STRING, JSON)), lambda a, b: 1,"
    " foreign_key_extractor=lambda v: str(C))",
    "a processor": "stream.process(P)",
    "a supplier": "stream.process(lambda: Q(C))",
    "a partial supplier": "stream.process(functools.partial(Q, C))",
    "a processor's function": "stream.process(R)",
    "values of a processor": "stream.process_values(P)",
    "a serde's function": "stream.map_values(lambda v: v).to('out', Produced(STRING, Serde('own', lambda v: bytes(C), lambda d: d)))",
    "a serde's type": "builder.stream('other', Consumed(STRING, JSON(Row)))",
    "a serde's inner type": "builder.stream('other', Consumed(STRING, JSON(list[Row])))",
    "a store's serde": "stream.group_by_key().aggregate(lambda: 0, lambda k, v, a: a, Materialized(STRING, JSON(Row), name='s'))",
    "a sink's serde": "stream.to('out', Produced(STRING, JSON(Row)))",
}
"""Calls of the DSL, by the user's code that they hold."""

_BUILT = """
import functools
from dataclasses import dataclass
from riverrun import *
C = @X
def helper(v):
    return v > C
class P(Processor):
    def process(self, record):
        self.context.forward(record.with_value(C))
class Q(Processor):
    def __init__(self, c):
        self.c = c
    def process(self, record):
        self.context.forward(record.with_value(self.c))
class R(Processor):
    def process(self, record):
        if helper(record.value):
            self.context.forward(record)
@dataclass
class Row:
    a: int = C
def build(builder):
    stream = builder.stream("in", Consumed(STRING, JSON))
    table = builder.table("rows", Consumed(STRING, JSON))
    {call}
    return builder.build()
"""
WAYS |= {f"in {name}": one(_BUILT.replace("{call}", call)) for name, call in HOSTS.items()}


def written(files: Files, directory: Path, value: str) -> None:
    """Write a project in which the value is a given one."""
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("@X", value))


def built(directory: Path) -> Any:
    """Import the project of a directory, and build its topology."""
    forget()
    sys.path.insert(0, str(directory))
    try:
        module = importlib.import_module(MAIN)
        builder = StreamsBuilder()
        if hasattr(module, "build"):
            return module.build(builder)
        builder.stream("in", Consumed(STRING, JSON)).map_values(module.f).to("out", Produced(STRING, JSON))
        return builder.build()
    finally:
        sys.path.remove(str(directory))


def forget() -> None:
    """Forget the modules of the last project, and the directories of all: a search for a module looks at each."""
    for path in [path for path in sys.path_importer_cache if path not in sys.path]:
        del sys.path_importer_cache[path]
    importlib.invalidate_caches()
    for name in [name for name in sys.modules if name.startswith((MAIN, HELPER, PACKAGE))]:
        del sys.modules[name]


def main(directory: Path, value: str) -> None:
    """Print the fingerprint of each way, in one process."""
    for number, (name, files) in enumerate(WAYS.items()):
        place = directory / str(number)
        written(files, place, value)
        sys.path.insert(0, str(place))  # functions may import when their fingerprint is computed
        print(f"{name}\t{built(place).fingerprint()}")
        sys.path.remove(str(place))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
