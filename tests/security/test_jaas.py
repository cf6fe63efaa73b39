"""JAAS files: the grammar of Java's `ConfigFile`; any other text is one clear error."""

from __future__ import annotations

import random

import pytest

from bkspark.security.jaas import FILE_CHARS_MAX, JaasError, LoginModule, parse

DIGEST = "org.apache.zookeeper.server.auth.DigestLoginModule"


def only(text: str) -> dict[str, str]:
    """Return the options of a text's only module."""
    ((module,),) = parse(text).values()
    return dict(module.options)


def values(text: str) -> dict[str, str]:
    return only(f"S {{ c required {text}; }};")


def test_file_of_apaches_documentation_is_read() -> None:
    text = (
        f"""
    /* both sides */
    Bookie {{ // of a bookie
        {DIGEST} required
        user_hd="testpwd" user_other='';
    }};
    """.replace("user_other=''", 'user_other=""')
        + (
            "BookKeeper { com.sun.security.auth.module.Krb5LoginModule REQUIRED useKeyTab=true\n"
            ' keyTab="/etc/k.keytab" principal="writer@TEST" ; };'
        )
    )
    sections = parse(text)
    assert list(sections) == ["Bookie", "BookKeeper"]
    assert sections["Bookie"] == (LoginModule(DIGEST, "required", {"user_hd": "testpwd", "user_other": ""}),)
    (kerberos,) = sections["BookKeeper"]
    assert (kerberos.class_name, kerberos.flag) == ("com.sun.security.auth.module.Krb5LoginModule", "required")
    assert kerberos.options == {"useKeyTab": "true", "keyTab": "/etc/k.keytab", "principal": "writer@TEST"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a=b", {"a": "b"}),
        ("a = b", {"a": "b"}),
        ("a=b a=c", {"a": "c"}),
        ('"a b"="c=;}"', {"a b": "c=;}"}),
        (r'a="\"\\\n\t\101\0"', {"a": '"\\\n\tA\0'}),
        (r'a="\400\q"', {"a": " 0q"}),
        ('a="//no comment"', {"a": "//no comment"}),
        ("a=b / a comment, up to the end of the line\n", {"a": "b"}),
        ("a=b/c\n d=e", {"a": "b", "d": "e"}),
        ("/**/ a /* x \n */ = /***/ b", {"a": "b"}),
        ("a=x1.2-3_$*", {"a": "x1.2-3_$*"}),
        ("a=\u00e4\u4e00", {"a": "\u00e4\u4e00"}),
        ('a="x${/}y"', {"a": "x/y"}),
        ('a="x${/y"', {"a": "x${/y"}),
        ('a="x${{p}}${/}y"', {"a": "x${{p}}/y"}),
        ('a="x${{p${/}y"', {"a": "x${{p${/}y"}),
        ('a="x${{p}${/}}}y"', {"a": "x${{p}${/}}}y"}),
    ],
)
def test_values_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert values(text) == expected


def test_value_may_name_a_property() -> None:
    ((module,),) = parse('S { c optional k="${user.home}/k.keytab"; };', {"user.home": "/home/writer"}).values()
    assert module.options["k"] == "/home/writer/k.keytab"


def test_section_may_have_no_module_and_several() -> None:
    sections = parse("A { }; B { c required; d sufficient x=y; };")
    assert [len(modules) for modules in sections.values()] == [0, 2]
    assert parse("") == parse("  // nothing") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\ufeffA { B required; };", "line 1: it begins with a byte order mark"),
        ("A", "line 1: the text ends where '{' is missing"),
        ("A {", "line 1: the text ends where '}' is missing"),
        ("A { };\nA { };", "line 2: a second section 'A'"),
        ("A { c required };", "line 1: an option or ';' is missing"),
        ("A { c perhaps; };", "the flag of 'c' must be one of required, requisite, sufficient, optional"),
        ("A { c required\n a; };", "line 2: '=' is missing"),
        ("A { c required a=; };", "the value of 'a' is missing"),
        ("A { c required a=1234; };", "needs double quotes"),
        ("A { c required a=-x; };", "needs double quotes"),
        ("A { c required a='x'; };", "needs double quotes"),
        ('A { c required a="x;\n };', "a text in quotes is not closed on its line"),
        ('A { c required a="${home}"; };', "the value of 'a' names a property that is not known here"),
        ("A { c required; }", "the text ends where ';' is missing"),
        ("A { c required; }; /* ", "a comment that begins with /* has no end"),
        ("{ };", "the name of a section is missing"),
        ("x" * (FILE_CHARS_MAX + 1), "it has 1048577 characters"),
    ],
)
def test_other_text_is_an_error_that_names_the_line(text: str, message: str) -> None:
    with pytest.raises(JaasError) as caught:
        parse(text)
    assert message in str(caught.value)


def test_neither_errors_nor_reprs_show_values() -> None:
    """They are passwords."""
    (modules,) = parse('S { c required password="hunter2"; };').values()
    assert "hunter2" not in repr(modules)
    for damaged in ('a="hunter2', 'a="hunter2" b', 'a="hunter2" "hunter3"=', 'a="${hunter2}"'):
        with pytest.raises(JaasError) as caught:
            values(damaged)
        assert "hunter2" not in str(caught.value)


def _text(value: str) -> str:
    """Return a value in quotes, with escapes for what they need."""
    escaped = "".join(f"\\{ord(char):03o}" if char in '"\\\r\n' else char for char in value)
    return f'"{escaped}"'


def test_what_is_written_with_quotes_is_read_back() -> None:
    chance = random.Random(5)
    alphabet = 'ab "\\{}=;/*\n\r\t\u00e4\u4e00\0\x7f'
    for _ in range(2000):
        options = {
            "".join(chance.choices(alphabet, k=chance.randrange(6))): "".join(
                chance.choices(alphabet, k=chance.randrange(12))
            )
            for _ in range(chance.randrange(4))
        }
        written = " ".join(f"{_text(key)} = {_text(value)}" for key, value in options.items())
        assert values(written) == options, written


def test_damaged_files_fail_with_the_one_error() -> None:
    """Any other exception fails this test."""
    chance = random.Random(6)
    whole = f'/* c */ Bookie {{ {DIGEST} required user_a="b\\"c\\101" x=y; }};\nB {{ }}; // end'
    alphabet = '{}=;"\\/* \n$ax0\u00e9\ud800'
    parsed = 0
    for _ in range(8_000):
        text = list(whole)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(text))
            text[at : at + chance.randrange(3)] = chance.choices(alphabet, k=chance.randrange(3))
        try:
            parse("".join(text))
            parsed += 1
        except JaasError:
            pass
    assert parsed
