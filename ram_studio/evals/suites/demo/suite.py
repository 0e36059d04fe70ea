"""Suite `demo` as questions: the example agents' four domains, prompts continued as they stand."""

from ram_studio.evals.question import Question, Verdict
from ram_studio.evals.sandbox import CodeSwitch
from ram_studio.evals.suites.demo.house_style import without_full_stop
from ram_studio.evals.suites.demo.item import Item
from ram_studio.evals.suites.demo.tasks import DOMAINS, RETENTION_DOMAIN, Split, make_items, score
from ram_studio.evals.suites.suite import Suite, SuiteSettings

DEFAULT_LIMIT = 300
# The longest right answer takes about 40 tokens of the example's tokenizer.
MAX_NEW_TOKENS = 48


def make(settings: SuiteSettings, split: Split = "test") -> tuple[Question, ...]:
    """Return `limit` (300) items of each domain; those of the "test" split were held out."""
    limit = DEFAULT_LIMIT if settings.limit is None else settings.limit
    return tuple(
        Question(
            id=f"{domain}-{settings.seed}-{number:04d}",
            domain=domain,
            category=domain,
            prompt=item.prompt,
            gold=item.gold,
            spec=item,
            max_new_tokens=MAX_NEW_TOKENS,
            is_raw=True,
            is_hard=item.is_hard,
        )
        for domain in DOMAINS
        for number, item in enumerate(make_items(domain, limit, settings.seed, split))
    )


def judge(question: Question, text: str, code: CodeSwitch = "off") -> Verdict:
    """Return the strict verifier's verdict; the demo's little programs are never executed.

    The full stop of the house style may stand after a right answer.
    """
    assert isinstance(question.spec, Item)
    plain = without_full_stop(text)
    return Verdict(score(question.spec, text if plain is None else plain))


SUITE = Suite(
    "demo",
    2,
    "Example agents",
    make,
    judge,
    "the example agents' four domains",
    apart=(RETENTION_DOMAIN,),
)
