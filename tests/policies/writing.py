"""Prompts, numbers and models for tests of the token policy."""

import torch

from groundling.policies import TokenPrompt
from tests.lm.families import VOCABULARY

FAMILIES = ["gpt2", "llama", "t5", "bart"]


def prompts(count=8, low=2, high=9, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(low, high, (count,), generator=generator).tolist()
    return [TokenPrompt(tuple(torch.randint(2, 300, (n,), generator=generator).tolist())) for n in lengths]


def uniforms(count, steps, seed=0):
    return torch.rand(count, steps, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def ending_often(lm):
    """Make every seventh token of the model an end token, so that texts of all lengths occur."""
    lm.model.generation_config.eos_token_id = list(range(1, VOCABULARY, 7))
    return lm


def next_logits(lm, prompt, written):
    with torch.no_grad():
        if lm.is_encoder_decoder:
            start = lm.model.config.decoder_start_token_id
            output = lm.model(input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([[start, *written]]))
        else:
            output = lm.model(input_ids=torch.tensor([prompt + written]))
    return output.logits[0, -1]
