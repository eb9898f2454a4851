#!/usr/bin/env python3
"""tools/docs/doc_comments.py HEADER: the header with its ordinary comments as Doxygen's, on standard output.

api.py hands it to Doxygen. Line numbers stay what they are. The rules, for those who write headers:

- The comment behind `#pragma once` describes the file.
- A comment belongs to the declaration right below it, and to those that follow without an empty line and without a
  comment of their own. So one comment may stand above a group.
- A comment behind a declaration on its last line, or behind an enumerator, belongs to it, after the comment above it.
- The enumerators of an enum on one line, and the constructors of a class that has nothing but constructors, have the
  comment of their type.
- Left out: what is private, macros and forward declarations. Without a comment of their own also destructors,
  comparisons, copies and moves, inherited constructors, defaulted and deleted functions.
"""

import re
import sys
from dataclasses import dataclass, field

TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<directive>^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*)
    |(?P<text>R"(?P<mark>[^()\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')
    |(?P<word>\w+(?:'\d+)*)
    |(?P<space>\s+)
    |(?P<sign>::|->|<=>|[-+*/%^&|<>=!]=|&&|\|\||.)""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)


@dataclass
class Token:
    kind: str
    text: str
    start: int
    line: int

    @property
    def end(self):
        return self.start + len(self.text)


@dataclass
class Declaration:
    tokens: list  # without comments and bodies
    last: Token = None
    members: list = field(default_factory=list)  # of a type
    kind: str = ""  # class, enum, enumerator, other
    own: list = field(default_factory=list)  # comments above it
    docs: list = field(default_factory=list)  # the same, or those of its group
    trailing: list = field(default_factory=list)
    public: bool = True  # in its class
    head: int = 0  # of a type: how many tokens stand before its body

    @property
    def words(self):
        return [token.text for token in self.tokens]


def tokenize(text):
    tokens, line = [], 1
    for match in TOKEN.finditer(text):
        tokens.append(
            Token(match.lastgroup if match.lastgroup != "mark" else "text", match.group(), match.start(), line)
        )
        line += match.group().count("\n")
    return tokens


class Parser:
    """Finds the declarations of namespaces, classes and enums; what is in bodies of functions is skipped."""

    def __init__(self, text):
        self.all = tokenize(text)
        self.code = without_annotations(
            [token for token in self.all if token.kind not in ("comment", "space", "directive")]
        )
        self.place = 0
        self.declarations = []  # all, in order
        self.scope("namespace")

    def skip(self, opening, closing):
        """Moves behind the bracket that closes the one at this place."""
        depth = 0
        while self.place < len(self.code):
            text = self.code[self.place].text
            depth += (text == opening) - (text == closing)
            self.place += 1
            if depth == 0:
                return

    def scope(self, kind, public=True):
        """Reads declarations up to the brace that closes the scope; returns those of the scope itself."""
        siblings = []
        while self.place < len(self.code):
            token = self.code[self.place]
            following = self.code[self.place + 1].text if self.place + 1 < len(self.code) else ""
            if token.text in ("}", ";"):
                if token.text == "}":
                    break
                self.place += 1
            elif token.text in ("public", "private", "protected") and following == ":":
                public = token.text != "private"
                self.place += 2
            elif kind == "enum":
                siblings.append(self.enumerator())
            else:
                siblings.append(self.declaration())
                siblings[-1].public = public
        return siblings

    def enumerator(self):
        declaration = Declaration([], kind="enumerator")
        self.declarations.append(declaration)
        while self.code[self.place].text not in (",", "}"):
            declaration.tokens.append(self.code[self.place])
            declaration.last = self.code[self.place]
            self.place += 1
        if self.code[self.place].text == ",":
            declaration.last = self.code[self.place]
            self.place += 1
        return declaration

    def declaration(self):
        declaration = Declaration([], kind="other")
        self.declarations.append(declaration)
        while self.place < len(self.code):
            token = self.code[self.place]
            if token.text == "<" and declaration.words[-1:] == ["template"]:
                begin = self.place
                self.skip_angles()
                declaration.tokens += self.code[begin : self.place]
                continue
            if token.text == "(":
                begin = self.place
                self.skip("(", ")")
                declaration.tokens += self.code[begin : self.place]
                declaration.last = self.code[self.place - 1]
                continue
            if token.text == ";":
                declaration.last = token
                self.place += 1
                return declaration
            if token.text == "}":  # of the scope: the text ends in the middle of a declaration
                return declaration
            if token.text == "{":
                if self.braces(declaration):
                    return declaration
                continue
            declaration.tokens.append(token)
            declaration.last = token
            self.place += 1
        return declaration

    def skip_angles(self):
        depth = 0
        while True:
            text = self.code[self.place].text
            depth += (text == "<") - (text == ">")
            self.place += 1
            if depth == 0:
                return

    def braces(self, declaration):
        """What an opening brace begins; True where the declaration ends with its closing one."""
        words = outside_brackets(without_template(declaration.words))
        self.place += 1
        if "namespace" in words or words[:1] == ["extern"]:
            declaration.kind = "namespace"
            declaration.members = self.scope("namespace")
            declaration.last = self.code[self.place]
            self.place += 1
            return True
        kind = {"enum": "enum", "class": "class", "struct": "class", "union": "class"}.get(
            words[0] if words else "", ""
        )
        initialises = any(word == "=" and words[place - 1] != "operator" for place, word in enumerate(words))
        if kind and not initialises:
            declaration.kind = kind
            declaration.head = len(declaration.tokens)
            declaration.members = self.scope(kind, "class" not in words)
            self.place += 1
            return False
        self.place -= 1
        self.skip("{", "}")
        declaration.last = self.code[self.place - 1]
        if ":" in words and re.fullmatch(r"\w+|>", words[-1]):  # a member's initialiser in a constructor's list
            declaration.tokens.append(declaration.last)
            return False
        # A body ends a function; an initialiser is followed by a semicolon or a comma.
        following = self.code[self.place].text if self.place < len(self.code) else ""
        return "(" in words and not initialises and following not in (";", ",")


def without_annotations(tokens):
    """The tokens without our macros, which stand for attributes, and what they are given."""
    result, place = [], 0
    while place < len(tokens):
        if not tokens[place].text.startswith("PACELINE_"):
            result.append(tokens[place])
            place += 1
            continue
        place += 1
        depth = 0
        while place < len(tokens) and (depth or tokens[place].text == "("):
            depth += (tokens[place].text == "(") - (tokens[place].text == ")")
            place += 1
    return result


def without_template(words):
    """The words of a declaration without `template <...>`."""
    while words[:1] == ["template"]:
        depth = 0
        for place, word in enumerate(words[1:], 1):
            depth += (word == "<") - (word == ">")
            if depth == 0:
                words = words[place + 1 :]
                break
        else:
            return []
    return words


def outside_brackets(words):
    """The words without what stands in round brackets."""
    result, depth = [], 0
    for word in words:
        depth -= word == ")"
        if depth == 0:
            result.append(word)
        depth += word == "("
    return result


def constructs(declaration, name):
    """Is it a constructor of the class of that name?"""
    words = [word for word in without_template(declaration.words) if word not in ("explicit", "constexpr", "inline")]
    return words[:2] == [name, "("]


def name_of(declaration):
    words = without_template(declaration.words)
    for place, word in enumerate(words):
        if word in ("class", "struct", "union"):
            named = [other for other in words[place + 1 :] if re.fullmatch(r"\w+", other)]
            return named[0] if named else ""
    return ""


def is_forward(declaration):
    words = without_template(declaration.words)
    return declaration.kind == "other" and (
        (words[:1] in (["class"], ["struct"]) and words[-1] == ";" and len(words) <= 3)
        or (words[:1] in (["class"], ["struct"]) and re.fullmatch(r"\w+", words[-1] or "") and len(words) == 2)
        or words[:2] in (["friend", "class"], ["friend", "struct"])
        or (words[:2] == ["enum", "class"] and "{" not in words)
    )


def goes_without_saying(declaration, name):
    """What is left out where it has no comment of its own."""
    words = without_template(declaration.words)
    text = " ".join(words)
    if declaration.kind != "other":
        return False
    return bool(
        words[-2:] in (["=", "default"], ["=", "delete"])
        or "~" in words[:2]
        or (words[:1] == ["using"] and len(words) == 4 and words[2] == "::")
        or (words[:1] == ["using"] and len(words) == 6 and words[-1] == words[-3])
        or re.search(r"\boperator (==|!=|<|<=>) \(", text)
        or (name and re.match(rf"(?:explicit )?{name} \( (?:const )?{name} &&? (?:\w+ )?\)", text))
        or (name and re.match(rf"{name} & operator = \(", text))
    )


def attach(parser):
    """Gives every declaration its comments."""
    comments, lines_with_code = {}, set()
    for token in parser.all:
        if token.kind == "comment":
            comments[token.line] = token
        elif token.kind != "space":
            lines_with_code.update(range(token.line, token.line + token.text.count("\n") + 1))

    def above(line):
        block = []
        while line - 1 in comments and line - 1 not in lines_with_code:
            line -= 1
            block.insert(0, comments[line])
        return block

    def walk(declarations):
        group, end = [], None
        for declaration in declarations:
            if not declaration.tokens:
                continue
            first = declaration.tokens[0]
            alone = all(other.line != first.line or other.start >= first.start for other in parser.code)
            declaration.own = above(first.line) if alone else []
            last = declaration.last
            after = comments.get(last.line) if declaration.kind != "namespace" else None
            if (
                after
                and after.start >= last.end
                and not any(other.line == last.line and other.start >= last.end for other in parser.code)
            ):
                declaration.trailing = [after]
            if declaration.own:
                group = declaration.own
            elif end is None or first.line > end + 1:
                group = []
            declaration.docs = declaration.own or ([] if declaration.trailing else group)
            end = last.line
            walk(declaration.members)

    inner = {id(member) for declaration in parser.declarations for member in declaration.members}
    walk([declaration for declaration in parser.declarations if id(declaration) not in inner])

    for declaration in parser.declarations:
        members = declaration.members
        said = declaration.docs + declaration.trailing
        if declaration.kind == "enum" and members and members[0].tokens[0].line == declaration.last.line:
            for member in members:
                if not member.docs and not member.trailing:
                    member.docs = said
                if member.trailing == declaration.trailing:
                    member.docs, member.trailing = said, []
        name = name_of(declaration) if declaration.kind == "class" else ""
        if name and members and all(constructs(member, name) for member in members):
            for member in members:
                if not member.docs and not member.trailing:
                    member.docs = declaration.docs
        for member in members:
            member.owner = name


def escape(text):
    """Plain text for Doxygen, which is told of no Markdown: only `code` in backticks is more than text."""

    def plain(part):
        part = re.sub(r"[\\@&$#<>%\"]", lambda match: "\\" + match.group(), part)
        part = part.replace("::", "\\::").replace("--", "\\--")
        return re.sub(r"(?<=/)(?=\*)|(?<=\*)(?=/)", "<!-- -->", part)  # a path such as mode/*.cc opens no comment

    parts = text.split("`")
    if len(parts) % 2 == 0:
        return plain(text).replace("`", "'")
    return "".join(f"<code>{plain(part)}</code>" if place % 2 else plain(part) for place, part in enumerate(parts))


def content(comment):
    return comment.text[2:].rstrip() if comment.text.startswith("//") else comment.text[2:-2].strip()


def lines_of(block):
    """The lines of a comment; indented ones are code."""
    result, code = [], False
    texts = [content(comment) for comment in block]
    for place, text in enumerate(texts):
        begins = place and not texts[place - 1].strip()
        is_code = text.startswith("   ") and bool(code or begins)
        if is_code and not code:
            result[-1] = "\\code{.cpp}"
        if code and not is_code:
            result[-1] += "\\endcode"
        code = is_code
        result.append(text if is_code else escape(text.removeprefix(" ")))
    if code:
        result[-1] += "\\endcode"
    return result


def one_line(block):
    """A comment on one line, for those of a group that stand below its first."""
    lines = [content(comment).strip() for comment in block]
    return " ".join(escape(line) if line else "<p>" for line in lines)


def filtered(text):
    parser = Parser(text)
    attach(parser)
    edits = []  # (start, end, replacement)
    for token in parser.all:
        if token.kind == "directive" and re.match(r"\s*#\s*define", token.text):
            edits.append((token.start, token.end, None))

    first = next((token for token in parser.all if token.kind == "directive"), None)
    head = []
    for token in parser.all:
        if token.kind == "comment" and first and token.line == first.line + 1 + len(head):
            head.append(token)
    used = set()
    if head:
        edits.append((first.start, head[0].start, "/** \\file\n"))  # in place of the pragma
        replace_block(edits, head, [], opening="")
        used.update(id(token) for token in head)
    else:
        edits.append((0, 0, "/** \\file */ "))

    for declaration in parser.declarations:
        if not declaration.tokens:
            continue
        start = declaration.tokens[0].start
        if (
            not declaration.public
            or is_forward(declaration)
            or (
                goes_without_saying(declaration, getattr(declaration, "owner", ""))
                and not declaration.own
                and not declaration.trailing
            )
        ):
            edits.append((start, declaration.last.end, None))
            continue
        trailing = [one_line(declaration.trailing)] if declaration.trailing else []
        edits += one_by_one(declaration, " <p> ".join([one_line(declaration.docs)] * bool(declaration.docs) + trailing))
        if declaration.own and not any(id(token) in used for token in declaration.own):
            used.update(id(token) for token in declaration.own)
            replace_block(edits, declaration.own, trailing)
        elif declaration.docs or trailing:
            edits.append(
                (
                    start,
                    start,
                    "/** " + " <p> ".join([one_line(declaration.docs)] * bool(declaration.docs) + trailing) + " */ ",
                )
            )

    return apply(text, edits)


def one_by_one(declaration, said):
    """Edits that make one declaration of each variable, with the comment, which Doxygen gives to the first alone."""
    tokens, words = declaration.tokens, declaration.words
    if declaration.kind == "enum" and declaration.head < len(tokens):  # enum class Name { ... } variable = ...;
        start = tokens[declaration.head].start
        return [(start, start, f"; /** {said} */ {words[2 if words[1] == 'class' else 1]} ")]
    if declaration.kind != "other" or "(" in words or words[0] in ("using", "template", "friend"):
        return []
    edits, depth, name = [], 0, None
    for token, following in zip(tokens, tokens[1:], strict=False):
        depth += (token.text in "<[{") - (token.text in ">]}")
        if depth == 0 and name is None and following.text in ("=", ",", "["):
            name = token  # of the first variable; the type stands before it
        if depth == 0 and token.text == ",":
            kind = " ".join(words[: tokens.index(name)])
            edits.append((token.start, token.end, f"; /** {said} */ {kind}"))
    return edits


def replace_block(edits, block, trailing, opening="/** "):
    lines = lines_of(block)
    for place, (comment, line) in enumerate(zip(block, lines, strict=True)):
        begin = opening if place == 0 else ""
        end = ("".join(f" <p> {more}" for more in trailing) + " */") if place == len(block) - 1 else ""
        edits.append((comment.start, comment.end, begin + line + end))


def apply(text, edits):
    result, place = [], 0
    for start, end, replacement in sorted(edits, key=lambda edit: (edit[0], edit[1])):
        if start < place:
            continue
        result.append(text[place:start])
        if replacement is None:
            replacement = re.sub(r"[^\n]", " ", text[start:end])
        result.append(replacement)
        place = max(place, end)
    result.append(text[place:])
    return "".join(result)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        sys.stdout.write(filtered(file.read()))
