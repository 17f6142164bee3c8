"""The folder in which the commands of the documentation run."""
import pytest

from ...helpers.pages import SCRIPT


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A folder with the minimal example, train.py."""
    path = tmp_path_factory.mktemp('docs')
    (path / 'train.py').write_text(SCRIPT)
    return path
