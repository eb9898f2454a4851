"""Images that cannot be packed, or not trained as they are."""

import struct
import unittest
import zlib

from support import ProgramTest, program

PROMPT = 40  # seconds within which an answer must come, however busy the machine


def png(width, height, value, channels=1):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = (b"\0" + bytes([value]) * width * channels) * height
    kind = 2 if channels == 3 else 0
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))  # fmt: skip


class Packing(ProgramTest):
    def setUp(self):
        super().setUp()
        folder = self.folder / "images" / "zero"
        folder.mkdir(parents=True)
        for i in range(3):
            (folder / f"good{i}.png").write_bytes(png(8, 8, i * 40))
        (folder / "bad.png").write_bytes(png(8, 8, 9)[:40])

    def test_image_that_cannot_be_decoded(self):
        ended = self.run_program(program("im2rec"), "packed", "images", patience=PROMPT)
        self.assert_one_clear_sentence(ended, "bad.png", "--skip_bad")
        self.assertFalse((self.folder / "packed.manifest").exists())

    def test_skipped_if_asked(self):
        ended = self.run_program(program("im2rec"), "--skip_bad", "packed", "images", patience=PROMPT)
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("bad.png", (self.folder / "packed.bad.txt").read_text())
        self.assertRegex((self.folder / "packed.manifest").read_text(), r'"records": 3')

    def train(self, *arguments):
        network = ("--network", "mlp", "--classes", 2, "--epochs", 1, "--batch_size", 2)
        return self.run_program(program("image_classification"), *network, *arguments, patience=PROMPT)

    def test_grey_and_colour_mixed(self):
        """Packed as they are, and without being decoded, they train; where sizes differ, it is said what to do."""
        (self.folder / "images" / "zero" / "bad.png").unlink()
        (self.folder / "images" / "zero" / "colour.png").write_bytes(png(8, 8, 9, channels=3))
        for flags in ((), ("--pass_through",), ("--channels", 3)):
            packed = self.run_program(program("im2rec"), *flags, "packed", "images")
            self.assertEqual(packed.code, 0, packed)
            for conversion in ((), ("--channels", 1)):
                ended = self.train("--train", "packed.manifest", "--test", "packed.manifest", *conversion)
                self.assertEqual(ended.code, 0, ended)
        (self.folder / "images" / "zero" / "wide.png").write_bytes(png(9, 8, 9))
        self.run_program(program("im2rec"), "packed", "images")
        ended = self.train("--train", "packed.manifest")
        self.assert_one_clear_sentence(ended, "differ in size: pack them in one", "--image_size 224", code=2)
        self.assertEqual(self.train("--train", "packed.manifest", "--image_size", 8).code, 0)

    def test_bad_records_are_left_out_if_asked(self):
        packed = self.run_program(program("im2rec"), "--pass_through", "packed", "images")
        self.assertEqual(packed.code, 0, packed)
        ended = self.train("--train", "packed.manifest", "--image_size", 8)
        self.assert_one_clear_sentence(ended, " is damaged: libpng", "--skip_bad leaves such records out", code=1)
        ended = self.train("--train", "packed.manifest", "--image_size", 8, "--skip_bad")
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("1 damaged records were left out of this epoch", ended.err)

    def test_image_that_cannot_be_resized(self):
        (self.folder / "images" / "zero" / "column.png").write_bytes(png(1, 60000, 9))
        for size in (256, 100000):  # of the second not even the sizes fit a number
            ended = self.run_program(
                program("im2rec"), "--skip_bad", "--resize", size, "packed", "images/zero", patience=PROMPT
            )
            self.assertIn("column.png: an image of 1 x 60000 cannot be resized", ended.err)
            self.assertEqual(list(self.folder.glob("packed*writing*")), [])

    def test_no_source(self):
        ended = self.run_program(program("im2rec"), "packed", "nowhere", patience=PROMPT)
        self.assert_one_clear_sentence(ended, "nowhere")


if __name__ == "__main__":
    unittest.main()
