"""A package of somebody else's that uses Groundling; `make lint` checks it by mypy --strict."""
