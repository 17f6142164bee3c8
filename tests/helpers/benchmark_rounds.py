"""Readings of benchmark rounds, for the unit tests of its tables."""


def round_figures(step_s, steps_s, sent):
    """Return the figures of a round: its mean step, its steps, and the bytes that were sent and received."""
    return {'step_s': step_s, 'steps_s': steps_s, 'sent': sent, 'received': sent, 'cpu_s': 1.0, 'busy_s': 1.5,
            'hosts': [], 'phases': {}}
