"""What a policy is compared to where it is to stay close to it: itself, as training began."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch.nn import Parameter

from groundling.lm import LanguageModel


class Reference:
    """A frozen language model, or at no memory the policy's own with its LoRA adapters off.

    No module of the policy: its weights are neither trained nor saved.

    Args:
        reference: The frozen one; ``lm`` itself stands for its weights without adapters.
        lm: The policy's.
    """

    def __init__(self, reference: LanguageModel, lm: LanguageModel) -> None:
        self._has_adapters = reference is lm
        self._lm = lm if self._has_adapters else reference.requires_grad_(False)

    @property
    def language_model(self) -> LanguageModel | None:
        """The frozen model; None if it is the policy's own."""
        return None if self._has_adapters else self._lm

    def parameters(self) -> Iterator[Parameter]:
        """Of the frozen model; none where it is the policy's own."""
        return iter(()) if self.language_model is None else self.language_model.parameters()

    @contextmanager
    def model(self) -> Iterator[LanguageModel]:
        """The language model, as long as it may be used."""
        if not self._has_adapters:
            yield self._lm
            return
        self._lm.model.disable_adapters()
        try:
            with self._lm.keeping():  # not what other weights have read
                yield self._lm
        finally:
            self._lm.model.enable_adapters()
