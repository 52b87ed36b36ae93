"""CUDA kernels compiled for the host from their unchanged source, and launched: see cuda_on_host.hpp."""
