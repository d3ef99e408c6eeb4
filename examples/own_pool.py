"""A custom pool of prompts, answered token by token: `python -m examples.own_pool`."""

from collections.abc import Sequence

import gymnasium

import groundling
from groundling.envs.text_generation import Pool, Sample, Split, pools

FIRST = {"train": 1, "val": 1001, "test": 2001}  # splits have no sums in common


@pools.register("sums")
class Sums(Pool):
    """Addition problems, answered in digits."""

    def __init__(self, size: int = 100) -> None:
        self.size = size

    def prepare(self, split: Split) -> Sequence[Sample]:
        numbers = range(FIRST[split], FIRST[split] + self.size)
        return [Sample(f"{split}_{n}", f"{n} + {n + 7} =", (str(2 * n + 7),)) for n in numbers]


def right(prompts: list[str], generations: list[str], references: list[list[str]], meta: object = None) -> list[float]:
    """Return a reward of 1 for each right answer."""
    return [float(text.strip() in known) for text, known in zip(generations, references, strict=True)]


if __name__ == "__main__":
    tokenizer = groundling.LanguageModel.from_pretrained("starter-causal").tokenizer
    samples = pools.create("sums", size=10).prepare("train")
    env = gymnasium.make("TextGeneration-v0", samples=samples, tokenizer=tokenizer, reward=right)
    _, info = env.reset(seed=0)
    for token in [*tokenizer(info["references"][0])["input_ids"], tokenizer.eos_token_id]:
        _, reward, done, _, info = env.step(token)
    print(f"{info['prompt_text']}{info['context_text']}", reward)
