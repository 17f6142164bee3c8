"""What Horovod is told before it starts."""
import os

import pytest

from mxhybrid.bootstrap import prepare_horovod
from mxhybrid.heartbeat import Limits

TIMEOUT, CYCLE = 'HOROVOD_GLOO_TIMEOUT_SECONDS', 'HOROVOD_CYCLE_TIME'


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in (TIMEOUT, CYCLE):
        monkeypatch.setenv(name, '')  # so that it is put back
        monkeypatch.delenv(name)


@pytest.mark.parametrize('limits, least', [
    (Limits(120, 60, 600), 120), (Limits(10, 60, 0), 60), (Limits(600.5, 5, 0), 600)])
def test_horovod_waits_longer_than_we_do_who_name_the_missing(limits, least):
    prepare_horovod(limits, False)
    assert int(os.environ[TIMEOUT]) > least
    assert CYCLE not in os.environ


def test_horovod_looks_less_often_where_it_does_not_sum_gradients():
    prepare_horovod(Limits(), True)
    assert os.environ[CYCLE] == '25'


def test_what_the_user_says_counts(monkeypatch):
    monkeypatch.setenv(TIMEOUT, '7')
    monkeypatch.setenv(CYCLE, '2')
    prepare_horovod(Limits(), True)
    assert os.environ[TIMEOUT] == '7' and os.environ[CYCLE] == '2'
