"""Compute lexical metrics in eight languages and seven scripts, for equal, slightly changed and different texts.

    python benchmarks/metric_scripts.py      # takes a few seconds; METEOR requires WordNet

The script writes results/metrics/scripts.csv and README.md. `tests/metrics/test_scripts.py` checks the order of the values.
"""

import csv
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groundling.rewards import measures

RESULTS = Path(__file__).parents[1] / "results" / "metrics"
TEXTS = {
    "French": (
        "le petit garçon a pêché un gros poisson hier soir",
        "le petit garçon a péché un gros poisson hier soir",
        "demain nous irons vers la montagne avec nos amis",
    ),
    "Russian": (
        "мальчик вчера вечером поймал большую рыбу в старом озере",
        "мальчик вчера вечером поймал большую рыбу в старом пруду",
        "завтра мы пойдём гулять по городу с друзьями",
    ),
    "Greek": (
        "το μικρό αγόρι έπιασε χθες ένα μεγάλο ψάρι στη λίμνη",
        "το μικρό αγόρι έπιασε χθες ένα μεγάλο ψάρι στη θάλασσα",
        "αύριο θα πάμε βόλτα με τους φίλους μας",
    ),
    "Arabic": (
        "اصطاد الولد الصغير سمكة كبيرة في البحيرة مساء أمس",
        "اصطاد الولد الصغير سمكة كبيرة في البحيرة مساء اليوم",
        "سنذهب غدا إلى الجبل مع أصدقائنا",
    ),
    "Hindi": (
        "छोटे लड़के ने कल शाम झील में बड़ी मछली पकड़ी",
        "छोटे लड़के ने कल शाम झील में बड़ी चिड़िया पकड़ी",
        "हम अपने दोस्तों के साथ पहाड़ पर जाएँगे",
    ),
    "Chinese": ("小男孩昨天晚上在湖里抓到了一条大鱼。", "小男孩昨天晚上在湖里抓到了一条大虾。", "朋友们都喜欢唱歌！"),
    "Japanese": (
        "少年は昨日の夜に湖で大きな魚を釣った。",
        "少年は昨日の夜に湖で大きな鳥を釣った。",
        "友達と山へ行こう！",
    ),
    "Thai": ("เด็กชายจับปลาตัวใหญ่ในทะเลสาบเมื่อคืนนี้", "เด็กชายจับนกตัวใหญ่ในทะเลสาบเมื่อคืนนี้", "พวกเราชอบร้องเพลง"),
}
"""For each language: a text, the same text with one word changed, and a different text."""
CASES = ("equal", "one word changed", "another text")


@dataclass(frozen=True)
class Figure:
    """A value that a metric reports; ``best`` is the value for equal texts."""

    id: str
    name: str
    best: float = 1.0
    args: dict[str, Any] = field(default_factory=dict)


FIGURES = (
    *(Figure("rouge", f"lexical/rouge_{kind}") for kind in ("rouge1", "rouge2", "rougeL", "rougeLsum")),
    Figure("rouge_l_max", "lexical/rouge_l_max"),
    Figure("rouge_combined", "reward/rouge_combined"),
    Figure("meteor", "lexical/meteor"),
    Figure("bleu", "lexical/bleu"),
    Figure("sacre_bleu", "lexical/sacrebleu"),
    Figure("bleu_totto", "table_to_text/bleu_overall"),
    Figure("parent_totto", "table_to_text/parent_overall_f_score"),
    Figure("chrf", "lexical/chrf"),
    Figure("chrf", "lexical/chrf", args={"word_order": 2}),
    Figure("ter", "lexical/ter", best=0.0),
    Figure("cider", "lexical/cider", best=10.0, args={"corpus": [[text] for text, _, _ in TEXTS.values()]}),
    Figure("says_reference", "reward/says_reference"),
    Figure("diversity", "diversity_metrics/distinct-1"),
)


def label(figure: Figure) -> str:
    """Return the id, the name of the value if there are several, and the arguments other than a corpus."""
    kind = figure.name.rpartition("rouge_")[2] if figure.id == "rouge" else ""
    options = [f"{name}={value}" for name, value in figure.args.items() if name != "corpus"]
    return " ".join([figure.id, *([kind] if kind else []), *options])


def measure(figure: Figure, language: str) -> list[float]:
    """Return a figure's value for each of a language's three cases.

    Diversity does not use references, so it is computed over the reference and the generation.
    """
    reference = TEXTS[language][0]
    meta = {"raw_table": [["text", reference]]}
    metric = measures.create(figure.id, **figure.args)
    values = []
    for text in TEXTS[language]:
        texts = [reference, text] if figure.id == "diversity" else [text]
        count = len(texts)
        results = metric.compute(["prompt"] * count, texts, [[reference]] * count, [meta] * count)
        values.append(results[figure.name].corpus)
    return values


def main() -> None:
    measured = {label(figure): [measure(figure, language) for language in TEXTS] for figure in FIGURES}
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / "scripts.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["metric", "language", *CASES])
        for name, rows in measured.items():
            for language, values in zip(TEXTS, rows, strict=True):
                writer.writerow([name, language, *(f"{value:.4f}" for value in values)])
    lines = [
        "# Lexical metrics in eight languages",
        "",
        "This page is written by `python benchmarks/metric_scripts.py`, which contains the texts. Each cell contains the",
        "values for equal texts, for texts that differ in one word, and for different texts. For `ter`, lower is better.",
        "`cider` is at most 10. METEOR of n equal words is 1 - 0.5 / n³. `diversity` is distinct-1 of the reference and the",
        "generation together, so it increases with their difference. All metrics use default arguments, except `cider`,",
        "whose corpus consists of all references. In Chinese, Japanese and Thai, word metrics count characters.",
        "`scripts.csv` contains the values with four decimals. SPICE supports only English and is omitted.",
        "",
        f"| metric | {' | '.join(TEXTS)} |",
        f"| --- |{' --- |' * len(TEXTS)}",
    ]
    for name, rows in measured.items():
        cells = (" · ".join(f"{value:.2f}" for value in values) for values in rows)
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    (RESULTS / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # sacrebleu on short texts
    main()
