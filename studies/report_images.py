"""The pictures of a report in the README: a real comparison, on a desk in light colours and on a phone in dark ones.

python -m studies.report_images
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from studies.common.data import ROOT
from studies.common.pictures import small_png
from upcycled._utils.files import write_whole
from upcycled.config.experiment import load_config
from upcycled.experiments.compare import compare_experiment

ALGORITHMS = ("fedavg", "fedprox", "scaffold", "feddyn")
PICTURES: dict[str, dict[str, Any]] = {
    "report-light.png": {"scheme": "light", "width": 1280, "from": "main", "scale": 1},
    "report-phone-dark.png": {"scheme": "dark", "width": 390, "from": "#curves", "scale": 2},
}


def main() -> None:
    with TemporaryDirectory() as folder:
        experiment = load_config(ROOT / "examples" / "compare.toml", [f'results="{folder}"'])
        command = f"upcycled compare examples/compare.toml --algorithms {','.join(ALGORITHMS)} --no-longer-step"
        page = compare_experiment(
            experiment, "examples/compare.toml", algorithms=ALGORITHMS, longer_step=False, repeat=command
        ).report
        assert page is not None
        take(page)


def take(page: Path) -> None:
    from playwright.sync_api import sync_playwright

    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for name, about in PICTURES.items():
            window = opened.new_page(
                viewport={"width": about["width"], "height": 900},
                color_scheme=about["scheme"],
                device_scale_factor=about["scale"],
            )
            window.goto(page.as_uri())
            boxes = [window.locator(place).bounding_box() for place in (about["from"], "#clients")]
            top, end = (box["y"] for box in boxes if box is not None)
            clip: Any = {"x": 0, "y": top, "width": about["width"], "height": end - top}
            write_whole(ROOT / "docs" / "images" / name, small_png(window.screenshot(clip=clip, full_page=True)))
        opened.close()


if __name__ == "__main__":
    main()
