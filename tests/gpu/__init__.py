"""Tests of the GPU trainer: on a device where there is one, and everywhere on the host (see stand_in/)."""
