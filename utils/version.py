"""The version of the zoo, which its checkpoints name."""

VERSION = "0.1.0"  # also in pyproject.toml
