"""What the folder of ResNet provides: utils/networks.py documents each field."""

from resnet50.config import Config
from utils.networks import Network

NETWORK = Network(name="resnet50", config=Config, classifier=r"^fc\.")
