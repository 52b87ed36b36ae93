"""What damaged or hostile .npy and .npz files have their readers raise."""

from __future__ import annotations

import lzma
import struct
import tokenize
import zipfile
import zlib
from typing import Final

UNREADABLE: Final = (  # by zipfile, its decompressors and numpy's parser of headers
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    SyntaxError,
    EOFError,
    MemoryError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
