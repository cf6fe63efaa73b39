"""Authorization: which principal may do what with which ledgers: the rules file, and the decision. PURE.

The file
--------

UTF-8 text. A line is empty, a comment (its first word begins with `#`, as a comment at the end of a line does), or a
rule. A rule has words with spaces or tabs between them:

    PRINCIPAL  RIGHT[,RIGHT...]  [LEDGERS...]

    certificate:"CN=ingest,OU=etl"   read,write,fence   log:clicks log:orders-*
    digest:analyst                   read               tenant:public metadata:team=billing
    certificate:CN=bookie-*          read,write,fence   *
    local:root                       admin

Rules only allow. A request is allowed if the rules that match its principal and its ledger together give every right
that it needs. The order of the rules has no meaning, and what no rule gives is refused.

PRINCIPAL is `KIND:PATTERN`, where the kind is certificate, digest, kerberos, token or local; `anonymous`, a peer that
has not proved who it is; or `*`, every peer, anonymous ones included. A certificate's name is its subject as RFC 4514
writes it, the last relative name first: `CN=ingest,OU=etl`.

RIGHT is one of

    read    entries, LACs, long polls, lists of entries. A read that fences needs fence as well.
    write   adds, explicit LACs, forces. An add with the recovery flag needs fence as well.
    fence   to end the writer of a ledger. Recovery of a ledger needs read, write and fence.
    admin   the control socket, and HTTP except reads of one ledger. It is a right on the bookie, not on ledgers.

LEDGERS is one or more of these; the rule is for ledgers that match any of them:

    *                      all ledgers
    id:N  id:N-M  id:N-    ledgers with these ids, both ends included
    log:PATTERN            ledgers of bkspark's logs with such a name
    tenant:PATTERN         ledgers of Pulsar's topics, cursors, schemas and compacted topics, by tenant
    metadata:KEY=PATTERN   ledgers whose custom metadata have such a value at this key. The key is literal

A rule that gives admin names `*` or nothing; every other rule names ledgers.

In a PATTERN `*` matches any characters, also none; every other character matches itself. Text in double quotes is
literal: spaces, `#`, `*`, and `""` for one double quote.

Ledgers are known by the metadata that their creator stored. `LedgerFacts.of` says which of them count.

Limits: RULES_BYTES_MAX, RULES_MAX. A file without a rule is an error: it would refuse everyone, and it is what a
half-written file looks like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bkspark.errors import ConfigurationError
from bkspark.ids import LEDGER_ID_MAX
from bkspark.security.principal import KINDS, Principal

READ, WRITE, FENCE, ADMIN = 1, 2, 4, 8
"""Rights as bits; a set of them is their sum. They are numbers because each request is compared with them."""
ANY_RIGHT = 16
"""The need of requests that every principal with any rule may make."""
NOTHING = 0
"""The need of requests that are always served."""

RIGHTS = {"read": READ, "write": WRITE, "fence": FENCE, "admin": ADMIN}
RULES_BYTES_MAX = 1024 * 1024
RULES_MAX = 10_000
FACTS_MAX = 16
"""How many keys of custom metadata rules can refer to: the first ones in order."""
FACT_BYTES_MAX = 256
"""Longer values of custom metadata are ignored."""
_NAMED_KINDS = tuple(kind for kind in KINDS if kind != "anonymous")
_ANONYMOUS = "anonymous"
_ALL = "*"
_SELECTORS = "*, id:N-M, log:PATTERN, tenant:PATTERN or metadata:KEY=PATTERN"
REMEMBERED_MAX = 4096
"""Principals whose rules are cached."""
_PULSAR_NAMES = ("pulsar/managed-ledger", "pulsar/schemaId", "pulsar/compactedTopic")
_OPEN = object()
"""A `*` outside quotes, in the characters of a word."""


class RulesError(ConfigurationError):
    """A rules file cannot be used; the message names the line and the remedy."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Literal texts; any characters may lie between two of them. One text matches itself only."""

    texts: tuple[str, ...]

    def matches(self, name: str) -> bool:
        """Return whether a name matches. Takes time in proportion to the name's length."""
        first, last = self.texts[0], self.texts[-1]
        if len(self.texts) == 1:
            return name == first
        if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
            return False
        at, end = len(first), len(name) - len(last)
        for text in self.texts[1:-1]:
            found = name.find(text, at, end)
            if found < 0:
                return False
            at = found + len(text)
        return True


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """The facts of a ledger that rules refer to. `log`, `tenant`: "" for a ledger without one.

    master_key: the master key of its password; None if its metadata do not have the password.
    """

    ledger_id: int
    log: str = ""
    tenant: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    """The custom metadata that rules can name, by key."""
    master_key: bytes | None = field(default=None, repr=False)

    @classmethod
    def of(cls, ledger_id: int, custom: Mapping[str, bytes], master_key: bytes | None = None) -> LedgerFacts:
        """Return the facts of a ledger with these custom metadata.

        The log is that of `application=bkspark`; the tenant is the first part of the name that Pulsar gives its
        ledgers. The first FACTS_MAX keys in order have values that rules can name, each at most FACT_BYTES_MAX long.
        A value that is not UTF-8 does not count.
        """
        keys = sorted(custom)[:FACTS_MAX]
        values = {key: text for key in keys if (text := _text(custom[key])) is not None}
        application = custom.get("application")
        log = (_text(custom.get("log", b"")) or "") if application == b"bkspark" else ""
        name = next((found for key in _PULSAR_NAMES if (found := custom.get(key))), b"")
        tenant = _tenant(name) if application == b"pulsar" else ""
        return cls(ledger_id, log, tenant, values, master_key)


def _tenant(name: bytes) -> str:
    """Return the tenant in a name such as `tenant/namespace/persistent/topic` or `persistent://tenant/...`."""
    _, separator, rest = name.partition(b"://")
    tenant, slash, _ = (rest if separator else name).partition(b"/")
    return (_text(tenant) or "") if slash else ""


def _text(value: bytes) -> str | None:
    if len(value) > FACT_BYTES_MAX:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


Selector = Callable[[LedgerFacts], bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """A line of the file. `kind` "": every principal; `selectors` None: all ledgers."""

    kind: str
    name: Pattern
    rights: int
    """The sum of the bits READ, WRITE and so on."""
    selectors: tuple[Selector, ...] | None

    def is_for(self, principal: Principal) -> bool:
        """Return whether the rule is for a principal."""
        return not self.kind or (self.kind == principal.kind and self.name.matches(principal.name))

    def selects(self, facts: LedgerFacts) -> bool:
        """Return whether the rule is for a ledger."""
        return self.selectors is None or any(selects(facts) for selects in self.selectors)


class PrincipalRules:
    """The rules for one principal."""

    __slots__ = ("_some", "ever", "everywhere")

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._some = tuple(rule for rule in rules if rule.selectors is not None)
        self.everywhere = _sum(rule for rule in rules if rule.selectors is None)
        """The rights on all ledgers, whatever they are."""
        self.ever = self.everywhere | _sum(self._some)
        """The union of the rights on all kinds of ledgers."""

    def rights(self, facts: LedgerFacts) -> int:
        """Return the rights on a ledger."""
        return self.everywhere | _sum(rule for rule in self._some if rule.selects(facts))

    def may_ever(self, needed: int) -> bool:
        """Return whether a request with these needs could be allowed for some ledger."""
        return bool(self.ever) if needed == ANY_RIGHT else not needed & ~self.ever


def _sum(rules: Iterator[Rule] | Sequence[Rule]) -> int:
    rights = 0
    for rule in rules:
        rights |= rule.rights
    return rights


class Rules:
    """A rules file. The same principal and facts always give the same rights."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._exact: dict[tuple[str, str], list[Rule]] = {}
        """Rules for one principal, by its kind and name."""
        self._others: list[Rule] = []
        """Rules whose principal is a pattern."""
        for rule in rules:
            if rule.kind and len(rule.name.texts) == 1:
                self._exact.setdefault((rule.kind, rule.name.texts[0]), []).append(rule)
            else:
                self._others.append(rule)
        self._count = len(rules)
        self._of: dict[Principal, PrincipalRules] = {}
        """The rules that apply to a principal, for those asked for recently; emptied at REMEMBERED_MAX."""

    def __len__(self) -> int:
        return self._count

    def of(self, principal: Principal) -> PrincipalRules:
        """Return the rules for a principal."""
        found = self._of.get(principal)
        if found is None:
            if len(self._of) >= REMEMBERED_MAX:
                self._of.clear()
            exact = self._exact.get((principal.kind, principal.name), [])
            found = self._of[principal] = PrincipalRules(
                [*exact, *(rule for rule in self._others if rule.is_for(principal))]
            )
        return found


def parse_rules(data: bytes) -> Rules:
    """Return the rules in a file's bytes. Raises RulesError."""
    if len(data) > RULES_BYTES_MAX:
        raise RulesError(f"it has {len(data)} bytes, and at most {RULES_BYTES_MAX} are read: use patterns")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        bad = data.count(b"\n", 0, error.start) + 1
        raise RulesError(f"line {bad}: byte {error.start} of the file is not UTF-8: save it as UTF-8") from None
    rules = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            words = list(_words(line.removesuffix("\r")))
            if words:
                rules.append(_rule(words))
        except ValueError as error:
            raise RulesError(f"line {number}: {error}") from None
        if len(rules) > RULES_MAX:
            raise RulesError(f"line {number}: there are more than {RULES_MAX} rules: use patterns")
    if not rules:
        raise RulesError(
            "it has no rule, so everyone would be refused: write a rule, such as `anonymous read *`, or remove the key "
            "authorizationRulesFile to go without authorization"
        )
    return Rules(rules)


# ---- words ----

_Word = list[object]
"""Characters, and `_OPEN` for each `*` outside quotes. Quoted characters are tuples of one."""


def _words(line: str) -> Iterator[_Word]:
    """Yield the words of a line, without a comment. Raises ValueError."""
    word: _Word | None = None
    at = 0
    while at < len(line):
        char = line[at]
        at += 1
        if char in " \t":
            if word is not None:
                yield word
            word = None
            continue
        if char == "#" and word is None:
            return
        word = [] if word is None else word
        if char == '"':
            at = _quoted(line, at, word)
        elif char.isprintable():
            word.append(_OPEN if char == "*" else char)
        else:
            raise ValueError(f"character {char!r} cannot be in a rule: remove it")
    if word is not None:
        yield word


def _quoted(line: str, at: int, word: _Word) -> int:
    """Add the characters of a quoted text that begins at `at`; return where it ends."""
    while True:
        end = line.find('"', at)
        if end < 0:
            raise ValueError('a text in double quotes does not end: add " after it')
        text = line[at:end]
        if not text.isprintable():
            raise ValueError(f"{text!r} has a character that cannot be in a rule: remove it")
        word += [(char,) for char in text]
        if line[end + 1 : end + 2] != '"':
            return end + 1
        word.append(('"',))
        at = end + 2


def _is_all(word: _Word) -> bool:
    return word == [_OPEN]


def _shown(word: _Word) -> str:
    return "".join("*" if char is _OPEN else _char(char) for char in word)[:100]


def _char(char: object) -> str:
    return char[0] if isinstance(char, tuple) else str(char)


def _split(word: _Word, separator: str) -> tuple[str, _Word] | None:
    """Return the literal text before the first unquoted separator, and the rest; None: there is no such text."""
    if separator not in word:
        return None
    at = word.index(separator)
    if _OPEN in word[:at]:
        return None
    return "".join(map(_char, word[:at])), word[at + 1 :]


def _literal(word: _Word, what: str) -> str:
    if _OPEN in word:
        raise ValueError(f"{what} {_shown(word)!r} cannot have a *")
    return "".join(map(_char, word))


def _pattern(word: _Word, what: str) -> Pattern:
    """Return the pattern that a word is. Raises ValueError: it is empty."""
    if not word:
        raise ValueError(f"{what} has an empty pattern: write a name, or * for any")
    texts = [""]
    for char in word:
        if char is _OPEN:
            texts.append("")
        else:
            texts[-1] += _char(char)
    return Pattern(tuple(texts))


# ---- rules ----


def _rule(words: Sequence[_Word]) -> Rule:
    """Return the rule of a line's words. Raises ValueError: what is wrong, and what would be right."""
    if len(words) < 2:
        raise ValueError(
            f"a rule is PRINCIPAL RIGHTS LEDGERS, and after {_shown(words[0])!r} there is nothing: add its rights, "
            "such as read"
        )
    kind, name = _principal(words[0])
    rights = _rights(words[1])
    if len(words) == 2 and rights != ADMIN:
        raise ValueError(f"the rule names no ledgers: add {_SELECTORS}")
    is_for_all = all(map(_is_all, words[2:]))
    if rights & ADMIN and not is_for_all:
        raise ValueError("admin is a right on the bookie, not on ledgers: give it in a rule of its own, for *")
    selectors = [_selector(word) for word in words[2:] if not _is_all(word)]
    return Rule(kind, name, rights, None if len(selectors) < len(words) - 2 or is_for_all else tuple(selectors))


def _principal(word: _Word) -> tuple[str, Pattern]:
    if _is_all(word):
        return "", Pattern(("", ""))
    kinds = f"{', '.join(f'{kind}:NAME' for kind in _NAMED_KINDS)}, {_ANONYMOUS} or *"
    parts = _split(word, ":")
    if parts is None:
        if word == list(_ANONYMOUS):
            return _ANONYMOUS, Pattern((_ANONYMOUS,))
        raise ValueError(f"{_shown(word)!r} is not a principal: it must be {kinds}")
    kind, name = parts
    if kind not in _NAMED_KINDS:
        raise ValueError(f"{kind!r:.100} is not a kind of principal: it must be {kinds}")
    return kind, _pattern(name, f"{kind}:")


def _rights(word: _Word) -> int:
    rights = 0
    for name in _literal(word, "a list of rights").split(","):
        right = RIGHTS.get(name)
        if right is None:
            raise ValueError(f"{name!r:.100} is not a right: it must be {', '.join(RIGHTS)}, with commas and no spaces")
        rights |= right
    return rights


def _selector(word: _Word) -> Selector:
    kind, rest = _split(word, ":") or ("", [])
    if kind == "id":
        return _ids(_literal(rest, "an id"))
    if kind == "log":
        log = _pattern(rest, "log:")
        return lambda facts: bool(facts.log) and log.matches(facts.log)
    if kind == "tenant":
        tenant = _pattern(rest, "tenant:")
        return lambda facts: bool(facts.tenant) and tenant.matches(facts.tenant)
    if kind == "metadata":
        return _metadata(rest)
    raise ValueError(f"{_shown(word)!r} does not name ledgers: write {_SELECTORS}")


def _metadata(word: _Word) -> Selector:
    parts = _split(word, "=")
    if parts is None or not parts[0]:
        raise ValueError(f"{_shown(word)!r} is not KEY=PATTERN, with a key without *")
    key, pattern = parts[0], _pattern(parts[1], f"metadata:{parts[0]}=")

    def selects(facts: LedgerFacts) -> bool:
        value = facts.values.get(key)
        return value is not None and pattern.matches(value)

    return selects


def _ids(text: str) -> Selector:
    low, dash, high = text.partition("-")
    first = _id(low)
    last = _id(high) if high else LEDGER_ID_MAX if dash else first
    if last < first:
        raise ValueError(f"id:{text:.100} ends before it begins: write id:{last}-{first}")
    return lambda facts: first <= facts.ledger_id <= last


def _id(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > LEDGER_ID_MAX:
        raise ValueError(f"{text!r:.100} is not a ledger id: it must be a number from 0 to {LEDGER_ID_MAX}")
    return int(text)
