"""What the pages say of names and of each other: variables, plugins, links, lengths. Reads sources, runs nothing."""

import ast
import re
import unittest

from pages import COMMANDS, REFERENCE, SOURCE, TROUBLES, all_pages, code_in, names_of, section, tables, without_code

MODULES = ("base", "engine", "ndarray", "ops", "kvstore", "io", "nn", "tools", "examples")
VARIABLE = r"(?:PACELINE|DMLC|OMP|GOMP|AWS|SSL)_[A-Z0-9_]+"


def sources(*endings):
    for module in MODULES:
        for path in sorted((SOURCE / module).rglob("*")):
            if path.suffix in endings and not path.name.endswith("_test.cc"):
                yield path, path.read_text()


def tuples_of(path, *names):
    """Of a Python module, the tuples of strings that are assigned to these names."""
    found = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id in names:
            found[node.targets[0].id] = set(ast.literal_eval(node.value))
    return [found[name] for name in names]


class Variables(unittest.TestCase):
    """The environment variables that the code reads, in C++, Python and shell, are those of the page."""

    @classmethod
    def setUpClass(cls):
        launcher = SOURCE / "tools" / "paceline_launch" / "environment.py"
        set_by_launcher, forwarded = tuples_of(launcher, "SET_BY_LAUNCHER", "_FORWARDED")
        cls.read, cls.written, cls.literals = set(forwarded), set(set_by_launcher), {}
        for path, text in sources(".cc", ".h", ".cu", ".cuh"):
            cls.look_at_cpp(path, text)
        for _, text in sources(".py"):
            cls.read |= set(re.findall(r'(?:environ|environment)(?:\.get\(|\[)"(\w+)"(?!\] =)', text))
            cls.read |= set(re.findall(r'getenv\("(\w+)"', text))
        # Shell, also where Python holds it: ${NAME:-otherwise} and the like ask whether the caller has set it.
        for _, text in sources(".sh", ".py"):
            cls.read |= {name for name in re.findall(r"\$\{([A-Z][A-Z0-9]*_[A-Z0-9_]+):?[-+]", text)}

    @classmethod
    def look_at_cpp(cls, path, text):
        own = set(re.findall(rf'"({VARIABLE})"', text))
        for name in own:
            cls.literals[name] = path
        cls.written |= set(re.findall(r'\bsetenv\("(\w+)"', text))
        for argument in re.findall(r"\bgetenv\(([^()]*)\)", text):
            literal = re.fullmatch(r'"(\w+)"', argument)
            constant = re.search(rf'\b{re.escape(argument)} = "(\w+)"', text)
            if literal or constant:
                cls.read.add((literal or constant).group(1))
            else:  # a function is given the name
                cls.read |= own

    def test_each_variable_that_is_read_has_a_row_and_no_other_has(self):
        rows = [row for table in tables(section(COMMANDS, "## Environment variables")) for row in table]
        listed = [name for row in rows for name in code_in(row[0])]
        self.assertEqual(sorted(listed), sorted(self.read))

    def test_what_is_only_set_is_said_to_be(self):
        said = "\n".join(section(COMMANDS, "### Set for your program"))
        named = {name for name in code_in(said) if re.fullmatch(VARIABLE, name)}
        self.assertEqual(named, self.written - self.read)

    def test_no_other_name_of_a_variable_is_in_the_code(self):
        """A name that the search for readers has missed."""
        unknown = {name: str(path) for name, path in self.literals.items() if name not in self.read | self.written}
        self.assertEqual(unknown, {})

    def test_contributing_names_the_files_that_read(self):
        rule = (SOURCE / "CONTRIBUTING.md").read_text().split("The library reads environment variables")[1]
        named = set(code_in(re.split(r"\n\n|\n- ", rule)[0]))
        for path, text in sources(".cc", ".h", ".cu"):
            name = str(path.relative_to(SOURCE))
            if "getenv(" in text and not name.startswith(("tools/", "examples/")):
                self.assertIn(name, named)


class Plugins(unittest.TestCase):
    """What can be chosen by name is what the page lists."""

    @classmethod
    def setUpClass(cls):
        cls.plugins = {}
        for path in (SOURCE / "kvstore").rglob("CMakeLists.txt"):
            for call in re.findall(r"^\s*add_plugins\(([^)]*)\)", path.read_text(), re.MULTILINE):
                words = re.sub(r"\b[A-Z]{2,} \S+", "", call).split()  # without HEADER file, INTERFACE class
                cls.plugins[words[1].split("/")[-1]] = set(words[2:])

    def check(self, kind, heading):
        listed = names_of(tables(section(REFERENCE, heading))[0])
        self.assertEqual(listed, self.plugins[kind])

    def test_policies(self):
        self.check("staleness", "## Staleness policies")

    def test_codecs(self):
        self.check("compression", "## Compression codecs")

    def test_optimizers(self):
        self.check("optimizer", "## Optimizers")

    def test_transports(self):
        self.check("transport", "## Transports")

    def test_modes_of_servers(self):
        """Those without servers are in no list of CMake; test_programs.py asks a program for all."""
        listed = {name.split(":")[0] for name in names_of(tables(section(REFERENCE, "## Modes"))[0])}
        self.assertLessEqual(self.plugins["mode"], listed)


class Operators(unittest.TestCase):
    """The functions and layers that a program can call are those of the tables."""

    def test_operators(self):
        catalogue = (SOURCE / "ops" / "CMakeLists.txt").read_text()
        declared = set()
        for name in re.findall(r"^add_operator\((\w+)", catalogue, re.MULTILINE):
            header = (SOURCE / "ops" / name / f"{name}.h").read_text()
            declared |= set(re.findall(r"^[A-Z:a-z<>]+ ([a-z]\w*[^_\W])\(", header, re.MULTILINE))
        self.assertGreater(len(declared), 100)
        listed = names_of(tables(section(REFERENCE, "## Operators"))[0], column=1)
        self.assertEqual(listed, declared - {"result_type"})

    def test_layers(self):
        declared = set()
        for name in ("layers", "parallel", "loss", "initializer"):
            header = (SOURCE / f"nn/include/paceline/{name}.h").read_text()
            declared |= set(re.findall(r"^struct (\w+) : Module", header, re.MULTILINE))
            declared |= set(re.findall(r"^(?:NDArray|Loss|Initializer) (\w+)\(", header, re.MULTILINE))
        listed = names_of(tables(section(REFERENCE, "## Layers"))[0], column=1)
        models = {"mlp", "lenet", "causal_transformer", "lstm_language_model", "catalog"}
        self.assertEqual(listed - models, declared)


class Launcher(unittest.TestCase):
    def test_options(self):
        """Each option of the launcher has a row."""
        source = (SOURCE / "tools" / "paceline_launch" / "options.py").read_text()
        options = set(re.findall(r'^ +"(--[a-z-]+)",$|\badd\((?:"-\w", )?"(--[a-z-]+)"', source, re.MULTILINE))
        options = {name for pair in options for name in pair if name}
        self.assertGreater(len(options), 15)
        cells = names_of(tables(section(COMMANDS, "## launch.py"))[0])
        listed = {word for name in cells for word in re.findall(r"--[a-z-]+", name)}
        self.assertEqual(listed, options)


class Trainer(unittest.TestCase):
    def test_options(self):
        """In the order of the struct, which designated initialisers must keep."""
        header = (SOURCE / "nn/include/paceline/trainer.h").read_text()
        struct = re.search(r"struct TrainerOptions {\n(.*?)\n};", header, re.DOTALL).group(1)
        members = re.findall(r"(\w+)\s*=", re.sub(r"//.*", "", struct))
        listed = [name for row in tables(section(REFERENCE, "## The trainer"))[0] for name in code_in(row[0])]
        self.assertEqual(listed, members)


class Messages(unittest.TestCase):
    """The messages on the page about troubles are those of the sources."""

    def test_each_message_is_in_the_sources(self):
        said = []
        for _, text in sources(".cc", ".h", ".cu", ".py"):
            text = re.sub(r'"[\s,]*\n?[\s,]*f?"', "", text)  # literals that the compiler, or str(), joins
            said.append(text.replace('\\"', '"'))
        said = "\n".join(said)
        entries = 0
        for line in TROUBLES.read_text().split("\n"):
            cell = line.split(" | ")[0]
            if not cell.startswith("| `"):
                continue
            entries += 1
            for fragment in code_in(cell)[0].split("..."):
                self.assertTrue(fragment.strip() in said, f"no source says '{fragment.strip()}', of {cell}")
        self.assertGreater(entries, 40)


class Links(unittest.TestCase):
    @staticmethod
    def anchors(page):
        """Of the headings that GitHub and MkDocs give the same anchor."""
        found = set()
        for heading in re.findall(r"^#+ +(.*?) *$", without_code(page.read_text()), re.MULTILINE):
            plain = re.sub(r"[^\w\s-]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)).lower()
            github, mkdocs = plain.replace(" ", "-"), re.sub(r"[-\s]+", "-", plain.strip())
            if github == mkdocs:
                found.add(github)
        return found

    def test_relative_links_lead_somewhere(self):
        wrong = []
        for page in all_pages():
            text = without_code(page.read_text())
            targets = re.findall(r"\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)", text)
            targets += re.findall(r"^\[[^]]+\]: +(\S+)", text, re.MULTILINE)
            for target in targets:
                if re.match(r"[a-z]+:", target):
                    continue
                path, _, anchor = target.partition("#")
                there = (page.parent / path).resolve() if path else page
                if not there.exists():
                    wrong.append(f"{page.relative_to(SOURCE)}: {target}: there is no such file")
                elif anchor and there.suffix == ".md" and anchor not in self.anchors(there):
                    wrong.append(f"{page.relative_to(SOURCE)}: {target}: there is no such heading")
        self.assertEqual(wrong, [], "\n".join(wrong))

    def test_the_site_and_the_readme_lead_to_every_page(self):
        pages = {path.name for path in (SOURCE / "docs").glob("*.md")}
        readme = set(re.findall(r"\(docs/([\w-]+\.md)", (SOURCE / "README.md").read_text()))
        index = set(re.findall(r"\(([\w-]+\.md)", (SOURCE / "docs" / "index.md").read_text()))
        self.assertEqual(pages - {"index.md"}, readme)
        self.assertEqual(pages - {"index.md"}, index)


class Projects(unittest.TestCase):
    def test_the_tutorial_builds_as_the_readme_does(self):
        """tests/install builds the project of the README."""
        shown = [re.findall(r"```cmake\n.*?```", (SOURCE / name).read_text(), re.DOTALL) for name in
                 ("README.md", "docs/tutorial.md")]  # fmt: skip
        self.assertEqual(len(shown[0]), 1)
        self.assertEqual(shown[0], [text.replace("first", "train") for text in shown[1]])


class Lengths(unittest.TestCase):
    def test_the_readme_is_short(self):
        self.assertLess(len((SOURCE / "README.md").read_text().splitlines()), 120)

    def test_lines(self):
        """Outside of tables, which cannot be broken."""
        for page in (SOURCE / "README.md", *(SOURCE / "docs").glob("*.md")):
            for number, line in enumerate(page.read_text().splitlines(), 1):
                self.assertTrue(len(line) <= 120 or line.startswith("|"), f"{page}:{number}: {len(line)} characters")


if __name__ == "__main__":
    unittest.main()
