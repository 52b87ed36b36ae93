"""`p2psgd doctor`: what would keep this machine from a run, found before the run, and what mends it.

One check a file, each a function that returns findings. What takes two machines is found together with the
doctors of the others, who run at the same time: `meeting.py`.
"""
