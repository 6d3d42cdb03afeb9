"""What a running job does when workers fail, join or slow down: the next plan, by one of the planners."""
