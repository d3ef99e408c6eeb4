"""The reference model of a KL penalty: the policy's language model as training began."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch.nn import Parameter

from groundling.lm import LanguageModel


class Reference:
    """A frozen language model, or the policy's own with its LoRA adapters off, which takes no memory.

    Not a module of the policy, so its weights are neither trained nor saved. ``reference`` may be ``lm`` itself: its
    weights without adapters.
    """

    def __init__(self, reference: LanguageModel, lm: LanguageModel) -> None:
        self._has_adapters = reference is lm
        self._lm = lm if self._has_adapters else reference.requires_grad_(False)

    @property
    def language_model(self) -> LanguageModel | None:
        return None if self._has_adapters else self._lm

    def parameters(self) -> Iterator[Parameter]:
        """Return the frozen model's parameters; none if it is the policy's own."""
        return iter(()) if self.language_model is None else self.language_model.parameters()

    @contextmanager
    def model(self) -> Iterator[LanguageModel]:
        """Yield the language model, with adapters off inside the context."""
        if not self._has_adapters:
            yield self._lm
            return
        self._lm.model.disable_adapters()
        try:
            with self._lm.keeping():  # caches of its own: those of other weights do not apply
                yield self._lm
        finally:
            self._lm.model.enable_adapters()
