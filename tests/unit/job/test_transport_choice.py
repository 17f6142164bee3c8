"""Workers that share memory with a server, and the errors about those that do not."""
import pytest

from mxhybrid.base.errors import SettingError
from mxhybrid.base.settings import Settings
from mxhybrid.job.horovodrun import check_reach
from mxhybrid.job.transport_choice import is_served

pytestmark = pytest.mark.both_pythons

ASKED = Settings(row_transport='lane')


def test_every_worker_needs_a_server_beside_it():
    assert is_served(ASKED, 0, ['boot/1/7', 'boot/1/7', 'other/1/7'], ['boot/1/7', 'other/1/7'])
    assert not is_served(Settings(), 1, ['boot/1/7', 'boot/1/8'], ['boot/1/7'])
    with pytest.raises(SettingError, match="^MXHYBRID_ROW_TRANSPORT='lane', but worker 1 runs as user 8, and a server "
                                           'of its host as user 7, and only processes of one user share memory'):
        is_served(ASKED, 1, ['boot/1/7', 'boot/1/8'], ['boot/1/7'])
    for lonely in ('boot/2/7', 'other/1/7', 'other/1/8'):  # another network, kernel or both
        with pytest.raises(SettingError, match='a host has workers, but no server that they share memory with'):
            is_served(ASKED, 0, ['boot/1/7', lonely], ['boot/1/7'])


def test_int8_needs_the_lane():
    settings = Settings(wire_dtype=(('embed*', 'int8'), ('*', 'float16')))
    with pytest.raises(SettingError, match=r"^MXHYBRID_WIRE_DTYPE='embed\*=int8,\*=float16' needs the lane, but a host "
                                           'has workers, but no server .* use float16 in place of int8$'):
        is_served(settings, 1, ['boot/1/7', 'other/1/7'], ['boot/1/7'])
    assert not is_served(Settings(wire_dtype=(('*', 'float16'),)), 1, ['boot/1/7', 'other/1/7'], ['boot/1/7'])


def test_unix_sockets_for_ps_lite_are_refused_between_hosts():
    check_reach(['a', 'a'], [True, True])
    check_reach(['a', 'b'], [False, False])
    with pytest.raises(SettingError, match='DMLC_LOCAL=1 on worker 1: .* the job has the hosts a, b: unset DMLC_LOCAL'):
        check_reach(['a', 'b', 'a'], [False, True, True])
