"""What runs inside a training program that `rtk monitor` watches."""
