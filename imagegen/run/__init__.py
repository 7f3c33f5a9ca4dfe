"""Run containers with the engine, smoke checks and the doctor."""
