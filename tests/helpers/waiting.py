"""Waits of tests for something that another thread or process does."""
import time


def until(condition, limit_s=30):
    """Wait until a condition holds; fail after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, 'it did not happen within %g s' % limit_s
        time.sleep(0.01)
