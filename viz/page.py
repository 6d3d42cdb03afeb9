"""The HTML page around a picture: title, facts, and how to read it. It needs no network."""

from collections.abc import Iterable
from html import escape

from .looks import INK

FONTS = "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"

_STYLE = (
    f"body {{ font: 15px/1.5 {FONTS}; color: {INK}; background: #fff; margin: 1.4rem 2rem; }}"
    + """
h1 { font-size: 1.35rem; margin: 0 0 .2rem; }
.facts { margin: 0; color: #4B5563; }
details { margin: .6rem 0 0; max-width: 62rem; color: #374151; }
summary { cursor: pointer; font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem .8rem; margin: .5rem 0; }
dt { font-weight: 600; } dd { margin: 0; }
"""
)


def page(title: str, facts: Iterable[str], chart: str, guide: Iterable[tuple[str, str]]) -> str:
    """A whole page.

    Args:
        title: of the page, above everything.
        facts: a line each.
        chart: the picture, as HTML.
        guide: words and what they mean, as HTML.
    """
    lines = "".join(f'<p class="facts">{escape(fact)}</p>' for fact in facts)
    entries = "".join(f"<dt>{word}</dt><dd>{text}</dd>" for word, text in guide)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n<h1>{escape(title)}</h1>\n{lines}\n{chart}\n"
        f"<details open><summary>How to read this</summary><dl>{entries}</dl></details>\n</body>\n</html>\n"
    )
