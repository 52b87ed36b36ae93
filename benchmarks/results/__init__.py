"""docs/explanation/results.md, put together from what several benches have measured."""
