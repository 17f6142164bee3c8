"""The table of entries: the function that draws a statement of each operator."""
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

Entry = Callable[[Any], Any]
#: Accepts shapes.
Test = Callable[[Tuple[int, ...]], bool]

#: Chance and entry of each operator, by its name in F, or in gluon for layers.
ENTRIES: Dict[str, Tuple[float, Entry]] = {}


def entry(*names: str, chance: float = 1.0) -> Callable[[Entry], Entry]:
    """Register a function that adds a statement to a drawing."""
    def register(function: Entry) -> Entry:
        for name in names:
            ENTRIES[name] = chance, function
        return function
    return register


def simple(name: str, code: str, test: Test, *tests: Optional[Test], options: Sequence[Any] = (), chance: float = 0.5,
           **known: Any) -> None:
    """Register a statement that reads a value for each test, or one that is shaped as the first if the test is None;
    `code` gets one of the options.
    """
    def draw(drawing: Any) -> None:
        value = drawing.pick(test)
        text = code % drawing.random.choice(options) if options else code
        others = [drawing.same_as(value) if other is None else drawing.pick(other) for other in tests]
        drawing.add(name, text, value, *others, **known)
    ENTRIES[name] = chance, draw


def any_shape(shape: Tuple[int, ...]) -> bool:
    """Accept all shapes."""
    return True


def is_image(shape: Tuple[int, ...]) -> bool:
    """Accept shapes of four dimensions, of which the last two are not 1."""
    return len(shape) == 4 and min(shape[2:]) > 1


def ranks(*counts: int) -> Test:
    """Return a test that accepts shapes with one of these numbers of dimensions."""
    return lambda shape: len(shape) in counts
