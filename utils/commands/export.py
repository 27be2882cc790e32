"""export.py of every network."""

from typing import NoReturn

from utils import cli
from utils.export.export import check_options, export_network
from utils.networks import Network
from utils.settings import NetworkConfig


def export(network: Network, usage: str) -> NoReturn:
    """Exports a checkpoint as the command line says, and exits; `usage` is the script's docstring.

    The options are those of `check_options`.
    """

    def main(
        cfg: NetworkConfig, *, checkpoint_path: str, overwrite: bool = False, **options
    ) -> None:
        export_network(network, cfg, checkpoint_path, options, overwrite)

    cli.run(main, network.config, usage, check_options)
