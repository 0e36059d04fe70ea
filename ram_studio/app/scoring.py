"""The work behind the Check step: evaluate what is not scored yet, compare, tell it in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

from ram_studio.app import markup, wording
from ram_studio.app.jobs import Job, Report
from ram_studio.app.workspace import Session
from ram_studio.engine.events import CancelToken
from ram_studio.evals import (
    DEFAULT_SEED,
    RETENTION_DOMAIN,
    SKILL_DOMAINS,
    SUITES,
    EvalReport,
    PairedCounts,
    compare,
    evaluate,
)

BASE = "base"
SUITE = "demo"


class Scoring(NamedTuple):
    """How far an evaluation is: model (of how many), domain, prompts done of total."""

    model: str
    model_index: int
    model_count: int
    domain: str
    done: int
    total: int


class Candidate(NamedTuple):
    """A model that can be evaluated: its folder, and whether its scores are kept for everybody."""

    path: str
    is_shipped: bool


Scores = dict[tuple[str, int], EvalReport]
"""One model's report by (folder, prompts per skill)."""


def candidates(session: Session) -> dict[str, Candidate]:
    """Return every model of the session by name: the base, the agents, the merges."""
    if session.loaded is None:
        return {}
    shipped = session.loaded.example is not None
    found = {BASE: Candidate(session.loaded.base, shipped)}
    found |= {n: Candidate(p, shipped) for n, p in session.loaded.agents.items()}
    found |= {m.name: Candidate(str(m.folder), False) for m in session.merges.values()}
    return found


def score_models(
    models: Mapping[str, Candidate],
    limit: int,
    shared: Scores,
    own: Scores,
    report: Report,
    cancel: CancelToken,
) -> EvalReport:
    """Return the joint report of these models; those scored before are not run again.

    shared: scores of shipped models, kept for all sessions; own: those of this session.
    """
    joint: EvalReport | None = None
    for i, (name, model) in enumerate(models.items()):
        store = shared if model.is_shipped else own
        key = (model.path, limit)

        def tell(_: str, domain: str, done: int, total: int, name: str = name, i: int = i) -> None:
            report(Scoring(name, i, len(models), domain, done, total))

        if key not in store:
            store[key] = evaluate(
                {name: _folder(model.path, name, cancel)},
                suite=SUITE,
                limit=limit,
                on_progress=tell,
                should_stop=lambda: cancel.is_cancelled,
            )
        joint = store[key] if joint is None else joint.joined(store[key])
    assert joint is not None, "callers give at least one model"
    return joint


def _folder(path: str, name: str, cancel: CancelToken) -> str:
    # A Hub id was downloaded by the analysis: this finds it in the cache.
    from ram_studio.checkpoints.checkpoint import open_checkpoint

    return str(open_checkpoint(path, name=name, cancel=cancel).folder)


def progress_html(event: Scoring | None) -> str:
    """Return the progress bar of an evaluation."""
    if event is None:
        return markup.progress(None, "Loading the first model")
    domains = SUITES[SUITE]
    within = (domains.index(event.domain) + event.done / max(1, event.total)) / len(domains)
    fraction = (event.model_index + within) / event.model_count
    title = f"{event.model} on {event.domain}"
    details = (
        f"model {event.model_index + 1} of {event.model_count} · "
        f"prompt {event.done} of {event.total}"
    )
    return markup.progress(fraction, title, details)


def run_evaluation(
    names: Sequence[str], limit: int, session: Session, shared: Scores
) -> Iterator[tuple[str, EvalReport | None]]:
    """Evaluate; yield (status HTML, the report or None) as it goes."""
    every = candidates(session)
    if not every:
        yield markup.callout(wording.NEED_LOAD, "warn"), None
        return
    chosen = {name: model for name, model in every.items() if name in set(names)}
    if not chosen:
        yield markup.callout(wording.NO_MODEL_CHOSEN, "warn"), None
        return
    if session.is_busy:
        yield markup.callout(wording.BUSY, "warn"), None
        return
    job = Job(
        lambda report, cancel: score_models(
            chosen, int(limit), shared, session.scores, report, cancel
        )
    )
    session.job = job
    yield progress_html(None), None
    for event in job.updates():
        yield progress_html(event), None
    report, error = job.outcome()
    if report is None:
        yield markup.failure(error, wording.STOPPED), None
        return
    session.report = report
    yield "", session.report


def specialist(report: EvalReport, domain: str, agents: Sequence[str]) -> str | None:
    """Return the agent that scores best in a domain, None when no agent was evaluated."""
    present = [a for a in agents if a in report.models]
    if not present:
        return None
    return max(present, key=lambda a: report.models[a].domains[domain].score)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _tone(pair: PairedCounts | None) -> str:
    if pair is None or pair.is_within_noise:
        return ""
    return "better" if pair.wins > pair.losses else "worse"


def table_html(report: EvalReport, agents: Sequence[str]) -> str:
    """Return the score table: model by domain, with intervals and colours against the base."""
    domains = [d for d in SUITES[report.suite] if d != RETENTION_DOMAIN]
    columns = ["Model", *domains, "Skills average", f"{RETENTION_DOMAIN} (kept?)"]
    best = {d: max(result.domains[d].score for result in report.models.values()) for d in domains}
    rows = []
    for name, result in report.models.items():
        pairs = compare(report, name, BASE) if BASE in report.models and name != BASE else {}

        def score_cell(domain: str, result=result, pairs=pairs) -> str:
            value = result.domains[domain]
            low, high = value.ci95
            top = " best" if domain in best and value.score == best[domain] else ""
            return (
                f'<td class="score {_tone(pairs.get(domain))}{top}">'
                f"<b>{_percent(value.score)}</b>"
                f'<span class="ci">{100 * low:.0f}–{100 * high:.0f}</span></td>'
            )

        head = escape(name)
        if name in agents:
            head = markup.marker(list(agents).index(name)) + head
        elif name != BASE:
            head = f'<span class="merge-tag">merge</span>{head}'
        rows.append(
            (
                head,
                *(score_cell(d) for d in domains),
                f'<td class="score"><b>{_percent(result.average)}</b></td>',
                score_cell(RETENTION_DOMAIN),
            )
        )
    note = (
        f'<p class="fine">{report.n} held-out prompts per skill, greedy answers, strict checkers. '
        "Small numbers: 95 % Wilson interval. "
        '<span class="key better">better</span> or <span class="key worse">worse</span> than the '
        "base beyond chance (exact paired test, p &lt; 0.05); no colour: within noise. "
        "Bold underline: best of the column.</p>"
    )
    return markup.table(columns, rows, css="scores") + note


def statements_html(report: EvalReport, agents: Sequence[str]) -> str:
    """Return, for each merge, what it gained or lost against each skill's own specialist."""
    merges = [name for name in report.models if name != BASE and name not in agents]
    if not merges:
        return markup.callout(wording.NO_MERGE_YET, "note")
    blocks = []
    for name in merges:
        lines = []
        for domain in SKILL_DOMAINS:
            rival = specialist(report, domain, agents)
            if rival is None:
                continue
            pair = compare(report, name, rival)[domain]
            mine = report.models[name].domains[domain].score
            theirs = report.models[rival].domains[domain].score
            tone = _tone(pair)
            if pair.wins == pair.losses == 0:
                said = "answers exactly as well"
            elif tone == "":
                said = "no difference beyond chance"
            elif tone == "better":
                said = "better"
            else:
                said = "worse"
            counts = f"{pair.wins} gained, {pair.losses} lost of {report.n}"
            lines.append(
                f'<li><span class="key {tone or "same"}">{escape(said)}</span> on <b>{domain}</b>: '
                f"{_percent(mine)} against {_percent(theirs)} of its specialist {escape(rival)} "
                f'<span class="muted">({counts})</span></li>'
            )
        blocks.append(
            f'<div class="statement"><h3>{escape(name)}</h3><ul>{"".join(lines)}</ul></div>'
        )
    return f'<div class="statements">{"".join(blocks)}</div>'


FILTERS = {
    "all": "All prompts",
    "differ": "Models disagree",
    "merge-lost": "A merge is wrong, a specialist right",
    "merge-won": "A merge is right, all agents wrong",
}


def matching_items(report: EvalReport, domain: str, which: str, agents: Sequence[str]) -> list[int]:
    """Return the indices of a domain's prompts that fit a filter (a key of FILTERS)."""
    names = list(report.models)
    merges = [n for n in names if n != BASE and n not in agents]
    found = []
    for i in range(len(report.items[domain])):
        right = {n: report.models[n].answers[domain][i].is_correct for n in names}
        any_agent = any(right[a] for a in agents if a in right)
        keep = {
            "all": True,
            "differ": len(set(right.values())) > 1,
            "merge-lost": any_agent and any(not right[m] for m in merges),
            "merge-won": not any_agent and any(right[m] for m in merges),
        }[which]
        if keep:
            found.append(i)
    return found


def item_html(report: EvalReport, domain: str, index: int, agents: Sequence[str]) -> str:
    """Return one prompt, its known answer and every model's answer."""
    item = report.items[domain][index]
    rows = []
    for name, result in report.models.items():
        answer = result.answers[domain][index]
        mark = (
            '<span class="key better">right</span>'
            if answer.is_correct
            else '<span class="key worse">wrong</span>'
        )
        head = escape(name)
        if name in agents:
            head = markup.marker(list(agents).index(name)) + head
        text = escape(answer.text.strip()[:600]) or '<span class="muted">(nothing)</span>'
        rows.append((head, f"<td>{mark}</td>", f'<td class="answer"><code>{text}</code></td>'))
    return (
        f'<div class="item-view"><p class="prompt"><span class="muted">Prompt</span>'
        f"<code>{escape(item.prompt)}</code></p>"
        f'<p class="prompt"><span class="muted">Right answer</span><code>{escape(item.gold)}</code>'
        f"</p>{markup.table(('Model', '', 'Answer'), rows, css='answers')}</div>"
    )


__all__ = ["DEFAULT_SEED", "FILTERS", "SUITE", "candidates", "run_evaluation", "score_models"]
