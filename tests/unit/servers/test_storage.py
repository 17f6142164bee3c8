"""Directories for the rows of dynamic tables: problems are named before a table is made."""
import pytest

from mxhybrid.base.errors import SettingError
from mxhybrid.servers.storage import refuse_problems


def test_the_message_names_table_directory_hosts_and_remedy():
    refuse_problems('net_users', '/scratch', [])
    with pytest.raises(SettingError) as caught:
        refuse_problems('net_users', '/scratch', [('b', 'is full'), ('a', 'is missing'), ('a', 'is missing')])
    assert str(caught.value) == (
        "net_users: storage='/scratch' is missing on host a, is full on host b: give a directory that exists, can be "
        "written and has room on every host with servers, or storage='memory' (MXHYBRID_STORAGE)")
