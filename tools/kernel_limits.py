#!/usr/bin/env python3
"""kernel_limits.py BUILD

Reads from the object files of a CUDA build what each kernel takes, and fails where a launch of it would: a block has
65,536 registers and 48 KB of static shared memory. A block has as many threads as __launch_bounds__ says; without it,
as many as detail::kThreads. That no launch asks for more is what the preset `emulated` sees.
"""

import pathlib
import re
import struct
import subprocess
import sys

REGISTERS, SHARED_BYTES, OTHERWISE = 65536, 48 << 10, 256
FATBIN, ELF_ENTRY = 0xBA55ED50, 2
MAX_THREADS, REGISTER_COUNT = 0x05, 0x2F  # attributes in .nv.info


def sections(elf):
    """Name, link and content of each section of an ELF file of 64 bits."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, table + i * size) for i in range(count)]
    strings = headers[names][4]
    for name, kind, _, _, offset, length, link, *_ in headers:
        begin = strings + name
        no_bits = kind == 8
        yield (
            elf[begin : elf.index(b"\0", begin)].decode(),
            link,
            length,
            b"" if no_bits else elf[offset : offset + length],
        )


def unpacked(content):
    try:
        return subprocess.run(["zstd", "-dc"], input=content, capture_output=True, check=True).stdout
    except FileNotFoundError:
        sys.exit("kernel_limits.py: device code is compressed; install zstd")
    except subprocess.CalledProcessError as error:
        sys.exit(f"kernel_limits.py: device code that zstd cannot read: {error.stderr.decode().strip()}")


def cubins(fatbins):
    """The device's ELF files in the section .nv_fatbin of an object file."""
    at = 0
    while at + 16 <= len(fatbins):
        magic, _, header, size = struct.unpack_from("<IHHQ", fatbins, at)
        if magic != FATBIN:
            at += 8  # padding
            continue
        entry, at = at + header, at + header + size
        while entry < at:
            kind, _, header, size = struct.unpack_from("<HHIQ", fatbins, entry)
            (compressed,) = struct.unpack_from("<I", fatbins, entry + 16)  # bytes; 0 where it is not
            content = fatbins[entry + header : entry + header + (compressed or size)]
            if kind == ELF_ENTRY:
                yield unpacked(content) if compressed else content
            entry += header + size


def attributes(content):
    """Number and value of what a section .nv.info holds."""
    at = 0
    while at + 4 <= len(content):
        form, number, size = struct.unpack_from("<BBH", content, at)
        at += 4
        if form == 4:
            yield number, content[at : at + size]
            at += size


def kernels(elf):
    """Name, registers of a thread, bytes of static shared memory, and threads that __launch_bounds__ allows."""
    found = {name: (length, content) for name, _, length, content in sections(elf)}
    symbols, strings = found[".symtab"][1], found[".strtab"][1]

    def symbol(index):
        (name,) = struct.unpack_from("<I", symbols, 24 * index)
        return strings[name : strings.index(b"\0", name)].decode()

    registers = {}
    for number, value in attributes(found[".nv.info"][1]):
        if number == REGISTER_COUNT:
            index, count = struct.unpack("<II", value)
            registers[symbol(index)] = count
    for name in (section.removeprefix(".nv.info.") for section in found if section.startswith(".nv.info.")):
        bounds = [value for number, value in attributes(found[f".nv.info.{name}"][1]) if number == MAX_THREADS]
        threads = OTHERWISE
        if bounds:
            x, y, z = struct.unpack("<III", bounds[0])
            threads = x * y * z
        yield name, registers[name], found.get(f".nv.shared.{name}", (0, b""))[0], threads


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    objects = sorted(pathlib.Path(sys.argv[1]).rglob("*.cu.o"))
    seen, wrong, most, shared_most = 0, [], 0, 0
    for path in objects:
        fatbins = [content for name, _, _, content in sections(path.read_bytes()) if name == ".nv_fatbin"]
        for name, registers, shared, threads in (
            k for fatbin in fatbins for elf in cubins(fatbin) for k in kernels(elf)
        ):
            seen += 1
            # Registers go to warps of 32 threads, 8 to each thread at a time.
            asked = -(-threads // 32) * 32 * (-(-registers // 8) * 8)
            most, shared_most = max(most, asked), max(shared_most, shared)
            if asked > REGISTERS or shared > SHARED_BYTES:
                short = re.sub(r"^_ZN9?paceline\d*", "", name)[:100]
                wrong.append(f"{path.name}: {short}: {threads} threads of {registers} registers, {shared} bytes shared")
    if seen == 0:
        sys.exit(f"kernel_limits.py: {sys.argv[1]} holds no CUDA kernel; name the folder of a build with CUDA")
    print("\n".join(wrong))
    print(
        f"kernels: {seen} in {len(objects)} files, at most {most} of {REGISTERS} registers and "
        f"{shared_most} of {SHARED_BYTES} bytes of shared memory in a block, {len(wrong)} that cannot be launched"
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
