"""Adaptra: schedules that bend around slow links."""
