"""Files in the safetensors format, mapped; the package safetensors is not needed.

A file is the length of a header, 8 bytes; the header, JSON with dtype, shape and byte range of each array; and the
bytes of the arrays (https://github.com/huggingface/safetensors).
"""
import os
import struct
from typing import Dict

import numpy as np

from . import manifest
from .npy_files import FormatError, mapped_bytes

_DTYPES = {'F64': 'float64', 'F32': 'float32', 'F16': 'float16', 'I64': 'int64', 'I32': 'int32', 'I16': 'int16',
           'I8': 'int8', 'U8': 'uint8', 'BOOL': 'bool'}
#: Bytes of a header that this module reads; the package has the same limit.
_MAX_HEADER_BYTES = 100 << 20


def tensors_of(path: str) -> Dict[str, np.ndarray]:
    """Return the arrays of a file by name, read-only and mapped; FormatError if the file is not sound.

    Arrays of types that NumPy lacks, such as bfloat16, are left out.
    """
    size_bytes = os.path.getsize(path)
    with open(path, 'rb') as file:
        start = file.read(8)
        length = struct.unpack('<Q', start)[0] if len(start) == 8 else size_bytes
        if length > min(_MAX_HEADER_BYTES, size_bytes - 8):
            raise FormatError('is not a safetensors file')
        try:
            header = manifest.read_json(file.read(length))
        except ValueError as error:
            raise FormatError('has a header that is not JSON: %s' % error) from error
    if not isinstance(header, dict):
        raise FormatError('has a header that is not a JSON object')
    data = mapped_bytes(path)[8 + length:]
    arrays = {}
    for name, entry in header.items():
        if name == '__metadata__':
            continue
        try:
            dtype, shape, (first, last) = _DTYPES.get(entry['dtype']), tuple(entry['shape']), entry['data_offsets']
            if dtype is not None:
                arrays[name] = data[first:last].view(dtype).reshape(shape)
        except (TypeError, ValueError, KeyError) as error:
            raise FormatError('has a wrong entry for %r: %s' % (name, error)) from error
    return arrays
