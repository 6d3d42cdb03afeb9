"""Oobleck (SOSP 2023): pipeline templates, unlike pipelines, and reconfiguration after failures."""
