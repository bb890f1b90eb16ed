"""The errors a user can meet: each is one sentence saying what is wrong, where, and what would be right.

An error carries its facts as fields; the sentence is made of them when it is shown, so nobody ever takes one apart. The
range of a number is declared once, as :class:`Limits`, for the check, for its sentence, and for config files.
"""

from __future__ import annotations

import difflib
import linecache
import math
import os
import re
import sys
import traceback
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from numbers import Integral, Real
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

LONGEST_VALUE = 80
LONGEST_REASON = 160
LONGEST_QUOTE = 300
"""Of what a sentence quotes in passing: a path may be that long, and a name that is longer is no name."""
LONGEST_SENTENCE = 4000
MOST_NAMES = 60
"""So many known names are listed; a table may have a million columns."""
MOST_COMPARED = 10_000
"""Among so many names the one that was meant is looked for."""

_LONG_QUOTE = re.compile(rf"""(?<![^\s(\[=])(?:'[^']{{{LONGEST_QUOTE},}}'|"[^"]{{{LONGEST_QUOTE},}}")""")


class UpcycledError(Exception):
    """Base of every error this package raises on purpose."""

    result: Any = None
    """Of a run that this ended: its ``Result`` up to the last whole iteration, its ledger with every charge."""

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the line of the user's that led here, and the sentence.

        The way through this package tells its reader nothing. What somebody else's code raised, and this followed
        from, is shown in full: it may be the user's own.
        """
        lines = [f"{type(self).__name__}: {self}"]
        called = _called_from(self)
        if called:
            lines.insert(0, called)
        if self.__cause__ is not None and not isinstance(self.__cause__, UpcycledError):
            lines[:0] = [line.rstrip("\n") for line in traceback.format_exception(self.__cause__)]
        return lines


class Absent(Enum):
    """What an error has in the place of a value that was not given."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Words:
    """What is sent to another process of a value that is no number, text or list of them: how it is shown."""

    text: str

    def __repr__(self) -> str:
        return self.text


class InputError(UpcycledError, ValueError):
    """Something the caller gave is wrong (exit code 2 on the command line).

    >>> raise InputError(field="mu", of="FedProx", value=-1, must="a finite number >= 0").at("my.toml")
    Traceback (most recent call last):
    ...
    upcycled.core.errors.InputError: my.toml: FedProx mu is -1, but it must be a finite number >= 0

    Args:
        sentence: a free one, or what is to be said of ``field`` ("has shape (3,), but ...").
        field: what the error is about.
        value: what it is; left out, the sentence says that it is missing.
        must: what it must be.
        but: what stands in the way, where that is no "it must be ...".
        of: whose field it is.
        where: the file, or the part of it, from the outside in.
        hint: more help, at the end.
    """

    def __init__(
        self,
        sentence: str = "",
        *,
        field: str = "",
        value: object = Absent.MISSING,
        must: str = "",
        but: str = "",
        of: str = "",
        where: tuple[str, ...] = (),
        hint: str = "",
    ) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.field = field
        self.value = value
        self.must = must
        self.but = but
        self.of = of
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        but = f"it must be {self.must}" if self.must else self.but
        said = f"is {shown(self.value)}, but {but}" if but else self.sentence
        where = "".join(f"{shortened(place, LONGEST_QUOTE)}: " for place in self.where)
        field = shortened(self.field, LONGEST_QUOTE)
        return readable(f"{where}{self.of} {field} {said}{self.hint}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Anything may be given by mistake, a function or a lock, and not everything can be sent.
        parts = self.value if isinstance(self.value, list | tuple) else [self.value]
        is_plain = all(
            part is None or isinstance(part, int | float | str | Absent) or _is_numpy(part, "generic") for part in parts
        )
        return type(self), self.args, vars(self) | ({} if is_plain else {"value": Words(shown(self.value))})

    def renamed(self, field: str) -> Self:
        """Return it about a field of another name, such as the key that a file has for it."""
        return self._with(field=field, of="")

    def at(self, where: str) -> Self:
        """Return it with the place it was met in, from the outside in; a place is named once."""
        return self if self.where[:1] == (where,) else self._with(where=(where, *self.where))

    def hinted(self, hint: str) -> Self:
        return self._with(hint=self.hint + hint)

    def _with(self, **facts: Any) -> Self:
        other = type(self)(self.sentence)
        vars(other).update(vars(self) | facts)
        return other


class DivergedError(UpcycledError, ArithmeticError):
    """The global model stopped being finite (exit code 1 on the command line); ``result`` has the last that was."""


class BudgetSpentError(UpcycledError):
    """No client is left that may pay for another data round (exit code 1 on the command line); see ``result``."""


def _called_from(error: BaseException) -> str:
    """Return the last line of code before this package's own; nothing where there is none."""
    own, line = __name__.partition(".")[0], ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__", "").partition(".")[0] == own:
            return line
        text = linecache.getline(frame.f_code.co_filename, number).strip()
        line = f"line {number}: {text}" if text else ""
    return ""


def one_line(text: str) -> str:
    r"""Return a text without line ends.

    >>> one_line("a wrong\n  word")
    'a wrong word'
    """
    return " ".join(text.split())


def shortened(text: str, most: int) -> str:
    """Return a long text by its beginning and its end: the end of a path is its name, which a reader looks for.

    >>> shortened("abcdefghijklmnop", 12)
    'abcde...mnop'
    """
    half = most // 2
    return text if len(text) <= most else f"{text[: half - 1]}...{text[2 - half :]}"


def readable(sentence: str) -> str:
    r"""Return a sentence in one line that a terminal can show: long quotes shortened, all of it bounded, no controls.

    >>> readable("the user '" + 5000 * "a" + "' is there twice")[-25:]
    "...aaaaaaa' is there twice"
    >>> readable("a\x1b[2J.npz does not exist")
    'a\\x1b[2J.npz does not exist'
    """
    whole = one_line(sentence)
    whole = _LONG_QUOTE.sub(
        lambda found: f"{found[0][0]}{shortened(found[0][1:-1], LONGEST_VALUE)}{found[0][0]}", whole
    )
    whole = shortened(whole, LONGEST_SENTENCE)
    return whole if whole.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in whole)


def shown(value: Any) -> str:
    """Return a value for a sentence: one line, not too long; of a long one its beginning and its end.

    >>> shown("/a/long/way/" + 20 * "folder/" + "set.npz")
    "'/a/long/way/folder/folder/folder/folde...r/folder/folder/folder/folder/set.npz'"
    """
    try:
        text = one_line(repr(value.item() if _is_numpy(value, "generic") else value))
    except ValueError:
        # Python refuses to write out integers of more than 4300 digits.
        return "a number of more than 4300 digits"
    except RecursionError:
        return "a value nested too deeply to be written out"
    return shortened(text, LONGEST_VALUE)


def _is_numpy(value: Any, kind: str) -> bool:
    """Tell whether a value is of one of NumPy's types, without importing NumPy for a program that has not."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, getattr(numpy, kind))


def reason_of(error: BaseException) -> str:
    r"""Return what somebody else's error says, for brackets in a sentence: its first line, or its kind.

    >>> reason_of(KeyError()), reason_of(OSError("disk full.\nand more"))
    ('KeyError', 'disk full')
    """
    lines = [one_line(line) for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[0][:LONGEST_REASON].rstrip(".")


def suggest(word: str, options: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'? (known: ...)"`` for a misspelt word.

    >>> suggest("fedporx", ["fedavg", "fedprox"])
    "; did you mean 'fedprox'? (known: fedavg, fedprox)"
    >>> suggest("learning_rate", ["epochs", "lr"]), suggest("q", ["epochs", "lr"])
    ("; did you mean 'lr'? (known: epochs, lr)", ' (known: epochs, lr)')
    """
    known = list(options)
    # What is far longer than every name is near to none; comparing would take the product of both lengths.
    is_name = len(word) <= LONGEST_QUOTE and len(known) <= MOST_COMPARED
    alike = [name for name in known if is_name and _composed(name) == _composed(word)]
    near = alike or (difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.5) if is_name else [])
    initials = "".join(part[:1] for part in word.lower().split("_"))
    near = near or [name for name in known if len(name) > 1 and name == initials]
    hint = f"; did you mean '{near[0]}'?" if near else ""
    if alike:
        hint = f"; '{alike[0]}' looks the same and is other characters: copy it from there"
    more = f" and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else ""
    return f"{hint} (known: {', '.join(known[:MOST_NAMES])}{more})"


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def unknown(field: str, value: object, options: Iterable[str]) -> InputError:
    """Return the error for a name that is none of these.

    >>> str(unknown("algorithm", "fedporx", ["fedavg", "fedprox"]))
    "algorithm is 'fedporx', but it must be known; did you mean 'fedprox'? (known: fedavg, fedprox)"
    """
    return InputError(field=field, value=value, must="known", hint=suggest(str(value), options))


@dataclass(frozen=True)
class Limits:
    """The numbers that are allowed, for a check, for its sentence, and as the declaration of a dataclass's field.

    ``lr: Annotated[float, Limits(above=0)]`` is read by :func:`check_fields` and by the tables of config files.

    >>> Limits(above=0, at_most=1).phrase, Limits(at_least=1, integer=True).phrase
    ('a finite number > 0 and <= 1', 'an integer >= 1')
    """

    above: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    below: float | None = None
    integer: bool = False
    because: str = ""
    """Why, where a reader may ask."""

    @property
    def phrase(self) -> str:
        """What a number must be."""
        return f"{'an integer' if self.integer else 'a finite number'} {self._range}".strip()

    @property
    def plural(self) -> str:
        """What several numbers must be.

        >>> COUNT.plural
        'integers >= 1'
        """
        return f"{'integers' if self.integer else 'finite numbers'} {self._range}".strip()

    @property
    def _range(self) -> str:
        limits = [(">", self.above), (">=", self.at_least), ("<=", self.at_most), ("<", self.below)]
        return " and ".join(f"{sign} {_written(limit)}" for sign, limit in limits if limit is not None)

    def check(self, field: str, value: object, of: str = "") -> Any:
        """Return the number as Python's own int or float, or raise :class:`InputError`.

        >>> import numpy as np
        >>> Limits(above=0).check("lr", np.float32(0.5))
        0.5
        """
        number = plain_number(value)
        if not self._has(number):
            why = f": {self.because}" if self.because else ""
            raise InputError(field=field, of=of, value=value, must=f"{self.phrase}{why}")
        return number

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Return the check of a file's key that is annotated with the limits."""
        check = {"type": "no-info", "function": self.checked}
        return {"type": "function-before", "function": check, "schema": handler(source)}

    def checked(self, value: Any) -> Any:
        """Return a number of a file as it was written, if it is within the limits."""
        self.check("it", value)
        return value

    def _has(self, number: object) -> bool:
        if not isinstance(number, int if self.integer else int | float) or isinstance(number, bool):
            return False
        try:
            is_finite = math.isfinite(number)
        except OverflowError:  # an integer beyond every float: nothing here is meant to be that large
            return False
        return (
            is_finite
            and (self.above is None or number > self.above)
            and (self.at_least is None or number >= self.at_least)
            and (self.at_most is None or number <= self.at_most)
            and (self.below is None or number < self.below)
        )


def plain_number(value: object) -> object:
    """Return NumPy's and other numbers as Python's own, so that equal settings have equal reprs; the rest as it is."""
    if type(value) in (int, float) or isinstance(value, bool) or not isinstance(value, Real):
        return value
    try:
        return int(value) if isinstance(value, Integral) else float(value)
    except OverflowError:
        return math.inf


def _written(limit: float) -> str:
    """Return a limit as one writes it; the ends of machine integers are powers of two."""
    bits = limit.bit_length() - 1 if isinstance(limit, int) else 0
    return f"2^{bits}" if bits > 30 and limit == 1 << bits else f"{limit:g}"


FINITE = Limits()
POSITIVE = Limits(above=0)
NOT_NEGATIVE = Limits(at_least=0)
FRACTION = Limits(at_least=0, below=1)
SHARE = Limits(above=0, at_most=1)
PROBABILITY = Limits(at_least=0, at_most=1)
COUNT = Limits(at_least=1, integer=True)
MACHINE_COUNT = Limits(at_least=1, below=2**31, integer=True)
"""Counts that are multiplied by others: their products are still machine integers."""
SEED = Limits(at_least=0, below=2**63, integer=True)


def check_number(
    field: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    integer: bool = False,
) -> Any:
    """Return ``value`` as Python's own number, or raise :class:`InputError` unless it is within the stated range.

    >>> check_number("lr", -1, above=0)
    Traceback (most recent call last):
    ...
    upcycled.core.errors.InputError: lr is -1, but it must be a finite number > 0
    """
    return Limits(above, at_least, at_most, below, integer).check(field, value)


def check_path(field: str, path: str | os.PathLike[str], what: str = "path") -> str:
    r"""Return a path of the user's as text, or raise :class:`InputError` where no file system could have one like it.

    >>> check_path("results", "a\0b", "folder")
    Traceback (most recent call last):
    ...
    upcycled.core.errors.InputError: results is 'a\x00b', but it must be the path of a folder, without a NUL character
    """
    found = os.fspath(path)
    if "\0" in found:
        raise InputError(field=field, value=found, must=f"the path of a {what}, without a NUL character")
    return found


def home_path(field: str, path: str | os.PathLike[str], what: str = "path") -> str:
    """Return a path with ``~`` and ``~user`` replaced by that user's folder.

    Raises:
        InputError: in one sentence, for a user that this machine does not know.

    >>> home_path("data.path", "~nobody-of-that-name/set.npz", "file")
    Traceback (most recent call last):
    ...
    upcycled.core.errors.InputError: data.path is '~nobody-of-that-name/set.npz', but this machine knows no such user...
    """
    text = check_path(field, path, what)
    found = os.path.expanduser(text)
    if text.startswith("~") and found == text:
        raise InputError(
            field=field, value=text, but=f"this machine knows no such user: the path of a {what} may begin with './'"
        )
    return found


@dataclass(frozen=True)
class _Field:
    name: str
    limits: Limits | None
    is_optional: bool
    is_flag: bool
    takes_functions: bool
    choices: tuple[Any, ...]


@cache
def _fields_of(made: type) -> tuple[_Field, ...]:
    hints = get_type_hints(made, include_extras=True)
    return tuple(_field_of(f.name, hints[f.name]) for f in fields(made))


def _field_of(name: str, hint: Any) -> _Field:
    plain = hint.__origin__ if hasattr(hint, "__metadata__") else hint
    is_optional, takes_functions = type(None) in get_args(plain), _takes_functions(plain)
    return _Field(name, declared_limits(hint), is_optional, plain is bool, takes_functions, choices_of(plain))


def _takes_functions(hint: Any) -> bool:
    return any(get_origin(part) is Callable for part in get_args(hint))


def declared_limits(hint: Any) -> Limits | None:
    """Return the limits that a type is annotated with, or a part of it."""
    own = [part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Limits)]
    inner = [limits for part in get_args(hint) if (limits := declared_limits(part)) is not None]
    return next(iter(own + inner), None)


def choices_of(hint: Any) -> tuple[Any, ...]:
    """Return the values of a Literal, which may stand beside None; none for another type.

    >>> choices_of(Literal["loss", "accuracy"] | None)
    ('loss', 'accuracy')
    """
    parts = get_args(hint)
    if get_origin(hint) is Literal:
        return parts
    others = [part for part in parts if part is not type(None)]
    return choices_of(others[0]) if len(others) == 1 < len(parts) else ()


def limits_of(made: type) -> Mapping[str, Limits]:
    """Return the limits that a dataclass declares for its fields.

    >>> from upcycled.core.solvers import LocalSGD
    >>> limits_of(LocalSGD)["lr"].phrase
    'a finite number > 0'
    """
    return {field.name: field.limits for field in _fields_of(made) if field.limits is not None}


def check_fields(made: Any, of: str | None = None, **names: str) -> None:
    """Hold a dataclass to the limits it declares, and make its numbers Python's own.

    Args:
        made: the object, from its ``__post_init__``; frozen or not.
        of: whose fields sentences speak of, the class's name if left out.
        names: what sentences call a field that has another name there.
    """
    kind: type = type(made)
    owner = kind.__name__ if of is None else of
    for field in _fields_of(kind):
        value, plain = getattr(made, field.name), None
        is_other = (value is None and field.is_optional) or (field.takes_functions and callable(value))
        if field.limits is not None and not is_other:
            plain = field.limits.check(names.get(field.name, field.name), value, owner)
        elif field.is_flag:
            if not isinstance(value, bool) and not _is_numpy(value, "bool_"):
                raise InputError(field=names.get(field.name, field.name), of=owner, value=value, must="True or False")
            plain = bool(value)
        elif field.choices and not is_other and not (isinstance(value, str) and value in field.choices):
            raise unknown(names.get(field.name, field.name), value, field.choices)
        if plain is not None and plain is not value:
            object.__setattr__(made, field.name, plain)
