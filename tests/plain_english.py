"""Plain English in everything that people read: pages, messages, docstrings, comments, names of tests.

    python -m tests.plain_english      prints `file:line: found: say ... instead`; exit code 1 when there is any

It reads:

* README.md and the other pages, and the head of the Makefile; code in pages is left out;
* every text of the product's modules, with their docstrings and comments;
* docstrings, comments and names of test functions in tests, benchmarks and examples;
* names of variables, functions and constants in all of them, for a few words;
* text, and the docstrings and comments in code, of the notebooks.

It also prints each item of a list without numbers that begins with the same sentence as an earlier item of the page.

Code in back quotes is left out of all of them. `EXEMPT` lists what is not read, each with its reason.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "benchmarks/*.md", "Makefile")
PACKAGES = ("bkspark", "bookie_service", "bkspark_console", "pyspark_bookkeeper")
PROGRAMS = ("tests", "benchmarks", "examples")
"""Their docstrings, comments and names of tests are read; other texts in them are data."""
NOTEBOOKS = "notebooks/*.ipynb"
EXEMPT = {
    "tests/test_plain_english.py": "it contains an example of each pattern",
    "tests/plain_english.py": "it contains the patterns",
}
"""Paths, or folders with a slash at the end, that are not read, and why."""

_ITEM_START = r"(?<=[*|-]\s)"
_SENTENCE_START = rf"(?:\A|(?<=[.;:]\s)|(?<=\n)|{_ITEM_START})"
"""Where a sentence may begin in a text whose lines are not indented."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """What is not to be written, and what to write instead."""

    found: re.Pattern[str]
    instead: str
    parts: tuple[str, ...] = ("",)
    """Each match contains one of them, where white space is one space. A text without them is not searched, which takes
    twenty times as long."""

    def may_match(self, words: str) -> bool:
        """Return whether a text may have a match; `words`: the text, with one space for all white space."""
        return any(part in words for part in self.parts)


PATTERNS = (
    Pattern(
        re.compile(r"\bOf\s+(?!course\b)[\w`']"),
        "begin with the subject: not 'Of X there is Y', but 'X has Y'",
        ("Of ",),
    ),
    Pattern(re.compile(r"\b[Ww]hoever\b"), "name the subject: 'the client that', 'a process which'", ("hoever",)),
    Pattern(re.compile(r"\bWho\s+(?![^.!?|]*\?)[a-z]"), "name the subject: 'a client that', not 'Who'", ("Who ",)),
    Pattern(
        re.compile(r"\b[Ss]tands?\b(?!-ins?\b)(?!\s+in\s+for\b)(?!\s+for\b(?!\s+(?:all|each|every)\b))"),
        "say 'is', 'lies' or 'are written'",
        ("tand",),
    ),
    Pattern(
        re.compile(
            r"(?<!\b[Tt]here )\b(?:is|are|was|were)\s+no\s+"
            r"(?!longer\b|more\b|less\b|one\b|way\b|room\b|need\b|such\b|\w+er\b)"
        ),
        "say 'is not a ...': 'is no X' is read as 'there is no X'",
        ("is no ", "are no ", "was no ", "were no "),
    ),
    Pattern(
        re.compile(
            r"\b[Bb]ehind\b(?<!\blags behind)(?<!\blag behind)(?<!\blagging behind)(?<!\bfall behind)"
            r"(?<!\bfalls behind)(?<!\bfar behind)"
        ),
        "say 'after', 'above' or 'beyond'; a reader may lag behind",
        ("ehind",),
    ),
    Pattern(re.compile(r"\b[Ii]n\s+front\b"), "say 'before' or 'below'", ("n front",)),
    Pattern(re.compile(r"\b[Tt]old\b"), "say 'reported', 'returned', 'given' or 'known by'", ("told", "Told")),
    Pattern(
        re.compile(r"(?<![Tt]here )\b(?:is|are|was|were|be|as|has|have|gets?|gives?)\s+none\b(?!\s+of\b)"),
        "say 'no' or 'not one'",
        (" none",),
    ),
    Pattern(re.compile(r"\b(?<![Tt]here )(?:is|are|was|were)\s+none\s+of\b"), "say 'is not one of'", (" none of",)),
    Pattern(
        re.compile(rf"(?:\A|(?<=[.;]\s)|{_ITEM_START})of\s+[\w' ]+\s(?:that|which)\b[^.;:,]*\s(?:it|they)\s"),
        "begin with the subject: not 'of bytes that ... it raises', but 'bytes that ... raise'",
        (". of ", "; of ", "* of ", "- of ", "| of "),
    ),
    Pattern(re.compile(r"\banew\b"), "say 'again'", ("anew",)),
    Pattern(re.compile(r"\bof\s+late\b"), "say 'recently'", ("of late",)),
    Pattern(re.compile(r"\bin\s+vain\b"), "say 'without result'", ("in vain",)),
    Pattern(re.compile(r"\bwithout\s+a\s+word\b"), "say 'silently' or 'without a message'", ("without a word",)),
    Pattern(re.compile(r"\belse\s+than\b"), "say 'is not ...'", ("else than",)),
    Pattern(re.compile(r"\bfor\s+so\s+long\b"), "say 'for this long', or name the time", ("for so long",)),
    Pattern(re.compile(r"\bfor\s+dead\b(?!\s+\w)"), "say 'regard as'", ("for dead",)),
    Pattern(
        re.compile(
            r",\s+for\s+(?:it|its|they|there|this|that|these|those|the\s+\w+)\s+"
            r"(?:is|are|was|were|has|have|cannot|can|may|must|does|do)\b"
        ),
        "say 'because'",
        (", for ",),
    ),
    Pattern(re.compile(r"\b(?:has|have)\s+not(?=[.;:,])"), "say 'lacks' or 'does not have'", ("has not", "have not")),
    Pattern(
        re.compile(r"\b(?:[Ss]omebody|[Nn]obody|[Ee]verybody|[Aa]nybody)\b"),
        "name the role: 'no client', 'another process'",
        ("ody",),
    ),
    Pattern(
        re.compile(r"\bso\s+many\b(?!\s+that\b)(?!\s+[\w' ]+\bthat\b)"),
        "say 'this many', or name the number",
        ("so many",),
    ),
    Pattern(re.compile(r"\b(?:[Nn]othing|[Nn]one)\s+but\b"), "say 'only'", ("othing but", "one but")),
    Pattern(
        re.compile(r"\b[Aa]ll\s+but\b(?!\s+(?:one|the\s+last|the\s+one)\b)"),
        "say 'all except': 'all but' also means 'nearly'",
        ("ll but",),
    ),
    Pattern(re.compile(r"\b[Bb]esides\b"), "say 'also', 'in addition to' or 'without'", ("esides",)),
    Pattern(
        re.compile(rf"{_SENTENCE_START}(?:So|Nor|Neither)\s+(?:do|does|is|are|has|have|can|must|may)\b(?![^.]*\?)"),
        "begin with the subject: not 'So does X', but 'X does, too'",
        ("So ", "Nor ", "Neither "),
    ),
    Pattern(
        re.compile(
            r"\b(?:holds?|keeps?)\s+(?:up\s+)?(?:no|nothing)\b(?=[^.]*\b(?:up|out)\b)|\bholds?\s+up\s+(?:no|nothing)\b"
        ),
        "say 'does not delay' or 'cannot block'",
        ("hold no", "holds no", "hold up", "holds up", "keep no", "keeps no", "keep up", "keeps up"),
    ),
    Pattern(re.compile(r"\b[Mm]end(?:s|ed|ing)?\b"), "say 'repair', 'fix' or 'correct'", ("mend", "Mend")),
    Pattern(re.compile(r"\ball\s+the\s+same\b(?!\s+(?:size|length|kind)\b)"), "say 'nevertheless'", ("all the same",)),
    Pattern(
        re.compile(rf"{_SENTENCE_START}What\b[^.?!:;,]*\b(?:is|are)\b[^.?!:;,]*,\s+(?:a|an|the|it|they|its|no)\b"),
        "begin with the subject: not 'What is cached, a thread reads', but 'A thread reads what is cached'",
        ("What ",),
    ),
)

NAME_PATTERNS = (
    Pattern(
        re.compile(r"(?<!there)(?:^|_)(?:is|are|was|were|be|as|has|have|gets?|gives?|holds?)_none(?!_of)(?=_|$)"),
        "say 'no' or 'not a'",
    ),
    Pattern(re.compile(r"(?:^|_)(?:somebody|nobody|everybody|anybody|whoever)(?=_|$)"), "name the role"),
    Pattern(re.compile(r"(?:^|_)anew(?=_|$)"), "say 'again'"),
    Pattern(re.compile(r"(?:^|_)told(?=_|$)"), "say 'reported' or 'returned'"),
    Pattern(re.compile(r"(?:^|_)stands?(?=_|$)(?!_for_)"), "say 'is' or 'are'"),
    Pattern(re.compile(r"(?<!lags)(?<!lag)(?<!lagging)(?<!fall)(?<!falls)_behind(?=_|$)"), "say 'after' or 'above'"),
    Pattern(re.compile(r"_in_front(?=_|$)"), "say 'before' or 'below'"),
    Pattern(re.compile(r"(?:^|_)so_many(?=_|$)"), "say 'this many', or name the number"),
    Pattern(re.compile(r"_all_the_same(?=_|$)"), "say 'nevertheless' or 'still'"),
    Pattern(
        re.compile(
            r"(?<!there)_(?:is|are|was|were)_no_(?!longer|more|less|one(?:_|$)|way|room|need|such|[a-z]+er(?:_|$))"
        ),
        "say 'is not a ...'",
    ),
    Pattern(re.compile(r"^test_of_"), "begin with the subject"),
    Pattern(re.compile(r"(?:^|_)(?:nothing|none)_but_(?!\w*_(?:is|are)_)"), "say 'only'"),
    Pattern(re.compile(r"_besides(?=_|$)"), "say 'also' or 'in addition to'"),
    Pattern(re.compile(r"_holds?_up_(?:no|nothing)(?=_|$)"), "say 'delays no'"),
)
"""What names of test functions must not contain."""

IDENTIFIERS = Pattern(
    re.compile(r"(?:^|_)(?:told|anew|somebody|nobody|everybody|anybody|whoever)(?=_|$)", re.IGNORECASE),
    "say what it is: 'reported', 'message', 'again'",
)
"""What names of variables, functions and constants must not contain, in all programs."""

_FENCE = re.compile(r"^(```|~~~).*?^\1$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)(?:(?: {4}|\t).*\n|\n)+", re.MULTILINE)
_INDENT = re.compile(r"(?<=\n)[ \t]+")
_ITEM = re.compile(r"^ *[*-] +((?:.*\n)(?:(?! *(?:[*-]|[0-9]+\.) |#).*\S.*\n)*)", re.MULTILINE)
_FIRST_SENTENCE = re.compile(r".*?[.?!](?=\s)")
_REPEATED_WORDS_MIN = 5
"""Items whose first sentence has fewer words, such as names of options, may be on a page twice."""
_INLINE = re.compile(r"`[^`\n]+`")
_MAY_NAME = re.compile(
    r"told|TOLD|anew|ANEW|(?:[Ss]ome|[Nn]o|[Ee]very|[Aa]ny)body|(?:SOME|NO|EVERY|ANY)BODY|whoever|WHOEVER"
)
_TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text and the line of its file on which it begins."""

    line: int
    words: str


def findings(root: Path = ROOT) -> list[str]:
    """Return a line for each pattern that is found below `root`."""
    found = []
    for path, texts in _sources(root):
        for text in texts:
            words, lines = _on_one_line(text.words), _INDENT.sub("", text.words)
            for pattern in (pattern for pattern in PATTERNS if pattern.may_match(words)):
                for match in pattern.found.finditer(lines):
                    line = text.line + lines.count("\n", 0, match.start())
                    found.append(f"{path.relative_to(root)}:{line}: {' '.join(match[0].split())!r}: {pattern.instead}")
    found += [
        f"{path.relative_to(root)}:{line}: {sentence!r}: say it once: line {first} begins with the same sentence"
        for path, line, sentence, first in _repeated_items(root)
    ]
    for path, line, name in _names(root):
        for pattern in NAME_PATTERNS:
            if pattern.found.search(name):
                found.append(f"{path.relative_to(root)}:{line}: {name}: {pattern.instead}")
    found += [
        f"{path.relative_to(root)}:{line}: {name}: {IDENTIFIERS.instead}" for path, line, name in _identifiers(root)
    ]
    return found


def _sources(root: Path) -> Iterator[tuple[Path, Iterator[Text]]]:
    for page in PAGES:
        for path in sorted(root.glob(page)):
            yield path, iter([_prose(path)])
    for folder in (*PACKAGES, *PROGRAMS):
        for path in sorted((root / folder).rglob("*.py")):
            if not _is_exempt(path.relative_to(root).as_posix()):
                yield path, _code(path.read_text(), with_literals=folder in PACKAGES)
    for path in sorted(root.glob(NOTEBOOKS)):
        yield path, _cells(path)


def _repeated_items(root: Path) -> Iterator[tuple[Path, int, str, int]]:
    """Yield (page, line, first sentence, line of the first one) of each item that is there again and has no number."""
    for path in (path for page in PAGES for path in sorted(root.glob(page)) if path.suffix == ".md"):
        text = _without_blocks(path.read_text())
        first_lines: dict[str, int] = {}
        for item in _ITEM.finditer(text):
            words = " ".join(item[1].split())
            sentence = match[0] if (match := _FIRST_SENTENCE.match(f"{words} ")) else words
            line = 1 + text.count("\n", 0, item.start())
            first = first_lines.setdefault(sentence, line)
            if first != line and len(sentence.split()) >= _REPEATED_WORDS_MIN:
                yield path, line, sentence, first


def _is_exempt(path: str) -> bool:
    return path.endswith("_pb2.py") or any(
        path == exempt or (exempt.endswith("/") and path.startswith(exempt)) for exempt in EXEMPT
    )


def _names(root: Path) -> Iterator[tuple[Path, int, str]]:
    """Yield file, line and name of each test function."""
    for path in sorted((root / "tests").rglob("test_*.py")):
        if not _is_exempt(path.relative_to(root).as_posix()):
            source = path.read_text()
            for match in _TEST.finditer(source):
                yield path, 1 + source.count("\n", 0, match.start(1)), match[1]


def _identifiers(root: Path) -> Iterator[tuple[Path, int, str]]:
    """Yield file, line and name of each variable, function or constant that `IDENTIFIERS` finds."""
    for folder in (*PACKAGES, *PROGRAMS):
        for path in sorted((root / folder).rglob("*.py")):
            if _is_exempt(path.relative_to(root).as_posix()):
                continue
            source = path.read_text()
            if not _MAY_NAME.search(source):
                continue
            for token in tokenize.generate_tokens(io.StringIO(source).readline):
                is_test = token.string.startswith("test_")
                if token.type == tokenize.NAME and not is_test and IDENTIFIERS.found.search(token.string):
                    yield path, token.start[0], token.string


def _prose(page: Path) -> Text:
    """Return a page without its code; lines stay where they are."""
    text = page.read_text()
    if page.name == "Makefile":
        text = re.match(r"(?:#.*\n)*", text)[0]  # type: ignore[index]
    else:
        text = _without_blocks(text)
    return Text(1, _without_code(text))


def _without_blocks(text: str) -> str:
    """Return the text of a page without its blocks of code; lines stay where they are."""
    for code in (_FENCE, _INDENTED):
        text = code.sub(lambda block: "\n" * block[0].count("\n"), text)
    return text


def _code(source: str, *, with_literals: bool) -> Iterator[Text]:
    """Yield docstrings and comments of a program and, with literals, its other texts of several words.

    A program in which nothing matches is not parsed: that would take most of the time.
    """
    if not _may_match(source):
        return
    tree = ast.parse(source)
    docstrings = {id(node) for node in _docstrings(tree)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or " " not in node.value:
            continue
        if id(node) in docstrings:
            yield Text(node.lineno, _without_code(node.value))
        elif with_literals:
            yield Text(node.lineno, node.value)
    yield from _comments(source)


def _may_match(source: str) -> bool:
    """Return whether a pattern may match a text or comment of a program; seldom true when none does."""
    texts = _INDENT.sub("", source.replace('"""', " . ").replace('"', "\n").replace("('", "\n"))
    comments = "\n".join(line.split("#", 1)[1].strip() for line in source.splitlines() if "#" in line)
    return any(
        pattern.may_match(words) and pattern.found.search(text) is not None
        for text in (texts, comments)
        for words in (_on_one_line(text),)
        for pattern in PATTERNS
    )


def _on_one_line(text: str) -> str:
    """Return a text with one space for all white space. It begins like a sentence after another one."""
    return f". {' '.join(text.split())} "


def _docstrings(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield texts that are a statement of their own: of modules, classes, functions and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def _comments(source: str) -> Iterator[Text]:
    """Yield the comments; those on consecutive lines are one text, as a sentence may continue on the next line."""
    first, lines = 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if token.start[0] != first + len(lines) and lines:
            yield Text(first, _without_code("\n".join(lines)))
            lines = []
        if not lines:
            first = token.start[0]
        lines.append(token.string.lstrip("# "))
    if lines:
        yield Text(first, _without_code("\n".join(lines)))


def _cells(notebook: Path) -> Iterator[Text]:
    """Yield a notebook's text cells, and docstrings and comments of its code cells; lines count within a cell."""
    for cell in json.loads(notebook.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield Text(1, _without_code(source))
        elif cell["cell_type"] == "code" and not source.startswith("%"):
            yield from _code(source, with_literals=False)


def _without_code(text: str) -> str:
    return _INLINE.sub(lambda code: "`" * len(code[0]), text)


def main() -> int:
    found = findings()
    print(*found, sep="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
