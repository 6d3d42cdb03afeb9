"""`rtk reproduce`: the papers' tables and figures, made again with rtk."""

from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.errors import InvalidInputError, remark
from ..schemas.files import write_bytes
from ..schemas.text import did_you_mean
from .console import Common, Writes, grouped, print_json, print_table, progress

if TYPE_CHECKING:
    pass


LIST, ALL = "list", "all"


@grouped
def command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME...]", help=f"Tables and figures; `{LIST}` lists them, `{ALL}` is all of them."),
    ] = None,
    markdown: Annotated[
        str | None, typer.Option("--markdown", help="Write a page instead of tables; `-` is standard output."), Writes()
    ] = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if anything that is judged does not hold.")
    ] = False,
    *,
    common: Common,
) -> None:
    """Make tables and figures of the papers again: the paper's number, rtk's, the difference, and how rtk's was made.

    A difference is judged where a tolerance was asked for; else it is only stated. What a paper leaves open is listed,
    with what was assumed instead. Each row says how rtk's number was made: planned, simulated or detected by rtk from
    stated inputs, computed outside of rtk's planners, measured and recorded, or quoted from the paper; and how many
    numbers were fitted to it.
    """
    from ..benchmarks.papers import catalogue, telling

    chosen = _chosen(names or [LIST])
    if not chosen:
        _list(markdown, common.as_json)
        return
    made = []
    with progress() as bar:
        task = bar.add_task("reproducing", total=len(chosen))
        for name in chosen:
            bar.update(task, description=name)
            made.append(catalogue.reproduce(name))
            bar.advance(task)
    if markdown is not None:  # a page of all says also what there is not
        is_all = ALL in (names or ())
        page = telling.page(made, ALL if is_all else " ".join(chosen), catalogue.ABSENT if is_all else {})
        write_bytes(markdown, page.encode())
        remark(f"wrote {markdown}")
    if common.as_json:
        print_json({"reproductions": [telling.as_tree(one) for one in made]})
    elif markdown is None:
        telling.print_all(made)
    if exit_code and not all(one.holds for one in made):
        raise typer.Exit(1)


def known_names() -> list[str]:
    """What may stand behind `rtk reproduce`."""
    from ..benchmarks.papers import catalogue

    return [*catalogue.names(), LIST, ALL]


def _chosen(names: list[str]) -> tuple[str, ...]:
    """Names without doubles; none where the list was asked for.

    Raises:
        InvalidInputError: there is none of that name.
    """
    from ..benchmarks.papers import catalogue

    if names == [LIST]:
        return ()
    if LIST in names:
        raise InvalidInputError(f"`{LIST}` goes with no other name", where="NAME", fix=f"rtk reproduce {LIST}")
    for name in names:
        if name != ALL and name not in catalogue.MAKERS:
            known = known_names()
            raise InvalidInputError(
                f"there is no reproduction {name!r}",
                where="NAME",
                fix=did_you_mean(name, known, "`rtk reproduce list` names them all", least=0.4),
            )
    return catalogue.names() if ALL in names else tuple(dict.fromkeys(names))


def _list(markdown: str | None, as_json: bool) -> None:
    from ..benchmarks.papers import catalogue

    if markdown is not None:
        raise InvalidInputError("a list is no page", where="--markdown", fix=f"name what is to be on it, or `{ALL}`")
    listed = [(name, catalogue.summary(name)) for name in catalogue.names()]
    if as_json:
        absent = [{"what": what, "why": why} for what, why in catalogue.ABSENT.items()]
        print_json({"reproductions": [{"name": name, "title": title} for name, title in listed], "absent": absent})
        return
    print_table(("name", "what"), listed, left=2)
    print("\nNot among them:\n")
    print_table(("what", "why not"), catalogue.ABSENT.items(), left=2)
