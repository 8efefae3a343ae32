"""The number of terms that a loss averages over, for the scale of G.

With a loss that is the mean of M terms, G = M sum g g' over a layer's rows of output gradients g.
The library assumes one term for each image of a convolution and for each row of a linear layer,
which is right for classifiers and language models. For other losses `loss_terms` gives the number
of terms per image or row, and G is multiplied by it.
"""

from __future__ import annotations

import math
import re
from typing import Callable, Dict, List, Sequence, Union

import torch

from ..errors import InvalidError

Terms = Union[float, Callable[[], float]]
_HALVES = (torch.bfloat16, torch.float16)


class LossTerms:
    """The terms of every layer: one number for all of them, or numbers by patterns of names."""

    def __init__(self, value: Union[Terms, Dict[str, Terms]], names: Sequence[str]) -> None:
        given = value if isinstance(value, dict) else {"": value}
        for pattern in given:
            if not any(re.search(pattern, name) for name in names):
                raise InvalidError(
                    f"KFAC: loss_terms: no layer's name matches '{pattern}'; there are: "
                    + ", ".join(names)
                )
        self._of: List[Terms] = []
        for name in names:
            matches = [terms for pattern, terms in given.items() if re.search(pattern, name)]
            self._of.append(matches[0] if matches else 1.0)
        for terms in self._of:
            if not callable(terms):
                self._number(terms)

    @staticmethod
    def _number(terms: Terms) -> float:
        value = float(terms() if callable(terms) else terms)
        if not (math.isfinite(value) and value > 0):
            raise InvalidError(f"KFAC: loss_terms={value:g}: must be a positive number")
        return value

    def loss_scale(self) -> float:
        """The loss scale by which all G are multiplied by the terms of the first layer."""
        self._first = self._number(self._of[0])
        return 1.0 / math.sqrt(self._first)

    def adjust(self, index: int, g: torch.Tensor) -> torch.Tensor:
        """The output gradient of a layer, multiplied if its terms differ from the first layer's."""
        terms = self._of[index]
        if terms is self._of[0] or terms == self._of[0]:
            return g
        factor = math.sqrt(self._number(terms) / self._first)
        return (g.float() if g.dtype in _HALVES else g) * factor
