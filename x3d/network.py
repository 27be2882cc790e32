"""What the folder of X3D provides; utils/networks.py documents the names."""

from typing import Any

from utils.networks import Network
from x3d import dataset
from x3d.config import Config
from x3d.convert import X3DNames
from x3d.labels import X3DLabelSpace


class X3DNetwork(Network[Config]):
    """X3D on one data set of videos."""

    name = "x3d"
    config = Config
    train_rows = dataset.TrainVideos
    eval_rows = dataset.EvalVideos
    create_dataset = staticmethod(dataset.create_dataset)
    label_space = X3DLabelSpace
    parameter_names = X3DNames

    def build_model(self, **settings: Any):
        from x3d.model import X3D

        return X3D(**settings)


NETWORK = X3DNetwork()
