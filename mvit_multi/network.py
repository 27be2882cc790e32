"""What the folder of the multi-dataset MViTv2 provides: utils/networks.py documents each field."""

from mvit_multi.config import Config
from utils.networks import Network

NETWORK = Network(
    name="mvit_multi",
    config=Config,
    classifier=r"^(head|expander)\.",  # heads and expander of the data sets
)
