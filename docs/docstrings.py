"""From our docstrings to reStructuredText.

A docstring is plain text in paragraphs, each of one of four kinds, which its first line tells:

    >>> an executed example
    name      what a parameter is, aligned in two columns, with further lines below the second column
        a formula or a table, indented
    prose, in which `names` stand between backticks

Read as reStructuredText, formulas such as |X_i - c| or sum_i would be markup. Here they stay what they are.
"""

from __future__ import annotations

import re

ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?:,)?\s{2,}(\S.*)$")
CODE = re.compile(r"`+([^`]+)`+")
MARKUP = re.compile(r"([\\*|_])")


def to_rst(lines: list[str]) -> list[str]:
    """The docstring in `lines` as lines of reStructuredText."""
    result: list[str] = []
    for paragraph in _paragraphs(lines):
        result += [*_rst(paragraph), ""]
    return result


def _paragraphs(lines: list[str]) -> list[list[str]]:
    """The runs of lines between blank ones. Indented runs that follow each other are one, for a formula may have gaps."""
    found: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            found[-1].append(line.rstrip())
        elif found[-1]:
            found.append([])
    return [paragraph for paragraph in found if paragraph]


def _rst(paragraph: list[str]) -> list[str]:
    first = paragraph[0]
    if first.startswith(">>>"):
        return paragraph
    if first.startswith(" "):
        return ["::", "", *(f"    {line}" for line in paragraph)]
    if ENTRY.match(first):
        return _entries(paragraph)
    return _prose(paragraph)


def _entries(paragraph: list[str]) -> list[str]:
    """A table of parameters as a definition list; text after it that is not indented goes on as prose."""
    result: list[str] = []
    for index, line in enumerate(paragraph):
        entry = ENTRY.match(line)
        if entry:
            result += [f"``{entry[1]}``", f"    {_text(entry[2])}"]
        elif line.startswith(" "):
            result.append(f"    {_text(line.strip())}")
        else:
            return [*result, "", *_prose(paragraph[index:])]
    return result


def _prose(paragraph: list[str]) -> list[str]:
    """Prose, in which a formula may stand: lines that are indented."""
    result: list[str] = []
    literal = False
    for line in paragraph:
        inside = line.startswith("  ") and not line.strip().startswith("- ")
        if inside and not literal:
            result += ["", "::", ""]
        elif literal and not inside:
            result.append("")
        literal = inside
        result.append(f"    {line}" if inside else _text(line))
    return result


def _text(line: str) -> str:
    """A line with names between backticks as code, and everything else as it is written."""
    parts, place = [], 0
    for code in CODE.finditer(line):
        parts += [MARKUP.sub(r"\\\1", line[place : code.start()]), f"``{code[1]}``"]
        place = code.end()
    text = "".join([*parts, MARKUP.sub(r"\\\1", line[place:])])
    return f"\\{text}" if re.match(r"[-+#.=] |\d+\. ", text) and not text.startswith(("- ", "1. ")) else text
