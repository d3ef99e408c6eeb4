"""The plain computation of one candidate at a time, without sharing or padding."""

import torch
from torch import Tensor

from groundling.lm import LanguageModel
from groundling.lm.write.sampling import allowed_tokens


def plain_token_log_probs(lm: LanguageModel, prompt: str, candidate: str) -> Tensor:
    """Return the log-probability of each token of the candidate, float32 (num_tokens,), from a plain forward."""
    prompt_ids = lm.tokenizer(prompt)["input_ids"] or [lm.tokenizer.bos_token_id]
    candidate_ids = lm.tokenizer(candidate, add_special_tokens=False)["input_ids"]
    return plain_ids_log_probs(lm, prompt_ids, candidate_ids)


def plain_ids_log_probs(lm: LanguageModel, prompt_ids: list[int], candidate_ids: list[int]) -> Tensor:
    if not candidate_ids:
        return torch.zeros(0)
    if lm.is_encoder_decoder:
        decoder_ids = [lm.model.config.decoder_start_token_id, *candidate_ids[:-1]]
        logits = lm.model(
            input_ids=torch.tensor([prompt_ids]), decoder_input_ids=torch.tensor([decoder_ids]), use_cache=False
        ).logits[0]
    else:
        line = torch.tensor([prompt_ids + candidate_ids[:-1]])
        logits = lm.model(input_ids=line, use_cache=False).logits[0, len(prompt_ids) - 1 :]
    log_probs = logits.float().log_softmax(-1)
    return torch.stack([log_probs[place, token] for place, token in enumerate(candidate_ids)])


def plain_scores(lm: LanguageModel, prompt: str, candidates: list[str]) -> Tensor:
    """Return the log-probabilities of candidates, float32 (num_candidates,)."""
    return torch.stack([plain_token_log_probs(lm, prompt, candidate).sum() for candidate in candidates])


def sets_of(text, lm):
    """Return the set of token ids from which each token of a `Written` text was sampled."""
    vocabulary = lm.model.get_output_embeddings().weight.shape[0]
    allowed = allowed_tokens([text.sets], vocabulary, torch.device("cpu"))
    return [set(row.nonzero()[:, 0].tolist()) for row in allowed]
