"""TRL 1.16's GRPO and RLOO on the work that `text_generation.py --trl` gives ours; runs in an environment of its own.

    python3 -m venv trl && trl/bin/pip install -c constraints.txt trl==1.16.0 torch==2.13.0
    trl/bin/python benchmarks/trl_writing.py grpo small 5

64 completions (16 prompts, 4 each) of 20 tokens, 8 minibatches x 5 iterations = 40 optimiser steps. Prints the CPU
seconds of each of so many iterations, after one that warms up, as JSON.
"""

import itertools
import json
import sys
import tempfile
import time
import warnings
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

STEPS = 40


class Clock(TrainerCallback):
    """Notes the CPU time at the end of every iteration."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % STEPS == 0:
            self.marks.append(time.process_time())


def main() -> None:
    name, size, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers, width, heads = {"small": (2, 64, 4), "larger": (4, 256, 8)}[size]
    config = GPT2Config(
        vocab_size=1024, n_embd=width, n_layer=layers, n_head=heads, n_positions=64,
        pad_token_id=0, bos_token_id=1, eos_token_id=1, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    vocabulary = {f"<{number}>": number for number in range(1024)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<2>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<0>", eos_token="<1>")
    lengths = torch.randint(5, 21, (16 * (rounds + 2),)).tolist()
    prompts = [" ".join(f"<{token}>" for token in torch.randint(2, 1024, (n,)).tolist()) for n in lengths]
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        GPT2LMHeadModel(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        options = dict(  # noqa: C408 (as TRL names them)
            output_dir=folder, per_device_train_batch_size=8, steps_per_generation=8, num_iterations=5,
            num_generations=4, max_completion_length=20, beta=0.02, learning_rate=1e-6, max_steps=STEPS * (rounds + 1),
            use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[], logging_strategy="no",
            save_strategy="no", disable_tqdm=True, generation_kwargs={"min_new_tokens": 20},
        )  # fmt: skip
        made, trainer_of = {"grpo": (GRPOConfig, GRPOTrainer), "rloo": (RLOOConfig, RLOOTrainer)}[name]
        trainer = trainer_of(
            model=folder,
            reward_funcs=lambda completions, **kwargs: [float(len(text) % 7) for text in completions],
            args=made(**options),
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=tokenizer,
            callbacks=[clock],
        )
        trainer.train()
    print(json.dumps([after - before for before, after in itertools.pairwise(clock.marks)]))


if __name__ == "__main__":
    main()
