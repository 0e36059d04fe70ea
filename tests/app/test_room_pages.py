"""The pages of a room by themselves: which room they follow, and what the report says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from app_parts import MODULES, load_modules, run

from ram_studio.resources import asset_text

pytestmark = pytest.mark.browser

# A server that answers when it is told to: asked has what was sent, answers what to do with it.
_SERVER = """(hash) => {
  document.body.innerHTML = "<p data-part=where></p><main id=room></main><p data-part=spoken></p>";
  window.location.hash = hash;
  Object.assign(window, { asked: [], answers: [] });
  const wait = window.setTimeout;
  window.setTimeout = (later, ms, ...more) => wait(later, ms / 10, ...more);  // until the next poll
  window.fetch = (url, { method, headers }) => new Promise((done) => {
    const path = String(url).replace("room/api", "");
    asked.push({ path: `${method} ${path}`, student: headers["Room-Student"] ?? null });
    answers.push((body, status = 200) => done(new Response(JSON.stringify(body), { status })));
  });
  window.answer = async (path, body, status) => {
    const i = asked.findIndex((one, i) => one.path === path && answers[i]);
    answers[i](body, status);
    answers[i] = null;
    await new Promise((later) => wait(later, 50));
  };
}"""


@pytest.fixture(scope="module")
def room(module_page: Any) -> Iterator[Any]:
    """What opens a module of the room's pages anew, at an address."""

    def opened(module: str, address: str) -> Any:
        module_page.goto(MODULES)
        module_page.reload()
        run(module_page, _SERVER, address)
        module_page.evaluate(f"() => import('./room/{module}.js').then(() => true)")
        return module_page

    yield opened
    load_modules(module_page)


def paths(page: Any) -> list[str]:
    return page.evaluate("() => asked.map(({ path }) => path)")


def test_a_student_follows_only_the_room_of_the_address(room) -> None:
    page = room("student", "#ABCDFG")
    run(page, "() => { window.location.hash = '#FGHJKM'; }")
    page.wait_for_function("() => asked.length === 2")
    assert paths(page) == ["POST /ABCDFG/join", "POST /FGHJKM/join"]
    page.evaluate("() => answer('POST /FGHJKM/join', { student: 'second' })")
    page.evaluate("() => answer('POST /ABCDFG/join', { student: 'first' })")
    polls = page.evaluate("() => asked.slice(2)")
    assert polls == [{"path": "GET /FGHJKM", "student": "second"}]
    assert page.evaluate("() => sessionStorage.getItem('ram-room-FGHJKM')") == "second"


def test_a_canvas_that_was_sent_is_confirmed_aloud(room) -> None:
    page = room("student", "#ABCDFG")
    page.evaluate("() => answer('POST /ABCDFG/join', { student: 'one' })")
    truth = {"value": 1, "text": "21 of 180", "low": None, "high": None}
    none = {"answers": 0, "right": 0, "median": None, "by_choice": [0, 0], "values": []}
    result = {
        "truth": truth, "rounds": {"first": none, "second": none}, "reveal": ["It broke."],
        "explore": "?set=shared-style",
    }  # fmt: skip
    question = {"id": "sum", "title": "Add", "ask": ["How?"], "choices": ["Well", "Badly"]}
    state = {
        "code": "ABCDFG", "phase": "reveal", "place": 0, "questions": 1, "is_rehearsal": False,
        "question": question, "result": result, "mine": {"first": 0, "second": None}, "link": None,
    }  # fmt: skip
    run(page, "(state) => answer('GET /ABCDFG', state)", state)
    page.click("summary")
    page.fill("#pasted", "http://modules.test/?rule=sum")
    page.press("#pasted", "Enter")
    sent = {**state, "link": "?rule=sum"}
    run(page, "(state) => answer('POST /ABCDFG/link', state)", sent)
    assert page.inner_text("[data-part=spoken]") == "Your teacher has your canvas."
    assert page.inner_text(":focus") == "Send it again"


def test_the_screen_shows_the_whole_code_on_a_phone(browser) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    body = '<body data-view="screen"><main id="room"><p class="rm-code">WWWWWW</p></main></body>'
    page.set_content(f"<style>{asset_text('room/room.css')}</style>{body}")
    wide = page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
    page.close()
    assert wide <= 0


_SUBMIT = """() => new Promise((done) => {
  window.addEventListener("hashchange", () => done(), { once: true });
  document.querySelector("form").requestSubmit();
})"""


def test_an_address_without_a_code_asks_for_one(room) -> None:
    page = room("student", "#%")
    assert page.inner_text("#code-error") == "A code has six letters."
    # As the screen shows it, or pasted.
    page.fill("#code", " hjk mnp ")
    page.evaluate(_SUBMIT)
    assert paths(page) == ["POST /HJKMNP/join"]


_STATE = {
    "phase": "lobby", "place": 0, "question": None, "expected": None, "rounds": None, "counts": {},
    "present": 0, "joined": 0, "is_rehearsal": True, "is_reachable": True, "link": "", "links": [],
    "shown": None, "plan": [], "questions": 1,
}  # fmt: skip


def test_a_student_who_was_refused_may_try_again(room) -> None:
    page = room("student", "#QRSTVW")
    page.evaluate("() => answer('POST /QRSTVW/join', { error: 'The room is full.' }, 429)")
    assert page.inner_text("#code-error") == "The room is full."
    page.click("text=Join >> nth=-1")
    assert paths(page) == ["POST /QRSTVW/join"] * 2


def test_the_screen_names_the_address_of_the_link(room) -> None:
    page = room("screen", "#ABCDFG")
    state = {**_STATE, "code": "ABCDFG", "link": "http://192.168.1.7:7860/studio/room#ABCDFG"}
    run(page, "(state) => answer('GET /ABCDFG', state)", state)
    assert page.inner_text(".rm-foot") == "Join: ABCDFG at 192.168.1.7:7860/studio/room"


def test_the_screen_tells_the_end_aloud(room) -> None:
    page = room("screen", "#ABCDFG")
    state = {**_STATE, "phase": "done", "code": "ABCDFG", "link": "http://one/room#ABCDFG"}
    run(page, "(state) => answer('GET /ABCDFG', state)", state)
    assert page.inner_text("[data-part=spoken]") == "The lesson is over."
    page.wait_for_function("() => answers.some(Boolean)")
    page.evaluate("() => answer('GET /ABCDFG', { error: 'There is no room.' }, 404)")
    assert page.inner_text("[data-part=spoken]") == "This room has ended."


def test_each_rehearsal_has_students_of_its_own(room) -> None:
    page = room("teach", f"#ABCDFG.{'a' * 24}")
    run(page, "(state) => answer('GET /ABCDFG/teacher', state)", _STATE)
    assert paths(page).count("POST /ABCDFG/join") == 1  # the next one when this one is in
    run(page, "(hash) => { window.location.hash = hash; }", f"#FGHJKM.{'b' * 24}")
    page.wait_for_function("() => asked.some(({ path }) => path === 'GET /FGHJKM/teacher')")
    run(page, "(state) => answer('GET /FGHJKM/teacher', state)", _STATE)
    assert paths(page).count("POST /FGHJKM/join") == 1


def test_who_opens_and_reveals_by_keys_keeps_the_focus(room) -> None:
    page = room("teach", f"#ABCDFG.{'a' * 24}")
    state = {**_STATE, "is_rehearsal": False}
    run(page, "(state) => answer('GET /ABCDFG/teacher', state)", state)
    assert page.inner_text(":focus") == "Let students in, then begin"
    question = {"id": "sum", "title": "Add", "ask": ["How?"], "choices": ["Well", "Badly"]}
    expected = {"truth": {"value": 1, "text": "21 of 180"}, "reveal": ["It broke."], "note": ""}
    state |= {"phase": "first", "question": question, "expected": expected}
    page.wait_for_function("() => asked.length === 2")  # the next poll
    run(page, "(state) => answer('GET /ABCDFG/teacher', state)", state)
    page.press("[data-part=reveal-now]", "Enter")
    shown = {**state, "phase": "reveal"}
    run(page, "(state) => answer('POST /ABCDFG/teacher', state)", shown)
    assert page.inner_text(":focus") == "Finish"


def test_votes_that_come_leave_the_focus_where_it_is(room) -> None:
    page = room("teach", f"#ABCDFG.{'a' * 24}")
    plan = [{"title": title, "answers": 0} for title in ("First", "Second")]
    state = {**_STATE, "is_rehearsal": False, "plan": plan}
    run(page, "(state) => answer('GET /ABCDFG/teacher', state)", state)
    page.focus("nav button:has-text('Second')")
    page.wait_for_function("() => asked.length === 2")  # the next poll
    plan[0]["answers"] = 3
    run(page, "(state) => answer('GET /ABCDFG/teacher', state)", state)
    assert "3 answered" in page.inner_text("nav")
    assert page.inner_text(":focus") == "Second"


def test_expected_answers_stay_as_the_teacher_left_them(room) -> None:
    page = room("teach", f"#ABCDFG.{'a' * 24}")
    question = {"id": "sum", "title": "Add", "ask": ["How?"], "choices": ["Well", "Badly"]}
    expected = {"truth": {"value": 1, "text": "21 of 180"}, "reveal": ["It broke."], "note": ""}
    state = {**_STATE, "is_rehearsal": False, "question": question, "expected": expected}
    seen = []
    for phase in ("ask", "first", "second"):
        told = {**state, "phase": phase}
        run(page, "(state) => answer('GET /ABCDFG/teacher', state)", told)
        page.wait_for_selector(f"main[data-phase={phase}] .rm-notes")
        seen.append(page.get_attribute(".rm-notes", "open") is not None)
        if phase != "first":
            page.click(".rm-notes summary")
        page.wait_for_function("() => asked.at(-1).path.startsWith('GET') && answers.at(-1)")
    assert seen == [True, False, False]
    told = {**state, "phase": "reveal"}
    run(page, "(state) => answer('GET /ABCDFG/teacher', state)", told)
    page.wait_for_selector("main[data-phase=reveal] .rm-notes[open]")


def test_the_report_says_what_was_chosen_as_often(room) -> None:
    page = room("report", "")
    round_ = {"answers": 4, "right": 2, "median": None, "by_choice": [2, 2, 0], "values": []}
    none = {**round_, "answers": 0, "right": 0, "by_choice": [0, 0, 0]}
    question = {
        "title": "Add them up", "question": "How does it do?", "choices": ["Well", "Badly", "Same"],
        "truth": {"value": 1, "text": "21 of 180"}, "first": round_, "second": none,
        "both": 0, "before": 0, "after": 0, "gain": None,
    }  # fmt: skip
    told = {"questions": [question], "students": 4, "is_rehearsal": False, "code": "ABCDFG"}
    run(
        page,
        """async (told) => (await import("./room/report.js"))
             .drawReport(document.getElementById("room"), told, "")""",
        told,
    )
    assert "4 students, 1 question." in page.inner_text("[data-part=report]")
    sheet = page.locator("[data-part=worksheet]").text_content()
    assert "First vote: most often chosen: “Well” and “Badly”, 2 of 4 right." in sheet
    assert "Second vote: nobody answered." in sheet
    assert "Badly, 21 of 180" in page.inner_text("table")
