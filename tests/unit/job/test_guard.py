"""The cause that a worker names when a server that it started has ended."""
from types import SimpleNamespace

import pytest

from mxhybrid.job import guard as guard_module
from mxhybrid.job.guard import Guard

SILENCE = 'worker 0, which watches the job, has been silent for 5 s: it hangs'


@pytest.mark.parametrize('silence, cause', [(None, 'the server ended'), (SILENCE, SILENCE)])
def test_a_silent_worker_0_outranks_an_ended_server(monkeypatch, silence, cause):
    sent, failures, texts = [], [], []
    guard = Guard(SimpleNamespace(), SimpleNamespace(fail=failures.append), None)
    guard.lifeline = SimpleNamespace(send=sent.append, suspected_silence=lambda: silence)
    monkeypatch.setattr(guard_module, 'leave', lambda text, cleanup: texts.append(text))
    guard._server_died('the server ended')
    assert sent == [{'server_died': 'the server ended'}]
    assert failures == [cause] and texts == [' ends, because ' + cause]
