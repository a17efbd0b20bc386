"""A name for what a value is made of, functions by their code and all that they read: the same in every process.

It is found by reading, without tracing anything, and so it is cautious: two values of one name compute the same; where
that cannot be known, because a function reads a file, draws random numbers, imports something or holds an object of an
unknown kind, there is no name.
"""

import abc
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

from epf_jax.core.checks import is_key

_KNOWN = {"jax", "jaxlib", "numpy", "numpyro", "epf_jax"}  # named by their versions
_OF_PYTHON = {"math", "functools", "operator", "builtins"}
_IMPURE = re.compile(r"numpy\.(random|ctypeslib|testing|lib\._npyio)|jax\.(experimental\.io_callback|distributed)")
_READERS = re.compile("load|loadtxt|genfromtxt|fromfile|fromregex|memmap|open_memmap|DataSource|frompyfunc")
_PURE_BUILTINS = re.compile(
    "abs|all|any|bool|bytes|callable|complex|dict|divmod|enumerate|filter|float|frozenset|getattr|hasattr|int|"
    "isinstance|issubclass|iter|len|list|map|max|min|next|object|pow|property|range|repr|reversed|round|set|slice|"
    "sorted|staticmethod|str|sum|super|tuple|type|zip|NotImplemented|Ellipsis"
)
_NOT_OF_A_CLASS = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "_abc_impl"}
_MADE_BY_PYTHON = {  # for a NamedTuple or a dataclass, from its fields
    *("__new__", "_make", "_replace", "_asdict", "__repr__", "__getnewargs__", "__match_args__", "__slots__"),
    *("__dataclass_fields__", "__dataclass_params__", "__hash__", "_field_defaults", "__orig_bases__"),
}
_PLAIN = {type(None), type(Ellipsis), type(NotImplemented), bool, int, float, complex, str, bytes}
_WRAPPERS = (type(jax.jit(lambda: 0)), functools._lru_cache_wrapper)
_BUILT_IN = (dict, list, tuple, set, frozenset, str, bytes, int, float, complex, BaseException, np.ndarray, np.generic)


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
    digest, folder = hashlib.sha256(), pathlib.Path(__file__).parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}".encode() + b"\0" + path.read_bytes())
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
            self.digest.update(b"%d:" % len(text))
            self.digest.update(text)

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
        values = list(values)
        self.words(len(values))
        for value in values:
            self.read(value)

    def _read_new(self, value: Any) -> None:
        kind = type(value)
        if isinstance(value, jax.core.Tracer):
            raise NamelessError("a value inside jax.jit, grad or vmap")
        if isinstance(value, jax.Array | np.generic) or kind is np.ndarray:
            self._read_array(value)
        elif isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | np.ufunc | _WRAPPERS[0]):
            self._read_callable(value)
        elif kind is types.MethodType:
            self.each((value.__self__, value.__func__))
        elif kind in (staticmethod, classmethod):
            self.read(value.__func__)
        elif kind is property:
            self.each((value.fget, value.fset, value.fdel))
        elif kind in (functools.partial, jax.tree_util.Partial):
            self.each((value.func, value.args, value.keywords))
        elif kind in (tuple, list):
            self.each(value)
        elif isinstance(value, tuple) and hasattr(kind, "_fields") and kind.__mro__[1] is tuple:
            self.read(kind)
            self.each(value)
        elif kind in (dict, types.MappingProxyType):
            self.each(part for item in value.items() for part in item)
        elif kind in (set, frozenset):
            self.words(len(value), *sorted(source_name(element) for element in value))
        elif kind in (range, slice) or isinstance(value, np.dtype | jax.ShapeDtypeStruct):
            self.words(repr(value))
        elif kind is jax.tree_util.PyTreeDef:
            self.read(jax.tree.unflatten(value, range(value.num_leaves)))
        elif kind in _WRAPPERS:
            self.read(value.__wrapped__)
        elif _is_known(kind.__module__) and _is_known_by_name(value):  # such as jnp.add
            self.words(_package_of(kind.__module__), value.__module__, value.__qualname__)
        else:
            self._read_object(value)

    def _read_array(self, value: Any) -> None:
        if isinstance(value, jax.Array) and is_key(value):
            self.words(value.dtype)
            value = jax.random.key_data(value)
        if isinstance(value, jax.Array) and not value.is_fully_addressable:
            raise NamelessError("an array of several processes")
        array = np.asarray(value)
        if array.dtype == object:
            raise NamelessError("an array of objects")
        self.words(array.dtype, array.shape, getattr(value, "weak_type", False), array.tobytes())

    def _read_callable(self, value: Any) -> None:
        """A function or a class: by its name in a known package, or by what it is made of."""
        name = getattr(value, "__qualname__", "")
        if _is_known(getattr(value, "__module__", None)) and _READERS.fullmatch(str(name)):
            raise NamelessError(f"`{name}`, which may read a file")
        if _is_known_by_name(value):
            self.words(_package_of(value.__module__), value.__module__, value.__qualname__)
        elif isinstance(value, type):
            self._read_class(value)
        elif isinstance(value, types.FunctionType):
            self._read_function(value)
        elif isinstance(value, _WRAPPERS[0]):
            self.read(inspect.unwrap(value, stop=lambda f: not isinstance(f, _WRAPPERS[0])))
        else:
            raise NamelessError(f"`{getattr(value, '__name__', value)}`, which is not known to be pure")

    def _read_function(self, value: types.FunctionType) -> None:
        module = value.__globals__.get("__name__")  # not `__module__`, which functools.wraps copies from another
        known = _is_known(module)
        self._read_code(value.__code__)
        self.each((value.__defaults__, value.__kwdefaults__, value.__dict__))
        for cell in value.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError as error:
                raise NamelessError(f"an empty cell of {value.__qualname__}") from error
            if known and type(content) is object:  # jax's mark of an argument that was not given
                self.words("not given")
            else:
                self.read(content)
        if known:
            self.words(_package_of(str(module)))
        else:
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

    def _read_globals(self, code: types.CodeType, scope: dict[str, Any]) -> None:
        """What the code of a function of the user's reads beside its arguments."""
        steps = list(dis.get_instructions(code))
        for i, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":
                raise NamelessError(f"an import of {step.argval}")
            if step.opname not in ("LOAD_GLOBAL", "LOAD_NAME"):
                continue
            if step.argval in scope:
                try:
                    self.read(_attribute(scope[step.argval], steps[i + 1 :]))
                except NamelessError as error:
                    raise NamelessError(f"`{step.argval}`, there on {error}") from error
            elif not _PURE_BUILTINS.fullmatch(step.argval) and not _is_exception(getattr(builtins, step.argval, None)):
                raise NamelessError(f"`{step.argval}`, which is not known to be pure")
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._read_globals(constant, scope)

    def _read_class(self, value: type) -> None:
        """A class of the user's: its bases and what it defines."""
        if type(value) not in (type, abc.ABCMeta) and not _is_known(type(value).__module__):
            raise NamelessError(f"a class of the metaclass {type(value).__qualname__}")
        generated = _MADE_BY_PYTHON if hasattr(value, "_fields") or hasattr(value, "__dataclass_fields__") else set()
        members = {
            name: member
            for name, member in sorted(vars(value).items())
            if name not in _NOT_OF_A_CLASS | generated
            and not (inspect.ismemberdescriptor(member) or inspect.isgetsetdescriptor(member))
            and type(member).__qualname__ != "_tuplegetter"
        }
        self.words(value.__module__, value.__qualname__)
        self.each(base for base in value.__mro__[1:] if base not in (object, tuple, abc.ABC))
        self.each(part for item in members.items() for part in item)

    def _read_object(self, value: Any) -> None:
        """An object by its class and its attributes, if these are all that there is to it."""
        kind = type(value)
        inside = inspect.getattr_static(value, "__dict__", None)
        slots = any(vars(c).get("__slots__") for c in kind.__mro__)
        if inside is None or slots or isinstance(value, (*_BUILT_IN, types.ModuleType)):
            raise NamelessError(f"a {kind.__module__}.{kind.__qualname__}, which cannot be looked into")
        self.read(kind)
        known = _is_known(kind.__module__)
        # A weak reference, in numpyro's transforms, is to what was once made of them.
        state = {k: v for k, v in sorted(vars(value).items()) if not (known and isinstance(v, weakref.ref))}
        self.each(part for item in state.items() for part in item)


def _attribute(value: Any, steps: list[dis.Instruction]) -> Any:
    """What the code goes on to read of a module: `jnp` in `jnp.sin(x)` stands for `jnp.sin`."""
    for step in steps:
        if not isinstance(value, types.ModuleType) or step.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            break
        if _IMPURE.match(value.__name__) or not hasattr(value, step.argval):
            raise NamelessError(f"`{value.__name__}.{step.argval}`, which is not known to be pure")
        value = getattr(value, step.argval)
    if isinstance(value, types.ModuleType):
        raise NamelessError(f"the module {value.__name__} as a whole")
    return value


def _is_exception(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _is_known(module: Any) -> bool:
    return isinstance(module, str) and not _IMPURE.match(module) and module.split(".")[0] in _KNOWN | _OF_PYTHON


def _package_of(module: str) -> str:
    """A known module's package and its version."""
    package = module.split(".")[0]
    return f"python {sys.version}" if package in _OF_PYTHON else version_name(package)


def _is_known_by_name(value: Any) -> bool:
    """Whether its name in a known package says all of a function or a class."""
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(path, str) or not _is_known(module):
        return False
    found: Any = sys.modules.get(str(module))
    for part in path.split("."):
        found = getattr(found, part, None)
    return found is value
