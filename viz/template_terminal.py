"""Pipeline templates in text: a paragraph a size, its stages node by node."""

from typing import TYPE_CHECKING

from ..schemas.templates import Templates
from .looks import INK, time_colour
from .template_scene import Block, TemplateRow, facts_of, least_share, rows_of

if TYPE_CHECKING:
    from rich.text import Text

INDENT = 2


def terminal_templates(templates: Templates, width: int) -> "Text":
    """Draw pipeline templates in lines of text.

    A node is `[…]`, a stage its layers and, after `x`, its GPUs; the slowest has a `*`, and where there are colours
    their depth is the time.

    Args:
        templates: what is drawn.
        width: columns of the terminal.
    """
    from rich.text import Text

    rows = rows_of(templates)
    low = least_share(rows)
    lines = [Text(fact, style="bold" if n == 0 else "") for n, fact in enumerate(facts_of(templates))]
    for row in rows:
        lines += [Text(f"{row.name}, {row.shape}: {row.time}, slowest {row.slowest}"), *_nodes(row, width, low)]
    lines.append(Text("[…] a node; 0–3x2 layers 0 to 3 on 2 GPUs; * the slowest stage", style="dim"))  # noqa: RUF001
    return Text("\n").join(lines)


def _nodes(row: TemplateRow, width: int, low: float) -> list["Text"]:
    """The nodes, packed into lines of the width."""
    from rich.text import Text

    lines = [Text(" " * INDENT)]
    for blocks in row.by_node():
        stages = Text(" ").join([_stage(block, low) for block in blocks])
        node = Text.assemble("[", stages, "]")
        if len(lines[-1]) > INDENT:
            if len(lines[-1]) + 1 + len(node) > width:
                lines.append(Text(" " * INDENT))
            else:
                lines[-1].append(" ")
        lines[-1].append_text(node)
    return lines


def _stage(block: Block, low: float) -> "Text":
    from rich.text import Text

    words = f"{block.layers}x{block.stage.tensor_parallel}" + ("*" if block.is_slowest else "")
    bold = "bold " if block.is_slowest else ""
    return Text(words, f"{bold}{INK} on {time_colour((block.share - low) / (1 - low))}")
