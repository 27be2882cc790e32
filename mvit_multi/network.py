"""The record of the folder of the multi-dataset MViTv2; see utils/networks.py for each field."""

from mvit_multi.config import Config
from utils.networks import Network

# The classifier: heads and expander of the data sets.
NETWORK = Network(name="mvit_multi", config=Config, classifier=r"^(head|expander)\.")
