"""Run containers: the engine, smoke checks and the doctor."""
