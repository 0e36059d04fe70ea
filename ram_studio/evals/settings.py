"""The settings of an evaluation: its questions, and how models answer them.

The options of the command line, the form of the app, the arguments of the API and their
documentation are all generated from these fields: names, titles, descriptions and ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from ram_studio.errors import EvalSettingsError, did_you_mean
from ram_studio.evals.prompts import (
    CHUNKS,
    HARNESS_PROMPTS,
    NAMED,
    OWN,
    Templates,
    load_templates,
    prompts_name,
)

if TYPE_CHECKING:
    from ram_studio.evals.answering.engine import Decoding, Engine
    from ram_studio.evals.chunks import ChunkSizes
    from ram_studio.evals.question import Question
    from ram_studio.evals.suites import Suite, SuiteSettings
    from ram_studio.evals.until import Until

DEFAULT_SEED = 2026
# Settings that lm-eval's tasks decide, or that lm-eval does not have.
_NOT_OF_HARNESS = {
    "ci_width": "the interval width",
    "mode": "the mode",
    "engine": "the engine",
    "max_tokens": "the tokens per answer",
    "think_tokens": "the tokens of thinking",
    "temperature": "the temperature",
    "top_p": "top-p",
    "samples": "the samples",
    "paraphrases": "the wordings",
}


def _names(given: Any) -> Any:
    """Return the unique names of a text with commas, or of a sequence."""
    parts = given.split(",") if isinstance(given, str) else given
    if not isinstance(parts, Iterable):
        raise ValueError
    return tuple(dict.fromkeys(str(part).strip() for part in parts if str(part).strip()))


def _tokens(given: Any) -> Any:
    """Return a number of tokens; in a text, k means a thousand."""
    if not isinstance(given, str):
        return given
    number = given.strip().lower()
    digits = number.removesuffix("k")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 9):
        raise ValueError
    return int(digits) * (1000 if number.endswith("k") else 1)


def _lengths(given: Any) -> Any:
    parts = given.split(",") if isinstance(given, str) else given
    return tuple(map(_tokens, parts)) if isinstance(parts, Sequence) else parts


def _by_suite(given: Any) -> Any:
    """Return a number for all suites or numbers by suite, also from texts N and SUITE=N."""
    if not isinstance(given, list | tuple):
        return _tokens(given)
    pairs = [str(text).rpartition("=") for text in given]
    if len(pairs) == 1 and not pairs[0][1]:
        return _tokens(pairs[0][2])
    if not all(name.strip() for name, _, _ in pairs):
        raise ValueError
    return {name.strip(): _tokens(number) for name, _, number in pairs} or None


Positive = Annotated[int, Field(ge=1)]
PerSuite = Annotated[Positive | dict[str, Positive] | None, BeforeValidator(_by_suite)]


def _setting(default: Any, title: str, description: str, /, **more: Any) -> Any:
    """Return a field; more: limits, and for the schema step, metavar and "allowed" in words."""
    own = ("step", "metavar", "allowed")
    schema: Any = {name: more.pop(name) for name in own if name in more}
    return Field(
        default, title=title, description=description, json_schema_extra=schema or None, **more
    )


def _per_suite(title: str, description: str) -> Any:
    words = "1 or more, or SUITE=N for each suite, as in math=1024"
    return _setting(None, title, description, allowed=words, metavar="N or SUITE=N")


class EvalSettings(BaseModel):
    """The questions of an evaluation, and how models answer them.

    Raises: EvaluationError with each invalid value, and the allowed ones.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    suites: Annotated[tuple[str, ...], BeforeValidator(_names)] = _setting(
        ("demo",),
        "Suites",
        "demo, or others from `ram-studio suites`, with commas; `evaluate` also takes health.",
        allowed="names, with commas",
    )
    limit: PerSuite = _per_suite(
        "Questions per suite", "Maximum questions of all suites, or by suite (demo: per domain)."
    )
    lengths: Annotated[tuple[Positive, ...], BeforeValidator(_lengths)] = _setting(
        (1000, 4000),
        "Lengths of long texts",
        "Prompt lengths of long-context suites in tokens, such as 1k,4k.",
        allowed="lengths in tokens, such as 1k,4k",
    )
    mode: Literal["whole", "memagent"] = _setting(
        "whole",
        "Long texts are read",
        "How long-context suites (memory, ruler-*) are read: whole, or in chunks with a "
        "bounded memory, as MemAgent does.",
    )
    chunk_tokens: int = _setting(5000, "Tokens per chunk", "Maximum tokens of a chunk.", ge=1)
    memory_tokens: int = _setting(1024, "Tokens of memory", "Maximum tokens of the memory.", ge=1)
    chat: Literal["auto", "template", "none"] = _setting(
        "auto", "Chat template", "Use the model's chat template."
    )
    code: Literal["auto", "on", "off"] = _setting(
        "auto", "Model-written code", "Run model-written code in the sandbox."
    )
    max_tokens: PerSuite = _per_suite(
        "Tokens per answer",
        "Maximum tokens of an answer, for all suites or by suite [default: each suite's own].",
    )
    think_tokens: int = _setting(
        0,
        "Tokens of thinking",
        "Maximum tokens of thinking (<think>), beyond the answer's.",
        ge=0,
    )
    temperature: float = _setting(
        0.0,
        "Temperature",
        "0 is greedy; the paper uses 1.0.",
        ge=0,
        le=2,
        step=0.05,
    )
    top_p: float = _setting(
        1.0,
        "Top-p",
        "Nucleus sampling: total probability of the tokens sampled from.",
        gt=0,
        le=1,
        step=0.05,
    )
    samples: int = _setting(
        1,
        "Samples per question",
        "Answers to each question, for pass@k; the paper uses 4.",
        ge=1,
        le=64,
        step=1,
    )
    paraphrases: int = _setting(
        1,
        "Wordings per question",
        "Wordings of each question of shipped suites, up to 3; their spread is reported.",
        ge=1,
        le=3,
        step=1,
    )
    prompts: str = _setting(
        OWN,
        "Prompts",
        "own: the suites' words; lm-eval: its prompts and examples, where it has the task; plain "
        "or qa: the bare question; or a YAML file with a template by suite.",
        metavar="NAME or FILE",
    )
    shots: int | None = _setting(
        None,
        "Worked examples",
        "Examples before each question, from a fixed split [default: none, or lm-eval's own].",
        ge=0,
        le=64,
        metavar="N",
    )
    tasks: Annotated[tuple[str, ...], BeforeValidator(_names)] = _setting(
        (),
        "Tasks of lm-eval",
        "Tasks of --engine lm-eval, such as gsm8k,ifeval or forgetting.",
        allowed="names, with commas",
    )
    data: Path | None = _setting(
        None,
        "Folder of data sets",
        "Folder with the rows of published data sets; else the Hub.",
        metavar="FOLDER",
    )
    difficulty: int = _setting(
        2, "Difficulty", "Difficulty of generated suites, 1 to 5.", ge=1, le=5, step=1
    )
    ci_width: float | None = _setting(
        None,
        "Interval width",
        "Stop when all 95 % intervals are narrower than this, or at the maximum of questions.",
        gt=0,
        lt=100,
        metavar="POINTS",
    )
    seed: int = _setting(DEFAULT_SEED, "Seed", "Seed of generated questions and of sampling.", ge=0)
    batch_size: int = _setting(128, "Batch size", "Prompts in one batch.", ge=1)
    device: str = _setting("auto", "Device", "auto, cpu or cuda.")
    engine: Literal["transformers", "vllm"] = _setting(
        "transformers", "Engine", "What answers for model folders."
    )
    base: str | None = _setting(None, "Base", "The model that health compares the others with.")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            # For a value that may have several types, the most informative error.
            found = {str(one["loc"][0]): one["input"] for one in error.errors()}
            raise EvalSettingsError(" ".join(starmap(_problem, found.items()))) from None

    @classmethod
    def of(cls, given: EvalSettings | str | Sequence[str] | None, **fields: Any) -> EvalSettings:
        """Return the given settings, or settings with these suites, with further fields."""
        if isinstance(given, EvalSettings):
            return cls(**{**dict(given), **fields}) if fields else given
        return cls(**fields) if given is None else cls(suites=given, **fields)

    @model_validator(mode="after")
    def _check(self) -> EvalSettings:
        from ram_studio.evals.suites import ALL_SUITES, HEALTH, check_suites, is_a

        names = self.suites
        check_suites(names, health=True)
        for what in ("limit", "max_tokens"):
            given = getattr(self, what)
            for name in given if isinstance(given, dict) else ():
                if name not in names:
                    raise EvalSettingsError(
                        f"{what} is given for suite {name!r}, which is not asked. Choose from: "
                        f"{', '.join(names)}."
                    )
        if self.samples > 1 and not self.temperature:
            raise EvalSettingsError(
                "Several greedy samples of a question are all the same. Give a temperature "
                "above 0, such as the paper's 1.0 with top-p 0.95."
            )
        if self.chunk_sizes is not None and not any(is_a(name, "has_texts") for name in names):
            known = [name for name in ALL_SUITES if is_a(name, "has_texts")]
            raise EvalSettingsError(
                f"None of these suites has long texts to read in chunks: {', '.join(names)}. Ask "
                f"{', '.join(known)}, or leave the mode out."
            )
        self._check_wording(names)
        if self.until is not None:
            self.until.check(names)
        if self.engine == "vllm" and HEALTH in names:
            raise EvalSettingsError(
                "Health needs the model's logits, which the engine 'vllm' does not give. Leave "
                "the suite out, or use the engine 'transformers' for it."
            )
        return self

    def _check_wording(self, names: Sequence[str]) -> None:
        from ram_studio.evals.suites import ALL_SUITES, is_a

        def able(what: Any) -> list[str]:
            return [name for name in ALL_SUITES if is_a(name, what)]

        if self.is_harness:
            fields = type(self).model_fields
            wrong = [w for f, w in _NOT_OF_HARNESS.items() if getattr(self, f) != fields[f].default]
            wrong += ["limits by suite"] if isinstance(self.limit, dict) else []
            if wrong:
                raise EvalSettingsError(
                    "lm-eval asks its tasks whole, by transformers, and each task says how it is "
                    f"answered. Leave out {' and '.join(wrong)}."
                )
            return
        wanted = ["has_shots"] if self.shots else []
        wanted += ["has_template"] if self.prompts in NAMED else []
        for what in wanted:
            if other := next((name for name in names if name not in able(what)), None):
                raise EvalSettingsError(
                    f"Suite {other} takes no {'examples' if what == 'has_shots' else 'template'}. "
                    f"Choose from: {', '.join(able(what))}."
                )
        templates = self.templates
        if templates and "" not in templates and not templates.keys() & {*names, CHUNKS}:
            raise EvalSettingsError(
                f"{self.prompts} has templates for {', '.join(templates)}, and none of these is "
                "asked."
            )

    @property
    def templates(self) -> Templates:
        """The templates of the questions, see `prompts`."""
        from ram_studio.evals.suites import ALL_SUITES

        able = [name for name, suite in ALL_SUITES.items() if suite.has_template]
        return load_templates(self.prompts, able)

    @property
    def wording(self) -> dict[str, Any]:
        """The prompts' name in results, and the number of few-shot examples."""
        return {"prompts": prompts_name(self.prompts), "shots": self.shots or 0}

    @property
    def is_harness(self) -> bool:
        from ram_studio.evals.suites import HARNESS_SUITES

        own = any(name in HARNESS_SUITES for name in self.suites)
        return bool(self.tasks) or own or self.prompts == HARNESS_PROMPTS

    @property
    def harness_tasks(self) -> tuple[str, ...]:
        """The tasks for lm-eval.

        Raises: EvaluationError for a suite without a task of lm-eval.
        """
        from ram_studio.evals.suites import ALL_SUITES, HARNESS_SUITES

        known = {name: suite.harness for name, suite in ALL_SUITES.items() if suite.harness}
        known |= HARNESS_SUITES
        if self.tasks:
            return tuple(dict.fromkeys(t for own in self.tasks for t in known.get(own, (own,))))
        for name in self.suites:
            if name not in known:
                raise EvalSettingsError(
                    f"lm-eval does not ask suite {name} here (it may run no code). Choose from: "
                    f"{', '.join(known)}."
                )
        return tuple(dict.fromkeys(task for name in self.suites for task in known[name]))

    @property
    def until(self) -> Until | None:
        """The rule that ends asking generated suites; None where `limit` fixes the number."""
        from ram_studio.evals.until import MOST, Until

        if self.ci_width is None:
            return None
        if isinstance(self.limit, dict):
            raise EvalSettingsError("With ci_width one limit holds for all suites. Give a number.")
        return Until(self.ci_width / 100, self.limit or MOST)

    @property
    def chunk_sizes(self) -> ChunkSizes | None:
        """The sizes for reading long texts in chunks; None to read them whole."""
        from ram_studio.evals.chunks import MODE, ChunkSizes

        if self.mode != MODE:
            return None
        own = self.templates.get(CHUNKS, {})
        return ChunkSizes(self.chunk_tokens, self.memory_tokens, **own)

    def chunk_sizes_of(self, suite: Suite) -> ChunkSizes | None:
        """Return the sizes for reading a suite's texts in chunks; None to read them whole."""
        if self.chunk_sizes is None or not suite.has_texts:
            return None
        most = suite.tokens_of(self.max_tokens)
        return self.chunk_sizes if most is None else replace(self.chunk_sizes, answer_tokens=most)

    @property
    def question_suites(self) -> tuple[Suite, ...]:
        """The suites with questions: all but health."""
        from ram_studio.evals.suites import ALL_SUITES

        return tuple(ALL_SUITES[name] for name in self.suites if name in ALL_SUITES)

    @property
    def decodings(self) -> tuple[Decoding, ...]:
        """The decoding of each sample; they differ only in the seed, which counts from `seed`."""
        from ram_studio.evals.answering.engine import Decoding

        return tuple(
            Decoding(self.temperature, self.top_p, self.seed + i, self.think_tokens)
            for i in range(self.samples)
        )

    @property
    def engine_options(self) -> dict[str, Any]:
        """Arguments of the engine for a model folder."""
        return {"device": self.device, "chat": self.chat, "batch_size": self.batch_size}

    def check_models(self, models: Collection[str]) -> None:
        """Raise EvaluationError for settings that cannot run here, before any model is opened."""
        if not models:
            raise EvalSettingsError(
                "No model to evaluate was given. Name at least one model folder."
            )
        if self.base is not None and self.base not in models:
            raise EvalSettingsError(
                f"The base {self.base!r} is not one of the models: {', '.join(models)}."
            )
        self.check_machine()

    def check_machine(self) -> None:
        """Raise EvaluationError where a suite needs model-written code, which may not run."""
        from ram_studio.evals.sandbox import check_code_allowed

        if any(suite.runs_code for suite in self.question_suites):
            check_code_allowed(self.code)

    def suite_settings(
        self, count_tokens: Callable[[str], int], limit: int | None
    ) -> SuiteSettings:
        """Return the questions' settings; count_tokens: text -> tokens of the first model."""
        from ram_studio.evals.suites import SuiteSettings

        names = {field.name for field in fields(SuiteSettings)} - {"count_tokens"}
        own = {name: getattr(self, name) for name in names}
        own |= {"limit": limit, "shots": self.shots or 0}
        return SuiteSettings(count_tokens, **own)

    def questions(self, count_tokens: Callable[[str], int]) -> dict[str, tuple[Question, ...]]:
        """Return the questions by suite; count_tokens: as for `suite_settings`."""
        asked = {}
        for suite in self.question_suites:
            limit = self.limit.get(suite.name) if isinstance(self.limit, dict) else self.limit
            asked[suite.name] = suite.questions(self.suite_settings(count_tokens, limit))
        return asked

    def recorded_settings(self, engine: Engine) -> dict[str, object]:
        """Return an engine's settings, as the store and reports record them.

        They are those of the first sample; "samples" and "paraphrases" are recorded where there are
        several, prompts and shots always.
        """
        engine.decoding = self.decodings[0]
        found = {name: value for name, value in engine.identity.items() if name != "fingerprint"}
        for sizes in filter(None, map(self.chunk_sizes_of, self.question_suites)):
            found |= sizes.key
        several = {"samples": self.samples, "paraphrases": self.paraphrases}
        found |= {name: count for name, count in several.items() if count > 1}
        return found | self.wording


def described_fields(names: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """Return the JSON schemas of fields by name: "title", "description", "default" and limits."""
    schemas = EvalSettings.model_json_schema()["properties"]
    return {name: schemas[name] for name in names}


def allowed_values(schema: Mapping[str, Any]) -> str:
    """Return the allowed values of a field with this JSON schema, in words."""
    if "allowed" in schema:
        return str(schema["allowed"])
    schema = schema.get("anyOf", [schema])[0]
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    ends = {
        "more than": schema.get("exclusiveMinimum"),
        "at least": schema.get("minimum"),
        "less than": schema.get("exclusiveMaximum"),
        "at most": schema.get("maximum"),
    }
    low, high = ends["at least"], ends["at most"]
    if low is not None and high is not None:
        return f"{low:g} to {high:g}"
    bounds = [f"{word} {end:g}" for word, end in ends.items() if end is not None]
    return " and ".join(bounds) or f"a {schema.get('type', 'text')}"


def _problem(name: str, value: object) -> str:
    if name not in EvalSettings.model_fields:
        known = EvalSettings.model_fields
        return (
            f"There is no evaluation setting {name!r}{did_you_mean(name, known)}; there are "
            f"{', '.join(known)}."
        )
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        value = " ".join(value)  # of a repeatable option
    return f"{name} is {value!r}; choose {allowed_values(described_fields([name])[name])}."
