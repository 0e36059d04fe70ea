"""Runs in bfcl-eval's own environment: what its checker says about answers.

    python run_bfcl.py where                # writes the package's folder
    python run_bfcl.py questions            # writes the questions of its wheel as JSON
    python run_bfcl.py judge < ANSWERS      # ANSWERS: [[category, id, calls or a text], ...]
    python run_bfcl.py multi-turn < TURNS   # TURNS: [[id, turns of steps, "f(x=1), g()"], ...]

Calls are [{name: {argument: value}}, ...], as its decoder gives them; a text goes through that
decoder first, as for models that are prompted in Python syntax. `judge` writes one of true (right),
false (wrong) or a text (its checker raised) for each answer.

The package's list of models imports the client of every provider. All the checker wants of it is
whether a provider turns the dots of function names into underscores, so it is put in its place.
"""

import json
import sys
from importlib.resources import files
from types import ModuleType, SimpleNamespace

LANGUAGES = {"simple_java": "JAVA", "simple_javascript": "JAVASCRIPT"}
LIVE = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")
AST = ("simple_python", *LANGUAGES, "multiple", "parallel", "parallel_multiple", *LIVE)
NO_CALL = ("irrelevance", "live_irrelevance")
ANY_CALL = ("live_relevance",)
MODEL = "any"

models = ModuleType("bfcl_eval.constants.model_config")
models.MODEL_CONFIG_MAPPING = {MODEL: SimpleNamespace(underscore_to_dot=False)}
sys.modules[models.__name__] = models


def rows(name: str) -> list[dict]:
    text = files("bfcl_eval").joinpath("data", name).read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def questions() -> dict[str, dict[str, dict]]:
    result = {}
    for category in (*AST, *NO_CALL, *ANY_CALL):
        name = f"BFCL_v4_{category}.json"
        answers = {}
        if category in AST:
            answers = {row["id"]: row["ground_truth"] for row in rows(f"possible_answer/{name}")}
        result[category] = {
            row["id"]: {"functions": row["function"], "answer": answers.get(row["id"], [])}
            for row in rows(name)
        }
    return result


def multi_turn(answers: list) -> list[bool]:
    import ast

    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    def calls(step: str) -> list[str]:
        tree = ast.parse(f"[{step}]", mode="eval").body
        return [ast.unparse(call) for call in tree.elts]

    kinds = ("base", "miss_func", "miss_param", "long_context")
    names = [f"BFCL_v4_multi_turn_{kind}.json" for kind in kinds]
    tasks = {row["id"]: row for name in names for row in rows(name)}
    right = {r["id"]: r["ground_truth"] for n in names for r in rows(f"possible_answer/{n}")}
    found = []
    for number, (key, turns) in enumerate(answers):
        decoded = [[calls(step) for step in steps] for steps in turns]
        task = tasks[key]
        # Its objects are kept by the model's name.
        result = multi_turn_checker(decoded, right[key], task, "", f"m{number}")
        found.append(bool(result["valid"]))
    return found


def main() -> None:
    if sys.argv[1] == "where":
        print(json.dumps(str(files("bfcl_eval"))))
        return
    if sys.argv[1] == "multi-turn":
        print(json.dumps(multi_turn(json.load(sys.stdin))))
        return
    asked = questions()
    if sys.argv[1] == "questions":
        print(json.dumps(asked))
        return
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
    from bfcl_eval.model_handler.utils import default_decode_ast_prompting
    from bfcl_eval.utils import is_empty_output, is_function_calling_format_output

    def verdict(category: str, key: str, given: object) -> bool | str:
        try:
            calls = default_decode_ast_prompting(given) if isinstance(given, str) else given
        except Exception:
            return category in NO_CALL
        if category in (*NO_CALL, *ANY_CALL):
            return is_empty_output(calls) == (category in NO_CALL)
        if not is_function_calling_format_output(calls):
            return False
        question = asked[category][key]
        try:
            found = ast_checker(
                question["functions"],
                calls,
                question["answer"],
                Language[LANGUAGES.get(category, "PYTHON")],
                category,
                MODEL,
            )
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return bool(found["valid"])

    print(json.dumps([verdict(*answer) for answer in json.load(sys.stdin)]))


main()
