"""p2psgd beside what people would otherwise take: PyTorch DDP over gloo with whole, half and low-rank
gradients, and hivemind. All train the same net on the same samples, on hosts with shaped links: first a net
for frames of speech by SGD, then a byte-level GPT by AdamW.

    python -m benchmarks.rivals [--task speech|gpt] [--only PATTERN] [--short]

needs root and a quiet machine; it writes docs/explanation/rivals*, and goes on where it was interrupted.
`make rivals` sets up its environment.
"""
