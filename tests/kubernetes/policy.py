"""Evaluates the chart's expressions as the API server does: which pods the webhook is asked about,
and which of them are refused.

policy.py FILE: the chart's objects, a list in JSON.
"""

import json
import sys

import celpy

with open(sys.argv[1]) as file:
    chart = json.load(file)
policy = next(o for o in chart if o["kind"] == "ValidatingAdmissionPolicy")["spec"]
environment = celpy.Environment()


def program(expression):
    return environment.program(environment.compile(expression))


[asks] = [program(condition["expression"]) for condition in policy["matchConditions"]]
[allowed] = [program(validation["expression"]) for validation in policy["validations"]]


def pod(annotations=None, labels=None, limits=None, init_limits=None):
    spec = {"containers": [{"name": "first"}, {"name": "main"}]}
    if limits:
        spec["containers"][1]["resources"] = {"limits": limits}
    if init_limits:
        spec["initContainers"] = [{"name": "init", "resources": {"limits": init_limits}}]
    metadata = {"name": "pod"}
    if annotations:
        metadata["annotations"] = annotations
    if labels:
        metadata["labels"] = labels
    return {"metadata": metadata, "spec": spec}


SHARE = {"sluice.dev/share": "0.25"}
# A pod, whether it asks, and whether it may be made.
CASES = {
    "nothing": (pod(), False, False),
    "another annotation": (pod({"team": "red"}, {"app": "web"}), False, False),
    "other limits": (pod(limits={"cpu": "1"}), False, False),
    "no GPU, in so many words": (pod(limits={"nvidia.com/gpu": "0"}), False, False),
    "none, as a number": (pod(limits={"nvidia.com/gpu": 0}), False, False),
    "a share": (pod(SHARE), True, False),
    "memory": (pod({"sluice.dev/memory": "8Gi"}), True, False),
    "a GPU of a container": (pod(limits={"sluice.dev/gpu": 1}), True, False),
    "a GPU of an init container": (pod(init_limits={"nvidia.com/gpu": "1"}), True, False),
    "a fraction of KAI": (pod({"gpu-fraction": "0.5"}), True, False),
    "changed by the webhook": (pod(SHARE, {"sluice.dev/injected": "true"}), True, True),
}
wrong = 0
for name, (object_, wanted_asks, wanted_allowed) in CASES.items():
    activation = {"object": celpy.json_to_cel(object_)}
    found = bool(asks.evaluate(activation)), bool(allowed.evaluate(activation))
    if found != (wanted_asks, wanted_allowed):
        print(f"{name}: asks and may be made: {found}", file=sys.stderr)
        wrong += 1
sys.exit(wrong > 0)
