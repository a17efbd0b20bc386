"""A name for what a value is made of, functions by their code and all that they read: the same in every process.

It is found by reading, without tracing anything, and so it is cautious: two values of one name compute the same; where
that cannot be known, because a function reads a file, an object of an unknown kind or a module that is not known to be
pure, there is no name.
"""

import builtins
import dis
import functools
import hashlib
import importlib.metadata
import inspect
import pathlib
import re
import sys
import types
import weakref
from typing import Any

import jax
import numpy as np

_KNOWN = {"jax", "jaxlib", "numpy", "numpyro", "scipy", "optax", "equinox", "jaxtyping"}  # named by their versions
_OF_PYTHON = {"math", "functools", "operator", "itertools", "collections", "typing", "types", "abc", "enum", "builtins"}
_IMPURE = {"numpy.random"}
_PURE_BUILTINS = re.compile(
    "abs|all|any|bool|bytes|callable|complex|dict|divmod|enumerate|filter|float|frozenset|getattr|hasattr|int|"
    "isinstance|issubclass|iter|len|list|map|max|min|next|object|pow|property|range|repr|reversed|round|set|slice|"
    "sorted|staticmethod|str|sum|super|tuple|type|zip|NotImplemented|Ellipsis"
)
_NOT_OF_A_CLASS = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "_abc_impl"}
_PLAIN = {type(None), type(Ellipsis), bool, int, float, complex, str, bytes}


class NamelessError(Exception):
    """Why a value has no name."""


def source_name(*values: Any) -> str:
    """The name of the values together, or a `NamelessError` that says what stands in its way."""
    reader = _Reader()
    for value in values:
        reader.read(value)
    return reader.digest.hexdigest()


@functools.cache
def version_name(package: str) -> str:
    """A package's version; that of this one is a hash of its files, which change between versions."""
    if package != "epf_jax":
        return f"{package} {importlib.metadata.version(package)}"
    digest = hashlib.sha256()
    for path in sorted(pathlib.Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class _Reader:
    """Feeds a digest with one value after another; what was seen before, only as a reference to it."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.seen: dict[int, int] = {}
        self.kept: list[Any] = []  # so that no id is used twice

    def words(self, *words: Any) -> None:
        for word in words:
            text = word if isinstance(word, bytes) else str(word).encode()
            self.digest.update(b"%d:" % len(text) + text)

    def read(self, value: Any) -> None:
        """One value, of whatever kind."""
        if type(value) in _PLAIN:
            return self.words(type(value).__name__, repr(value))
        if id(value) in self.seen:
            return self.words("seen", self.seen[id(value)])
        self.seen[id(value)] = len(self.seen)
        self.kept.append(value)
        self.words(type(value).__module__, type(value).__qualname__)
        return self._read_new(value)

    def each(self, values: Any) -> None:
        for value in values:
            self.read(value)

    def _read_new(self, value: Any) -> None:
        if isinstance(value, jax.core.Tracer):
            raise NamelessError("a value inside jax.jit, grad or vmap")
        if isinstance(value, jax.Array | np.ndarray | np.generic):
            self._read_array(value)
        elif isinstance(value, types.ModuleType):
            self.words(_package_of(value.__name__), value.__name__)
        elif _is_known_by_name(value):
            self.words(_package_of(value.__module__), value.__module__, value.__qualname__)
        elif isinstance(value, type):
            self._read_class(value)
        elif isinstance(value, types.FunctionType):
            self._read_function(value)
        elif isinstance(value, types.MethodType):
            self.each((value.__self__, value.__func__))
        elif isinstance(value, staticmethod | classmethod):
            self.read(value.__func__)
        elif isinstance(value, property):
            self.each((value.fget, value.fset, value.fdel))
        elif isinstance(value, functools.partial):
            self.each((value.func, value.args, value.keywords))
        elif isinstance(value, tuple | list):
            self.words(len(value))
            self.each(value)
            self._read_class_of(value)
        elif isinstance(value, dict | types.MappingProxyType):
            self.words(len(value))
            self.each(part for item in value.items() for part in item)
            self._read_class_of(value)
        elif isinstance(value, set | frozenset):
            self.words(len(value), *sorted(source_name(element) for element in value))
        elif isinstance(value, np.dtype | jax.ShapeDtypeStruct | range | slice):
            self.words(repr(value))
        elif isinstance(value, jax.tree_util.PyTreeDef):
            self.read(jax.tree.unflatten(value, range(value.num_leaves)))
        elif hasattr(value, "__wrapped__") and type(value).__module__.split(".")[0] in {"jaxlib", "jax", "functools"}:
            self.read(value.__wrapped__)  # of jax.jit, functools.cache
        else:
            self._read_object(value)

    def _read_array(self, value: Any) -> None:
        if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            self.words(value.dtype)
            value = jax.random.key_data(value)
        if isinstance(value, jax.Array) and not value.is_fully_addressable:
            raise NamelessError("an array of several processes")
        array = np.asarray(value)
        if array.dtype == object:
            raise NamelessError("an array of objects")
        self.words(array.dtype, array.shape, np.ascontiguousarray(array).tobytes(), getattr(value, "weak_type", False))

    def _read_function(self, value: types.FunctionType) -> None:
        self._read_code(value.__code__)
        self.each((value.__defaults__, value.__kwdefaults__))
        known = _is_known(value.__module__)
        for cell in value.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError as error:
                raise NamelessError(f"an empty cell of {value.__qualname__}") from error
            if known and type(content) is object:  # jax's mark of an argument that was not given
                self.words("not given")
            else:
                self.read(content)
        if not known:
            self._read_globals(value.__code__, value.__globals__)

    def _read_code(self, code: types.CodeType) -> None:
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self.words(code.co_code, code.co_exceptiontable, *counts)
        self.words(*code.co_names, "|", *code.co_varnames, "|", *code.co_freevars, "|", *code.co_cellvars)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._read_code(constant)
            else:
                self.read(constant)

    def _read_globals(self, code: types.CodeType, known: dict[str, Any]) -> None:
        """What the code of a function of the user's reads beside its arguments."""
        steps = list(dis.get_instructions(code))
        for i, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":
                self.words(_package_of(step.argval))
            if step.opname not in ("LOAD_GLOBAL", "LOAD_NAME"):
                continue
            if step.argval in known:
                try:
                    self.read(_attribute(known[step.argval], steps[i + 1 :]))
                except NamelessError as error:
                    raise NamelessError(f"`{step.argval}`, there on {error}") from error
            elif not _PURE_BUILTINS.fullmatch(step.argval) and not _is_exception(getattr(builtins, step.argval, None)):
                raise NamelessError(f"`{step.argval}`, which is not known to be pure")
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._read_globals(constant, known)

    def _read_class_of(self, value: Any) -> None:
        if type(value).__module__ != "builtins":
            self.read(type(value))

    def _read_class(self, value: type) -> None:
        """A class of the user's: its bases and what it defines."""
        self.each(value.__mro__[1:])
        for name, member in sorted(vars(value).items()):
            if name in _NOT_OF_A_CLASS or inspect.ismemberdescriptor(member) or inspect.isgetsetdescriptor(member):
                continue
            self.words(name)
            self.read(member)

    def _read_object(self, value: Any) -> None:
        """An object by its class and its attributes."""
        if not hasattr(value, "__dict__") or any(vars(c).get("__slots__") for c in type(value).__mro__):
            raise NamelessError(f"a {type(value).__module__}.{type(value).__qualname__}, which cannot be looked into")
        self.read(type(value))
        known = _is_known(type(value).__module__)
        for name, attribute in sorted(vars(value).items()):
            if known and isinstance(attribute, weakref.ref):  # to what was once made of it, in numpyro's transforms
                continue
            self.words(name)
            self.read(attribute)


def _attribute(value: Any, steps: list[dis.Instruction]) -> Any:
    """What the code goes on to read of a module: `jnp` in `jnp.sin(x)` stands for `jnp.sin`."""
    for step in steps:
        if not isinstance(value, types.ModuleType) or step.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            break
        if not hasattr(value, step.argval):
            raise NamelessError(f"`{value.__name__}.{step.argval}`, which is not there")
        value = getattr(value, step.argval)
    if isinstance(value, types.ModuleType) and not _is_known(value.__name__):
        raise NamelessError(f"the module {value.__name__} as a whole")
    return value


def _is_exception(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _is_known(module: str | None) -> bool:
    return module is not None and module not in _IMPURE and module.split(".")[0] in _KNOWN | _OF_PYTHON | {"epf_jax"}


def _package_of(module: str) -> str:
    """A known module's package and its version."""
    if not _is_known(module):
        raise NamelessError(f"the module {module}, which is not known to be pure")
    package = module.split(".")[0]
    return f"python {sys.version}" if package in _OF_PYTHON else version_name(package)


def _is_known_by_name(value: Any) -> bool:
    """Whether its name in a known package says all of a function or a class."""
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not (isinstance(module, str) and isinstance(path, str) and _is_known(module)):
        return False
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found is value
