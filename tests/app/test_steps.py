"""Moving through the app in a real browser: Back and Forward, and where the focus goes."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser


def test_back_and_forward_go_through_the_steps(visit) -> None:
    it = visit()
    page = it.page
    loads = "() => performance.getEntriesByType('navigation').length + history.length"

    def is_at(step: str, said: str) -> None:
        page.wait_for_selector(f"#to-{step}[aria-current=step], #open-history[data-current]")
        page.wait_for_url(said)
        it.settle()
        assert page.evaluate("() => document.body.dataset.step") == step
        assert page.is_visible(f"#step-{step}")

    # A link from outside is one entry, whatever is set there.
    page.goto("about:blank")
    it.open("?set=shared-style&rule=ram%2B&r=0.25")
    is_at("tune", "**r=0.25**")
    page.click("[data-choose=sum]")
    is_at("tune", "**rule=sum**")
    assert page.evaluate("() => history.length") == 2
    it.go("merge")
    it.go("check")
    page.click("#open-history")
    is_at("history", "**step=history")
    entries = page.evaluate(loads)
    page.go_back()
    is_at("check", "**step=check**")
    page.go_back()
    is_at("merge", "**step=merge**rule=sum**")
    page.go_back()
    is_at("tune", "**rule=sum**")
    page.go_forward()
    is_at("merge", "**step=merge**")
    assert page.evaluate(loads) == entries
    # Faster than the page follows; a reload stays where it was, with the entries behind it.
    page.evaluate("() => { history.back(); setTimeout(() => history.go(2), 5); }")
    is_at("check", "**step=check**")
    page.reload()
    is_at("check", "**step=check**")
    page.go_back()
    is_at("merge", "**step=merge**")
    # A new step takes the place of what was ahead; what lies over Tune is closed.
    it.go("load")
    page.go_back()
    is_at("merge", "**step=merge**")
    page.go_back()
    is_at("tune", "**rule=sum**")
    page.evaluate("() => document.querySelector('.cv-details').showModal()")
    page.go_forward()
    is_at("merge", "**step=merge**")
    assert page.locator("dialog[open]").count() == 0
    for _ in range(2):
        page.go_back()
    assert page.url == "about:blank"


def test_the_focus_follows_a_jobs_buttons(example) -> None:
    page, keys = example.page, example.page.keyboard
    example.go("check")
    example.set_slider("limit", 1000)
    page.focus("#evaluate")
    keys.press("Enter")
    page.wait_for_selector("#stop-evaluate:focus")
    keys.press("Enter")
    page.wait_for_selector("#evaluate:focus")
    assert "Stopped" in page.text_content("#check-status")
    # A job that ends by itself gives it back, too.
    example.go("merge")
    page.focus("#merge")
    keys.press("Enter")
    page.wait_for_selector("#merge-result .result")
    page.wait_for_selector("#merge:focus")


def test_a_scenes_settings_end_with_its_models(example) -> None:
    page = example.page
    page.click("#to-load")
    page.click("[data-lesson]")
    page.wait_for_selector(".ls-on [data-agent]", state="attached")
    example.settle()
    page.click("#to-load")
    page.click("[data-opens=independent]")
    page.wait_for_selector(".cv-root:not(.ls-on) [data-agent]", state="visible")
    example.settle()
    assert "RAM+ epsilon 10⁻⁵, r 0.1, alpha 2" in page.text_content("[data-part=verdict]")


_FOLD = """async () => {
  document.body.innerHTML = "<button class=label-wrap>Options</button>";
  const head = document.querySelector("button");
  const say = () => new Promise((done) => setTimeout(() => done(head.ariaExpanded)));
  const before = await say();
  head.classList.add("open");
  return [before, await say()];
}"""


def test_a_fold_says_whether_it_is_open(page) -> None:
    assert page.evaluate(_FOLD) == ["false", "true"]
