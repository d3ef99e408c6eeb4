import gymnasium
import pytest

from groundling.envs.babyai_text import translate_mission
from groundling.envs.make import make_text_env
from groundling.envs.text_env import TranslationError
from groundling.prompts import glam_prompt

_FRENCH = {
    # the five families of GLAM
    "go to the red ball": "aller à la balle rouge",
    "go to a grey box": "aller à une boîte grise",
    "pick up the purple key": "ramasser la clef violette",
    "pick up a blue ball": "ramasser une balle bleue",
    "open the door": "ouvrir la porte",
    "open the yellow door": "ouvrir la porte jaune",
    "put the red key next to a green ball": "poser la clef rouge à côté d'une balle verte",
    "put a blue box next to the grey box": "poser une boîte bleue à côté de la boîte grise",
    "pick up a green key, then go to the yellow box": "ramasser une clef verte, puis aller à la boîte jaune",
    "go to the red ball after you pick up a grey key": "aller à la balle rouge après avoir ramassé une clef grise",
    "pick up the red key, then pick up a box": "ramasser la clef rouge, puis ramasser une boîte",
    # other forms of BabyAI's grammar
    "go to the object behind you": "aller à l'objet derrière toi",
    "pick up a green object on your left": "ramasser un objet vert à ta gauche",
    "put the key on your right next to the object in front of you": (
        "poser la clef à ta droite à côté de l'objet devant toi"
    ),
    "open a door and go to the purple door": "ouvrir une porte et aller à la porte violette",
    "go to a door on your left and open a door, then pick up the key and put the key next to a box": (
        "aller à une porte à ta gauche et ouvrir une porte, puis ramasser la clef et poser la clef à côté d'une boîte"
    ),
    "pick up a ball after you go to the key and open the red door": (
        "ramasser une balle après être allé à la clef et avoir ouvert la porte rouge"
    ),
    "go to a key after you put a ball next to the box": (
        "aller à une clef après avoir posé une balle à côté de la boîte"
    ),
}


@pytest.mark.parametrize(("english", "french"), _FRENCH.items())
def test_missions_in_french(english: str, french: str) -> None:
    assert translate_mission(english, "french") == french
    assert translate_mission(english, "english") == english


@pytest.mark.parametrize(
    "mission",
    ["sing a song", "go to the sofa", "put the key", "go to a key next to a box", "put the sofa near the key"],
)
def test_other_missions_are_refused(mission: str) -> None:
    with pytest.raises(TranslationError, match="cannot translate"):
        translate_mission(mission, "french")


def test_every_babyai_level_speaks_french() -> None:
    english_words = {"the", "you", "to", "pick", "go", "and", "then", "after", "door", "next", "near", "get"}
    ids = [id for id in gymnasium.registry if id.startswith("BabyAI-")]
    assert len(ids) > 90
    for id in ids:
        env = make_text_env(id, language="french")
        observation, info = env.reset(seed=1)
        assert not english_words & set(observation["mission"].replace(",", "").split()), observation["mission"]
        assert all(sentence.startswith("Tu ") for sentence in info["descriptions"])
        assert env.observation_space.contains(observation)
        prompt = glam_prompt(observation["mission"], ["toggle"], [[]], [], "french")
        assert f" \n But de l'agent: {observation['mission']} \n" in prompt
