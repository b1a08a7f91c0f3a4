"""`python -m outfit.train`: a package with relative imports."""

from __future__ import annotations

from tiny import train

from .model import build


def main() -> int:
    net = build()
    train(net)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
