#!/usr/bin/env python3
"""Writes the corpus of the .npy fuzz target: valid headers first, then malicious ones.

Run it in this directory; it fills npy/. Names that begin with ok- must be read, names
that begin with bad- must be rejected, which tests/models/test_npy.c checks.
"""
import os
import struct

MAGIC = b"\x93NUMPY"


def wrap(text, version=1, data=b"", pad=True, length=None, minor=0):
    """A file with this dictionary as its header, padded like numpy's unless pad is
    false."""
    prefix = 10 if version == 1 else 12
    body = text if isinstance(text, bytes) else text.encode("utf-8")
    if pad:
        body += b" " * (-(prefix + len(body) + 1) % 64) + b"\n"
    size = len(body) if length is None else length
    layout = "<H" if version == 1 else "<I"
    return MAGIC + bytes([version, minor]) + struct.pack(layout, size) + body + data


def header(descr="'<f4'", order="False", shape="(2, 3)"):
    return "{'descr': %s, 'fortran_order': %s, 'shape': %s, }" % (descr, order, shape)


SIX = struct.pack("<6f", 1, 2, 3, 4, 5, 6)
INTS = struct.pack("<6i", 1, -2, 3, -4, 5, -6)
HALVES = struct.pack("<6e", 1, 2, 3, 4, 5, 6)

GOOD = {
    "version1": wrap(header(), data=SIX),
    "version2": wrap(header(), 2, SIX),
    "version3": wrap(header(), 3, SIX),
    "int32": wrap(header("'<i4'"), data=INTS),
    "float16": wrap(header("'<f2'"), data=HALVES),
    "unpadded": wrap(header(), data=SIX, pad=False),
    "unaligned-by-one": wrap(header() + " " * (5 - (10 + len(header())) % 4), data=SIX,
                             pad=False),
    "double-quotes": wrap(header('"<f4"').replace("'", '"'), data=SIX),
    "mixed-quotes": wrap("{\"shape\": (2, 3), 'descr': \"<f4\", 'fortran_order': False}",
                         data=SIX),
    "no-spaces": wrap("{'shape':(2,3),'fortran_order':False,'descr':'<f4'}", data=SIX),
    "many-spaces": wrap(" {\n 'descr'\t: '<f4' ,\r\n'fortran_order' : False,\f 'shape' : "
                        "( 2 , 3 , ) , } \n\n", data=SIX),
    "python2-longs": wrap(header(shape="(2L, 3L)"), data=SIX),
    "long-header": wrap(header() + " " * 20000, data=SIX),
    "long-header-v2": wrap(header() + " " * 66000, 2, SIX),
    "scalar": wrap(header(shape="()"), data=SIX[:4]),
    "vector": wrap(header(shape="(6,)"), data=SIX),
    "rank8": wrap(header(shape="(1, 1, 1, 2, 1, 3, 1, 1)"), data=SIX),
    "empty": wrap(header(shape="(0,)")),
    "empty-middle": wrap(header(shape="(4, 0, 5)")),
    "fortran-vector": wrap(header(order="True", shape="(6,)"), data=SIX),
    "fortran-column": wrap(header(order="True", shape="(6, 1)"), data=SIX),
    "fortran-empty": wrap(header(order="True", shape="(3, 0, 2)")),
}

BAD = {
    "empty-file": b"",
    "text-file": b"hello, this is no array\n",
    "magic-only": MAGIC,
    "magic-cut": MAGIC[:4],
    "no-length": MAGIC + b"\x01\x00",
    "half-length-v2": MAGIC + b"\x02\x00\x10\x00",
    "npz": b"PK\x03\x04" + b"\0" * 40,
    "version0": wrap(header(), data=SIX).replace(b"Y\x01", b"Y\x00", 1),
    "version4": wrap(header(), data=SIX).replace(b"Y\x01", b"Y\x04", 1),
    "version1-minor": wrap(header(), data=SIX, minor=1),
    "header-cut": wrap(header(), data=SIX)[:40],
    "header-length-0": wrap(header(), data=SIX, length=0),
    "header-length-short": wrap(header(), data=SIX, length=20),
    "header-length-4GiB": wrap(header(), 2, SIX, length=0xFFFFFFFF),
    "header-length-64KiB": wrap(header(), 1, SIX, length=0xFFFF),
    "data-cut": wrap(header(), data=SIX[:-1]),
    "data-none": wrap(header()),
    "data-extra": wrap(header(), data=SIX + b"\0"),
    "data-in-empty": wrap(header(shape="(0, 3)"), data=SIX),
    "float64": wrap(header("'<f8'"), data=SIX + SIX),
    "big-endian-halves": wrap(header("'>f2'"), data=HALVES),
    "int64": wrap(header("'<i8'"), data=SIX + SIX),
    "uint8": wrap(header("'|u1'"), data=SIX[:6]),
    "bool": wrap(header("'|b1'"), data=SIX[:6]),
    "complex64": wrap(header("'<c8'"), data=SIX + SIX),
    "text-type": wrap(header("'<U1'"), data=SIX),
    "objects": wrap(header("'|O'"), data=b"\x80\x04N."),
    "structured": wrap(header("[('a', '<f4'), ('b', '<i4')]"), data=SIX),
    "big-endian": wrap(header("'>f4'"), data=SIX),
    "native-order": wrap(header("'=f4'"), data=SIX),
    "no-order": wrap(header("'|f4'"), data=SIX),
    "bare-type": wrap(header("'f4'"), data=SIX),
    "empty-type": wrap(header("''"), data=SIX),
    "type-of-escapes": wrap(header("'\x1b[31m<f4'"), data=SIX),
    "type-with-backslash": wrap(header("'\\x3cf4'"), data=SIX),
    "type-endless": wrap(header("'" + "<" * 300), data=SIX),
    "fortran": wrap(header(order="True"), data=SIX),
    "fortran-number": wrap(header(order="1"), data=SIX),
    "shape-negative": wrap(header(shape="(-2, 3)"), data=SIX),
    "shape-float": wrap(header(shape="(2.0, 3)"), data=SIX),
    "shape-string": wrap(header(shape="('2', 3)"), data=SIX),
    "shape-list": wrap(header(shape="[2, 3]"), data=SIX),
    "shape-no-tuple": wrap(header(shape="(6)"), data=SIX),
    "shape-number": wrap(header(shape="6"), data=SIX),
    "shape-nested": wrap(header(shape="((2, 3))"), data=SIX),
    "shape-open": wrap("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3",
                       data=SIX),
    "shape-commas": wrap(header(shape="(2,, 3)"), data=SIX),
    "shape-no-comma": wrap(header(shape="(2 3)"), data=SIX),
    "rank9": wrap(header(shape="(1, 1, 1, 1, 1, 1, 1, 2, 3)"), data=SIX),
    "rank-thousands": wrap(header(shape="(" + "1," * 900 + ")"), data=SIX),
    "shape-beyond-64": wrap(header(shape="(99999999999999999999, 1)"), data=SIX),
    "shape-product": wrap(header(shape="(4294967296, 4294967296)"), data=SIX),
    "shape-bytes": wrap(header(shape="(4611686018427387904,)"), data=SIX),
    "shape-wraps-to-6": wrap(header(shape="(6, 2147483648, 8589934592)"), data=SIX),
    "shape-empty-huge": wrap(header(shape="(0, 9223372036854775807, 9)")),
    "shape-huge": wrap(header(shape="(1099511627776,)"), data=SIX),
    "key-missing": wrap("{'descr': '<f4', 'shape': (2, 3), }", data=SIX),
    "key-twice": wrap("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), "
                      "'shape': (6,), }", data=SIX),
    "key-unknown": wrap("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), "
                        "'extra': 1, }", data=SIX),
    "key-unquoted": wrap("{descr: '<f4', 'fortran_order': False, 'shape': (2, 3)}",
                         data=SIX),
    "no-dictionary": wrap("('<f4', False, (2, 3))", data=SIX),
    "no-closing": wrap("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3),",
                       data=SIX),
    "text-after": wrap(header() + " + 1", data=SIX),
    "double-comma": wrap("{'descr': '<f4',, 'fortran_order': False, 'shape': (2, 3)}",
                         data=SIX),
    "nul-bytes": wrap(header() + "\0\0", data=SIX),
    "blank": wrap(" " * 60, data=SIX),
    "nesting": wrap("{" * 500, data=SIX),
}


def main():
    os.makedirs("npy", exist_ok=True)
    for kind, files in (("ok", GOOD), ("bad", BAD)):
        for name, content in files.items():
            with open(os.path.join("npy", "%s-%s.npy" % (kind, name)), "wb") as out:
                out.write(content)


if __name__ == "__main__":
    main()
