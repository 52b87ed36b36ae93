"""The driver of docs/engines/ray.md."""

import safetensors.numpy

import p2psgd.ray

result = p2psgd.ray.run("train.py", nodes=(2, 16), arguments=["100000"], weights="weights.safetensors")
print("identical:", result.identical, "digest:", result.digest)
for node in result.report["per_node"]:
    print(node["node"], "on", node["machine"], "made", node["steps"], "steps, starts:", node["starts"])
weights = safetensors.numpy.load(result.weights)
print({name: values.shape for name, values in weights.items()})
