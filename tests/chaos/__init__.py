"""Real nodes, real trainers and real faults on one machine: `make chaos`, see README.md."""
