"""Root of the tests; pytest allows this line only here."""

pytest_plugins = ["pytester"]
