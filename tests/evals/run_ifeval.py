"""Runs in lm-eval's own environment: what its IFEval checkers say about answers.

    python run_ifeval.py < CASES        # [[instruction, its settings, answer], ...]

Writes [[strict, loose], ...]. Nothing is downloaded, which changes two of its checkers: sentences
are cut by nltk's Punkt without the English model, and every text counts as English where letters
are to be all large or all small (its language guesser is not what is compared).
"""

import json
import os
import sys
from importlib.util import find_spec
from types import ModuleType

os.environ["LOCAL_RANK"] = "1"  # only the first of several processes downloads

# The package itself imports torch and datasets; its checkers need neither.
root = find_spec("lm_eval").submodule_search_locations[0]
for name, path in (("lm_eval", root), ("lm_eval.tasks", os.path.join(root, "tasks"))):
    module = ModuleType(name)
    module.__path__ = [path]
    sys.modules[name] = module

import langdetect  # noqa: E402
from lm_eval.tasks.ifeval import instructions_util, utils  # noqa: E402
from nltk.tokenize.punkt import PunktSentenceTokenizer  # noqa: E402

sentences = PunktSentenceTokenizer()
instructions_util._get_sentence_tokenizer = lambda: sentences
langdetect.detect = lambda text: "en"


def verdicts(instruction: str, settings: dict, answer: str) -> list[bool]:
    example = utils.InputExample(0, [instruction], "", [settings])
    checks = utils.test_instruction_following_strict, utils.test_instruction_following_loose
    return [check(example, answer).follow_all_instructions for check in checks]


print(json.dumps([verdicts(*case) for case in json.load(sys.stdin)]))
