"""Families of tiny random models for the tests of language models."""

from collections.abc import Callable
from typing import Any

from transformers.models.bart import BartConfig
from transformers.models.bloom import BloomConfig
from transformers.models.gemma2 import Gemma2Config
from transformers.models.gpt2 import GPT2Config
from transformers.models.llama import LlamaConfig
from transformers.models.mamba import MambaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.opt import OPTConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config
from transformers.models.t5 import T5Config

VOCABULARY = 320
CORPUS = [
    "Possible action of the agent: turn left, turn right, go forward, pick up, drop, toggle",
    "Goal of the agent: go to the red ball. You see a wall 2 steps forward, You see a blue key 3 steps left",
    "You see a green box 1 step right and 4 steps forward, You carry a yellow ball",
]
ACTIONS = ["turn left", "turn right", "go forward", "pick up", "drop", "toggle"]

_SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_POSITIONS = {"max_position_embeddings": 256}
CONFIGS: dict[str, Callable[[], Any]] = {
    "t5": lambda: T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0),
    "flan-t5": lambda: T5Config(
        d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False, scale_decoder_outputs=False,
    ),
    "bart": lambda: BartConfig(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=48, decoder_ffn_dim=48, decoder_start_token_id=1, **_POSITIONS,
    ),
    "gpt2": lambda: GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=256),
    "llama": lambda: LlamaConfig(num_key_value_heads=2, **_SHAPE, **_POSITIONS),
    "qwen2": lambda: Qwen2Config(num_key_value_heads=2, **_SHAPE, **_POSITIONS),
    "qwen3": lambda: Qwen3Config(num_key_value_heads=2, head_dim=8, **_SHAPE, **_POSITIONS),
    "opt": lambda: OPTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48, word_embed_proj_dim=16, **_POSITIONS
    ),
    "mistral": lambda: MistralConfig(num_key_value_heads=2, sliding_window=24, **_SHAPE, **_POSITIONS),
    "gemma2": lambda: Gemma2Config(num_key_value_heads=2, head_dim=8, final_logit_softcapping=1.0, **_SHAPE),
    "bloom": lambda: BloomConfig(hidden_size=32, n_layer=2, n_head=4),
    "mamba": lambda: MambaConfig(hidden_size=32, num_hidden_layers=2, state_size=4),
}  # fmt: skip
UNPACKABLE = ("bart", "bloom", "mamba")  # families whose candidates cannot be read in one row with the prompt
