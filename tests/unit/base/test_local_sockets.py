"""Messages between processes of a host: what who sends, waits or connects is told when the other one has gone."""
import os

import pytest

from mxhybrid.base.local_sockets import Left, Listener, connect


def test_a_process_that_has_left_is_told_by_the_same_error_everywhere():
    listener = Listener()
    mine = connect(listener.name)
    theirs = listener.accept(1)
    theirs.send(['here'])
    assert mine.receive(1) == (['here'], None)
    assert mine.peer == theirs.peer == os.getpid()
    theirs.close()
    with pytest.raises(Left):
        mine.receive(1)
    with pytest.raises(Left, match='a process of this host has left'):
        mine.send(['there?'])
    mine.tell(['there?'])
    listener.close()
    with pytest.raises(Left):
        connect(listener.name)
    mine.close()
