"""What executes a Plan: the simulator on a virtual clock, torch on real ranks."""
