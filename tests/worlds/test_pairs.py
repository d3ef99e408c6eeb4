"""Pairs for a judge from text worlds and text generation: recorded, annotated, distilled."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import examples.shelf  # noqa: F401 (registers its env)
import pytest
import torch

from groundling.cli.main import main
from groundling.config.schema import Config
from groundling.envs.seeds import training_seed
from groundling.envs.text_env import TextObservation
from groundling.evaluation.target import find
from groundling.judges import Pairs, TextPairs, open_pairs
from groundling.judges.preferences.recording import Recorded, TextRecording
from groundling.judges.reward_models import load_reward_model
from groundling.policies import RandomPolicy
from groundling.policies.policy import Outputs
from groundling.rewards import GeneratedTexts, RewardInputs, RewardSum
from groundling.rewards.part import Part
from groundling.training.tracking import read_metrics
from groundling.worlds.protocols import PairSettings
from groundling.worlds.text.collect import EnvCollector
from groundling.worlds.text.episodes import make_envs
from groundling.worlds.text.pairs import caption, caption_in_context, context, record
from groundling.worlds.world import Demonstrator
from tests.thorough import thorough

SHELF = ("collect", "random", "world.env=Shelf-v0", "evaluation.num_envs=4")
NUMBERS = ("collect", "rl4lms/increasing_numbers_ppo", "model.path=starter-causal", "world.num_tokens=6")


def _pairs(folder: Path) -> TextPairs:
    pairs = open_pairs(folder)
    assert isinstance(pairs, TextPairs)
    return pairs


def _captions(pairs: Pairs) -> set[str]:
    """Return the captions that a reward model reads."""
    return {caption for pair in pairs.segments() for segment in pair for caption in segment}


def _distilled(folder: Path, rules: str, epochs: int) -> float:
    """Return the held-out accuracy of a reward model that learned a judge's preferences by these rules."""
    assert main(["annotate", str(folder), "--name", "rules", "--judge", "rules", f"rules={rules}"]) == 0
    output = folder.with_name("reward")
    options = ["learning_rate=1e-2", "batch_size=16", f"epochs={epochs}", "model.args.channels=16", "device=cpu"]
    assert main(["distill", str(folder), *options, "--preferences", "rules", "--output", str(output)]) == 0
    model = load_reward_model(output)
    assert model.id == "characters" and model.normalization is not None
    return float(read_metrics(output)[-1]["validation_accuracy"])


def test_pairs_of_play_train_a_reward_model(tmp_path: Path) -> None:
    folder = tmp_path / "pairs"
    words = [*SHELF, "--pairs", "60", "--length", "1", "--output", str(folder)]
    assert main(words) == 0
    pairs = _pairs(folder)
    assert (len(pairs), pairs.world, pairs.about["env"], pairs.about["player"]) == (60, "text", "Shelf-v0", "random")
    alone = [pair for pair in pairs.texts if pair[0].context != pair[1].context]
    assert len({one.context for pair in alone for one in pair}) == 2 * len(alone) < 40, "paired by goals first"
    for pair in pairs.texts:
        for one in pair:
            assert one.context.startswith("Goal: take the ") and len(one.captions) == 1
            assert all(line.startswith("You see a ") for line in one.captions[0].splitlines()[:-1])
            assert one.captions[0].splitlines()[-1].startswith(("Action: take the ", "Action: go on"))
    assert main(words) == 0, "what is written already is left as it is"
    assert _distilled(folder, '[["Action: go on",1]]', 5) > 0.9


def test_segments_equal_replayed_episodes(tmp_path: Path) -> None:
    folder = tmp_path / "pairs"
    assert main([*SHELF, "--pairs", "8", "--output", str(folder)]) == 0
    pairs = _pairs(folder)
    segments = {one.captions[0]: (one, pairs.info["return"][row][side], pairs.info["steps"][row][side])
                for row, pair in enumerate(pairs.texts) for side, one in enumerate(pair)}  # fmt: skip
    assert len(segments) == 16

    config = _config()
    envs = make_envs(config.world, 1, lambda env, k: training_seed(config.seed, 0, k))
    observation = envs.reset()[0]
    first = next(action for action, name in enumerate(observation.actions) if caption(observation, name) in segments)
    segment, paid, steps = segments[caption(observation, observation.actions[first])]
    assert segment.context == context(observation)
    read = _captions(pairs)
    assert caption_in_context(observation, observation.actions[first]) in read
    total, num_steps = 0.0, 0
    for text in segment.captions:
        action = next(a for a, name in enumerate(observation.actions) if caption(observation, name) == text)
        step = envs.step([action])
        total, num_steps, observation = total + float(step.rewards[0]), num_steps + 1, step.observations[0]
    assert (total, num_steps) == (paid, steps) and step.final_observations
    assert segment.outcome == "\n".join(step.final_observations[0].descriptions[-1])
    envs.close()


def _config() -> Config:
    return find("random", SHELF[2:], pytest.fail).config


def _random() -> Demonstrator:
    return find("random", SHELF[2:], pytest.fail).demonstrator()


class Takes(RandomPolicy):
    """Always takes the first admissible action, so that its episodes have one step, or the last, "go
    on", so that they have six.
    """

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place

    def outputs(self, observations: Sequence[TextObservation]) -> Outputs:
        logits, values = super().outputs(observations)
        taken = torch.tensor([[self.place % len(observation.actions)] for observation in observations])
        return Outputs(torch.where(torch.arange(logits.shape[1]) == taken, 0.0, logits - 50).log_softmax(1), values)


def _first_action() -> Demonstrator:
    return replace(_random(), name="trained", policy=Takes(0))


class Heard(Part):
    """Returns no reward, and records the captions that a reward model would read."""

    needs = frozenset({"captions"})

    def __init__(self) -> None:
        self.captions: list[str] = []

    def rewards(self, inputs: RewardInputs) -> torch.Tensor:
        assert inputs.judged is not None
        self.captions += inputs.judged.read(range(len(inputs.judged.ids)))
        return torch.zeros(inputs.shape)


def test_captions_of_runs_and_pairs_are_equal(tmp_path: Path) -> None:
    config, part = _config(), Heard()
    player = _first_action()
    record([player], PairSettings(tmp_path / "pairs", "first", 8, length=1))
    envs = make_envs(config.world, 1, lambda env, k: training_seed(config.seed, 0, k))
    envs.reset()
    collector = EnvCollector(envs, 5, reward=RewardSum({"heard": part}))
    collector.collect(Takes(0), generator=torch.Generator().manual_seed(0))
    collector.close()
    assert len(part.captions) == 5
    assert set(part.captions) <= _captions(_pairs(tmp_path / "pairs"))


def test_several_agents_take_turns_and_segments_have_their_length(tmp_path: Path) -> None:
    players = [replace(_random(), name="trained", policy=Takes(-1)), _first_action()]
    rounds, add = list[Sequence[Recorded]](), TextRecording.add

    def kept(self: TextRecording, added: Sequence[Recorded]) -> None:
        rounds.append(added)
        add(self, added)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TextRecording, "add", kept)
        count = record(players, PairSettings(tmp_path / "pairs", "both", 18, length=2, stride=3))
    assert count == 18 == len(_pairs(tmp_path / "pairs"))
    lengths = [{len(one.segment.captions) for one in added} for added in rounds]
    assert max(lengths[0]) == 2 and lengths[1] <= {1}  # a segment contains either no step or one step
    begins = {one.figures["steps"] - len(one.segment.captions) for added in rounds for one in added}
    assert begins <= {0, 1, 3, 4} and len(begins) > 2


@pytest.mark.parametrize("words", [SHELF, *thorough(((*NUMBERS, "evaluation.batch_size=4"),))])
def test_a_killed_recording_resumes_exactly(
    words: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    wanted = [*words, "--pairs", "12"]
    assert main([*wanted, "--output", str(whole)]) == 0
    add = TextRecording.add

    def killed(self: TextRecording, segments: Sequence[Recorded]) -> None:
        if self.rounds == 1:
            raise KeyboardInterrupt
        add(self, segments)

    monkeypatch.setattr(TextRecording, "add", killed)
    assert main([*wanted, "--output", str(torn)]) != 0
    monkeypatch.undo()
    assert not torn.exists()
    assert main([*wanted, "seed=7", "--output", str(torn)]) != 0, "another recording"
    assert main([*wanted, "--output", str(torn)]) == 0
    one, other = _pairs(whole), _pairs(torn)
    assert list(one.texts) == list(other.texts)
    assert one.returns().tolist() == other.returns().tolist()
    assert main([*wanted, "seed=7", "--output", str(torn)]) != 0


def test_pairs_of_texts_train_a_reward_model(tmp_path: Path) -> None:
    folder = tmp_path / "pairs"
    assert main([*NUMBERS, "--pairs", "40", "--output", str(folder)]) == 0
    pairs = _pairs(folder)
    assert (pairs.world, pairs.about["pool"], len(pairs)) == ("writing", "dummy_pool", 40)
    assert all(first.context == second.context == "1 2 3" for first, second in pairs.texts)
    assert len({tuple(one.captions) for pair in pairs.texts for one in pair}) > 40
    assert pairs.comparisons()[0].context == "1 2 3"
    texts = [one.captions[0] for one in pairs.texts[0]]
    inputs = RewardInputs.of_texts(GeneratedTexts(["1 2 3"] * 2, [[text] for text in texts], [[], []], [{}, {}]))
    assert inputs.judged is not None and set(inputs.judged.read([0, 1])) <= _captions(pairs)
    _distilled(folder, '[["forward",1]]', 1)


def test_answers_and_plain_texts_are_different_recordings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*NUMBERS, "--pairs", "2", "--output", str(tmp_path / "pairs")]
    asked = ["world.chat=true", "world.system=Count."]
    assert main(words) == 0
    about = tmp_path / "pairs" / "recording.json"
    recording = json.loads(about.read_text())
    before_there_were_any = {key: value for key, value in recording.items() if key not in ("chat", "system")}
    for there, message in ((recording, "chat=False (now True)"), (before_there_were_any, "chat=None (now True)")):
        about.write_text(json.dumps(there))
        assert main(words) == 0
        capsys.readouterr()
        assert main([*words, *asked]) == 1
        assert message in " ".join(capsys.readouterr().err.split())
    settings = [find(NUMBERS[1], changes, pytest.fail).world.settings for changes in ([], asked[:1], asked)]
    assert "chat" not in settings[0] and settings[0] != settings[1] != settings[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*SHELF, "--stride", "3"], "--stride 3 has no effect on segments of whole episodes"),
        ([*SHELF, "--length", "3", "--stride", "2"], "--stride 2 must be at least"),
        ([*SHELF, "--format", "motif"], "--format motif applies only to NetHack"),
        (["collect", "expert,random", *SHELF[2:]], "the expert is BabyAI's bot"),
        ([*NUMBERS, "--length", "3"], "--length has no effect on pools"),
        ([*NUMBERS, "--format", "motif"], "--format motif applies only to NetHack"),
        (
            ["collect", "random", "world.env=NetHackScore-v1", "--length", "episode"],
            "--length episode applies only to text worlds",
        ),
    ],
)
def test_options_without_effect_are_refused(
    words: Sequence[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--pairs", "2", "--output", str(tmp_path / "pairs")]) != 0
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and message in error
    assert not any(tmp_path.iterdir())
