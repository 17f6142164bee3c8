"""A job without faults, with whose weights the others are compared."""
import pytest

from . import read_steps, start


@pytest.fixture(scope='package')
def undisturbed(tmp_path_factory):
    """A job without faults."""
    directory = tmp_path_factory.mktemp('undisturbed')
    with start(directory) as job:
        result = job.wait(timeout=120).ok()
    assert [step for _, step, _ in read_steps(directory)] == list(range(1, 31))
    return result
