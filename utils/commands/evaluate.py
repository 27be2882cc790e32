"""eval.py of every network."""

from typing import NoReturn

from utils import cli
from utils.networks import Network
from utils.scoring.evaluation import evaluate_checkpoint
from utils.settings import NetworkConfig


def evaluate(network: Network, usage: str) -> NoReturn:
    """Evaluates a checkpoint as the command line says; `usage` is the docstring of the script.

    Exits with status 1 if samples could not be read, unless `eval.allow_unreadable` is true.
    """

    def main(cfg: NetworkConfig, *, checkpoint_path: str, report: str = "") -> int:
        return evaluate_checkpoint(network, cfg, checkpoint_path, report)

    cli.run(main, network.config, usage)
