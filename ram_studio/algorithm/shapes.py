"""jaxtyping's names for annotating arrays, without importing it where they are not checked.

Annotations are only evaluated where they are checked, which is in the tests: these import jaxtyping
before anything else. Elsewhere it would cost 40 ms at every start (it imports asyncio).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Bool, Float, Float32, Float64, Int, Int64, Real, UInt, UInt16
else:
    Bool = Float = Float32 = Float64 = Int = Int64 = Real = UInt = UInt16 = Any

__all__ = ["Bool", "Float", "Float32", "Float64", "Int", "Int64", "Real", "UInt", "UInt16"]
