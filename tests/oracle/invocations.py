"""Invocations of p2psgd that end by themselves and print the same everywhere: most of them are refused.

They run one after the other in one folder, which at first has FILES.
"""

from __future__ import annotations

import shlex
from typing import Final

FILES: Final = {
    "hosts.txt": "10.0.0.1\n10.0.0.2:7316\n",
    "bad-hosts.txt": "10.0.0.1\nnot a host\n",
    "node.toml": 'peers = "hosts.txt"\nname = "one"\nfailure_timeout = 7\nlog_budget = 512\n',
    "unknown-key.toml": 'peers = "hosts.txt"\nlogbudget = 512\n',
    "wrong-type.toml": 'peers = "hosts.txt"\nfailure_timeout = "long"\n',
    "no-toml.toml": "peers = \n",
    "empty-recipe.toml": "",
    "unknown-recipe-key.toml": 'name = "x"\ndata = "digits"\nhidden = [8]\nlearning_rat = 0.1\n',
    "wrong-recipe.toml": 'name = "x"\ndata = "digits"\nhidden = [0]\nbatch = -1\nlearning_rate = 0.1\n',
    "text.txt": "neither weights nor a recording\n",
    "weights.npz": "no weights",
    "shards.json": "[]",
}
_NODE: Final = "node --peers hosts.txt --listen 127.0.0.1:7315 --name one"
_SHOW: Final = "config show --name one --state state"


INVOCATIONS: Final = tuple(
    tuple(shlex.split(words))
    for words in (
        # the command line itself
        "--no-such-option",
        "no-such-command",
        "node --no-such-option",
        "status --json=3",
        "ca",
        "ca no-such-command",
        # node
        "node",
        "node --peers absent.txt",
        "node --peers bad-hosts.txt",
        "node --peers hosts.txt",
        f"{_NODE} --failure-timeout 0.1",
        f"{_NODE} --failure-timeout long",
        f"{_NODE} --listen nowhere:x",
        f"{_NODE} --listen 127.0.0.1:70000",
        f"{_NODE} --listen 192.0.2.1:7315",
        f"{_NODE} --rank 4/4",
        f"{_NODE} --rank x",
        f"{_NODE} --bootstrap-expect 0",
        f"{_NODE} --log-budget 0",
        f"{_NODE} --log-format xml",
        f"{_NODE} --http 127.0.0.1",
        f"{_NODE} --http 192.0.2.1:9400",
        f"{_NODE} --http-exposed",
        f"{_NODE} --advertise nowhere:x",
        f"{_NODE} --tls absent",
        f"{_NODE} --tls .",
        f"{_NODE} --control-group nobody-has-this",
        f"{_NODE} --state text.txt",
        "node --config absent.toml",
        "node --config unknown-key.toml",
        "node --config wrong-type.toml",
        "node --config no-toml.toml",
        # the configuration
        "config show --state state",
        f"{_SHOW} --peers hosts.txt",
        f"{_SHOW} --peers hosts.txt --insecure-plaintext",
        f"{_SHOW} --peers hosts.txt --listen 127.0.0.1:7315",
        f"{_SHOW} --peers hosts.txt --json",
        f"{_SHOW} --peers hosts.txt --failure-timeout 20 --insecure-plaintext --json",
        "config show --state state --config node.toml --insecure-plaintext --json",
        "config show --state state --config node.toml --insecure-plaintext",
        "config show --config unknown-key.toml",
        # train and local
        "train --recipe absent",
        "train --recipe absent.toml",
        "train --recipe empty-recipe.toml",
        "train --recipe unknown-recipe-key.toml",
        "train --recipe wrong-recipe.toml",
        "train --recipe digits --steps 0",
        "train --recipe digits --steps 5 --seconds 5",
        "train --recipe digits --mode foo",
        "train --recipe digits --mode async --payload dense",
        "train --recipe digits --payload dense",
        "train --recipe digits --rank 3",
        "train --recipe digits --device tpu",
        "local -n 0",
        "local -n 65",
        "local --recipe absent",
        "local --recipe wrong-recipe.toml",
        "local --recipe digits --steps 5 --seconds 5",
        "local --recipe digits --failure-timeout 1000",
        "local --recipe digits --report absent/report.json",
        "local --recipe digits --weights w.npz --report w.npz",
        "local --recipe digits --initial absent.npz",
        "local --recipe digits --initial weights.npz",
        "local --recipe digits --weights weights.txt",
        "local --recipe digits --http nowhere",
        # recipes
        "recipe",
        "recipe digits",
        "recipe speech",
        "recipe absent",
        # no daemon
        "status --state absent",
        "status",
        "top --once --state absent",
        "top --once --url http://127.0.0.1:1",
        "top --once --url nonsense",
        "top --state . --url http://127.0.0.1:1",
        "top --interval 0",
        "events --state absent",
        "events -n 0",
        "digest --state absent",
        "remove node-1 --state absent",
        "remove",
        "export out.npz --state absent",
        "export out.txt",
        # files
        "checkpoint list --state absent",
        "checkpoint export w.npz --number 0",
        "checkpoint export out.npz --state absent",
        "checkpoint export out.txt --state .",
        "data index absent",
        "data index .",
        # certificates
        "ca issue one",
        "ca bundle one",
        "ca init authority --run test",
        "ca init authority --run test",
        "ca init other --run ''",
        "ca issue one one --ca authority",
        "ca issue one --id xyz --ca authority",
        "ca issue one --days 0 --ca authority",
        "ca bundle absent --ca authority",
        # doctor
        "doctor",
        "doctor --peers absent.txt",
        "doctor --peers bad-hosts.txt",
        "doctor --peers hosts.txt --wait 0",
        "doctor --config unknown-key.toml",
    )
)
