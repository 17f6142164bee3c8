"""Pictures by matplotlib, where that is installed."""
from typing import Any

from .errors import InputError


def new_figure(width: float, height: float) -> Any:
    """An empty figure, in inches, that needs no display; InputError where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError('drawing needs matplotlib (%s): pip install matplotlib' % error) from error
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, picture: str) -> None:
    """Write a figure to an image file; InputError where it cannot be, or its ending is not that of an image."""
    try:
        figure.tight_layout()
        figure.savefig(picture)
    except (OSError, ValueError) as error:
        raise InputError('%s cannot be written: %s' % (picture, error)) from error
