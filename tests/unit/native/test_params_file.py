"""Files of parameters have the bytes of MXNet's, and are read a piece at a time."""
import mxnet as mx
import numpy as np
import pytest

from mxhybrid import InputError
from mxhybrid.native.params_file import ParamsReader, ParamsWriter

pytestmark = pytest.mark.both_pythons

ARRAYS = {'layers.0.weight': mx.nd.arange(12).reshape((3, 4)), 'half': mx.nd.array([1, 2.5, 3], dtype='float16'),
          'counts': mx.nd.array([1, 2], dtype='int64'), 'double': mx.nd.ones((2, 1, 3), dtype='float64')}


#: Complete before it is saved: MXNet saves the number of rows that an array has at that moment.
ROW_SPARSE = mx.nd.ones((4, 2)).tostype('row_sparse')
ROW_SPARSE.wait_to_read()


@pytest.fixture(params=[ARRAYS, {**ARRAYS, 'rows': ROW_SPARSE}], ids=['dense', 'with row_sparse'])
def arrays(request):
    return request.param


def write(path, arrays):
    with path.open('wb') as handle:
        writer = ParamsWriter(handle, len(arrays))
        for name, array in arrays.items():
            if array.stype != 'default':
                writer.add_array(name, array)
            else:
                values = array.asnumpy()
                writer.add(name, array.shape, array.dtype, [values[:1], values[1:]])
        writer.end()


def test_bytes_are_those_of_mxnet(tmp_path, arrays):
    write(tmp_path / 'ours', arrays)
    mx.nd.save(str(tmp_path / 'mxnet'), arrays)
    assert (tmp_path / 'ours').read_bytes() == (tmp_path / 'mxnet').read_bytes()


def test_arrays_are_complete_before_they_are_written(tmp_path):
    square = mx.nd.ones((1000, 1000))
    for _ in range(5):
        square = mx.nd.dot(square, square) / 1000
    rows = {'rows': square[:4].tostype('row_sparse')}
    write(tmp_path / 'ours', rows)
    mx.nd.save(str(tmp_path / 'mxnet'), rows)
    assert (tmp_path / 'ours').read_bytes() == (tmp_path / 'mxnet').read_bytes()


def test_rows_are_read(tmp_path, arrays):
    """MXNet reads files with arrays that are not dense."""
    mx.nd.save(str(tmp_path / 'file'), arrays)
    with open(str(tmp_path / 'file'), 'rb') as handle:
        reader = ParamsReader(handle, str(tmp_path / 'file'))
        assert {name: (one.shape, one.dtype) for name, one in reader.arrays.items()} == {
            name: (array.shape, np.dtype(array.dtype)) for name, array in arrays.items()}
        for name, array in arrays.items():
            found = reader.read(name, 1, array.shape[0])
            assert found.dtype == array.dtype
            np.testing.assert_array_equal(found, array.asnumpy()[1:])


@pytest.mark.parametrize('damage', [lambda data: b'some text', lambda data: data[:-20], lambda data: b''],
                         ids=['text', 'truncated', 'empty'])
def test_other_files_are_refused(tmp_path, damage):
    path = tmp_path / 'file'
    mx.nd.save(str(path), ARRAYS)
    path.write_bytes(damage(path.read_bytes()))
    with open(str(path), 'rb') as handle, pytest.raises(InputError, match='is not a file of parameters'):
        ParamsReader(handle, str(path))


def test_arrays_without_names_are_refused(tmp_path):
    path = tmp_path / 'file'
    mx.nd.save(str(path), list(ARRAYS.values()))
    with open(str(path), 'rb') as handle, pytest.raises(InputError, match='without names'):
        ParamsReader(handle, str(path))


def test_a_file_that_becomes_shorter(tmp_path):
    path = tmp_path / 'file'
    mx.nd.save(str(path), ARRAYS)
    with open(str(path), 'rb', buffering=0) as handle:
        reader = ParamsReader(handle, str(path))
        path.write_bytes(path.read_bytes()[:70])
        with pytest.raises(EOFError):
            reader.read('layers.0.weight', 0, 3)
