"""The documentation's scripts: what the filter makes of comments, links that lead nowhere, names without a comment."""

import pathlib
import shutil
import sys
import tempfile
import textwrap
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/docs"))

import api  # noqa: E402  after the path is set
import doc_comments  # noqa: E402
import pages  # noqa: E402

needs_doxygen = unittest.skipUnless(shutil.which("doxygen"), "doxygen is not installed: install_dependencies.sh --docs")


def filtered(body):
    """What the filter makes of declarations in a namespace, without the lines around them."""
    text = "#pragma once\n// A header.\n\nnamespace paceline {\n\n" + textwrap.dedent(body).strip("\n") + "\n\n}\n"
    result = doc_comments.filtered(text)
    assert text.count("\n") == result.count("\n"), "line numbers have changed"
    return "\n".join(result.splitlines()[5:-2])


class Filter(unittest.TestCase):
    def check(self, body, expected):
        self.assertEqual(filtered(body).rstrip(), textwrap.dedent(expected).strip("\n"))

    def test_the_comment_behind_the_pragma_describes_the_file(self):
        result = doc_comments.filtered("#pragma once\n// One.\n// Two.\n\nint x;  // a number\n")
        self.assertTrue(result.startswith("/** \\file\nOne.\nTwo. */\n\n"), result)

    def test_a_comment_above_belongs_to_the_declaration(self):
        self.check(
            """
            // Adds.
            // Never throws.
            int add(int a, int b = 0);
            """,
            """
            /** Adds.
            Never throws. */
            int add(int a, int b = 0);
            """,
        )

    def test_a_comment_counts_for_a_group_up_to_an_empty_line(self):
        self.check(
            """
            // Both.
            int first();
            int second();

            int third();
            """,
            """
            /** Both. */
            int first();
            /** Both. */ int second();

            int third();
            """,
        )

    def test_a_comment_of_its_own_ends_what_a_group_says_of_a_declaration(self):
        self.assertEqual(
            filtered("// Group.\nint a();\nint b();  // its own\nint c();").splitlines()[1:],
            ["int a();", "/** its own */ int b();  // its own", "/** Group. */ int c();"],
        )

    def test_comments_above_and_behind_are_joined(self):
        self.assertEqual(filtered("// Above.\nint a;  // behind"), "/** Above. <p> behind */\nint a;  // behind")

    def test_members_of_classes_and_bodies_of_functions(self):
        result = filtered(
            """
            // A class.
            class Box {
             public:
              // Makes one.
              explicit Box(int size) : size_{size}, other_(size) {
                // Not for the reference.
                if (size) { call(); }
              }
              // Assigns.
              Box& operator+=(int size) { return *this; }
              int size() const { return size_; }  // how large

             private:
              // Private.
              int size_;
            };
            """
        )
        self.assertIn("/** Makes one. */\n  explicit Box", result)
        self.assertIn("/** Assigns. */\n", result)
        self.assertIn("/** how large */ int size()", result)
        self.assertIn("// Not for the reference.", result)
        self.assertNotIn("int size_;", result)

    def test_values_of_enums(self):
        self.assertEqual(
            filtered("// Kinds.\nenum class Kind { kOne, kTwo };").splitlines()[1],
            "enum class Kind { /** Kinds. */ kOne, /** Kinds. */ kTwo };",
        )
        self.assertIn("/** the first */ kOne = 1,", filtered("// K.\nenum K {\n  kOne = 1,  // the first\n  kTwo\n};"))

    def test_several_variables_in_one_declaration(self):
        self.assertEqual(
            filtered("int a = 1, b = 2;  // two"),
            "/** two */ int a = 1; /** two */ int b = 2;  // two",
        )

    def test_a_class_with_nothing_but_constructors_gives_them_its_comment(self):
        result = filtered("// A layer.\nstruct Relu : Module {\n  Relu();\n};")
        self.assertIn("/** A layer. */ Relu();", result)

    def test_what_says_everything_by_itself_is_left_out(self):
        result = filtered(
            """
            class Later;
            // A class.
            struct Box {
              Box() = default;
              ~Box();
              Box(const Box&) = delete;
              Box(Box&& other) noexcept;
              Box& operator=(Box&& other) noexcept { return *this; }
              friend bool operator==(const Box&, const Box&) = default;
              using Base::Base;
            };
            """
        )
        self.assertEqual(result.split(), ["/**", "A", "class.", "*/", "struct", "Box", "{", "};"])

    def test_annotations_do_not_hide_a_declaration(self):
        result = filtered(
            '// A lock.\nclass PACELINE_CAPABILITY("mutex") Mutex {\n public:\n  // Locks.\n  void lock();\n};'
        )
        self.assertIn("/** Locks. */", result)

    def test_signs_with_a_meaning_for_doxygen_are_text(self):
        self.assertEqual(
            doc_comments.escape('a <b> & @c \\d #e "f" g::h mode/*.cc'),
            'a \\<b\\> \\& \\@c \\\\d \\#e \\"f\\" g\\::h mode/<!-- -->*.cc',
        )
        self.assertEqual(doc_comments.escape("the key `a<b>` counts"), "the key <code>a\\<b\\></code> counts")

    def test_indented_lines_are_code(self):
        result = doc_comments.filtered("#pragma once\n// Use:\n//\n//   run(1);\n//\n// End.\n")
        self.assertEqual(result, "/** \\file\nUse:\n\\code{.cpp}\n   run(1);\\endcode\n\nEnd. */\n")

    def test_every_public_header_can_be_read_and_keeps_its_lines(self):
        for header in api.public_headers():
            with self.subTest(header):
                text = (ROOT / header).read_text(encoding="utf-8")
                parser = doc_comments.Parser(text)
                self.assertEqual(parser.place, len(parser.code), "the filter stops before the end")
                self.assertEqual(doc_comments.filtered(text).count("\n"), text.count("\n"))


class Pages(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="docs-test-"))
        self.addCleanup(shutil.rmtree, self.root)
        self.write("docs/index.md", "# Start\n")
        self.write("mkdocs.yml", "nav:\n  - Start: index.md\n")
        self.write(
            f"site/{api.TAGS}",
            "<tagfile><compound kind='file'><name>x.h</name><path>nn/include/paceline/</path>"
            "<filename>x_8h.html</filename></compound></tagfile>",
        )
        self.write("nn/include/paceline/x.h", "#pragma once\n// The letter x.\n")

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text, encoding="utf-8")

    def staged(self, text):
        self.write("docs/index.md", text)
        stage = pages.Stage(self.root / "site", self.root)
        problems = stage.run()
        return problems, (self.root / "site/index.md").read_text(encoding="utf-8")

    def test_links_into_the_source_tree_lead_to_copies(self):
        self.write("kvstore/README.md", "See [one](one.cc).\n")
        self.write("kvstore/one.cc", "int one;\n")
        self.write("ops/softmax/softmax.cc", "int two;\n")
        problems, text = self.staged(
            "[a](../nn/include/paceline/x.h) [b](../kvstore/README.md#c) [d](../ops/softmax) [e](https://f.org) "
            "[g](#g)\n\n[h]: ../kvstore/one.cc\n"
        )
        self.assertEqual(problems, [])
        self.assertEqual(
            text,
            "[a](api/x_8h.html) [b](source/kvstore/README.md#c) [d](source/ops/softmax/index.md) [e](https://f.org) "
            "[g](#g)\n\n[h]: source/kvstore/one.cc.txt\n",
        )
        self.assertEqual((self.root / "site/source/kvstore/README.md").read_text(), "See [one](one.cc.txt).\n")
        self.assertIn("(softmax.cc.txt)", (self.root / "site/source/ops/softmax/index.md").read_text())
        self.assertIn("[`paceline/x.h`](api/x_8h.html) | The letter x. |", (self.root / "site/api.md").read_text())

    def test_a_link_to_no_file_is_refused_and_code_is_left_alone(self):
        problems, text = self.staged("One.\n\n[a](../none.h) `[b](no.md)`\n\n```\n[c](no.md)\n```\n")
        self.assertEqual(problems, ["docs/index.md:3: the link to '../none.h' leads to no file"])
        self.assertIn("`[b](no.md)`\n\n```\n[c](no.md)\n", text)

    def test_a_page_that_the_site_does_not_name_is_refused(self):
        self.write("docs/lost.md", "Nobody finds me.\n")
        problems, _ = self.staged("# Start\n")
        self.assertEqual(problems, ["docs/lost.md: mkdocs.yml does not name this page"])

    def test_headings_that_are_not_there_are_refused(self):
        self.write("html/a.html", '<h1 id="one">A</h1><a href="b.html#two">b</a><a href="#one">a</a>')
        self.write("html/b.html", '<h1 id="first">B</h1><a href="a.html#one">a</a><a href="c.html">c</a>')
        self.assertEqual(
            pages.check(self.root / "html"),
            [
                "a.html: the link to 'b.html#two' names a heading that is not there",
                "b.html: the link to 'c.html' leads to no file",
            ],
        )


@needs_doxygen
class Reference(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="docs-test-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def test_names_without_a_comment_are_found(self):
        (self.folder / "x.h").write_text(
            "#pragma once\n// A header.\n\nnamespace paceline {\n\n// A class.\nclass A {\n public:\n  int bare();\n"
            "  int said();  // says so\n};\n\nenum class E {\n  kBare,\n};\n\nint free(int a);\n\n}\n"
        )
        findings = api.build(self.folder / "out", ["x.h"], self.folder)
        names = [finding.partition(" has no comment")[0] for finding in findings]
        self.assertEqual(
            names,
            ["x.h:9: paceline::A::bare()", "x.h:13: paceline::E", "x.h:14: kBare", "x.h:17: paceline::free(int a)"],
        )

    def test_every_public_name_has_a_comment(self):
        self.assertEqual(api.build(self.folder), [])
        self.assertEqual(sorted(api.pages_of_headers(self.folder)), api.public_headers())


if __name__ == "__main__":
    unittest.main()
