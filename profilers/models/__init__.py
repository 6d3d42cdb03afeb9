"""The models rtk brings along, and how a user's own are loaded."""
