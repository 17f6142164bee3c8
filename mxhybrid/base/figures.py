"""Draw figures with matplotlib, if it is installed."""
import os
from typing import Any

from .errors import InputError
from .files import UNWRITABLE


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure, in inches, that needs no display; InputError if matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError('drawing needs matplotlib (%s): pip install matplotlib' % error) from error
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def check_figure(picture: str) -> None:
    """Raise InputError if matplotlib is not installed, or a name does not end like an image file."""
    known = new_figure(1, 1).canvas.get_supported_filetypes()
    if os.path.splitext(picture)[1][1:].lower() not in known:
        raise InputError('%s: give a name that ends in .png, .svg or .pdf' % picture)


def save_figure(figure: Any, picture: str) -> None:
    """Write a figure to an image file; InputError if it cannot be written, or its ending is not known."""
    try:
        figure.tight_layout()
        figure.savefig(picture)
    except (OSError, ValueError) as error:
        raise InputError(UNWRITABLE % (picture, error)) from error
