"""Compiled libraries: a stale one is refused with its remedy."""
import ctypes

import pytest

from mxhybrid.base.compiled import CompiledLibrary, StaleLibraryError, compiled_files
from mxhybrid.kernels import library as kernels
from mxhybrid.planner.simulator import native_backend as planner


@pytest.mark.parametrize('name, module, version_function', [
    ('_compiled', kernels, 'lane_version'), ('_simulate', planner, 'planner_version')], ids=['lane', 'planner'])
def test_a_stale_library_is_refused_with_its_remedy(name, module, version_function):
    path, = compiled_files(module.__file__.rpartition('/')[0], name)[:1]
    remedy = ': compile it again: in a checkout by scripts/install'
    actual = getattr(ctypes.CDLL(path), version_function)()
    with pytest.raises(StaleLibraryError, match=r'\.so is stale: it has version %d, but version %d is needed%s' % (
            actual, actual + 1, remedy)):
        CompiledLibrary(path, version_function, actual + 1)
    library = CompiledLibrary(path, version_function, actual)
    assert getattr(library, version_function)() == actual
    with pytest.raises(StaleLibraryError, match=r'\.so is stale: it lacks the function lane_of_tomorrow' + remedy):
        library.lane_of_tomorrow()
