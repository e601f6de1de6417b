"""The value of short, plain formulas: enough to tell two answers apart without a computer algebra system.

It only ever refutes: formulas whose values differ are not equal, whatever their letters stand for. Whatever is not
plainly one thing (units, functions, mixed numbers, `1/2x`) has no value here and is left to math-verify.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

_LONGEST = 120  # characters; bounds the recursion too
_LETTERS = {letter: 1 + 0.6180339887498949 * place % 1 for place, letter in enumerate("abckmnpqrstuvwxyz", start=1)}
_TOKEN = re.compile(r"\d+(?:\.\d+)?|\.\d+|\\(?:frac|sqrt|pi|cdot|times)(?![a-zA-Z])|[-+*/^(){}\[\]]|[a-z]")
_THOUSANDS = re.compile(r"\d,\d{3}(?!\d)")
_NAMED = re.compile(r"[a-z]=")
_WORD = re.compile(r"\\text\{([A-Za-z ]+)\}")
_TIMES = ("*", "\\cdot", "\\times")


class _NoValue(Exception):
    pass


def differ(a: str, b: str) -> bool:
    """Whether two answers are certainly different: words, formulas, tuples, intervals or lists of formulas."""
    if (variable := _NAMED.match(a)) and (same := _NAMED.match(b)) and variable[0] == same[0]:
        a, b = a[variable.end() :], b[same.end() :]
    if (word := _WORD.fullmatch(a)) and (other := _WORD.fullmatch(b)):
        return word[1].strip().casefold() != other[1].strip().casefold()
    (form, xs), (its_form, ys) = _values(a), _values(b)
    if not xs or not ys:
        return False
    if len(xs) != len(ys):
        return "" in (form, its_form)  # one formula against several
    if form != its_form:
        return False
    # math-verify takes numbers that agree to 6 decimals for equal: well beyond that, and beyond our rounding.
    return any(abs(x - y) > 1e-5 * max(1.0, abs(x), abs(y)) for x, y in zip(xs, ys, strict=True))


@lru_cache(maxsize=65536)
def _values(text: str) -> tuple[str, tuple[float, ...]]:
    """The form (the brackets around several formulas, `,` for a bare list, nothing for one formula), and the values,
    in their order, a list's sorted and once each. No values where a formula has none."""
    if len(text) > _LONGEST or _THOUSANDS.search(text):
        return "", ()
    form, components = "", [text]
    if "," in text and text[0] in "([" and text[-1] in ")]":
        form, components = text[0] + text[-1], text[1:-1].split(",")
    elif "," in text:
        form, components = ",", text.split(",")
    try:
        values = [_Formula(c).value() for c in components]
    except (_NoValue, ZeroDivisionError, OverflowError, ValueError):
        return form, ()
    return form, tuple(sorted(set(values)) if form == "," else values)


class _Formula:
    """A recursive descent over sum, product, power, atom."""

    def __init__(self, text: str) -> None:
        self.tokens = _TOKEN.findall(text)
        if "".join(self.tokens) != re.sub(r"\s", "", text):
            raise _NoValue
        self.at = 0

    def value(self) -> float:
        value = self.sum()
        if self.at < len(self.tokens) or not math.isfinite(value):
            raise _NoValue
        return value

    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *wanted: str) -> str:
        """The next token when it is one of those wanted, else nothing."""
        token = self.next()
        if token not in wanted:
            return ""
        self.at += 1
        return token

    def need(self, wanted: str) -> None:
        if not self.take(wanted):
            raise _NoValue

    def sum(self) -> float:
        sign = -1.0 if self.take("-", "+") == "-" else 1.0
        value = sign * self.product()
        while operator := self.take("+", "-"):
            value += self.product() if operator == "+" else -self.product()
        return value

    def product(self) -> float:
        value, divided = self.power(), False
        while True:
            if self.take(*_TIMES):
                value *= self.power()
            elif self.take("/"):
                value, divided = value / self.power(), True
            elif self.next() and (self.next() in "({" or self.next()[0] == "\\" or self.next().isalpha()):
                if divided or (self.next() == "\\frac" and self.tokens[self.at - 1][-1].isdigit()):
                    raise _NoValue  # 1/2x; and 2\frac12, which may be 2.5
                value *= self.power()
            else:
                return value

    def power(self) -> float:
        base = self.atom()
        if not self.take("^"):
            return base
        if self.take("{"):
            exponent = self.sum()
            self.need("}")
        elif re.fullmatch(r"\d|[a-z]", self.next()):
            exponent = self.atom()
        else:
            raise _NoValue
        if abs(exponent) > 1000 or (base < 0 and exponent != int(exponent)):
            raise _NoValue
        return float(base**exponent)

    def atom(self) -> float:
        if self.take("("):
            value = self.sum()
            self.need(")")
        elif self.take("{"):
            value = self.sum()
            self.need("}")
        elif self.take("\\frac"):
            above = self.argument()
            value = above / self.argument()
        elif self.take("\\sqrt"):
            degree = 2.0
            if self.take("["):
                degree = self.sum()
                self.need("]")
            value = self.argument()
            if value < 0:
                raise _NoValue
            value = value ** (1 / degree)
        elif self.take("\\pi"):
            value = math.pi
        elif (token := self.next()) in _LETTERS:
            self.at += 1
            value = _LETTERS[token]
        elif token and token[-1].isdigit():
            self.at += 1
            value = float(token)
        else:
            raise _NoValue
        return value

    def argument(self) -> float:
        if self.take("{"):
            value = self.sum()
            self.need("}")
            return value
        token = self.next()
        if len(token) == 2 and token.isdigit() and self.tokens[self.at - 1] == "\\frac":
            self.tokens[self.at : self.at + 1] = list(token)  # \frac12
            token = token[0]
        if re.fullmatch(r"\d", token):
            self.at += 1
            return float(token)
        raise _NoValue
