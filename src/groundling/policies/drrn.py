"""DRRN: Q values of action texts given a prompt, trained by temporal-difference learning."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from groundling.envs.text_env import TextObservation
from groundling.policies import arguments
from groundling.policies.policy import policies
from groundling.policies.prompt_policy import PromptPolicy


@policies.register("drrn")
class DRRNPolicy(PromptPolicy):
    """Deep reinforcement relevance network (He et al. 2016, arXiv 1511.04636): π = softmax of Q(prompt, action).

    One GRU reads the prompt and another the action; an MLP on both outputs computes Q. This is one of GLAM's
    baselines, trained with the algorithm ``drrn``. The value of an observation is the mean of Q under π.

    Args:
        prompt, language, replacements: See `PromptPolicy`.
        tokenizer: Bundled model, folder or hub id whose tokenizer is used. (The original has a vocabulary of 8,000.)
        embedding_size: Size of the token embeddings; 128 in GLAM.
        hidden_size: Hidden size of both GRUs and the MLP; 128 in GLAM.
        temperature: Divides Q before the softmax.
    """

    weights_file = "drrn.safetensors"

    def __init__(
        self,
        prompt: str | Sequence[str] = "glam",
        language: arguments.Language = "english",
        replacements: arguments.Replacements = None,
        tokenizer: str = "starter",
        embedding_size: int = 128,
        hidden_size: int = 128,
        temperature: arguments.Temperature = 1.0,
    ) -> None:
        super().__init__(prompt, language, replacements)
        from groundling.lm.load.model import load_tokenizer  # slow to import
        from groundling.lm.load.model_files import Source, resolve

        self._tokenizer = load_tokenizer(Source(resolve(tokenizer)))
        self._tokens = lru_cache(maxsize=100_000)(self._tokenize)
        self.temperature = temperature
        self.embedding = nn.Embedding(len(self._tokenizer), embedding_size)
        self.prompt_encoder = nn.GRU(embedding_size, hidden_size)
        self.action_encoder = nn.GRU(embedding_size, hidden_size)
        self.hidden = nn.Linear(2 * hidden_size, hidden_size)
        self.scorer = nn.Linear(hidden_size, 1)

    def forward(self, observations: Sequence[TextObservation]) -> tuple[Tensor, Tensor]:
        q = self.q_values(self.prompts(observations), [o.actions for o in observations])
        log_probs = (q / self.temperature).log_softmax(-1)
        return log_probs, (log_probs.exp() * q.masked_fill(q.isinf(), 0.0)).sum(-1)

    def q_values(self, prompts: Sequence[str], actions: Sequence[Sequence[str]]) -> Tensor:
        """Return the Q values of each prompt's actions, ``(batch, num_actions)``, padded with -inf."""
        states = self._encode(self.prompt_encoder, prompts)  # (batch, hidden_size)
        distinct = list(dict.fromkeys(text for texts in actions for text in texts))
        place = {text: i for i, text in enumerate(distinct)}
        encoded = self._encode(self.action_encoder, distinct)  # (distinct, hidden_size)
        counts = torch.tensor([len(texts) for texts in actions])
        admissible = torch.arange(int(counts.max())) < counts[:, None]  # (batch, num_actions)
        index = torch.zeros(admissible.shape, dtype=torch.long)
        index[admissible] = torch.tensor([place[text] for texts in actions for text in texts])
        both = torch.cat([states[:, None].expand(-1, index.shape[1], -1), encoded[index]], dim=-1)
        scores = self.scorer(self.hidden(both).relu())[..., 0]  # (batch, num_actions)
        return scores.masked_fill(~admissible.to(scores.device), -torch.inf)

    def _encode(self, encoder: nn.GRU, texts: Sequence[str]) -> Tensor:
        """Return the GRU's last state for each text, ``(len(texts), hidden_size)``; duplicates are read once."""
        distinct = list(dict.fromkeys(texts))
        place = {text: i for i, text in enumerate(distinct)}
        tokens = [torch.tensor(self._tokens(text)) for text in distinct]
        # Padded rather than packed: on CPUs, gradients of packed sequences take time quadratic in their length.
        padded = pad_sequence(tokens).to(self.device)  # (longest, distinct)
        states, _ = encoder(self.embedding(padded))  # (longest, distinct, hidden_size)
        last = states[[len(line) - 1 for line in tokens], range(len(tokens))]  # (distinct, hidden_size)
        return last[[place[text] for text in texts]]

    def _tokenize(self, text: str) -> tuple[int, ...]:
        ids = self._tokenizer(text, add_special_tokens=False).input_ids
        return tuple(ids) or (0,)  # an empty text is read as padding
