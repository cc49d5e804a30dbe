"""Bind the methods of scripts to the headers of the scripts.

The header gives the order of keys and arguments. `script` finds for each name of the header the
parameter of that name, or else the field of that name in a group. A group is a parameter whose
type is a NamedTuple or a dataclass. A name with a dot says whose field it is. A field may be a
property, or a method whose parameters are found by their names too.

The type of a value decides how it is written. Text, bytes and int stay as they are. A bool is 1 or
0, None is empty text. A list is its items, a mapping its names and values in turn, and pairs are
written one after the other. ``Annotated[T, write]`` is written, or made a group, by ``write``. A
key that is None is the script's first key, so that each key exists and shares the slot.

The source of each method is written and compiled once, at its first use: most processes use some
of the scripts. A later call costs what a method written by hand costs. Errors: ConfigError names
the script and the parameter. That a script of the name is there is checked at import.
"""

from __future__ import annotations

import inspect
import linecache
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import lru_cache, update_wrapper
from itertools import chain
from typing import (
    Annotated,
    Any,
    Literal,
    NoReturn,
    ParamSpec,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from redis_state.errors import ConfigError
from redis_state.scripts.loader import SCRIPTS
from redis_state.scripts.values import raw, text_argument
from redis_state.transport.key_text import LONGEST_REMEMBERED
from redis_state.transport.wire.resp import Argument, prepare, prepared_keys
from redis_state.transport.wire.script import Input, Script

P = ParamSpec("P")
R = TypeVar("R")

# A method of this name only puts the call of its script into the queue.
_BEGIN = "begin_"


def script(method: Callable[P, R]) -> Callable[P, R]:
    """Make a method that has no body run the script of its name."""
    return _later(method, lambda of: _bind(of, method))


def remembering(*, behind: str, most: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a method run its script, and remember packed what stands before the argument ``behind``.

    For a script that is called again and again with other last arguments. It is remembered of
    ``most`` calls, the last ones. Calls with a long text are not remembered: users choose texts.
    """

    def bind(method: Callable[P, R]) -> Callable[P, R]:
        return _later(method, lambda of: _bind(of, method, behind, most))

    return bind


def of_new_keys(method: Callable[P, R]) -> Callable[P, R]:
    """Make a method run the script of its name, with keys that no later call has.

    They are not remembered packed: keys that are named again would be forgotten for them.
    """
    return _later(method, lambda of: _bind(of, method, remembers=False))


def _later(method: Callable[P, R], bind: Callable[[str], Callable[P, R]]) -> Callable[P, R]:
    name: str = method.__name__.removeprefix(_BEGIN)
    if name not in SCRIPTS:
        raise ConfigError(f"{method.__name__}: there is no script of this name")
    # A class gives what is in it to whoever asks for the attribute, as it does with a function.
    return cast("Callable[P, R]", _Unbound(lambda: bind(name)))


class _Unbound:
    """Stands in a class for a method, until that is used first."""

    def __init__(self, bind: Callable[[], Any]) -> None:
        self._bind = bind

    def __set_name__(self, owner: type, name: str) -> None:
        self._place = owner, name

    def __get__(self, instance: object, owner: type) -> Any:
        # Two threads may come here at once: either method does.
        bound = self._bind()
        setattr(*self._place, bound)
        return bound.__get__(instance, owner)


@dataclass
class _Value:
    """An expression, the type of what it gives, and the group without which it gives nothing."""

    source: str
    kind: Any
    unless_none: str = ""


def _bind(
    script: str, method: Callable[P, R], behind: str = "", most: int = 0, *, remembers: bool = True
) -> Callable[P, R]:
    name: str = method.__name__
    of = SCRIPTS[script]
    names = _Binding(of, method)
    lines = _remembered(names, behind) if behind else _sent(names, begins=name.startswith(_BEGIN))
    names.check_all_are_used()
    head = f"def {name}({', '.join(_parameters(method))}):"
    *before, returned = lines
    text = "\n".join([*before, head, *names.groups_made, returned]) + "\n"
    file = f"<script {name}>"
    # For tracebacks.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space: dict[str, Any] = {
        **names.writers,
        "script": of,
        "prepare": prepared_keys if of.each and remembers and not behind else prepare,
        "text_argument": text_argument,
        "raw": raw,
        "flat": chain.from_iterable,
    }
    exec(compile(text, file, "exec"), space)  # noqa: S102 - made of names in this package
    if behind:
        space["remembered"] = lru_cache(maxsize=most)(space["prepared"])
    bound = space[name]
    bound.__defaults__, bound.__kwdefaults__ = _defaults(method)
    return update_wrapper(bound, method)


def _defaults(method: Any) -> tuple[Any, Any]:
    return method.__defaults__, method.__kwdefaults__


def _parameters(method: Callable[..., Any]) -> Iterator[str]:
    """Write the parameters of a method; what they default to is copied."""
    starred = False
    for parameter in inspect.signature(method).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            yield "*"
        starred = starred or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        default = "" if parameter.default is parameter.empty else "=None"
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        yield f"{star}{parameter.name}{default}"


class _Binding:
    """The names that a method gives a script."""

    def __init__(self, of: Script, method: Callable[..., Any]) -> None:
        self.of = of
        self.writers: dict[str, Any] = {}
        self.groups_made: list[str] = []
        self._used: set[str] = set()
        self._parameters: dict[str, _Value] = {}
        hints = _hints(method)
        for parameter in [*inspect.signature(method).parameters.values()][1:]:
            kind = hints[parameter.name]
            if parameter.kind is parameter.VAR_POSITIONAL:
                kind = types.GenericAlias(list, (kind,))
            self._parameters[parameter.name] = self._parameter(parameter.name, kind)
        named = (given.name for given in (*of.keys, *of.arguments) if "." in given.name)
        self._dotted = {name.partition(".")[0] for name in named}

    def wrong(self, what: str) -> NoReturn:
        """Errors: ConfigError."""
        raise ConfigError(f"{self.of.name}: {what}")

    def writer(self, function: Callable[..., Any]) -> str:
        """Give a function a name in the source."""
        name = f"_{getattr(function, '__name__', 'write').lstrip('_')}"
        if self.writers.setdefault(name, function) is not function:
            self.wrong(f"two functions have the name {name}")
        return name

    def check_all_are_used(self) -> None:
        """Errors: ConfigError for a parameter that the header does not name."""
        for name in self._parameters.keys() - self._used:
            self.wrong(f"the header does not name the parameter {name!r}")

    def used(self) -> list[str]:
        """List the parameters that were found until now, in their order."""
        return [name for name in self._parameters if name in self._used]

    def find(self, name: str) -> _Value:
        """Find what a name of the header stands for."""
        table, dot, item = name.rpartition(".")
        found = self._member(self._find(table, group=True), item) if dot else self._find(name)
        if found is None:
            self.wrong(f"no parameter is named {name!r}, nor a field of one")
        return found

    def _parameter(self, name: str, kind: Any) -> _Value:
        """Read a parameter. One that a function makes a group becomes that group first."""
        if get_origin(kind) is Annotated:
            function = get_args(kind)[1]
            made = function if _is_group(function) else _returned(function)
            if _is_group(made):
                self.groups_made.append(f"    {name} = {self.writer(function)}({name})")
                return _Value(name, made)
        optional, inner = _optional(kind)
        return _Value(name, inner, name) if optional and _is_group(inner) else _Value(name, kind)

    def _find(self, name: str, *, group: bool = False) -> _Value | None:
        """Find a parameter, or else a field. Groups that the header names come last."""
        direct = self._parameters.get(name)
        if direct is not None and (group or not _is_group(direct.kind)):
            self._used.add(name)
            return direct
        for last in (False, True):
            found = [
                (holder, member)
                for holder, value in self._parameters.items()
                if (holder in self._dotted) is last and (member := self._member(value, name))
            ]
            if len(found) > 1:
                self.wrong(f"{name!r} is a field of both {found[0][0]!r} and {found[1][0]!r}")
            if found:
                self._used.add(found[0][0])
                return found[0][1]
        return None

    def _member(self, holder: _Value | None, name: str) -> _Value | None:
        """Find a field, a property or a method of a group."""
        if holder is None or not _is_group(holder.kind):
            return None
        source = f"{holder.source}.{name}"
        fields = _hints(holder.kind)
        if name in fields:
            return _Value(source, fields[name], holder.unless_none)
        member = inspect.getattr_static(holder.kind, name, None)
        if isinstance(member, property):
            return _Value(source, _returned(member.fget), holder.unless_none)
        if not isinstance(member, types.FunctionType) or name.startswith("_"):
            return None
        given = [self.find(each).source for each in [*inspect.signature(member).parameters][1:]]
        return _Value(f"{source}({', '.join(given)})", _returned(member), holder.unless_none)


def _sent(names: _Binding, *, begins: bool) -> list[str]:
    """Write the return of a method."""
    keys, arguments = _keys(names), _tuple(_arguments(names))
    if names.of.once:
        run = "_send_once" if begins else "_run_once"
        return [f"    return self.{run}(script, {keys}, {arguments})"]
    run = "_send" if begins else "_run_prepared"
    return [f"    return self.{run}(prepare(script, {keys}), {arguments})"]


def _remembered(names: _Binding, behind: str) -> list[str]:
    """Write a function that packs the keys and first arguments, and the return of the method."""
    places = [given.name for given in names.of.arguments]
    if behind not in places or names.of.once or names.groups_made:
        names.wrong(f"nothing can be remembered that stands before {behind!r}")
    first = names.of.arguments[: places.index(behind)]
    packed = f"prepare(script, {_keys(names)}, {_tuple(_arguments(names, first))})"
    given = ", ".join(names.used())
    found = [names.find(each.name) for each in first]
    short = " and ".join(_is_short(value) for value in found if _base(value.kind) is str)
    chosen = f"(remembered if {short or True} else prepared)({given})"
    behind_first = names.of.arguments[len(first) :]
    more = _tuple(_arguments(names, behind_first))
    if behind_first[0].is_list and _is_a(names.find(behind).kind, tuple):
        more = names.find(behind).source  # The tuple that was given is sent as it is.
    return [
        f"def prepared({given}):",
        f"    return {packed}",
        f"    return self._run_prepared({chosen}, {more})",
    ]


def _is_short(value: _Value) -> str:
    text = f"type({value.source}) is str and len({value.source}) <= {LONGEST_REMEMBERED}"
    return f"({value.source} is None or {text})"


def _keys(names: _Binding) -> str:
    keys: list[str] = []
    for given in names.of.keys:
        value = names.find(given.name)
        optional, kind = _optional(value.kind)
        if _base(_item(kind) if given.is_list else kind) is not str:
            names.wrong(f"the key {given.name!r} is of type {value.kind}, not text")
        absent = value.unless_none or (value.source if optional else "")
        if given.is_list:
            keys.append(f"*{value.source}")
        elif absent and not keys:
            names.wrong(f"the first key, {given.name!r}, may be None")
        else:
            keys.append(
                f"({keys[0]} if {absent} is None else {value.source})" if absent else value.source
            )
    return _tuple(keys)


def _arguments(names: _Binding, inputs: tuple[Input, ...] | None = None) -> list[str]:
    inputs = names.of.arguments if inputs is None else inputs
    written: list[str] = []
    for given in inputs:
        value = names.find(given.name)
        if given.is_list:
            if given is not names.of.arguments[-1]:
                written.append(_count(names, given, value))
            written.append(f"*{_list(names, given, value)}")
            continue
        source = _one(names, given, value.source, value.kind)
        absent = value.unless_none
        written.append(f'(b"" if {absent} is None else {source})' if absent else source)
    return written


def _one(names: _Binding, given: Input, source: str, kind: Any) -> str:
    """Write one argument."""
    if (given.kind == "flag") > (kind is bool) or (given.kind == "int") > (_base(kind) is int):
        names.wrong(f"{given.name!r} is declared as {given.kind}, and of type {kind}")
    if get_origin(kind) is Annotated:
        return f"{names.writer(get_args(kind)[1])}({source})"
    optional, inner = _optional(kind)
    if optional:
        return f'(b"" if {source} is None else {_one(names, given, source, inner)})'
    if kind is bool:
        return f"(1 if {source} else 0)"
    if _base(kind) is str:
        # As `text_argument` does, without a call of Python for each text.
        return f"(given_ if (given_ := {source}).isascii() else raw(given_))"
    if kind in (int, bytes, Argument):
        return source
    return names.wrong(f"{given.name!r} is of type {kind}, which no argument can be")


def _list(names: _Binding, given: Input, value: _Value) -> str:
    """Write the arguments of a list."""
    if get_origin(value.kind) is Annotated:
        return f"{names.writer(get_args(value.kind)[1])}({value.source})"
    if _is_a(value.kind, Mapping):
        return f"flat({value.source}.items())"
    item = _item(value.kind)
    if get_origin(item) is tuple:
        if set(get_args(item)) - {bytes, int}:
            names.wrong(f"the items of {given.name!r} are of type {item}, not bytes and int")
        return f"flat({value.source})"
    if item is str:
        return f"map(text_argument, {value.source})"
    if item in (int, bytes, Argument):
        return value.source
    return names.wrong(f"{given.name!r} is of type {value.kind}, which no list can be")


def _count(names: _Binding, given: Input, value: _Value) -> str:
    """Write how many arguments a list has."""
    item = _item(value.kind)
    if get_origin(value.kind) is Annotated or item is None:
        names.wrong(f"what {given.name!r} holds cannot be counted")
    pairs = (
        2 if _is_a(value.kind, Mapping) else len(get_args(item)) if get_origin(item) is tuple else 1
    )
    return f"len({value.source})" + (f" * {pairs}" if pairs > 1 else "")


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _is_group(kind: Any) -> bool:
    return is_dataclass(kind) or isinstance(getattr(kind, "_fields", None), tuple)


def _optional(kind: Any) -> tuple[bool, Any]:
    """Take None out of a type that is one or None."""
    rest = [each for each in get_args(kind) if each is not type(None)]
    if get_origin(kind) not in (Union, types.UnionType) or len(rest) != 1:
        return False, kind
    return True, rest[0]


def _base(kind: Any) -> Any:
    """Return the class of a type: without its annotations and None; of literals, theirs."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    kind = _optional(kind)[1]
    return get_args(kind)[0].__class__ if get_origin(kind) is Literal else kind


def _is_a(kind: Any, base: type) -> bool:
    origin: Any = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, base)


def _item(kind: Any) -> Any:
    """Return what a list consists of, None for what is no list."""
    return get_args(kind)[0] if _is_a(kind, Iterable) else None


@lru_cache(maxsize=512)
def _hints(of: Any) -> dict[str, Any]:
    return get_type_hints(of, include_extras=True)


def _returned(function: Any) -> Any:
    try:
        return _hints(function).get("return")
    except TypeError:
        return None
