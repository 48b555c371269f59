"""renderers.py reads a network-config and prints what cloud-init's own code writes of it: the text for netplan, and for each
other renderer, so that their limits are seen.
"""
import json
import os
import sys
import tempfile

import yaml
from cloudinit.net import eni, netplan, network_state, networkd

config = json.load(sys.stdin)


def state():
    return network_state.parse_net_config_data(json.loads(json.dumps(config)))


with tempfile.TemporaryDirectory() as top:
    netplan.Renderer({"netplan_path": "netplan.yaml", "postcmds": False}).render_network_state(state(), target=top)
    with open(os.path.join(top, "netplan.yaml")) as f:
        written = yaml.safe_load(f)["network"]

json.dump({"netplan": written, "eni": eni.network_state_to_eni(state()),
           "networkd": "".join(networkd.network_state_to_networkd(state()).values())}, sys.stdout)
