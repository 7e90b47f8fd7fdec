"""The operator's control law in virtual time: a plant of vLLM engines, and the closed loop around it."""
