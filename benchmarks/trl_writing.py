"""Run TRL 1.16's GRPO and RLOO with the settings of `text_generation.py --trl`, in a separate environment.

    python3 -m venv trl && trl/bin/pip install -c constraints.txt trl==1.16.0 torch==2.13.0
    python benchmarks/text_generation.py --trl trl/bin/python

There are 64 completions (4 for each of 16 prompts) in micro-batches of 8. The model, lengths, epochs and optimizer steps
are passed as JSON. The script prints the CPU seconds (on GPUs, the wall time in bfloat16) of each iteration as JSON.
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

PIECES = 8


class Clock(TrainerCallback):
    """Records the CPU time (with a GPU, the wall time) at the end of each iteration."""

    def __init__(self, steps: int, on_cpu: bool) -> None:
        self.steps, self.on_cpu = steps, on_cpu
        self.marks: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.steps == 0:
            if not self.on_cpu:
                torch.cuda.synchronize()
            self.marks.append(time.process_time() if self.on_cpu else time.perf_counter())


def main() -> None:
    asked, rounds = json.loads(sys.argv[1]), int(sys.argv[2])
    steps = asked["epochs"] * asked["steps"]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=asked["vocabulary"], n_embd=asked["width"], n_layer=asked["layers"], n_head=asked["heads"],
        n_positions=asked["positions"], pad_token_id=0, bos_token_id=1, eos_token_id=1,
        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    vocabulary = {f"<{number}>": number for number in range(asked["vocabulary"])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<2>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<0>", eos_token="<1>")
    shortest, longest = asked["prompts"]
    lengths = torch.randint(shortest, longest + 1, (16 * (rounds + 2),)).tolist()
    prompts = [" ".join(f"<{token}>" for token in torch.randint(2, 1024, (n,)).tolist()) for n in lengths]
    on_cpu = asked["device"] == "cpu"
    clock = Clock(steps, on_cpu)
    with tempfile.TemporaryDirectory() as folder:
        GPT2LMHeadModel(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        options = dict(  # noqa: C408 (argument names of TRL)
            output_dir=folder, per_device_train_batch_size=PIECES, steps_per_generation=PIECES,
            gradient_accumulation_steps=PIECES // asked["steps"], num_iterations=asked["epochs"], num_generations=4,
            max_completion_length=asked["new_tokens"], beta=0.02, learning_rate=1e-6, max_steps=steps * (rounds + 1),
            use_cpu=on_cpu, bf16=not on_cpu, gradient_checkpointing=False, report_to=[], logging_strategy="no",
            save_strategy="no", disable_tqdm=True, generation_kwargs={"min_new_tokens": asked["new_tokens"]},
        )  # fmt: skip
        made, trainer_of = {"grpo": (GRPOConfig, GRPOTrainer), "rloo": (RLOOConfig, RLOOTrainer)}[asked["algorithm"]]
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
