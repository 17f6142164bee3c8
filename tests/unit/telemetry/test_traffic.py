"""The traffic of a parameter adds up."""
import pytest

from mxhybrid.telemetry.traffic import Traffic

pytestmark = pytest.mark.both_pythons


def test_traffic_adds_up():
    traffic = Traffic()
    traffic.add(rows=3, pushed=100)
    traffic.add(rows=5, pushed=60)
    traffic.add(steps=0, pulled=40)
    assert traffic == Traffic(steps=2, rows=8, pushed=160, pulled=40)
