"""eval.py of every network: the evaluation of a checkpoint on all its test sets.

How one video becomes a score: `build_eval_rows` of the network gives rows, which decode a video and
crop its views (utils/data/rows.py); `create_dataset` makes batches of them. `metrics.evaluate`
hands each batch to `video_scores` (utils/evaluate/scorer.py), which cuts all views into passes and
averages the scores over the views of a video. A pass is one call of the scorer that `open_scorer`
has opened (utils/inference/load.py): a Cell, or a file in the session of an inference engine
(utils/inference/engines.py). Then the scores are compared with the label.
"""

from pathlib import Path
from typing import NoReturn

import numpy as np

from utils import cli, log, runtime
from utils.evaluate import metrics
from utils.evaluate.metrics import EvalSet, write_result_file
from utils.evaluate.report import Report
from utils.evaluate.report_page import OWN, Samples, write_index
from utils.files import check_folder
from utils.inference.checkpoint import use_own_names
from utils.inference.load import open_scorer
from utils.networks import Network
from utils.settings import NetworkConfig, VideoSet
from utils.weights.checkpoint_file import open_weights
from utils.weights.published import compare_accuracy


def evaluate(network: Network, usage: str) -> NoReturn:
    """Evaluates a checkpoint as the command line says; `usage` is the docstring of the script.

    Exits with status 1 if samples could not be read, unless `eval.allow_unreadable` is true.
    """

    def main(cfg: NetworkConfig, *, checkpoint_path: str, report: str = "") -> int:
        return evaluate_checkpoint(network, cfg, checkpoint_path, report)

    cli.run(main, network.config, usage)


def evaluate_checkpoint(
    network: Network, cfg: NetworkConfig, checkpoint_path: str, report: str = ""
) -> int:
    """Prints and writes the metrics of a checkpoint on all views of the test samples.

    `report` is a folder for tables and a page, or empty. Returns the exit status: 1 if samples were
    unreadable, unless eval.allow_unreadable.
    """
    rt = runtime.start(cfg.run)
    log.start_log(rt)
    file = open_weights(Path(checkpoint_path))
    spaces = network.list_label_spaces(cfg)
    use_own_names(spaces, file)
    eval_sets = []
    reports: list[Report] = []
    for k, rows in network.build_eval_rows(cfg, rt, spaces).items():
        space = spaces[k]
        doubt = ""  # whether the labels of a list can be compared with the network's
        named = space.test_list.labels_path if space.test_list is not None else None
        if named is not None and not (space.own_names and named.is_file()):
            missing = f"{named} does not exist"
            missing = missing if space.own_names else "the checkpoint has no class names"
            doubt = f"{missing}; does {space.test_path} number the classes as the training did?"
        eval_sets.append(EvalSet(rows, space, network.create_dataset, doubt=doubt))
        if report:
            labels = [record.label for record in rows.records]
            names = rows.records.list_names()
            samples = Samples(names, labels, space.list_names(), rows=rows, space=space)
            folder = Path(report) / space.name
            if space.name and not reports and rt.is_main_process:  # the page is above the sets
                own = {f"{space.name}/{name}": start for name, start in OWN.items()}
                check_folder(Path(report), own, "--report")
            reports.append(Report(folder, samples, rows.samples_of_rank, space, rt))
            eval_sets[-1] = eval_sets[-1]._replace(collect=reports[-1].table.add)
    scorer = open_scorer(network, cfg, file)
    del file  # its arrays are in the scorer, while it needs them
    log.log.info("evaluating ...")
    result = metrics.evaluate(scorer, eval_sets, rt)
    paths = [str(eval_set.space.test_path) for eval_set in eval_sets]
    result.update(checkpoint=str(checkpoint_path), list=", ".join(paths))
    write_result_file(checkpoint_path, result, rt)
    if "sets" in result and rt.is_main_process:
        print(f"{'data set':16s} {'views':>6s} {'videos':>8s} {'top-1':>7s} {'top-5':>7s}  95 %")
        for name, values in {**result["sets"], "average": {**result, "views": ""}}.items():
            top5 = "–" if values["top5"] is None else f"{100 * values['top5']:.2f}"
            low, high = (100 * values.get(f"top1_{end}", np.nan) for end in ("low", "high"))
            interval = "" if np.isnan(low) else f"  {low:.1f} to {high:.1f}"
            numbers = f"{values['videos']:8d} {100 * values['top1']:7.2f} {top5:>7s}"
            print(f"{name:16s} {values['views']:>6s} {numbers}{interval}")
    if rt.is_main_process and (line := compare_accuracy(Path(checkpoint_path), result)):
        log.log.info(line)
    log.print_result(result, rt)
    sets = {}
    for written in reports:
        name = written.space.name
        values = {**result["sets"][name], "checkpoint": result["checkpoint"]} if name else result
        sets[name] = written.write({**values, **describe_origin(cfg, name)})
    if reports and "" not in sets and rt.is_main_process:  # the page of all, above their folders
        write_index(Path(report), sets=sets, average=result)
    return 1 if result["unreadable"] and not cfg.eval.allow_unreadable else 0


def describe_origin(cfg: NetworkConfig, data_set: str) -> dict[str, str]:
    """The recipe and the data set of a report, without the folders above them.

    A recipe is named by the folder of its run. `data_set` is a name, empty if there is one.
    """
    recipe = [part for part in cfg.run.out.parts[-2:] if part != "out"]
    if isinstance(cfg.data, VideoSet):
        data_set = Path(cfg.data.test_list).name
    data_set = "/".join(filter(None, [cfg.data.root.name, data_set]))
    return {"recipe": "/".join(recipe), "data_set": data_set}
