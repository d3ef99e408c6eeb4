"""A language model with a reward head."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from groundling.errors import ConfigError
from groundling.judges.reward_models.reward_model import WEIGHTS, RewardModel, reward_models

_FOLDER = "language_model"


@reward_models.register("language_model")
class LanguageRewardModel(RewardModel):
    """A language model's state after the caption's text (`LanguageModel.encode`), and an MLP on it.

    Args:
        path: A folder, a hub id, or a bundled model: "starter" (encoder-decoder), "starter-causal".
        train_language_model: False trains the head alone.
        hidden_sizes: Widths of the head's hidden layers.
        prompt: The text to read; ``{caption}`` stands for the caption.
        lora: Keyword arguments of `peft.LoraConfig`: train an adapter instead of the model. Needs the `lora` extra.
    """

    id = "language_model"

    def __init__(
        self,
        path: str = "starter",
        train_language_model: bool = True,
        hidden_sizes: Sequence[int] = (256,),
        prompt: str = "{caption}",
        lora: Mapping[str, Any] | None = None,
    ) -> None:
        if "{caption}" not in prompt:
            raise ConfigError(f"prompt {prompt!r} has no {{caption}}: put it where the caption is to stand")
        super().__init__(
            path=path,
            train_language_model=train_language_model,
            hidden_sizes=list(hidden_sizes),
            prompt=prompt,
            lora=None if lora is None else dict(lora),
        )
        from groundling.lm import LanguageModel, ValueHead  # slow to import
        from groundling.runtime import devices

        devices.configure()
        self.lm = LanguageModel.from_pretrained(path, lora=lora)
        if not train_language_model:
            self.lm.requires_grad_(False)
        self.head = ValueHead(self.lm.hidden_size, hidden_sizes=tuple(hidden_sizes))

    def forward(self, captions: Sequence[str]) -> Tensor:
        texts = [self.args["prompt"].replace("{caption}", self.lm.mask(caption)) for caption in captions]
        with self.lm.autocast():
            states = self.lm.encode(texts)  # (n, hidden_size) float32
        output: Tensor = self.head(states)
        return output

    @property
    def device(self) -> torch.device:
        device: torch.device = self.lm.device
        return device

    def _save_weights(self, folder: Path) -> None:
        self.lm.save_pretrained(folder / _FOLDER)
        save_file(self.head.state_dict(), folder / WEIGHTS)

    @classmethod
    def _load(cls, folder: Path, args: Mapping[str, Any]) -> Self:
        # An adapter in the folder is loaded, too.
        model = cls(**{**args, "path": str(folder / _FOLDER), "lora": None})
        model.args = dict(args)
        model.head.load_state_dict(load_file(folder / WEIGHTS))
        return model
