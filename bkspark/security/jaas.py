"""JAAS login configurations: the files that Java's `java.security.auth.login.config` names. PURE.

A file has sections. Each names its login modules, with options:

    Bookie {
        org.apache.zookeeper.server.auth.DigestLoginModule required
        user_writer="secret"
        user_reader="another";
    };

The grammar is that of Java's `ConfigFile`, token by token:

    file    := section*
    section := WORD "{" module* "}" ";"
    module  := class flag (key "=" value)* ";"       flag: required, requisite, sufficient or optional, in any case

* A WORD, class, flag, key or value is either bare or between double quotes.
* Bare text has letters, digits and `. _ $ - *`, and characters from U+00A0 on. It begins with none of the digits, `.`
  and `-`, which Java reads as a number there: such a value must be quoted.
* In quotes, `\\n \\r \\t \\b \\f \\a \\v` and `\\ooo` (octal, up to `\\377`) mean one character, and `\\` before any
  other character means that character. A quoted text ends on its line. Java ends one that is not closed at the end of
  the line, without an error; here that is an error, as it hides where a password ends.
* `/* ... */` is a comment. Everything is a comment from another `/` on to the end of the line, as in Java.
* `${/}` in a value is "/", and `${NAME}` is a property of Java's, of which `properties` gives those that there are.
  `${{...}}` stays as it is.
* A section may appear once. If an option appears twice in a module, the last one counts, as in Java.

A file has at most `FILE_CHARS_MAX` characters. No error message contains a value, since values are passwords.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

FILE_CHARS_MAX = 1024 * 1024
FLAGS = ("required", "requisite", "sufficient", "optional")

_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_SPACE = re.compile(r"[\x00-\x20]+")
_WORD = re.compile(r"[A-Za-z_$*\u00a0-\U0010ffff][A-Za-z0-9._$*\u00a0-\U0010ffff-]*")
_QUOTED = re.compile(r'"((?:[^"\\\r\n]|\\[^\r\n])*)"')
_ESCAPE = re.compile(r"\\(?:([0-3][0-7]{0,2}|[4-7][0-7]?)|(.))", re.DOTALL)
_PROPERTY = re.compile(r"\$\{\{.*?(?:\}\}|$)|\$\{([^}]*)\}", re.DOTALL)
"""A place that Java copies, or the name of a property."""
_LINE_END = re.compile(r"[\r\n]|$")
_MARKS = "{}=;"


class JaasError(ValueError):
    """A text is not a JAAS configuration. The message names the line, and what is wrong there."""


@dataclass(frozen=True, slots=True)
class LoginModule:
    """One module of a section. `flag` is one of `FLAGS`; `options` may be passwords, and no repr shows them."""

    class_name: str
    """Java's class. It says which mechanism is meant."""
    flag: str
    options: Mapping[str, str] = field(repr=False)


def parse(text: str, properties: Mapping[str, str] | None = None) -> dict[str, tuple[LoginModule, ...]]:
    """Return the login modules of each section, by its name.

    Args:
        properties: Java's properties that values may name; none by default.

    Raises:
        JaasError: the text is not in the form that this module describes.
    """
    if len(text) > FILE_CHARS_MAX:
        raise JaasError(f"it has {len(text)} characters, more than {FILE_CHARS_MAX}")
    if text.startswith("\ufeff"):
        raise JaasError("line 1: it begins with a byte order mark, which Java takes for a letter: remove it")
    tokens = _Tokens(text)
    sections: dict[str, tuple[LoginModule, ...]] = {}
    while not tokens.is_at_end:
        line = tokens.line
        name = tokens.text("the name of a section")
        tokens.mark("{")
        modules = []
        while not tokens.is_at("}"):
            modules.append(_module(tokens, properties or {}))
        tokens.mark("}")
        tokens.mark(";")
        if name in sections:
            raise JaasError(f"line {line}: a second section {name!r:.80}")
        sections[name] = tuple(modules)
    return sections


def _module(tokens: _Tokens, properties: Mapping[str, str]) -> LoginModule:
    class_name = tokens.text("the class of a login module")
    line = tokens.line
    flag = tokens.text("one of " + ", ".join(FLAGS)).lower()
    if flag not in FLAGS:
        raise JaasError(f"line {line}: the flag of {class_name!r:.80} must be one of {', '.join(FLAGS)}")
    options = {}
    while not tokens.is_at(";"):
        key = tokens.text("an option or ';'")
        tokens.mark("=")
        line = tokens.line
        options[key] = _expanded(tokens.text(f"the value of {key!r:.80}"), key, line, properties)
    tokens.mark(";")
    return LoginModule(class_name, flag, options)


def _expanded(value: str, key: str, line: int, properties: Mapping[str, str]) -> str:
    def of(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return match[0]
        if name == "/":
            return "/"
        if name not in properties:
            raise JaasError(f"line {line}: the value of {key!r:.80} names a property that is not known here")
        return properties[name]

    return _PROPERTY.sub(of, value)


class _Tokens:
    """The tokens of a text, one ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        """The offset after the present token."""
        self._line_at, self.line = 0, 1
        """Up to where lines are counted; the line of the next token."""
        self._mark, self._word = "", ""
        """The kind of the present token: "text", a sign, or "end". `_word`: its text."""
        self._next()

    @property
    def is_at_end(self) -> bool:
        return self._mark == "end"

    def is_at(self, mark: str) -> bool:
        """Return whether the next token is this mark. Raises JaasError at the end of the text."""
        if self.is_at_end:
            raise JaasError(f"line {self.line}: the text ends where {mark!r} is missing")
        return self._mark == mark

    def mark(self, mark: str) -> None:
        """Take a mark. Raises JaasError."""
        if not self.is_at(mark):
            raise JaasError(f"line {self.line}: {mark!r} is missing")
        self._next()

    def text(self, what: str) -> str:
        """Take bare or quoted text. Raises JaasError."""
        if self._mark != "text":
            raise JaasError(f"line {self.line}: {what} is missing")
        word = self._word
        self._next()
        return word

    def _next(self) -> None:
        self._skip()
        text, at = self._text, self._at
        self.line += text.count("\n", self._line_at, at)
        self._line_at = at
        if at == len(text):
            self._mark = "end"
        elif text[at] in _MARKS:
            self._mark, self._at = text[at], at + 1
        elif text[at] == '"':
            self._take(_QUOTED, "a text in quotes is not closed on its line")
            self._word = _ESCAPE.sub(_unescaped, self._word[1:-1])
        else:
            self._take(_WORD, "a text with other characters than letters and digits needs double quotes")

    def _take(self, pattern: re.Pattern[str], otherwise: str) -> None:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise JaasError(f"line {self.line}: {otherwise}")
        self._mark, self._word, self._at = "text", found[0], found.end()

    def _skip(self) -> None:
        """Skip blanks and comments."""
        text = self._text
        while self._at < len(text):
            blank = _SPACE.match(text, self._at)
            if blank is not None:
                self._at = blank.end()
            elif text.startswith("/*", self._at):
                end = text.find("*/", self._at + 2)
                if end < 0:
                    raise JaasError("a comment that begins with /* has no end")
                self._at = end + 2
            elif text[self._at] == "/":
                end_of_line = _LINE_END.search(text, self._at)
                assert end_of_line is not None
                self._at = end_of_line.start()
            else:
                return


def _unescaped(match: re.Match[str]) -> str:
    octal, char = match.groups()
    return chr(int(octal, 8)) if octal else _ESCAPES.get(char, char)
