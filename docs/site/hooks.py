"""What mkdocs adds to the pages under docs/: those that are generated from the code, and the notebooks, executed.

Nothing of it is kept in the repository, so nothing of it can be out of date: the Python names of `rtk`, the file
formats from their JSON Schemas, the change log, and each notebook with the output that its cells have now.
"""

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import rtk

DOCS = Path(__file__).parent.parent
FORMATS = (
    "profile",
    "plan",
    "resumption",
    "timeline",
    "trace",
    "report",
    "atlas",
    "checkpoint",
    "templates",
    "detection",
    "ledger",
    "bubble",
    "diagnosis",
    "replay",
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages; mkdocs calls this once it knows the files under docs/."""
    pages = {
        "reference/python.md": python_page(),
        "reference/formats.md": formats_page(),
        "changelog.md": beside("CHANGELOG.md"),
        "contributing.md": beside("CONTRIBUTING.md"),
    }
    for notebook in sorted((DOCS / "notebooks").glob("*.ipynb")):
        text, pictures = executed(notebook)
        pages[f"notebooks/{notebook.stem}.md"] = text
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Give every option in the reference of commands an anchor of its own: cli.html#rtk-run--checkpoint."""
    return anchored(html) if page.file.src_uri == "cli.md" else html


def anchored(html: str) -> str:
    """The reference of commands, as HTML, with each option that begins a line of a help text as a link to itself."""
    sections = re.split(r'(?=<h2 id=")', html)
    return "".join(_anchored(section) for section in sections)


def _anchored(section: str) -> str:
    command = re.match(r'<h2 id="([\w-]+)"', section)
    if command is None:
        return section
    seen: set[str] = set()

    def link(found: re.Match[str]) -> str:
        indent, names = found.groups()
        anchors = [f"{command[1]}{name}" for name in re.findall(r"--[a-z][\w-]*", names)]
        new = [anchor for anchor in anchors if anchor not in seen]
        seen.update(new)
        ids = "".join(f'<span id="{anchor}"></span>' for anchor in new)
        return f'{indent}{ids}<a href="#{anchors[0]}">{names}</a>'

    # The theme lays the children of a block of code out below each other, as lines with numbers.
    section = section.replace("<span></span><code>", '<span></span><code style="display: block">')
    # An option begins a line of the help: `  --pp`, `  -o, --output`, in a frame or without one.
    return re.sub(r"^([ │*]+)((?:-\w, +)?--[a-z][\w-]*(?:, --[a-z][\w-]*)*)", link, section, flags=re.MULTILINE)


def beside(name: str) -> str:
    """A page at the repository's root, with its links as they are from docs/."""
    return (DOCS.parent / name).read_text().replace("](docs/", "](")


def executed(notebook: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook, executed in its folder, as Markdown, and the pictures that the Markdown shows, by file name.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell of it fails.
    """
    import nbformat
    from nbconvert import MarkdownExporter
    from nbconvert.preprocessors import ExecutePreprocessor

    cells = nbformat.read(notebook, as_version=4)
    ExecutePreprocessor(timeout=120, kernel_name="python3").preprocess(cells, {"metadata": {"path": notebook.parent}})
    text, resources = MarkdownExporter().from_notebook_node(cells, {"unique_key": notebook.stem})
    link = f"[{notebook.name}]({notebook.name})"
    note = f'!!! note "A notebook"\n    This page is {link}, executed when the site was built.\n'
    title, _, rest = text.partition("\n")
    return f"{title}\n\n{note}\n{rest}", dict(resources.get("outputs", {}))


def python_page() -> str:
    """Every public name of `rtk` with its signature and its docstring, as Markdown."""
    lines = ["# Python API", "", "`import rtk` gives these names. Each is loaded when it is first used.", ""]
    lines += ["The [library page](../library.md) shows them in use.", ""]
    for name in sorted(rtk._PLACES):
        lines += _documented(name, getattr(rtk, name))
    return "\n".join(lines) + "\n"


def _documented(name: str, what: Any) -> Iterator[str]:
    signature = _plain(str(inspect.signature(what))) if callable(what) else ""
    kind = "class " if inspect.isclass(what) else ""
    yield from (f"## `{name}` {{ #{name} }}", "", "```python", f"{kind}{_wrapped(name + signature)}", "```", "")
    doc = inspect.getdoc(what) or ""
    for paragraph in re.split(r"\n\n", doc):
        heading, _, body = paragraph.partition("\n")
        if heading in ("Args:", "Attributes:", "Raises:", "Returns:"):
            yield from (f"**{heading[:-1]}**", "", *_items(inspect.cleandoc(body)), "")
        else:
            yield from (paragraph, "")


def _plain(signature: str) -> str:
    """A signature without modules' paths, without addresses in memory, and without the bounds of numbers."""
    signature = re.sub(r"\b(?:[a-z_0-9]+\.)+(?=[A-Z])", "", re.sub(r" at 0x[0-9a-f]+", "", signature))
    bounds = r"Annotated\[((?:[^,\[\]]|\[[^\[\]]*\])+)(?:, \w+\([^)]*\))+\]"
    while (shorter := re.sub(bounds, r"\1", signature)) != signature:
        signature = shorter
    return signature


def _wrapped(call: str) -> str:
    """A signature, one argument a line where it does not fit in a line."""
    if len(call) <= 100:
        return call
    depth, out = 0, ""
    for letter in call:
        depth += letter in "([{"
        depth -= letter in ")]}"
        out += letter if letter != "," or depth != 1 else ",\n   "
    return out.replace("(", "(\n    ", 1)


def _items(text: str) -> Iterator[str]:
    """`name: what` and its continuation lines as a list."""
    for line in text.splitlines():
        found = re.match(r"(\*{0,2}\w+(?:, \w+)*): (.*)", line)
        yield f"* `{found[1]}`: {found[2]}" if found else f"  {line.strip()}"


def formats_page() -> str:
    """The keys of every file format, from the JSON Schemas that `rtk schema` prints."""
    lines = ["# File formats", ""]
    lines += ["All files are JSON in UTF-8; [semantics](../semantics.md#files) says how they are written.", ""]
    lines += ["`rtk schema NAME` prints the JSON Schema of each. An asterisk marks a key that must be there.", ""]
    for name in FORMATS:
        schema = json.loads((DOCS.parent / "schemas" / f"{name}.schema.json").read_text())
        lines += [f"## rtk.{name} {{ #{name} }}", "", *_keys(schema, name)]
        for part, definition in sorted(schema.get("$defs", {}).items()):
            lines += [f"### {part} {{ #{name}-{part.lower()} }}", "", *_keys(definition, name)]
    return "\n".join(lines) + "\n"


def _keys(schema: dict[str, Any], name: str) -> Iterator[str]:
    """A JSON Schema's description and the table of its keys."""
    words, _, attributes = schema.get("description", "").partition("\n\nAttributes:\n")
    meanings = dict(re.findall(r"^ {4}(\w+): ((?:.|\n {8})*)", attributes, re.MULTILINE))
    yield from (words, "")
    if not (properties := schema.get("properties")):
        yield from (_type(schema, name), "")
        return
    yield from ("| key | value | meaning |", "|---|---|---|") if meanings else ("| key | value |", "|---|---|")
    for key, value in properties.items():
        meaning = " ".join(meanings.get(key, "").split()).replace("|", "\\|")
        star = "*" if key in schema.get("required", ()) else ""
        yield f"| `{key}`{star} | {_type(value, name)} |" + (f" {meaning} |" if meanings else "")
    yield ""


def _type(schema: dict[str, Any], name: str) -> str:
    """What a value may be, in a few words."""
    if reference := schema.get("$ref"):
        part = reference.rpartition("/")[2]
        return f"[{part}](#{name}-{part.lower()})"
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(one)}`" for one in schema["enum"])
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(one, name) for one in choices))
    if schema.get("type") == "array":
        items = schema.get("items") or {}
        return f"list of {_type(items, name)}" if items else "list"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'], name)}"
    return str(schema.get("type", "any"))
