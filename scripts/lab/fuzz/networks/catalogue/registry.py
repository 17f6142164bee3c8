"""The table of entries: the function that draws a statement of each operator."""
from typing import Any, Callable, Dict, Tuple

Entry = Callable[[Any], Any]

#: Chance and entry of each operator, by its name in F, or in gluon for layers.
ENTRIES: Dict[str, Tuple[float, Entry]] = {}


def entry(*names: str, chance: float = 1.0) -> Callable[[Entry], Entry]:
    """Register a function that adds a statement to a drawing."""
    def register(function: Entry) -> Entry:
        for name in names:
            ENTRIES[name] = chance, function
        return function
    return register


def simple(name: str, code: str, *tests: Callable[[Tuple[int, ...]], bool], chance: float = 0.5, **known: Any) -> None:
    """Register a statement that reads a value for each test."""
    def draw(drawing: Any) -> None:
        drawing.add(name, code, *[drawing.pick(test) for test in tests], **known)
    ENTRIES[name] = chance, draw


def any_shape(shape: Tuple[int, ...]) -> bool:
    """Take all."""
    return True


def ranks(*counts: int) -> Callable[[Tuple[int, ...]], bool]:
    """Accept shapes with this number of dimensions."""
    return lambda shape: len(shape) in counts
