"""What the folder of TSM provides; utils/networks.py documents the names."""

from typing import Any, Optional

from tsm import dataset
from tsm.config import CLASSIFIER, Config
from tsm.labels import TSMLabelSpace
from utils.networks import Network


class TSMNetwork(Network[Config]):
    """TSM on one data set of videos or frame folders."""

    name = "tsm"
    config = Config
    train_rows = dataset.TrainVideos
    eval_rows = dataset.EvalVideos
    create_dataset = staticmethod(dataset.create_dataset)
    label_space = TSMLabelSpace
    classifier = CLASSIFIER

    def parameter_names(self):
        from tsm.convert import TSMNames  # here: a training from random weights needs them not

        return TSMNames()

    def build_model(self, **settings: Any):
        from tsm.model import TSM

        return TSM(**settings)

    def find_online_predictor(self, cfg: Config) -> Optional[type]:
        if not cfg.model.online:
            return None
        from tsm.streaming import OnlinePredictor

        return OnlinePredictor


NETWORK = TSMNetwork()
