"""The canvas as a file of its own: opened from a disk, without a request, with the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX
from ram_studio.app.session.sets import load_set
from ram_studio.errors import EvaluationError, OutputError
from ram_studio.evals.report.canvas_page import canvas_data, canvas_page, export_canvas, modules


def test_a_space_is_a_page_and_its_readme(tmp_path: Path) -> None:
    page = export_canvas("dense", tmp_path / "space")
    assert sorted(file.name for file in page.parent.iterdir()) == ["README.md", "index.html"]
    readme = (page.parent / "README.md").read_text()
    assert 'title: "RAM Studio: ' in readme
    assert "sdk: static" in readme
    assert f"\nWhat a merge of {canvas_data('dense')['title']} does" in readme
    assert page.stat().st_size < 1_500_000
    with pytest.raises(OutputError, match=r"index\.html and README\.md"):
        export_canvas("dense", tmp_path / "space")


@pytest.mark.parametrize("source", ["nothing", "../../etc", "/etc/passwd/x"])
def test_only_analyses_and_shipped_sets_are_exported(tmp_path: Path, source: str) -> None:
    with pytest.raises(EvaluationError, match="is not an analysis, a folder with"):
        export_canvas(source, tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_no_text_of_a_user_ends_the_script_it_stands_in() -> None:
    data = canvas_data("dense")
    data["profile"]["agents"][0] = "</script><script>alert(1)</script>"
    page = canvas_page(data)
    assert "<script>alert" not in page
    assert "\\u003c/script>" in page
    # Nothing of the app comes along: modules are those that the canvas needs.
    assert not {"page.js", "tune.js", "microscope.js"} & set(modules())


@pytest.mark.browser
def test_the_file_shows_what_preview_says_and_asks_nobody(browser, tmp_path: Path) -> None:
    page_file = export_canvas("shared-style", tmp_path / "page.html")
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    asked, said = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(page_file.as_uri())
    page.wait_for_selector("[data-agent]", state="visible")
    page.wait_for_selector(".cv[data-tested=here]")
    for point, rule in ((DEFAULT_INDEX, "ram+"), (DEFAULT_INDEX + 1, "ram+s")):
        expected = load_set("shared-style").analysis.preview(point, rule)["agents"]
        for name, numbers in expected.items():
            page.wait_for_function(
                "([name, value]) => Math.abs(document.querySelector(`[data-agent=${name}]`)"
                ".dataset.lambda - value) < 1e-9",
                arg=[name, numbers["lambda"]],
            )
        page.focus("#epsilon-line")
        page.keyboard.press("ArrowRight")
        page.click(".cv-more")
        page.click("[id='method-ram+s']")
    # Its picture: text, drawings and the mechanism, as SVG and as PNG.
    for kind, begins in (("svg", b"<svg"), ("png", b"\x89PNG")):
        page.click("#share")
        with page.expect_download() as download:
            page.click(f"#card-{kind}")
        content = Path(download.value.path()).read_bytes()
        assert content.startswith(begins)
        if kind == "svg":
            assert b"RAM+s" in content
            assert content.count(b"<image") == 5  # three rows of dots, map and weights
            assert b'href="http' not in content
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == [page_file.as_uri()]
    assert said == []
    page.close()
