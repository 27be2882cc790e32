"""The record of X3D's network folder; utils/networks.py documents each field."""

from utils.networks import Network
from x3d.config import Config

NETWORK = Network(name="x3d", config=Config, classifier=r"^head\.projection\.")
