"""Averages the scores of several evaluations of one list, for example of RGB and flow networks.

    python scripts/analysis/fuse_scores.py REPORT REPORT [...] [--weights 1 1.5]
        [--average logarithms] [--report DIR]

A REPORT is the folder that `eval.py --report` wrote. `--average probabilities` takes the weighted
mean of the probabilities; `logarithms`, the default, that of their logarithms. The logarithm of a
probability is the raw score minus a constant of the video: for networks whose reports are a softmax
of raw scores (tsm, resnet50) the prediction is that of averaged raw scores, as in the original TSM.
A video that is unreadable in one report is unreadable in the result.

The last line of stdout is one JSON object: top1, top5, mean_class_accuracy, loss, videos,
unreadable, average, weights, and the top-1 of each report. `--report` writes the files of
docs/evaluation.md.
"""

import sys
from pathlib import Path
from typing import Literal, Optional

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.runtime import prepare_process

prepare_process()

import numpy as np

from scripts.analysis.score_files import find_difference, read_scores
from utils import cli
from utils.evaluate.metrics import Counts
from utils.evaluate.report import MIN_PROBABILITY, compute_predictions, write_report
from utils.files import report_write_errors
from utils.log import print_result
from utils.runtime import Runtime


def main(
    reports: list[Path],
    *,
    weights: Optional[list[cli.NonNegativeFloat]] = None,
    average: Literal["logarithms", "probabilities"] = "logarithms",
    report: Optional[Path] = None,
) -> None:
    if len(reports) < 2:
        raise ValueError("REPORT: name at least two folders of eval.py --report")
    factors = np.asarray(weights or [1.0] * len(reports))
    if len(factors) != len(reports) or not factors.sum():
        raise ValueError(f"--weights: give {len(reports)} numbers, one of them above 0")
    read = [read_scores(folder / "scores.csv") for folder in reports]
    samples = read[0][0]
    for folder, (other, _) in zip(reports[1:], read[1:]):
        difference = find_difference(samples, other)
        if difference:
            raise ValueError(f"{folder} and {reports[0]} are not of one list: {difference}")
    tables = [rows for _, rows in read]
    fused = fuse(tables, factors / factors.sum(), average)
    predictions = compute_predictions(fused, samples.labels, softmax=average == "logarithms")
    result = {
        **count_hits(fused, average == "logarithms"),
        "unreadable": int((~predictions.readable).sum()),
        "average": average,
        "weights": factors.tolist(),
        "reports": {str(folder): count_hits(rows)["top1"] for folder, rows in zip(reports, tables)},
    }
    if report:
        with report_write_errors(report, "--report"):
            report.mkdir(parents=True, exist_ok=True)
        write_report(report, samples=samples, predictions=predictions, result=result)
    print_result(result, Runtime())


def fuse(tables: list[np.ndarray], weights: np.ndarray, average: str) -> np.ndarray:
    """The weighted mean of scores; the other columns are those of rows readable in all tables."""
    fused = tables[0].copy()
    scores = np.stack([table[:, :-2] for table in tables])
    if average == "logarithms":
        scores = np.log(np.maximum(scores, MIN_PROBABILITY))
    fused[:, :-2] = np.tensordot(weights, scores, axes=1)
    fused[:, -1] = np.min([table[:, -1] for table in tables], axis=0)
    return fused


def count_hits(rows: np.ndarray, raw_scores: bool = False) -> dict[str, float]:
    """The accuracies and the loss of the readable rows."""
    readable = rows[rows[:, -1] > 0]
    counts = Counts(rows.shape[1] - 2, raw_scores)
    counts.add(readable[:, :-2], readable[:, -2].astype(np.int64))
    return counts.accuracies()


if __name__ == "__main__":
    cli.run_command(main, __doc__)
