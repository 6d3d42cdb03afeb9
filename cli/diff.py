"""`rtk diff`: what changed from one plan to another."""

from typing import Annotated

import typer

from ..schemas.documents import read_document
from ..schemas.errors import InvalidInputError
from ..schemas.files import STANDARD_STREAM, source_of
from .console import Common, grouped, print_json
from .github import Github, annotation


@grouped
def command(
    a: Annotated[str, typer.Argument(metavar="A", help="The plan before; `-` is standard input.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The plan after; `-` is standard input.")],
    tolerance: Annotated[
        str | None,
        typer.Option(
            "--tolerance",
            metavar="SHARE",
            help="Times, sizes and ratios that differ by no more than this, such as 5%, are equal; so are the files "
            "that the plans were made from.",
        ),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="WHAT:SHARE",
            help="Exit with 1 if B is worse than A by more than this: slower:3%, memory:5% (largest peak of a worker) "
            "or bubbles:2%. Repeatable.",
        ),
    ] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if the plans differ.")] = False,
    as_markdown: Annotated[bool, typer.Option("--md", help="Print Markdown, for a pull request.")] = False,
    as_github: Github = False,
    *,
    common: Common,
) -> None:
    """Say in words what changed from plan A to plan B, the most important thing first."""
    from ..schemas.plan import Plan
    from ..viz import diff, diff_verdict

    if a == b == STANDARD_STREAM:
        raise InvalidInputError("standard input can be read only once", where="A and B", fix="give one `-`")
    if common.as_json + as_markdown + as_github > 1:
        form = "--github" if as_github else "--md"
        raise InvalidInputError("--json, --md and --github are forms of one answer", where=form, fix="give one of them")
    thresholds = [diff_verdict.parse_threshold(text) for text in fail_if or ()]
    share = None if tolerance is None else diff_verdict.parse_share(tolerance, "--tolerance")
    before, after = read_document(a, Plan), read_document(b, Plan)
    found = diff.diff_plans(before, after)
    found = found if share is None else diff_verdict.beyond(found, share)
    failures = [told for one in thresholds if (told := one.failure(before, after)) is not None]
    first = diff_verdict.headline(before, after, found)
    if common.as_json:
        print_json({**diff.as_tree(found), "headline": first, "failures": failures})
    elif as_github:
        for told in failures:
            print(annotation("error", source_of(b), "rtk diff", told))
        print(annotation("notice", source_of(b), "rtk diff", first))
    elif as_markdown:
        print("\n\n".join([f"**{first}**", *(f"**not allowed: {told}**" for told in failures)]))
        if found:
            print(f"\n{diff.as_markdown(found)}")
    else:
        print("\n".join([first, *(f"not allowed: {told}" for told in failures)]))
        if found:
            print(diff.as_words(found))
    if failures or (exit_code and found):
        raise typer.Exit(1)
