"""The gallery in a browser: opened from a disk, without a request, by mouse and by keyboard."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from engine_zoo import make_zoo

from ram_studio.checkpoints.opening import open_folder
from ram_studio.checkpoints.read.content_hash import model_fingerprint
from ram_studio.checkpoints.record.analysis_file import save_analysis
from ram_studio.checkpoints.record.provenance import read_provenance
from ram_studio.engine.merge import merge
from ram_studio.evals.publish.entry import Entry, Verification, read_entry
from ram_studio.evals.publish.gallery import build_gallery, gallery_page
from ram_studio.evals.publish.scores import StatedScore
from ram_studio.evals.question import Answer, Question
from ram_studio.evals.report.comparison import PairedCounts
from ram_studio.evals.report.score import DomainScore
from ram_studio.evals.store import AnswerStore, RunKey
from ram_studio.evals.suites import ALL_SUITES

METHODS = ("ram+", "ties", "ram", "ram+s", "task-arithmetic")


def make_merges(folder: Path, seed: int, methods: Sequence[str]) -> list[str]:
    """Return the folders of a zoo's merges, each with a compact analysis."""
    zoo = make_zoo(folder / f"zoo{seed}", 3, seed=seed)
    analysis, made = zoo.analyze().compact(), []
    for method in methods:
        out = folder / f"merge-{seed}-{method.replace('+', 'plus')}"
        merge(zoo.recipe(method=method, settings={}), out)
        save_analysis(analysis, out / "ram_studio.analysis")
        made.append(str(out))
    return made


def scored(entry: Entry, number: int) -> Entry:
    """Return an entry with another name, scores of its own, and every third with a badge."""
    verified = None if number % 3 else Verification(10, "1", "2026-01-01")
    paired = PairedCounts(number % 9, 4, 21) if number % 4 else None
    scores = tuple(
        StatedScore(name, DomainScore(40, (number * step) % 41), "version 1, greedy", agent, both)
        for name, step, agent, both in (("tool", 7, paired and "coder", paired),
                                        ("math", 11, None, None))
        if name == "tool" or number % 2
    )  # fmt: skip
    title = f"owner{number % 5}/merge-{number:03d}"
    return dataclasses.replace(
        entry,
        title=title,
        key=title.replace("/", "--"),
        repository=title,
        scores=scores,
        verified=verified,
    )


@pytest.mark.browser
def test_a_hundred_merges_are_sorted_and_filtered_at_once(
    browser: object, tmp_path: Path, page_faults: Callable
) -> None:
    entries = [read_entry(path) for path in make_merges(tmp_path, 0, METHODS[:2])]
    many = [scored(entries[i % len(entries)], i) for i in range(100)]
    file = tmp_path / "index.html"
    file.write_text(gallery_page(many, {"owner/bad": "damaged <b>"}, "Merges"))
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    asked, said = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(file.as_uri())

    def shown() -> list[str]:
        return page.eval_on_selector_all(
            "tbody tr:not([hidden]) .name", "all => all.map((one) => one.textContent)"
        )

    def timed(act: str) -> float:
        script = f"""async () => {{
          const begun = performance.now(); {act};
          await new Promise((r) => requestAnimationFrame(() => setTimeout(r)));
          return performance.now() - begun;
        }}"""
        return page.evaluate(script)

    # With or without a lambda, bars stand below each other.
    lefts = "all => [...new Set(all.map((bar) => bar.getBoundingClientRect().left))]"
    assert len(page.eval_on_selector_all("tbody .bar", lefts)) == 1

    scores = {entry.title: {s.name: s.score.score for s in entry.scores} for entry in many}
    by_tool = [scores[title]["tool"] for title in shown()]
    assert by_tool == sorted(by_tool, reverse=True)
    page.click("[data-sort=above]")
    above = {e.title: s.against.difference()[0] for e in many
             for s in e.scores if s.against is not None}  # fmt: skip
    assert [above.get(title, -1) for title in shown()] == sorted(
        (above.get(e.title, -1) for e in many), reverse=True
    )
    cell = page.locator("tbody tr").first.locator("td[data-label^=Against]")
    value, low, high = (100 * x for x in PairedCounts(8, 4, 21).difference())
    told = f"{value:+.1f} points\n{low:+.1f} to {high:+.1f}\ncoder, n\xa0=\xa033"
    assert cell.inner_text().strip() == told
    assert "not measured" in page.locator("tbody tr").last.inner_text()
    choose = "const s = document.querySelector('#column'); s.value = '1';"
    choose += "s.dispatchEvent(new Event('input'))"
    took = [timed(choose)]
    by_math = [scores[title].get("math", -1) for title in shown()]
    assert by_math == sorted(by_math, reverse=True)
    for key, order in (("title", sorted), ("title", lambda names: sorted(names)[::-1])):
        took.append(timed(f"document.querySelector('[data-sort={key}]').click()"))
        assert shown() == order([entry.title for entry in many])
    assert page.get_attribute("th:has([data-sort=title])", "aria-sort") == "descending"
    page.focus("[data-sort=retained]")
    page.keyboard.press("Enter")
    least = {e.title: min(a.retained.total for a in e.provenance.agents.values()) for e in many}
    assert [least[title] for title in shown()] == sorted(least.values(), reverse=True)
    page.fill("#search", "OWNER3")
    took.append(timed("document.querySelector('#search').dispatchEvent(new Event('input'))"))
    assert {title.split("/")[0] for title in shown()} == {"owner3"}
    page.check("#verified")
    assert set(shown()) == {e.title for e in many if e.verified and e.title.startswith("owner3")}
    page.fill("#search", "nothing of the kind")
    assert page.is_visible("#none")
    page.click("#clear")
    assert len(shown()) == 100
    assert max(took) < 1000, took
    page.click("[data-sort=title]")
    page.click("tbody tr:nth-child(1) .verified summary")
    assert "All 10 bytes and its numbers were computed again" in page.inner_text("tbody")
    page.fill("#search", "owner3 merge-00")
    assert len(shown()) == 2
    # What axe looks at for long is the number of rows.
    file.write_text(gallery_page(many[:4], {"owner/bad": "damaged <b>"}, "Merges"))
    page.reload()
    assert "damaged <b>" in page.inner_text("section")
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page_faults(page, "body") == []
    file.write_text(gallery_page(many[:1], {}, "Merges"))
    page.reload()
    assert page.inner_text("#count") == "1 merge"
    assert {url for url in asked if not url.startswith("data:")} == {file.as_uri()}
    assert said == []
    page.close()


def record_answers(store: AnswerStore, merged: Path) -> None:
    """Have a store know a merge of a zoo and its sources: six questions, the merge right on two."""
    provenance = read_provenance(merged)
    folders = {"merged": merged, **{n: Path(s.place) for n, s in provenance.sources.items()}}
    for place, (name, folder) in enumerate(folders.items()):
        weights = open_folder(folder, name=name).fingerprint
        key = RunKey(model_fingerprint(folder, weights), "tool", ALL_SUITES["tool"].version, {})
        asked = [Question(f"tool-{i}", "tool", "c", f"{i}?", "g", None, 8) for i in range(6)]
        run = store.open_run(key, model=name, path=str(folder))
        store.record(
            run, [(q, Answer(f"{name} <b>", i < 2 + place, seconds=0)) for i, q in enumerate(asked)]
        )


@pytest.mark.slow
@pytest.mark.browser
def test_ten_merges_open_their_canvas_without_weights(
    browser: object, tmp_path: Path, page_faults: Callable
) -> None:
    merges = [path for seed in (0, 1) for path in make_merges(tmp_path, seed, METHODS)]
    with AnswerStore(tmp_path / "answers.sqlite3") as store:
        record_answers(store, Path(merges[0]))
        built = build_gallery(merges, tmp_path / "site", check=True, store=store)
    assert [entry.table is not None for entry in built.entries] == [True] + [False] * 9
    (stated,) = built.entries[0].scores
    assert (stated.agent, stated.against) == ("agent2", PairedCounts(0, 4, 2))
    assert all(entry.verified for entry in built.entries)
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    said = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(built.page.as_uri())
    assert page.locator("tbody tr").count() == 10
    assert page_faults(page, "body") == []
    for name, method in (("merge-0-ramplus", "ram+"), ("merge-1-ties", "ties")):
        page.click(f"a[href='merges/{name}.html']")
        page.wait_for_selector("[data-agent]", state="visible")
        # At the merge's own settings, and every other is one drag away.
        assert page.evaluate("window.RAM.state.settings.method") == method
        assert page.title() == f"RAM Studio: {name}"
        if method == "ram+":
            assert "merged <b>" in page.inner_text(".cv-root")
            assert "agent2 <b>" in page.inner_text(".cv-root")
            before = page.get_attribute("[data-agent=agent0]", "data-lambda")
            page.focus("#epsilon-line")
            for _ in range(8):
                page.keyboard.press("ArrowRight")
            page.wait_for_function(
                "(old) => document.querySelector('[data-agent=agent0]').dataset.lambda !== old",
                arg=before,
            )
        assert page_faults(page, "body") == []
        page.click("text=Back to the gallery")
        page.wait_for_selector("tbody tr")
    assert said == []
    page.close()
