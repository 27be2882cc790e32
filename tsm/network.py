"""The record of TSM's network folder; utils/networks.py documents each field."""

from tsm.config import Config
from utils.networks import Network

NETWORK = Network(
    name="tsm", config=Config, classifier=r"^(new_fc|base_model\.(fc|classifier))\.", streams=True
)
