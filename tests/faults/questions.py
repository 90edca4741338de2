"""The requests of the fault table. Their answers are known before anything is disturbed."""

import random
from dataclasses import dataclass

from client.options import GenerateOptions
from client.results import Completion
from tests.cluster import Cluster
from tests.streams import Asked

NUM_QUESTIONS = 40
FIRST_ID, LAST_ID = 10, 500
LONGEST_PROMPT = 300
LONGEST_ANSWER = 48

Ids = tuple[tuple[int, ...], ...]  # one tuple of token ids for each sequence


@dataclass(frozen=True)
class Question:
    """`expected` is what it is answered with when nothing happens, one tuple of ids a sequence."""

    asked: Asked
    expected: Ids


def questions(seed: int = 0) -> list[Asked]:
    """Half of them greedy, half seeded at temperature 1; some with two sequences. The same for the same seed."""
    choose = random.Random(seed)
    return [_ask(number, choose) for number in range(NUM_QUESTIONS)]


def answered(cluster: Cluster, asked: list[Asked]) -> list[Question]:
    """Asks an undisturbed cluster, one after the other."""
    with cluster.client() as client:
        return [Question(one, token_ids(one.answer(client))) for one in asked]


def token_ids(completion: Completion) -> Ids:
    return tuple(tuple(choice.token_ids) for choice in completion.choices)


def _ask(number: int, choose: random.Random) -> Asked:
    prompt = tuple(choose.randint(FIRST_ID, LAST_ID) for _ in range(choose.randint(8, LONGEST_PROMPT)))
    options: GenerateOptions = {"max_tokens": choose.randint(8, LONGEST_ANSWER), "ignore_eos": True}
    if number % 2:
        options |= {"temperature": 1.0, "seed": number}
    else:
        options |= {"temperature": 0.0}
    if number % 8 == 7:
        options |= {"n": 2}
    return Asked(prompt, options)
