"""The base's folder, answered with merges that are put into its model in memory, one at a time."""

from collections.abc import Callable, Mapping
from typing import Any

from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.errors import EvaluationError
from ram_studio.evals.answering.local import LocalEngine


class MergedEngine(LocalEngine):
    """Answers as whatever merge it was last told to hold.

    The model is loaded, and a merge put into it, when a question has to be asked: a setting whose
    answers are all stored costs neither. base: whose tokenizer and chat template are those of all
    merges; options: as for `LocalEngine`.
    """

    def __init__(self, base: Checkpoint, **options: Any) -> None:
        super().__init__(base.folder, **options)
        self._nbytes = base.nbytes
        self._weights: str | None = None
        self._apply: Callable[[Any], None] | None = None

    def hold(self, weights: str, apply: Callable[[Any], None]) -> None:
        """Answer from now on with the weights of this digest, see `experiment.identity.identify`.

        apply: puts them into the loaded model, whatever was in it before.
        """
        self._weights, self._apply = weights, apply

    @property
    def was_asked(self) -> bool:
        """Whether the merge held now was put into the model, so that it answered anything."""
        return self._weights is not None and self._apply is None

    @property
    def identity(self) -> Mapping[str, Any]:
        """As `LocalEngine`'s, with the fingerprint of the weights held."""
        if self._weights is None:
            raise EvaluationError("No merge is held yet; tell the engine which one to answer with.")
        return {**self._identity(self._weights, self._nbytes), **self.decoding.key}

    @property
    def model(self) -> Any:
        """The model with the held weights in it."""
        model = super().model
        if self._apply is not None:
            apply, self._apply = self._apply, None
            try:
                apply(model)
            except BaseException:
                self._apply = apply
                raise
        return model
