"""The ground that every package stands on: errors, tasks and threads, formatting, tables of transitions."""
