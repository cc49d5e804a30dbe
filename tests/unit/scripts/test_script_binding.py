"""Methods are bound to the headers of scripts: how values are written, and what does not fit."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, SimpleNamespace
from typing import Annotated, Any, Literal, NamedTuple

import pytest

from redis_state.errors import ConfigError
from redis_state.models.version import Version
from redis_state.scripts import binding
from redis_state.scripts.binding import remembering, script
from redis_state.scripts.header import parse
from redis_state.scripts.values import Expected, Topic
from redis_state.transport.wire.resp import Argument, PreparedScript
from redis_state.transport.wire.script import Script


class Sent(NamedTuple):
    """What a method has sent."""

    keys: tuple[str, ...]
    arguments: tuple[Argument, ...]


class Runner:
    """Stands where the runner of scripts stands."""

    def _run_prepared(self, prepared: PreparedScript, more: tuple[Argument, ...]) -> Sent:
        return Sent(prepared.keys, (*prepared.arguments, *more))

    def _send(self, prepared: PreparedScript, more: tuple[Argument, ...]) -> Sent:
        return Sent(("queued", *prepared.keys), more)

    def _run_once(self, _: Script, keys: tuple[str, ...], more: tuple[Argument, ...]) -> Sent:
        return Sent(("once", *keys), more)


class Keys(NamedTuple):
    row_id: Annotated[str, str.upper]
    row: str
    log: Log


class Log(NamedTuple):
    rows: str

    def topic_rows(self, topic: str | None) -> str:
        return f"{self.rows}:{topic}"


@dataclass(frozen=True)
class Limits:
    most: int

    @property
    def is_bounded(self) -> bool:
        return self.most > 0


@dataclass(frozen=True, eq=False)
class Counter:
    """Records for which topics its key is made."""

    topics: list[str | None]

    def key(self, topic: str | None) -> str:
        self.topics.append(topic)
        return "key"


def limits_of(most: int) -> Limits:
    return Limits(most)


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Declare the script that the methods of these tests run."""

    def declared(header: str) -> None:
        lines = "".join(f"-- {line}  meant\n" for line in header.split(", "))
        lines = lines.replace("@once  meant", "@once")
        found, _ = parse("do_it", lines)
        once = "once" in found.properties
        keys, arguments = tuple(found.keys), tuple(found.arguments)
        made = Script("do_it", "", "", once=once, keys=keys, arguments=arguments)
        monkeypatch.setattr(binding, "SCRIPTS", {"do_it": made})

    return declared


def test_values_are_written_by_their_types(declare: Callable[[str], None]) -> None:
    declare(
        "KEYS key, ARGV text, ARGV word, ARGV data, ARGV number, ARGV yes, ARGV no, ARGV topic, "
        "ARGV expected, ARGV nothing, ARGV fields.., ARGV rows.., ARGV names.., ARGV more.."
    )

    class Scripts(Runner):
        @script
        def do_it(
            self,
            key: str,
            *more: Argument,
            text: str,
            word: Literal["a", "b"] = "b",
            data: bytes,
            number: int,
            yes: bool,
            no: bool = False,
            topic: Topic,
            expected: Expected,
            nothing: int | None = None,
            fields: Mapping[str, bytes],
            rows: Sequence[tuple[bytes, bytes]],
            names: Sequence[str],
        ) -> Any:
            """Do it."""

    given: dict[str, Any] = {"text": "\ud800", "data": b"d", "number": 5, "yes": True, "topic": ""}
    given |= {"fields": {"f": b"v"}, "rows": [(b"1", b"2")] * 2, "names": ["n", "é"]}
    sent = Scripts().do_it("k", 1, b"2", expected=Version(3, "w"), **given)
    assert sent.keys == ("k",)
    assert sent.arguments == (
        *("\ud800".encode("utf-8", "surrogatepass"), "b", b"d", 5, 1, 0, b"\xff", b"3 w", b""),
        *(2, "f", b"v", 4, b"1", b"2", b"1", b"2", 2, "n", "é".encode(), 1, b"2"),
    )
    assert Scripts.do_it.__doc__ == "Do it."
    assert Scripts.do_it.__qualname__.endswith("Scripts.do_it")


def test_fields_of_groups_are_found_by_their_names(declare: Callable[[str], None]) -> None:
    declare(
        "KEYS row, KEYS log.rows, KEYS log.topic_rows, KEYS other.row, "
        "ARGV row_id, ARGV most, ARGV is_bounded, ARGV other.row_id, ARGV topic"
    )

    class Scripts(Runner):
        @script
        def do_it(
            self,
            keys: Keys,
            *,
            other: Keys | None = None,
            limits: Annotated[int, limits_of],
            topic: Topic = None,
        ) -> Any:
            """Do it."""

    keys, other = Keys("a", "row", Log("rows")), Keys("b", "other", Log("others"))
    sent = Scripts().do_it(keys, other=other, limits=7, topic="t")
    assert sent == (("row", "rows", "rows:t", "other"), ("A", 7, 1, "B", b"t"))
    # A key that is None is the first key; an argument is empty then.
    sent = Scripts().do_it(keys, limits=0)
    assert sent == (("row", "rows", "rows:None", "row"), ("A", 0, 0, b"", b""))


def test_what_runs_once_and_what_is_only_queued(declare: Callable[[str], None]) -> None:
    declare("KEYS key, KEYS keys.., ARGV name")

    class Queued(Runner):
        @script
        def begin_do_it(self, key: str, keys: Sequence[str], name: str) -> Any:
            """Do it."""

    assert Queued().begin_do_it("k", ["l", "m"], "n") == (("queued", "k", "l", "m"), ("n",))
    declare("KEYS key, ARGV name, @once")

    class Once(Runner):
        @script
        def do_it(self, key: str, *, name: str) -> Any:
            """Do it."""

    assert Once().do_it("k", name="n") == (("once", "k"), ("n",))


def test_first_arguments_are_remembered_packed_unless_they_are_long(
    declare: Callable[[str], None],
) -> None:
    declare("KEYS counter.key, ARGV topic, ARGV row")

    class Scripts(Runner):
        @remembering(behind="row", most=2)
        def do_it(self, counter: Counter, row: bytes, *, topic: Topic) -> Any:
            """Do it."""

    long, counter = "x" * 1000, Counter([])
    for row in (b"1", b"2"):
        for topic in ("t", None, long):
            sent = Scripts().do_it(counter, row, topic=topic)
            written = b"" if topic is None else topic.encode()
            assert sent == (("key",), (written, row))
    assert counter.topics == ["t", None, long, long]


def test_a_method_is_bound_once_at_its_first_use(declare: Callable[[str], None]) -> None:
    declare("KEYS key")

    class Scripts(Runner):
        @script
        def do_it(self, key: str) -> Any:
            """Do it."""

    assert not isinstance(vars(Scripts)["do_it"], FunctionType)
    sends = Scripts().do_it
    assert vars(Scripts)["do_it"] is Scripts.do_it
    assert isinstance(Scripts.do_it, FunctionType)
    assert sends("k") == Scripts().do_it("k") == (("k",), ())


def test_a_traceback_shows_what_was_written(declare: Callable[[str], None]) -> None:
    declare("KEYS key, ARGV name")

    class Scripts(Runner):
        @script
        def do_it(self, key: str, *, name: str) -> Any:
            """Do it."""

    wrong: Any = 5
    with pytest.raises(AttributeError) as raised:
        Scripts().do_it("k", name=wrong)
    assert "given_ := name" in "".join(traceback.format_exception(raised.value))


def a_key(self: Any, key: str) -> None: ...
def an_argument(self: Any, key: str, *, name: str) -> None: ...
def a_number(self: Any, key: str, *, name: int) -> None: ...
def a_float(self: Any, key: str, *, name: float) -> None: ...
def an_absent_key(self: Any, key: str | None) -> None: ...
def two_groups(self: Any, key: str, one: Limits, other: Limits) -> None: ...
def floats(self: Any, key: str, *, name: Sequence[float]) -> None: ...
def pairs_of_text(self: Any, key: str, *, name: Sequence[tuple[str, str]]) -> None: ...
def delays(value: Sequence[int]) -> Any: ...
def written_list(self: Any, key: str, *, name: Annotated[Sequence[int], delays]) -> None: ...


def two_writers(
    self: Any,
    key: str,
    *,
    name: Annotated[str, str.upper],
    other: Annotated[str, SimpleNamespace(__name__="upper")],
) -> None: ...


@pytest.mark.parametrize(
    ("header", "method", "problem"),
    [
        ("KEYS key, ARGV name", a_key, "no parameter is named 'name', nor a field of one"),
        ("KEYS key, ARGV a.name", an_argument, r"no parameter is named 'a\.name'"),
        ("KEYS key, ARGV key.name", an_argument, r"'key' is declared twice"),
        ("KEYS key", an_argument, "the header does not name the parameter 'name'"),
        ("KEYS key, ARGV name, ARGV other", two_writers, "two functions have the name _upper"),
        ("KEYS key, ARGV most", two_groups, "'most' is a field of both 'one' and 'other'"),
        ("KEYS key, ARGV name flag:", an_argument, "'name' is declared as flag, and of type"),
        ("KEYS key, ARGV name int:", an_argument, "'name' is declared as int, and of type"),
        ("KEYS key, ARGV name", a_float, "'name' is of type .*float.*, which no argument can be"),
        ("KEYS key, ARGV name..", a_float, "'name' is of type .*float.*, which no list can be"),
        ("KEYS key, ARGV name..", floats, "'name' is of type .*float.*, which no list can be"),
        ("KEYS key, ARGV name..", pairs_of_text, "the items of 'name' are of type .*str"),
        ("KEYS key, ARGV name.., ARGV key..", written_list, "'key' is declared twice"),
        ("KEYS name, ARGV key", a_number, "the key 'name' is of type .*int.*, not text"),
        ("KEYS key", an_absent_key, "the first key, 'key', may be None"),
    ],
)
def test_what_does_not_fit_is_named(
    declare: Callable[[str], None], header: str, method: Callable[..., None], problem: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^do_it: .*{problem}"):
        _bind(declare, header, method)


def test_a_method_needs_a_script_and_something_to_remember(declare: Callable[[str], None]) -> None:
    with pytest.raises(ConfigError, match=r"^a_key: there is no script of this name"):
        script(a_key)
    with pytest.raises(ConfigError, match=r"nothing can be remembered .* before 'other'"):
        _bind(declare, "KEYS key, ARGV name", an_argument, remembering(behind="other", most=1))
    with pytest.raises(ConfigError, match="what 'name' holds cannot be counted"):
        _bind(declare, "KEYS key, ARGV name.., ARGV more..", written_list)


def _bind(
    declare: Callable[[str], None],
    header: str,
    method: Any,
    how: Callable[[Callable[..., None]], Any] = script,
) -> None:
    declare(header)

    named: Any = FunctionType(method.__code__, method.__globals__, "do_it")
    named.__annotations__, named.__kwdefaults__ = method.__annotations__, method.__kwdefaults__
    made: Any = type("Scripts", (Runner,), {"do_it": how(named)})
    assert made.do_it
