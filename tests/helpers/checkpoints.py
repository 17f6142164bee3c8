"""Write checkpoints with arrays of all kinds, read them back in pieces of any size, and compare their files."""
import filecmp
import json
import os

import numpy as np

from mxhybrid.checkpoint import manifest
from mxhybrid.checkpoint.files import Writer
from mxhybrid.checkpoint.folder import locked
from mxhybrid.checkpoint.reader import MANIFEST, Reader


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


def rewrite_manifest(path, change):
    """Change the content of a checkpoint's manifest, and make its digest right again."""
    file = os.path.join(path, MANIFEST)
    with open(file) as handle:
        content = json.load(handle)['content']
    change(content)
    with open(file, 'w') as handle:
        json.dump({'content': content, 'blake2b': manifest.digest(content)}, handle)


def assert_same_files(first, second):
    """Two checkpoints have the same files, byte for byte, but for the times at which they were saved."""
    names = [sorted(os.path.relpath(os.path.join(where, name), path)
                    for where, _, names in os.walk(path) for name in names) for path in (first, second)]
    assert names[0] == names[1]
    assert set(filecmp.cmpfiles(first, second, names[0], shallow=False)[1]) <= {MANIFEST}
    contents = [Reader(path).content for path in (first, second)]
    assert [dict(content, saved_at=0) for content in contents] == [dict(contents[0], saved_at=0)] * 2


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
