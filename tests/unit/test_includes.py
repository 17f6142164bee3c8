"""Includes among the folders of compiled code: each file includes files of its own folder and of lower ones only."""
import re
from collections import Counter
from pathlib import Path

import mxhybrid

PACKAGE = Path(mxhybrid.__file__).resolve().parent
#: The folders, the highest first. Those in one line do not include each other.
LAYERS = [
    ['lane/src/agent', 'lane/src/worker'],
    ['lane/src/network', 'lane/src/dense'],
    ['lane/src/memory'],
    ['row_store/src/store'],
    ['row_store/src/files'],
    ['kernels/src/operators'],
    ['kernels/src/kernels'],
    ['kernels/src/base'],
    ['planner/simulator/src'],
]
HEIGHTS = {folder: -number for number, layer in enumerate(LAYERS) for folder in layer}
#: The most files of a folder.
MAX_FILES = 20


def compiled_sources():
    """Return the texts of all compiled files of the package by their paths in it."""
    return {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in sorted(PACKAGE.rglob('*'))
            if path.suffix in ('.cc', '.h')}


def folder_of(path):
    """Return the folder of a file, a path in the package."""
    return path.rpartition('/')[0]


def bad_includes(sources):
    """Return the includes that are not allowed or that name no file, as pairs of the two files.

    An include names a file of another sub-folder as ``sub-folder/file``; it may leave out the folder ``src`` before.
    """
    names = {path.rpartition('/src/')[2]: path for path in sources}
    assert len(names) == len(sources), 'two files have one name'
    refused = []
    for path, text in sources.items():
        for included in re.findall(r'^ *# *include +"([^"]+)"', text, re.MULTILINE):
            target = names.get(included)
            own, other = folder_of(path), target and folder_of(target)
            if target is None or own != other and HEIGHTS[own] <= HEIGHTS[other]:
                refused.append((path, included))
    return refused


def test_every_folder_of_compiled_code_has_a_layer():
    assert {folder_of(path) for path in compiled_sources()} == set(HEIGHTS)


def test_no_include_goes_upward():
    assert not bad_includes(compiled_sources())


def test_folders_are_small():
    counts = Counter(map(folder_of, compiled_sources()))
    assert max(counts.values()) <= MAX_FILES, counts.most_common(3)


def test_planted_includes_are_found():
    sources = compiled_sources()
    planted = [('kernels/src/base/dtype.h', 'kernels/add.h'), ('row_store/src/store/keys.h', 'memory/shared.h'),
               ('lane/src/agent/agent.h', 'worker/worker.h'), ('lane/src/memory/box.cc', 'no_such.h')]
    for path, included in planted:
        sources[path] += '\n#include "%s"\n' % included
    assert sorted(bad_includes(sources)) == sorted(planted)
