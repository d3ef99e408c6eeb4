"""Train with TRL's GRPOTrainer on a text world that Groundling serves as an OpenEnv environment.

    groundling serve-env BabyAI-GoToObjS4-v0
    pip install trl==1.16.0 openenv==0.10.0 && python scripts/trl_openenv.py    # in an environment without Groundling

The model is a random Llama whose tokenizer encodes each tool call as a single token, so that the model calls the tool
from the start. Replace `tiny_model` with your own model.
"""

import json
import sys

import torch
from datasets import Dataset
from openenv.core import GenericEnvClient
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen2_5_chat_template

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")


class TextWorld:
    """An episode; TRL calls `reset` with a row of the dataset, provides `act` as a tool, and reads the reward."""

    def __init__(self) -> None:
        self._env = GenericEnvClient(base_url=URL).sync()
        self._env.connect()

    def reset(self, seed: int, **_) -> str:
        self._return, self._result = 0.0, self._env.reset(seed=seed)
        return self._read()

    def act(self, action: str) -> str:
        """Take an action in the room.

        Args:
            action: One of the actions that were listed.
        """
        if self._result.done:
            return "The episode has ended."
        self._result = self._env.step({"action": action})  # TRL shows errors to the model
        self._return += self._result.reward
        return self._read()

    def get_reward(self) -> float:
        return self._return

    def _read(self) -> str:
        seen = self._result.observation
        return f"Goal: {seen['goal']}\n{seen['text']}\nActions: {', '.join(seen['actions'])}"


def tiny_model() -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast, list[int]]:
    """Return a random model, its tokenizer, and the ids of tokens that the model must not generate."""
    words = "go to the a red green blue purple yellow grey key ball box You see wall step steps left right forward and"
    tokens = ["<unk>", "<pad>", *words.split()]
    tokenizer = Tokenizer(models.WordLevel({token: id for id, token in enumerate(tokens)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    calls = [json.dumps({"name": "act", "arguments": {"action": action}}) for action in ACTIONS]
    added = ["<|im_start|>", *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)]
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in added])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="<|im_end|>"
    )
    fast.chat_template = qwen2_5_chat_template
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=len(fast), pad_token_id=1, eos_token_id=fast.eos_token_id, **sizes)
    )
    return model, fast, list(range(len(tokens) + 1))


if __name__ == "__main__":
    model, tokenizer, suppressed = tiny_model()
    trainer = GRPOTrainer(
        model,
        environment_factory=TextWorld,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": "Act in a room.\n"}], "seed": seed} for seed in range(8)]
        ),
        args=GRPOConfig(
            output_dir="runs/trl_openenv",
            max_steps=3,
            num_generations=8,  # number of episodes per seed, which are compared, and of sessions
            per_device_train_batch_size=8,
            max_completion_length=1024,
            max_tool_calling_iterations=8,
            generation_kwargs={"suppress_tokens": suppressed},
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
        ),
    )
    before = [parameter.detach().clone() for parameter in model.parameters()]
    trainer.train()
    changed = sum(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    for entry in trainer.state.log_history[:-1]:
        print({name: round(entry[name], 4) for name in ("reward", "reward_std", "tools/call_frequency", "grad_norm")})
    print(f"{changed} of {len(before)} weight matrices changed")
