"""Splits prompts into words of a fixed vocabulary.

The model was trained on a few hundred words and cannot use others. The tokenizer looks for the vocabulary's form of a
word ("drives" for "driving", "center" for "centre"), and then for a word of the same meaning ("truck" for "lorry"). It
reports words without one, so the user knows that they were ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from vlmsafe.errors import InputError

STOP_WORDS = frozenset({
    "a", "am", "an", "and", "are", "as", "at", "be", "been", "being", "by", "for", "from", "had", "has", "have",
    "he", "her", "his", "i", "in", "is", "it", "its", "of", "or", "our", "she", "that", "the", "their", "there",
    "these", "they", "this", "those", "to", "was", "we", "were", "which", "with", "you", "your",
})  # fmt: skip
"""Words that say nothing about a frame: they make no prompt by themselves, and may be unknown without a warning."""

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")  # an apostrophe within a word is part of it, a hyphen is not
_NEGATIONS = {"can't": "can", "cannot": "can", "won't": "will", "shan't": "shall"}  # the others end in n't
_SHORT = 3  # the fewest letters that remain when an ending is removed

# Endings that are removed, what replaces them, and whether the letter before may be doubled ("hitting") or an e may be
# dropped ("driving").
_ENDINGS = (
    ("ies", "y", False), ("ied", "y", False), ("ier", "y", False), ("iest", "y", False), ("ily", "y", False),
    ("es", "", False), ("s", "", False),
    ("ing", "", True), ("ed", "", True), ("est", "", True), ("er", "", True),
    ("ly", "", False), ("ly", "le", False),
)  # fmt: skip
_KEEPS_S = ("ss", "us", "is")  # across, bus, this
_TAKES_ES = ("s", "x", "z", "ch", "sh", "o")  # "crashes", but "lanes"
# A single syllable with one final consonant doubles it before an ending, so "staring" is from "stare", not "star".
_DOUBLES = re.compile(r"[^aeiou]*[aeiouy][^aeiouwxy]")

_SPELLINGS = (
    (re.compile(r"(?<=..)our$"), "or"),
    (re.compile(r"(?<=[bt])re$"), "er"),
    (re.compile(r"(?<=[iy])se$"), "ze"),
    (re.compile(r"isation$"), "ization"),
    (re.compile(r"ence$"), "ense"),
    (re.compile(r"ogue$"), "og"),
)
_MEANINGS = {
    "auto": "automobile", "sedan": "car", "suv": "car", "taxi": "car", "lorry": "truck", "van": "truck", "bus": "truck",
    "highway": "road", "freeway": "road", "motorway": "road", "avenue": "street", "verge": "shoulder",
    "racetrack": "track", "raceway": "track", "fence": "barrier", "guardrail": "barrier", "pylon": "cone",
    "water": "puddle", "pond": "puddle", "smash": "crash", "slam": "crash", "clash": "crash", "pileup": "crash",
    "perilous": "dangerous", "treacherous": "dangerous", "harmful": "dangerous", "peril": "danger", "menace": "danger",
    "threat": "danger", "secure": "safe", "harmless": "safe", "cautious": "careful", "prudent": "careful",
    "halted": "stopped", "motionless": "stationary", "idle": "stationary", "immobile": "stationary",
    "quick": "fast", "rapid": "fast", "swift": "fast", "sluggish": "slow", "adjacent": "beside", "distant": "far",
    "proximity": "near", "destination": "goal", "objective": "goal", "checkpoint": "goal", "waypoint": "goal",
    "lateral": "sideways", "skewed": "rotated", "tilted": "rotated", "reversed": "backwards", "unharmed": "safe",
    "never": "not", "neither": "not", "nowhere": "not", "none": "no", "nor": "or", "but": "and", "yet": "and",
}  # fmt: skip
"""Words with another one of much the same meaning, for vocabularies that have only the other one."""
_SPELT_APART = {"grey": "gray", "kerb": "curb", "tyre": "tire", "programme": "program"}


class Tokenizer:
    """Turns words into numbers: 0 is padding, and i + 1 is word i of the vocabulary."""

    def __init__(self, words: Sequence[str], longest: int | None = None) -> None:
        """`longest` is the most words a prompt may have, None for no limit."""
        self.words, self.longest = tuple(words), longest
        self._tokens = {word: token for token, word in enumerate(self.words, start=1)}
        self._content = [word for word in self.words if word not in STOP_WORDS]
        # Spellings come first: they are a better match than other forms of a word.
        self._forms = {_american(word): word for word in reversed(self._content)}
        for word in self._content:
            for base in _bases(word):
                self._forms.setdefault(base, word)

    def find(self, word: str) -> str | None:
        """The vocabulary's form of a word, or None.

        >>> Tokenizer(["center", "drives"]).find("driving"), Tokenizer(["center"]).find("centred")
        ('drives', 'center')
        """
        if word in self._tokens:
            return word
        if word in STOP_WORDS:
            return None
        bases = _bases(word)
        known = next((self._forms[base] for base in bases if base in self._forms), None)
        if known is not None:
            return known
        alike = next((_MEANINGS[base] for base in bases if base in _MEANINGS), None)
        return None if alike is None else alike if alike in self._tokens else self._form_of(alike)

    def _form_of(self, word: str) -> str | None:
        return next((self._forms[base] for base in _bases(word) if base in self._forms), None)

    def encode(self, prompts: Sequence[str]) -> tuple[Tensor, list[list[str]]]:
        """Tokens int64 [P, L], padded to the longest of the prompts, and each prompt's unknown words."""
        rows, unknown = [], []
        for prompt in prompts:
            words = list(split(prompt))
            forms = [self.find(word) for word in words]
            known = [form for form in forms if form is not None]
            self._check(prompt, known)
            rows.append(torch.tensor([self._tokens[form] for form in known]))
            pairs = zip(words, forms, strict=True)
            unknown.append([word for word, form in pairs if form is None and word not in STOP_WORDS])
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), unknown

    def _check(self, prompt: str, known: list[str]) -> None:
        if STOP_WORDS.issuperset(known):
            examples = self._content[:: max(1, len(self._content) // 8)][:8]
            raise InputError(
                f"the prompt '{prompt}' has no word that the scorer 'embedded' knows; it was trained on "
                f"{len(self.words)} words such as {', '.join(examples)}. Reword it, or take --scorer clip"
            )
        if self.longest is not None and len(known) > self.longest:  # cutting it off would change its meaning
            raise InputError(
                f"the prompt '{prompt}' has {len(known)} words, and the scorer 'embedded' reads at most "
                f"{self.longest}; shorten it"
            )


def split(prompt: str) -> Iterator[str]:
    """The words of a text in lower case, without punctuation. "n't" becomes "not"; other contractions are dropped.

    >>> list(split("The road's edge isn't ego-centred!"))
    ['the', 'road', 'edge', 'is', 'not', 'ego', 'centred']
    """
    for word in _WORD.findall(prompt.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")):
        stem = _NEGATIONS.get(word) or (word.removesuffix("n't") if word.endswith("n't") else None)
        if stem is not None:  # without "not", a prompt would mean its opposite
            yield from (stem, "not")
        else:
            yield word.partition("'")[0]


def _bases(word: str) -> list[str]:
    """Words that a word may be a form of, in American spelling: itself first, then without its ending.

    A plural may lose a second ending ("markings"). Removing more would give other words ("centered", "cent").
    """
    shorter = list(_without_ending(word))
    shortest = [base for one in shorter if word.endswith("s") for base in _without_ending(one)]
    return list(dict.fromkeys(_american(base) for base in (word, *shorter, *shortest)))


def _without_ending(word: str) -> Iterator[str]:
    for ending, instead, changes in _ENDINGS:
        if not word.endswith(ending) or (ending == "s" and word.endswith(_KEEPS_S)):
            continue
        stem = word.removesuffix(ending)
        if ending == "es" and not stem.endswith(_TAKES_ES):
            continue
        options = [stem + instead]
        if changes and not stem.endswith("e"):  # "seed" is not from "see"
            options = [stem + "e"] if _DOUBLES.fullmatch(stem) else [stem, stem + "e"]
            if len(stem) > 1 and stem[-1] == stem[-2]:
                options.append(stem[:-1])
        yield from (option for option in options if len(option) >= _SHORT)


def _american(word: str) -> str:
    for british, american in _SPELLINGS:
        word = british.sub(american, word)
    return _SPELT_APART.get(word, word)
