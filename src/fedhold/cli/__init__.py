from fedhold.cli.app import main

__all__ = ["main"]
