"""Directories for the rows of dynamic tables: problems are named before a table is made."""
import os

import pytest

from mxhybrid.base.errors import SettingError
from mxhybrid.servers.storage import folder_name, refuse_problems


def test_the_message_names_table_directory_hosts_and_remedy():
    refuse_problems('net_users', '/scratch', [])
    with pytest.raises(SettingError) as caught:
        refuse_problems('net_users', '/scratch', [('b', 'is full'), ('a', 'is missing'), ('a', 'is missing')])
    assert str(caught.value) == (
        "net_users: storage='/scratch' is missing on host a, is full on host b: give a directory that exists, can be "
        "written and has room on every host with servers, or storage='memory' (MXHYBRID_STORAGE)")


def test_folders_of_tables_differ():
    names = {folder_name('../../net/users weight') for _ in range(10)}
    assert len(names) == 10 and all(os.path.basename(name) == name and name[0] != '.' for name in names)
    assert len(folder_name('x' * 1000)) < 200
