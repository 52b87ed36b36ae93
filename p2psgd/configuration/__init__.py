"""Options that a command takes from elsewhere than its command line: a TOML file, a preset, the environment.

All of it is derived from the command's own options (Click's default_map and auto_envvar_prefix), so that an
option is declared once, in the command's signature, and can be given in every way.
"""
