"""The plain shapes that SVG images here are made of, and the frame around them."""

from collections.abc import Sequence
from html import escape

from .looks import ALARM, FAINT, GRID, INK

WIDTH, PAD = 1280, 16
CHARACTER = 6.1

_STYLE = (
    f"text{{font:11px system-ui,'Helvetica Neue',Arial,sans-serif;fill:{INK}}}.h{{font-size:17px;font-weight:600}}"
    f".n{{fill:{FAINT}}}.m{{text-anchor:middle}}.e{{text-anchor:end}}.g{{stroke:{GRID}}}.v{{fill:{ALARM}}}"
    ".r{fill:url(#hatch)}"
)


def image(parts: Sequence[str], title: str, height: float, definitions: str = "") -> str:
    """A whole image, `WIDTH` wide and so high, of these parts."""
    high = px(height)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {high}" width="{WIDTH}" height="{high}">\n'
        f"<title>{escape(title)}</title><style>{_STYLE}</style><defs>{definitions}</defs>\n"
        f'<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def heading(title: str, facts: Sequence[str]) -> tuple[list[str], float]:
    """The title, a line for each fact under it, and the height at which they end."""
    lines = (text(PAD, 44 + 16 * number, fact, "n") for number, fact in enumerate(facts))
    return [text(PAD, 26, title, "h"), *lines], 38 + 16 * len(facts)


def rect(x: float, y: float, width: float, height: float, fill: str | None, name: str = "") -> str:
    """A rectangle; `name` is a class of the image's style."""
    look = (f' fill="{fill}"' if fill else "") + (f' class="{name}"' if name else "")
    return f'<rect x="{px(x)}" y="{px(y)}" width="{px(max(width, 0.0))}" height="{px(height)}"{look}/>'


def text(x: float, y: float, words: str, name: str = "") -> str:
    """Words that begin at x (with the classes `m` and `e`: have their middle or end there) on the line y."""
    look = f' class="{name}"' if name else ""
    return f'<text x="{px(x)}" y="{px(y)}"{look}>{escape(words)}</text>'


def px(value: float) -> str:
    """A place to a hundredth of a pixel, short and without minus zero."""
    return f"{round(value, 2) + 0.0:.2f}".rstrip("0").rstrip(".")
