"""The rules file and its decisions, against a model that is written from the docstring of the module."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from bkspark.ids import LEDGER_ID_MAX
from bkspark.security.authorization import (
    ADMIN,
    ANY_RIGHT,
    FACT_BYTES_MAX,
    FACTS_MAX,
    FENCE,
    READ,
    RIGHTS,
    RULES_BYTES_MAX,
    RULES_MAX,
    WRITE,
    LedgerFacts,
    Pattern,
    RulesError,
    parse_rules,
)
from bkspark.security.principal import ANONYMOUS, Principal

WRITER = Principal("CN=writer,OU=etl", "certificate")


def rights(text: str, principal: Principal = WRITER, facts: LedgerFacts | None = None) -> int:
    """Return the rights that a file gives on a ledger."""
    return parse_rules(text.encode()).of(principal).rights(facts or LedgerFacts(7))


# ---- what a file may say ----


def test_the_example_of_the_docstring_is_a_rules_file() -> None:
    text = """
    # those that write
    certificate:"CN=ingest,OU=etl"   read,write,fence   log:clicks log:orders-*
    digest:analyst                   read               tenant:public metadata:team=billing  # and those that read
    certificate:CN=bookie-*          read,write,fence   *
    local:root                       admin
    """
    ingest, analyst = Principal("CN=ingest,OU=etl", "certificate"), Principal("analyst", "digest")
    bookie, root = Principal("CN=bookie-1", "certificate"), Principal("root", "local")
    orders = LedgerFacts(1, log="orders-eu")
    assert rights(text, ingest, orders) == READ | WRITE | FENCE
    assert rights(text, ingest, LedgerFacts(1, log="other")) == 0
    assert rights(text, analyst, LedgerFacts(1, tenant="public")) == READ
    assert rights(text, analyst, LedgerFacts(1, values={"team": "billing"})) == READ
    assert rights(text, analyst, orders) == 0
    assert rights(text, bookie) == READ | WRITE | FENCE
    assert rights(text, root) == ADMIN
    assert rights(text, ANONYMOUS, orders) == 0


@pytest.mark.parametrize(
    ("rule", "principal"),
    [
        ("* read *", ANONYMOUS),
        ("* read *", WRITER),
        ("anonymous read *", ANONYMOUS),
        ("certificate:* read *", WRITER),
        ("certificate:CN=writer,* read *", WRITER),
        ("certificate:*OU=etl read *", WRITER),
        ('certificate:"CN=writer,OU=etl" read *', WRITER),
        ('digest:"a b" read *', Principal("a b", "digest")),
        ('digest:"a""b" read *', Principal('a"b', "digest")),
        ('digest:"*" read *', Principal("*", "digest")),
        ("digest:a#b read *", Principal("a#b", "digest")),
        ("token:ä\tread\t*\r", Principal("ä", "token")),
        ("kerberos:x@REALM read *", Principal("x@REALM", "kerberos")),
    ],
)
def test_principal_is_matched(rule: str, principal: Principal) -> None:
    assert rights(rule, principal) == READ


@pytest.mark.parametrize(
    ("rule", "principal"),
    [
        ("anonymous read *", WRITER),
        ("certificate:* read *", ANONYMOUS),
        ("digest:CN=writer,OU=etl read *", WRITER),
        ("certificate:CN=writer read *", WRITER),
        ("certificate:cn=writer,ou=etl read *", WRITER),
        ('digest:"*" read *', Principal("a", "digest")),
        ("digest:a*a read *", Principal("a", "digest")),
        # An unauthenticated peer is not the user that happens to be named so.
        ("digest:anonymous read *", ANONYMOUS),
    ],
)
def test_other_principals_are_not_matched(rule: str, principal: Principal) -> None:
    assert rights(rule, principal) == 0


@pytest.mark.parametrize(
    ("ledgers", "facts"),
    [
        ("id:7", LedgerFacts(7)),
        ("id:5-7", LedgerFacts(7)),
        ("id:7-", LedgerFacts(LEDGER_ID_MAX)),
        ("id:0-9 log:x", LedgerFacts(70, log="x")),
        ("log:*", LedgerFacts(7, log="x")),
        ("tenant:a*c", LedgerFacts(7, tenant="abc")),
        ("metadata:k=v", LedgerFacts(7, values={"k": "v"})),
        ("metadata:k=*", LedgerFacts(7, values={"k": ""})),
        ('metadata:"k=k"=v=v', LedgerFacts(7, values={"k=k": "v=v"})),
        ("log:x *", LedgerFacts(7)),
    ],
)
def test_ledger_is_selected(ledgers: str, facts: LedgerFacts) -> None:
    assert rights(f"* write {ledgers}", facts=facts) == WRITE


@pytest.mark.parametrize(
    ("ledgers", "facts"),
    [
        ("id:7", LedgerFacts(8)),
        ("id:5-7", LedgerFacts(8)),
        ("id:7-", LedgerFacts(6)),
        ("log:*", LedgerFacts(7)),
        ("tenant:*", LedgerFacts(7)),
        ("log:x", LedgerFacts(7, tenant="x")),
        ("metadata:k=*", LedgerFacts(7)),
        ("metadata:k=v", LedgerFacts(7, values={"k": "w"})),
    ],
)
def test_other_ledgers_are_not_selected(ledgers: str, facts: LedgerFacts) -> None:
    assert rights(f"* write {ledgers}", facts=facts) == 0


# ---- what a file may not say ----


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("", None, "no rule.*authorizationRulesFile"),
        ("# only a comment\n", None, "no rule"),
        ("* read *\nbob read *", 2, "'bob' is not a principal: it must be certificate:NAME"),
        ("user:bob read *", 1, "'user' is not a kind of principal"),
        ("anonymous:x read *", 1, "'anonymous' is not a kind"),
        ("digest: read *", 1, "empty pattern"),
        ("digest:bob", 1, "add its rights"),
        ("digest:bob read", 1, "names no ledgers: add"),
        ("digest:bob read,admin", 1, "names no ledgers"),
        ("digest:bob Read *", 1, "'Read' is not a right: it must be read, write, fence, admin"),
        ("digest:bob read, write *", 1, "'' is not a right"),
        ("digest:bob * *", 1, "cannot have a \\*"),
        ("digest:bob admin log:x", 1, "admin is a right on the bookie"),
        ("digest:bob read,admin log:x", 1, "admin is a right on the bookie"),
        ("digest:bob read,admin * log:x", 1, "admin is a right on the bookie"),
        ("digest:bob read x", 1, "'x' does not name ledgers: write"),
        ("digest:bob read ledger:x", 1, "does not name ledgers"),
        ("digest:bob read log:", 1, "empty pattern"),
        ("digest:bob read metadata:k", 1, "KEY=PATTERN"),
        ("digest:bob read metadata:=v", 1, "KEY=PATTERN"),
        ("digest:bob read metadata:*=v", 1, "KEY=PATTERN"),
        ("digest:bob read id:x", 1, "'x' is not a ledger id"),
        ("digest:bob read id:-1", 1, "'' is not a ledger id"),
        ("digest:bob read id:9-5", 1, "ends before it begins"),
        ("digest:bob read id:9223372036854775808", 1, "is not a ledger id"),
        ("digest:bob read id:*", 1, "cannot have a \\*"),
        ('digest:"bob read *', 1, "does not end"),
        ("digest:bob\x07 read *", 1, "cannot be in a rule"),
        ("digest:bob read *\n\n" + "* read *\n" * RULES_MAX, RULES_MAX + 2, "more than 10000 rules"),
    ],
)
def test_wrong_file_is_refused_with_its_line_and_a_remedy(text: str, line: int | None, what: str) -> None:
    with pytest.raises(RulesError, match=what) as refused:
        parse_rules(text.encode())
    assert str(refused.value).startswith(f"line {line}: " if line else "it has no rule")


def test_file_that_is_not_utf_8_names_its_line() -> None:
    with pytest.raises(RulesError, match=r"^line 2: byte 10 of the file is not UTF-8: save it as UTF-8"):
        parse_rules(b"* read *\n#\xff\n")


def test_file_beyond_the_limit_is_refused() -> None:
    with pytest.raises(RulesError, match="at most"):
        parse_rules(b"#" * (RULES_BYTES_MAX + 1))


@pytest.mark.parametrize("seed", range(8))
def test_any_text_is_rules_or_a_short_error_of_one_line(seed: int) -> None:
    random = Random(seed)
    pieces = [
        "*",
        " ",
        "\n",
        '"',
        ":",
        "=",
        ",",
        "-",
        "#",
        "\0",
        "read",
        "admin",
        "digest",
        "id",
        "metadata",
        "log",
        "9",
        "ä",
    ]
    for _ in range(1000):
        text = "".join(random.choices(pieces, k=random.randrange(30)))
        with contextlib.suppress(RulesError):
            parse_rules(text.encode())
            continue
        with pytest.raises(RulesError) as refused:
            parse_rules(text.encode())
        assert len(str(refused.value).splitlines()) == 1
        assert len(str(refused.value)) < 600


# ---- the facts of a ledger ----


@pytest.mark.parametrize(
    ("custom", "log", "tenant"),
    [
        ({}, "", ""),
        ({"application": b"bkspark", "log": b"clicks"}, "clicks", ""),
        # The name counts only where our logs put it.
        ({"log": b"clicks"}, "", ""),
        ({"application": b"pulsar", "log": b"clicks"}, "", ""),
        ({"application": b"pulsar", "pulsar/managed-ledger": b"t/ns/persistent/topic"}, "", "t"),
        ({"application": b"pulsar", "pulsar/managed-ledger": b"t/cluster/ns/persistent/topic"}, "", "t"),
        ({"application": b"pulsar", "pulsar/schemaId": b"t/ns/topic"}, "", "t"),
        ({"application": b"pulsar", "pulsar/compactedTopic": b"persistent://t/ns/topic"}, "", "t"),
        ({"application": b"pulsar", "pulsar/managed-ledger": b"t"}, "", ""),
        ({"application": b"pulsar", "pulsar/managed-ledger": b"\xff/ns/persistent/topic"}, "", ""),
        ({"pulsar/managed-ledger": b"t/ns/persistent/topic"}, "", ""),
    ],
)
def test_log_and_tenant_of_a_ledger(custom: Mapping[str, bytes], log: str, tenant: str) -> None:
    facts = LedgerFacts.of(7, custom)
    assert (facts.log, facts.tenant) == (log, tenant)


def test_facts_are_bounded_whatever_the_metadata_hold() -> None:
    custom = {f"k{number:03}": b"v" for number in range(100)} | {"a": b"x" * (FACT_BYTES_MAX + 1), "b": b"\xff"}
    facts = LedgerFacts.of(7, custom, b"key")
    assert sorted(facts.values) == [f"k{number:03}" for number in range(FACTS_MAX - 2)]
    assert "key" not in repr(facts)


# ---- properties, of many random files ----


@pytest.mark.parametrize("seed", range(4))
def test_pattern_matches_what_the_regular_expression_does(seed: int) -> None:
    random = Random(seed)
    for _ in range(2000):
        texts = ["".join(random.choices("ab", k=random.randrange(4))) for _ in range(random.randrange(1, 5))]
        name = "".join(random.choices("ab", k=random.randrange(10)))
        expected = re.fullmatch(".*".join(map(re.escape, texts)), name) is not None
        assert Pattern(tuple(texts)).matches(name) is expected, (texts, name)


@dataclass(frozen=True)
class ModelRule:
    """A rule as a test thinks of it; `*` in names matches anything."""

    principal: str
    rights: frozenset[str]
    ledgers: tuple[str, ...]

    def line(self) -> str:
        return f"{self.principal} {','.join(sorted(self.rights))} {' '.join(self.ledgers)}"

    def gives(self, principal: Principal, facts: LedgerFacts) -> frozenset[str]:
        is_for = self.principal == "*" or like(self.principal, str(principal))
        return self.rights if is_for and any(named(ledger, facts) for ledger in self.ledgers) else frozenset()


def like(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text) is not None


def named(ledger: str, facts: LedgerFacts) -> bool:
    kind, _, rest = ledger.partition(":")
    if kind == "id":
        low, dash, high = rest.partition("-")
        return int(low) <= facts.ledger_id <= (int(high) if high else LEDGER_ID_MAX if dash else int(low))
    if kind == "metadata":
        key, _, pattern = rest.partition("=")
        return key in facts.values and like(pattern, facts.values[key])
    value = {"log": facts.log, "tenant": facts.tenant}.get(kind, "")
    return ledger == "*" or (value != "" and like(rest, value))


NAMES = ("a", "ab", "b", "*", "a*", "*b", "a*b")
VALUES = ("", "a", "ab", "b")


def some_rule(random: Random) -> ModelRule:
    if random.random() < 0.1:
        return ModelRule("digest:a", frozenset(["admin"]), ("*",))
    name = random.choice(NAMES)
    ledgers = ("*", "id:3", "id:2-5", "id:4-", f"log:{name}", f"tenant:{name}", f"metadata:k={name}")
    return ModelRule(
        random.choice(("*", "anonymous", "token:a", f"digest:{random.choice(NAMES)}")),
        frozenset(random.sample(("read", "write", "fence"), random.randrange(1, 4))),
        tuple(random.sample(ledgers, random.randrange(1, 4))),
    )


def some_facts(random: Random) -> LedgerFacts:
    values = random.choice(({}, {"k": random.choice(VALUES)}))
    return LedgerFacts(random.randrange(9), random.choice(VALUES), random.choice(VALUES), values)


@pytest.mark.parametrize("seed", range(8))
def test_rights_are_the_union_of_what_matching_rules_give_in_any_order(seed: int) -> None:
    random = Random(seed)
    principals = [ANONYMOUS, *(Principal(name, kind) for name in VALUES[1:] for kind in ("digest", "token"))]
    for _ in range(300):
        rules = [some_rule(random) for _ in range(random.randrange(1, 7))]
        principal, facts = random.choice(principals), some_facts(random)
        expected = sum(RIGHTS[name] for name in frozenset().union(*(rule.gives(principal, facts) for rule in rules)))
        for order in (rules, rules[::-1]):
            text = "\n".join(rule.line() for rule in order)
            found = parse_rules(text.encode()).of(principal)
            assert found.rights(facts) == expected, (text, principal, facts)
            # What is concluded without asking for the ledger is never wrong.
            assert not found.everywhere & ~expected
            assert not expected & ~found.ever
            assert found.may_ever(expected)
            assert found.may_ever(ANY_RIGHT) or not expected


def test_rules_of_the_documentation_are_a_rules_file() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    (text,) = re.findall(r"```rules\n(.*?)```", page, re.DOTALL)
    rules = parse_rules(text.encode())
    assert len(rules) == 6
    assert rules.of(Principal("analyst", "digest")).rights(LedgerFacts(1, log="clicks")) == READ
    assert rules.of(Principal("billing", "token")).rights(LedgerFacts(1500)) == READ
