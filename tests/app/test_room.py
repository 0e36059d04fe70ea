"""A live classroom: state machine, what each view is told, routes under attack, and report."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from app_parts import Clock
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.testclient import TestClient

from ram_studio.app.public.allowed_hosts import AllowedHosts
from ram_studio.app.public.heartbeat import Heartbeats
from ram_studio.app.public.request_guard import RequestGuard, security_headers
from ram_studio.app.room import report, rooms, routes, views
from ram_studio.app.room.questions import NewRoom, Question, RoomError, canvas_link
from ram_studio.app.room.rooms import Room, Rooms
from ram_studio.app.settings import Settings

CHOICE = {
    "id": "sum",
    "title": "Add them up",
    "ask": ["How does the ", ["sum"], " do?"],
    "choices": ["better", "worse"],
    "truth": {"value": 1, "text": "SECRET-TRUTH"},
    "reveal": ["SECRET-REVEAL"],
    "note": "SECRET-NOTE",
}
LINE = {
    "id": "average",
    "title": "Average them",
    "ask": ["How many?"],
    "line": {"low": 0, "high": 180, "step": 1, "unit": "of 180"},
    "truth": {"value": 123, "text": "SECRET-TRUTH", "low": 110, "high": 135},
    "explore": "?set=shared-style&rule=average",
}
NEW = {"questions": [CHOICE, LINE], "talk_seconds": 60}


def opened(clock: Clock, students: int = 0) -> tuple[Rooms, Room, list[str]]:
    """Return all rooms, one that is open, and students in it."""
    every = Rooms(clock)
    room = every.open(NewRoom.read(NEW), "teacher")
    return every, room, [every.join(room.code, "school") for _ in range(students)]


# ---------------------------------------------------------------- the state machine


def test_one_button_leads_through_the_lesson(clock: Clock) -> None:
    _, room, (ann,) = opened(clock, 1)
    seen = [(room.phase, room.place)]
    while room.phase != "done":
        if room.phase == "talk":
            assert room.ends_at == clock() + 60
        else:
            assert room.ends_at is None
        room.go_on(clock())
        seen.append((room.phase, room.place))
    one = ["ask", "first", "talk", "second", "reveal"]
    assert seen == [("lobby", 0), *((p, i) for i in (0, 1) for p in one), ("done", 1)]
    with pytest.raises(RoomError, match="over"):
        room.go_on(clock())
    with pytest.raises(RoomError, match="closed"):
        room.vote(ann, 1, "done", 1)


def test_votes_are_taken_only_in_their_round(clock: Clock) -> None:
    _, room, (ann, bob) = opened(clock, 2)
    for phase in ("lobby", "ask", "first", "talk", "second", "reveal"):
        assert room.phase == phase
        for round_name in ("first", "second"):
            if round_name == phase:
                room.vote(ann, 0, round_name, 0)
                room.vote(ann, 0, round_name, 1)  # changed one's mind
                continue
            with pytest.raises(RoomError, match="closed") as refused:
                room.vote(bob, 0, round_name, 1)
            assert refused.value.status == 409
        with pytest.raises(RoomError):
            room.vote(ann, 1, phase, 1)  # of the question that comes later
        room.go_on(clock())
    assert room.votes[0].first == room.votes[0].second == {ann: 1}


@pytest.mark.parametrize("value", [2, -1, 0.5, True, None, "1", [1], float("nan"), float("inf")])
def test_a_choice_takes_nothing_but_its_places(clock: Clock, value: object) -> None:
    _, room, (ann,) = opened(clock, 1)
    room.go_to(0)
    room.go_on(clock())
    with pytest.raises(RoomError, match="not an answer"):
        room.vote(ann, 0, "first", value)
    assert not room.votes[0].first


def test_the_teacher_jumps_resets_and_asks_more(clock: Clock) -> None:
    _, room, (ann,) = opened(clock, 1)
    room.go_to(1)
    room.go_on(clock())
    room.vote(ann, 1, "first", 100)
    room.reveal(clock())
    assert room.phase == "reveal"
    room.go_to(0)
    assert room.phase == "ask"  # never answered
    room.go_to(1)
    assert room.phase == "reveal"
    room.reset()
    assert room.phase == "ask"
    assert not room.votes[1].first
    room.ask(Question.read({**LINE, "id": "canvas", "title": "This canvas"}))
    assert (room.place, room.phase, room.question.id) == (2, "ask", "canvas")
    assert len(room.votes) == len(room.questions) == 3
    for wrong in (3, -1, True, "1", None):
        with pytest.raises(RoomError):
            room.go_to(wrong)


def test_links_are_collected_and_shown_only_at_the_reveal(clock: Clock) -> None:
    _, room, (ann,) = opened(clock, 1)
    link = canvas_link("?set=dense&rule=ram")
    room.go_on(clock())
    with pytest.raises(RoomError, match="after the reveal"):
        room.hand_in(ann, link)
    room.reveal(clock())
    with pytest.raises(RoomError, match="No student"):
        room.show(link)
    room.hand_in(ann, link)
    room.show(link)
    assert room.shown == link
    assert ann not in json.dumps(views.teacher_view(room, clock()))
    room.go_on(clock())
    assert (room.shown, room.links) == (None, {})


def test_rooms_end_after_two_hours_and_leave_nothing(clock: Clock) -> None:
    every, room, _ = opened(clock, 3)
    clock.now += rooms.LIFE_SECONDS - 1
    assert every.find(room.code.lower()) is room
    clock.now += 2
    with pytest.raises(RoomError, match="no room"):
        every.find(room.code)
    assert (len(every), every._openers) == (0, {})


def test_rooms_and_students_have_limits(clock: Clock) -> None:
    every = Rooms(clock)
    mine = [every.open(NewRoom.read(NEW), "a") for _ in range(rooms.MAX_ROOMS_PER_ADDRESS)]
    with pytest.raises(RoomError, match="limit") as refused:
        every.open(NewRoom.read(NEW), "a")
    assert refused.value.status == 429
    every.end(mine.pop())
    every.open(NewRoom.read(NEW), "a")
    for n in range(rooms.MAX_STUDENTS):
        mine[0].join(str(n), clock())
    with pytest.raises(RoomError, match="full"):
        mine[0].join("one more", clock())
    for n in range(rooms.MAX_ROOMS - len(every)):
        every.open(NewRoom.read(NEW), f"other {n}")
    with pytest.raises(RoomError, match=str(rooms.MAX_ROOMS)):
        every.open(NewRoom.read(NEW), "last")


def test_wrong_codes_keep_nobody_out_who_has_a_right_one(clock: Clock) -> None:
    every, room, _ = opened(clock)
    for _ in range(rooms.PER_MINUTE["join"] + 1):
        for wrong in (lambda: every.join("AAAAAA", "school"), lambda: every.find("AAAAAA")):
            with pytest.raises(RoomError, match="no room") as refused:
                wrong()
            assert refused.value.status == 404
    ann = every.join(room.code, "school")
    assert every.find(room.code, ann) is every.find(room.code) is room
    assert every.lead(room.code, room.token) is room


def test_an_address_joins_other_rooms_after_its_limit(clock: Clock) -> None:
    every, room, _ = opened(clock)
    other = every.open(NewRoom.read(NEW), "teacher")
    clock.now = 6000.0
    for _ in range(rooms.PER_MINUTE["join"] // rooms.MAX_STUDENTS):
        for _ in range(rooms.MAX_STUDENTS):
            every.join(room.code.lower(), "school")
        clock.now += rooms.PRESENT_SECONDS + 1
    with pytest.raises(RoomError, match="Too many"):
        every.join(room.code, "school")
    every.join(room.code, "elsewhere")
    every.join(other.code, "school")


def test_only_those_who_are_there_fill_a_room(clock: Clock) -> None:
    every, room, (ann,) = opened(clock, 1)
    for _ in range(2):
        room.go_on(clock())
    flood = [ann, *(every.join(room.code, "school") for _ in range(rooms.MAX_STUDENTS - 1))]
    for student in flood:
        room.vote(student, 0, "first", 1)
    with pytest.raises(RoomError, match="full"):
        every.join(room.code, "elsewhere")
    clock.now += rooms.PRESENT_SECONDS + 1
    pupils = [every.join(room.code, "elsewhere") for _ in range(rooms.MAX_STUDENTS)]
    room.vote(pupils[0], 0, "first", 1)
    assert len(room.votes[0].first) == rooms.MAX_STUDENTS + 1, "votes of those who left count"
    # Whom the room knows comes back, though it is full.
    with pytest.raises(RoomError, match="full"):
        every.join(room.code, "elsewhere")
    room.note(ann, clock())
    assert views.student_view(room, ann)["mine"]["first"] == 1


def test_a_room_forgets_whoever_is_away_longest(clock: Clock) -> None:
    _, room, (ann, bob) = opened(clock, 2)
    for _ in range(2):
        room.go_on(clock())
    room.vote(ann, 0, "first", 1)
    room.vote(bob, 0, "first", 1)
    for n in range(rooms.MAX_KNOWN - 1):
        clock.now += 1
        room.note(ann, clock())
        room.join(str(n), clock())
    assert len(room.last_seen) == rooms.MAX_KNOWN
    assert room.votes[0].first == {ann: 1}
    with pytest.raises(RoomError, match="not in this room"):
        room.note(bob, clock())


def test_rooms_that_nobody_asks_for_keep_no_place(clock: Clock) -> None:
    every = Rooms(clock)
    many = [every.open(NewRoom.read(NEW), f"{n // 6}") for n in range(rooms.MAX_ROOMS)]
    clock.now += rooms.IDLE_SECONDS - 1
    ann = every.join(many[1].code, "school")
    every.find(many[1].code, ann)
    for room in many[2:]:
        every.lead(room.code, room.token)
    every.find(many[0].code)  # whoever has the code, as the screen
    every.find(many[0].code, "x" * 16)
    with pytest.raises(RoomError, match=str(rooms.MAX_ROOMS)):
        every.open(NewRoom.read(NEW), "teacher")
    clock.now += 1
    new = every.open(NewRoom.read(NEW), "teacher")
    assert many[0].code not in every._rooms
    assert {new.code, *(room.code for room in many[1:])} == every._rooms.keys()
    with pytest.raises(RoomError, match=str(rooms.MAX_ROOMS)):
        every.open(NewRoom.read(NEW), "teacher")


def test_codes_have_no_letters_that_look_alike() -> None:
    assert not set("AEIOULY01") & set(rooms.LETTERS)
    assert {len(rooms._new_code()) for _ in range(50)} == {6}
    assert len({rooms._new_code() for _ in range(200)}) > 190


# ---------------------------------------------------------------- what is told


def test_students_learn_nothing_before_the_reveal(clock: Clock) -> None:
    _, room, (ann, bob) = opened(clock, 2)
    while room.phase != "reveal":
        if room.phase in rooms.ROUNDS:
            before = views.student_view(room, ann)
            room.vote(bob, 0, room.phase, 1)
            # Nothing moves either: no count, by which one could watch others answer.
            assert views.student_view(room, ann) == before
        for view in (views.student_view(room, ann), views.screen_view(room, clock())):
            text = json.dumps(view)
            assert "SECRET" not in text
            assert view["result"] is None
            assert not {"rounds", "expected", "note"} & view.keys()
            assert bob not in text
        room.go_on(clock())
    result = views.student_view(room, ann)["result"]
    assert [result["rounds"][n]["values"] for n in rooms.ROUNDS] == [[1.0], [1.0]]
    assert result["truth"]["text"] == "SECRET-TRUTH"
    assert "SECRET-NOTE" not in json.dumps(result)
    teacher = views.teacher_view(room, clock())
    assert teacher["expected"]["note"] == "SECRET-NOTE"
    assert not {ann, bob, room.token} & set(json.dumps(teacher).replace('"', " ").split())


def test_presence_ends_when_a_page_is_closed(clock: Clock) -> None:
    _, room, (ann, _) = opened(clock, 2)
    assert room.present(clock()) == 2
    clock.now += rooms.PRESENT_SECONDS + 1
    room.note(ann, clock())
    assert (room.present(clock()), views.teacher_view(room, clock())["joined"]) == (1, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {**CHOICE, "line": LINE["line"]},
        {**CHOICE, "choices": None},
        {**CHOICE, "choices": ["one"]},
        {**CHOICE, "truth": {"value": 2, "text": ""}},
        {**CHOICE, "title": "x" * 121},
        {**CHOICE, "ask": ["x" * 701]},
        {**CHOICE, "id": "<script>"},
        {**CHOICE, "extra": 1},
        {**LINE, "line": {"low": 1, "high": 1, "step": 1}},
        {**LINE, "line": {"low": 0, "high": 1e300, "step": 1}},
        {**LINE, "truth": {"value": float("nan"), "text": ""}},
        {**LINE, "explore": "https://elsewhere.test/?set=dense"},
        [],
        None,
    ],
)
def test_a_question_that_is_none_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(RoomError, match=r"Cannot use|not a link"):
        Question.read(wrong)


def test_only_links_to_the_own_canvas_are_taken() -> None:
    good = "?set=shared-style&rule=ram%2B&epsilon=1e-05&r=0.1&alpha=2.0"
    more = "&weights=coding%3D0.7%2C+memory%3D0.2+0.8&tensor=model.norm.weight&element=7"
    for link in (good, good + more):  # as "Copy link" has it
        assert canvas_link(link) == link
    for wrong in (
        "https://elsewhere.test/?set=dense", "//elsewhere.test?set=dense", "?set=elsewhere",
        "?rule=ram", "?set=dense&next=https://elsewhere.test", "?set=dense&set=independent",
        "?set=dense#x", "javascript:alert(1)", "?set=dense&rule=" + "x" * 400, "", None, 5,
    ):  # fmt: skip
        with pytest.raises(RoomError, match="not a link to the canvas"):
            canvas_link(wrong)


# ---------------------------------------------------------------- the report

GUESSES = st.lists(st.tuples(st.integers(0, 180), st.integers(0, 180) | st.none()), max_size=12)


@given(GUESSES)
def test_gain_counts_those_who_answered_twice(guesses: list[tuple[int, int | None]]) -> None:
    room = Room("BCDF", "t", [Question.read(LINE)], 0.0)
    for i, (one, two) in enumerate(guesses):
        room.votes[0].first[str(i)] = one
        if two is not None:
            room.votes[0].second[str(i)] = two
    (told,) = report.results(room)["questions"]
    right = [105 <= one <= 141 for one, _ in guesses]  # 123 and a tenth of 180, past its interval
    both = [(105 <= a <= 141, 105 <= b <= 141) for a, b in guesses if b is not None]
    assert told["first"]["right"] == sum(right)
    before, after = sum(a for a, _ in both), sum(b for _, b in both)
    assert (told["both"], told["before"], told["after"]) == (len(both), before, after)
    if before == len(both):
        assert told["gain"] is None
    else:
        assert told["gain"] == pytest.approx((after - before) / (len(both) - before))


def test_csv_has_a_row_a_round_and_no_formula(clock: Clock) -> None:
    _, room, (ann, bob) = opened(clock, 2)
    room.questions[0] = Question.read({**CHOICE, "title": "=HYPERLINK(1)"})
    room.go_on(clock())
    room.go_on(clock())
    room.vote(ann, 0, "first", 0)
    text = report.csv_text(report.results(room))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["round"] for row in rows] == ["first", "second"] * 2
    assert rows[0]["question"] == "'=HYPERLINK(1)"
    assert (rows[0]["answers"], rows[0]["right"], rows[0]["gain"]) == ("1", "0", "")
    assert ann not in text
    assert bob not in text


# ---------------------------------------------------------------- over HTTP


class School:
    """The routes behind the request guard of an app for a class, and a room in it."""

    def __init__(self, clock: Clock) -> None:
        settings = Settings(host="0.0.0.0")
        self.made = routes.RoomRoutes(settings, clock)
        guard = Middleware(
            RequestGuard,
            heartbeats=Heartbeats(),
            hosts=AllowedHosts(settings),
            headers=security_headers(is_space=False),
            uploads=None,
            is_public=True,
        )
        app = Starlette(routes=self.made.routes(), middleware=[guard])
        self.http = TestClient(app, base_url="http://localhost:7860", raise_server_exceptions=False)
        answer = self.http.post("/room/api", json=NEW)
        assert answer.status_code == 200, answer.text
        self.code, self.token = answer.json()["code"], answer.json()["token"]
        self.at = f"/room/api/{self.code}"

    def act(self, action: str, **more: Any) -> Any:
        body = {"action": action, **more}
        return self.http.post(f"{self.at}/teacher", json=body, headers={"Room-Token": self.token})

    def next(self) -> dict[str, Any]:
        now = self.look()
        return self.act("next", place=now["place"], phase=now["phase"]).json()

    def look(self, student: str | None = None) -> dict[str, Any]:
        headers = {} if student is None else {"Room-Student": student}
        return self.http.get(self.at, headers=headers).json()

    def join(self) -> str:
        return self.http.post(f"{self.at}/join").json()["student"]

    def vote(self, student: str, **said: Any) -> Any:
        return self.http.post(f"{self.at}/vote", json=said, headers={"Room-Student": student})


@pytest.fixture
def school(monkeypatch: pytest.MonkeyPatch) -> School:
    monkeypatch.setattr(routes, "own_network_address", lambda: "192.168.1.7")
    return School(Clock(1e6))


def test_a_lesson_over_http_with_a_reload_and_a_late_student(school: School) -> None:
    ann, bob = school.join(), school.join()
    for _ in range(2):
        school.next()
    assert school.vote(ann, place=0, round="first", value=0).json()["mine"]["first"] == 0
    assert school.vote(bob, place=0, round="first", value=1).status_code == 200
    assert school.look()["counts"] == {"first": 2, "second": 0}
    late = school.join()
    assert (school.look(late)["phase"], school.look(late)["mine"]["first"]) == ("first", None)
    assert school.look(ann)["mine"]["first"] == 0  # a reload asks just this
    assert school.next()["phase"] == "talk"
    assert school.look(ann)["ends_at"] == 1e6 + 60
    school.next()
    assert school.vote(ann, place=0, round="second", value=1).status_code == 200
    assert school.vote(late, place=0, round="second", value=1).status_code == 200
    school.next()
    told = school.look(late)["result"]["rounds"]
    assert (told["first"]["values"], told["second"]["values"]) == ([0, 1], [1, 1])
    assert (told["first"]["right"], told["first"]["by_choice"]) == (1, [1, 1])
    headers = {"Room-Token": school.token}
    told = school.http.get(f"{school.at}/report", headers=headers).json()["questions"][0]
    assert (told["both"], told["before"], told["after"], told["gain"]) == (1, 0, 1, 1.0)
    table = school.http.get(f"{school.at}/report?as=csv", headers=headers)
    assert table.headers["content-type"].startswith("text/csv")
    ended = school.act("end").json()
    assert ended["report"]["students"] == 3
    assert len(school.made.rooms) == 0
    assert school.http.get(school.at).status_code == 404


def test_polls_cost_nothing_until_something_changed(school: School) -> None:
    ann, bob = school.join(), school.join()
    for _ in range(2):
        school.next()
    headers = {"Room-Student": ann}
    first = school.http.get(school.at, headers=headers)
    again = {**headers, "If-None-Match": first.headers["etag"]}
    assert first.headers["cache-control"] == "no-store"
    assert float(first.headers["room-clock"]) == 1e6
    school.vote(bob, place=0, round="first", value=1)
    unchanged = school.http.get(school.at, headers=again)
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    school.next()
    assert school.http.get(school.at, headers=again).status_code == 200


def test_two_presses_of_next_are_one_step(school: School) -> None:
    assert school.act("next", place=0, phase="lobby").json()["phase"] == "ask"
    assert school.act("next", place=0, phase="lobby").json()["phase"] == "ask"


@pytest.mark.parametrize("token", ["", "x", "é", None])
def test_nobody_leads_without_the_token(school: School, token: str | None) -> None:
    student = school.join()
    headers = {"Room-Student": student}
    if token is not None:
        headers["Room-Token"] = token.encode()
    for verb, path, body in (
        ("GET", "teacher", None),
        ("POST", "teacher", {"action": "reveal"}),
        ("POST", f"teacher?token={school.token}", {"action": "end", "token": school.token}),
        ("GET", "report", None),
    ):
        answer = school.http.request(verb, f"{school.at}/{path}", json=body, headers=headers)
        assert answer.status_code == 403, path
        assert "SECRET" not in answer.text
    # A student's id is no token, and the token of another room neither.
    other = school.http.post("/room/api", json=NEW).json()
    for wrong in (student, other["token"]):
        answer = school.http.get(f"{school.at}/teacher", headers={"Room-Token": wrong})
        assert answer.status_code == 403
    assert school.look()["phase"] == "lobby"


def test_nobody_votes_or_looks_as_somebody_else(school: School) -> None:
    ann = school.join()
    for _ in range(2):
        school.next()
    for wrong in ("", "x" * 16, ann[:-1], school.token):
        assert school.vote(wrong, place=0, round="first", value=1).status_code == 403
        answer = school.http.get(school.at, headers={"Room-Student": wrong})
        assert answer.status_code == 403
    assert school.look()["counts"]["first"] == 0


def test_hostile_bodies_and_pages_are_refused(school: School) -> None:
    teacher = {"Room-Token": school.token}
    for body, status in (
        (b"[1]", 400), (b"{", 400), (b'{"action": "open the window"}', 400), (b"", 400),
        (b'{"action": "next", "x": "' + b"x" * 9000 + b'"}', 413),
        (b'{"action": "show", "link": "https://elsewhere.test/?set=dense"}', 400),
        (b'{"action": "go", "place": 1e99}', 400),
    ):  # fmt: skip
        answer = school.http.post(f"{school.at}/teacher", content=body, headers=teacher)
        assert answer.status_code == status, body
    many = {**NEW, "questions": [CHOICE] * 25}
    assert "questions" in school.http.post("/room/api", json=many).json()["error"]
    large = {**NEW, "questions": [{**CHOICE, "ask": ["x" * 700] * 40}] * 4}
    assert school.http.post("/room/api", json=large).status_code == 413
    foreign = {"Origin": "https://elsewhere.test"}
    assert school.http.post("/room/api", json=NEW, headers=foreign).status_code == 403
    assert school.http.post(f"{school.at}/join", headers=foreign).status_code == 403
    assert school.http.get("/room/secret").status_code == 404
    assert school.http.get("/room/material/..%2Fdense.json").status_code == 404


def test_a_student_cannot_flood_the_room(school: School) -> None:
    ann, bob = school.join(), school.join()
    for _ in range(2):
        school.next()
    most = rooms.PER_MINUTE["vote"]
    told = [school.vote(ann, place=0, round="first", value=1).status_code for _ in range(most + 1)]
    assert told == [200] * most + [429]
    assert school.vote(bob, place=0, round="first", value=1).status_code == 200


def test_invented_students_make_no_counts_forgotten(school: School) -> None:
    before = len(school.made.rooms._spent)
    for number in range(20):
        assert school.vote(f"invented {number}", place=0, round="first", value=1).status_code == 403
        answer = school.http.post(
            f"{school.at}/link", json={}, headers={"Room-Student": str(number)}
        )
        assert answer.status_code == 403
    assert len(school.made.rooms._spent) == before


def test_pages_and_code_lead_to_this_app(school: School) -> None:
    seen = school.http.get(f"{school.at}/teacher", headers={"Room-Token": school.token}).json()
    assert (seen["link"], seen["is_reachable"]) == (
        f"http://192.168.1.7:7860/room#{school.code}",
        True,
    )
    assert school.http.get(school.at).json()["link"] == seen["link"], "the screen has the same"
    picture = school.http.get(f"{school.at}/qr.svg")
    assert picture.headers["content-type"] == "image/svg+xml"
    assert b"<path" in picture.content
    for path, root in (("/room", "./"), ("/room/teach", "../"), ("/room/screen", "../")):
        page = school.http.get(path)
        assert f'<base href="{root}">' in page.text
        assert "frame-ancestors 'self'" in page.headers["content-security-policy"]
    assert school.http.get("/room/material/dense.json").json()["set"] == "dense"
