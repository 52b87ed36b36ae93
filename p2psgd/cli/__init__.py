"""The command line: commands, their options and configuration, and what only commands do."""
