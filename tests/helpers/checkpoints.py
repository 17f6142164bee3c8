"""Write checkpoints with arrays of all kinds, and read them back in pieces of any size."""
import hashlib
import json
import os

import numpy as np

from mxhybrid.checkpoint.files import Writer
from mxhybrid.checkpoint.folder import locked


def arrays(step=0):
    """Arrays of all kinds and sizes."""
    random = np.random.RandomState(step)
    return {'table': random.rand(11, 3).astype('f4'), 'scalar': np.float64(step).reshape(()), 'none': np.zeros((0, 5)),
            'halves': random.rand(7).astype('f2'), 'flags': np.array([True, False]), 'ids': np.arange(40) * step}


def write(directory, step, keep=3, extra=None):
    """A checkpoint of `arrays`."""
    os.makedirs(str(directory), exist_ok=True)
    with locked(str(directory)), Writer(str(directory)) as writer:
        for name, array in arrays(step).items():
            writer.add(name, array.shape, array.dtype, np.array_split(array.reshape(-1), 3))
        return writer.commit(step, {'extra': extra}, keep)


def assert_whole(reader, step):
    """A reader gives the arrays of a step, by any cut."""
    assert reader.content['step'] == step
    for name, array in arrays(step).items():
        entry = reader.content['arrays'][name]
        assert (entry['dtype'], tuple(entry['shape'])) == (array.dtype.name, array.shape)
        flat = array.reshape(-1)
        np.testing.assert_array_equal(reader.read(name, 0, flat.size), flat)
        for start, stop in ((0, 1), (3, flat.size - 1), (flat.size // 2, flat.size)):
            if 0 <= start <= stop <= flat.size:
                np.testing.assert_array_equal(reader.read(name, start, stop), flat[start:stop])


def as_earlier_versions_wrote_it(directory):
    """Rewrite the manifests of all checkpoints of a directory in formats 1 and 2, with BLAKE2b digests of the files."""
    digests = {}
    for name in sorted(os.listdir(str(directory))):
        path = os.path.join(str(directory), name)
        with open(os.path.join(path, 'manifest.json')) as file:
            content = json.load(file)['content']
        content['format'] = 2 if 'dynamic_tables' in content else 1
        content['shards'] = [_earlier_record(os.path.join(path, '%05d.safetensors' % number))
                             for number in range(len(content['shards']))]
        for entry in content.get('dynamic_tables', {}).values():
            for number, part in enumerate(entry['parts']):
                part['files'] = {file: _earlier_record(os.path.join(path, entry['directory'], str(number),
                                                                    file + '.npy')) for file in part['files']}
        if 'base' in content:
            content['base']['blake2b'] = digests[content['base']['name']]
        text = json.dumps(content, sort_keys=True, separators=(',', ':'))
        digests[name] = _blake2b(text.encode())
        with open(os.path.join(path, 'manifest.json'), 'w') as file:
            json.dump({'blake2b': digests[name], 'content': content}, file, indent=1)


def _earlier_record(path):
    with open(path, 'rb') as file:
        data = file.read()
    return {'bytes': len(data), 'blake2b': _blake2b(data)}


def _blake2b(data):
    return hashlib.blake2b(data, digest_size=32).hexdigest()
