"""Takes the pictures of rtk's pages that the documentation shows: `python docs/make_screenshots.py`.

It makes three pages with the commands of the tutorials, opens each in chromium without a network, and keeps what is
seen as docs/images/screenshot-*.png, of at most 200 kB. Needs chromium and playwright.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from playwright.sync_api import sync_playwright

DOCS = Path(__file__).parent
MOST_BYTES = 200_000
WIDTH, HEIGHT = 1200, 760

PAGES = {
    "plan": """
        rtk profile gpt3-6.7b --analytic --gpu a100-sxm -o gpt.json
        rtk plan slipstream gpt.json --pp 4 --dp 2 --microbatches 8 --failed 1/2 -o plan.json
        rtk viz plan.json -o plan.html
    """,
    "replay": """
        rtk profile gpt3-2.7b --analytic --gpu a40 --microbatch-size 2 -o p.json
        rtk replay --profile p.json --cluster 32x1 --pp 2 --microbatches 32 --trace spot.csv --html replay.html
    """,
    "detect": """
        rtk detect train.log -o detect.html
    """,
}


def main() -> None:
    """Make the pages in a folder that is thrown away, and a picture of each."""
    with TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        shutil.copytree(DOCS.parent / "examples", folder, dirs_exist_ok=True)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for page, commands in PAGES.items():
            path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
            subprocess.run(["bash", "-euc", commands], cwd=folder, check=True, env={"PATH": path, "HOME": name})
            tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, offline=True)
            tab.goto((folder / f"{page}.html").as_uri())
            tab.wait_for_load_state("networkidle")
            tab.screenshot(path=folder / "seen.png")
            tab.close()
            light(folder / "seen.png", DOCS / "images" / f"screenshot-{page}.png")
        browser.close()


def light(seen: Path, kept: Path) -> None:
    """Keep a screenshot with 128 colours: pages have few, and the file is a third as large."""
    Image.open(seen).convert("RGB").quantize(128).save(kept, optimize=True)
    size = kept.stat().st_size
    print(f"{kept.name}: {size / 1000:.0f} kB")
    if size > MOST_BYTES:
        sys.exit(f"{kept.name} is larger than {MOST_BYTES / 1000:.0f} kB")


if __name__ == "__main__":
    main()
