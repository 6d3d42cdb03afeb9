"""Readers of logs, one a program that writes them: what each line says has happened."""
